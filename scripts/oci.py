#!/usr/bin/env python3
"""Writes the module as an OCI image that Istio and Envoy Gateway pull, with its checksum and its parts list.

    oci.py write MODULE FOLDER     FOLDER/oci          an OCI image layout of one image: the variant `compat` of Wasm images, whose
                                                       one layer holds plugin.wasm
                                   FOLDER/warmroute.wasm, FOLDER/sbom.cdx.json (CycloneDX 1.5), FOLDER/SHA256SUMS
    oci.py check FOLDER            reads all of it back: digests, sizes, media types, the module in the layer

The same module and commit give the same bytes, on any machine: no clock, no user, no compressor is in them. The time that the image
has is the commit's, or $SOURCE_DATE_EPOCH.
"""

import hashlib
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import zlib
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = "wasm32-unknown-unknown"
MODULE_NAME = "warmroute.wasm"
# Where Istio and Envoy Gateway look for the module in the layer.
PLUGIN = "plugin.wasm"

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"

# The longest stored block of deflate.
BLOCK = 65535


class Invalid(Exception):
    """What is wrong with a folder that was written."""


def output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def canonical(value):
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


# === what it is made from ===


def commit():
    """The commit, marked where files differ from it, and its time; none outside a repository."""
    try:
        name, seconds = output("git", "log", "-1", "--format=%H %ct").split()
        dirty = output("git", "status", "--porcelain", "--untracked-files=no").strip()
    except (OSError, subprocess.CalledProcessError, ValueError):
        name, seconds, dirty = None, "0", ""
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or seconds)
    return f"{name}+changed" if dirty else name, seconds


def time_text(seconds):
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def metadata():
    """Cargo's metadata as of the module's features and target."""
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--features=filter", f"--filter-platform={TARGET}"]
    return json.loads(output(*command))


def linked(graph):
    """The ids of the packages whose code can be in the module, each with those that it depends on: the root and what it reaches
    by dependencies that are neither for building nor for tests. Macros run in the compiler, and so does what only they need."""
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    macros = {package["id"] for package in graph["packages"] if any("proc-macro" in t["kind"] for t in package["targets"])}
    edges, waiting = {}, [graph["resolve"]["root"]]
    while waiting:
        package = waiting.pop()
        if package in edges:
            continue
        normal = [dep["pkg"] for dep in nodes[package]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        edges[package] = sorted(set(normal) - macros)
        waiting += edges[package]
    return edges


def checksums():
    """SHA-256 of every crate in Cargo.lock, by name and version."""
    found, entry = {}, {}
    for line in (ROOT / "Cargo.lock").read_text().splitlines():
        if line == "[[package]]":
            entry = {}
        elif " = " in line:
            key, value = line.split(" = ", 1)
            entry[key] = value.strip('"')
            if key == "checksum":
                found[entry["name"], entry["version"]] = entry[key]
    return found


def sbom(graph, module, seconds):
    """The parts list, as CycloneDX 1.5 has it."""
    edges, sums = linked(graph), checksums()
    packages = {package["id"]: package for package in graph["packages"] if package["id"] in edges}
    purls = {id: f"pkg:cargo/{package['name']}@{package['version']}" for id, package in packages.items()}
    root = graph["resolve"]["root"]

    def component(id):
        package = packages[id]
        entry = {"type": "library", "bom-ref": purls[id], "name": package["name"], "version": package["version"], "purl": purls[id]}
        if package["license"]:
            # Older crates write A/B for A OR B.
            entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        if (checksum := sums.get((package["name"], package["version"]))) is not None:
            entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return entry

    subject = component(root) | {"type": "application", "hashes": [{"alg": "SHA-256", "content": sha256(module)}]}
    others = sorted((id for id in edges if id != root), key=purls.get)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": time_text(seconds), "component": subject},
        "components": [component(id) for id in others],
        "dependencies": [
            {"ref": purls[id], "dependsOn": sorted(purls[other] for other in edges[id])} for id in sorted(edges, key=purls.get)
        ],
    }


# === the image ===


def tar(name, data):
    """A tar of one file that nobody owns."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode, entry.mtime = len(data), 0o644, 0
        archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def gzip(data):
    """A gzip of stored blocks: what a compressor makes of the same bytes differs from one version to the next."""
    blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)] or [b""]
    head = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
    body = b"".join(
        struct.pack("<BHH", at == len(blocks) - 1, len(block), len(block) ^ 0xFFFF) + block for at, block in enumerate(blocks)
    )
    return head + body + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def write_layout(folder, module, version, revision, seconds):
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(media_type, data):
        (blobs / sha256(data)).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{sha256(data)}", "size": len(data)}

    created = time_text(seconds)
    layer = tar(PLUGIN, module)
    # What runs it is Envoy, on any machine: this is what every client takes a single image for.
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": created,
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer)}"]},
        "history": [{"created": created, "created_by": f"COPY {PLUGIN} /"}],
    }
    annotations = {
        "module.wasm.image/variant": "compat",
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.title": "warmroute",
        "org.opencontainers.image.version": version,
    }
    if revision:
        annotations["org.opencontainers.image.revision"] = revision
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": blob(CONFIG_TYPE, canonical(config)),
        "layers": [blob(LAYER_TYPE, gzip(layer))],
        "annotations": annotations,
    }
    entry = blob(MANIFEST_TYPE, canonical(manifest)) | {"annotations": {"org.opencontainers.image.ref.name": version}}
    (folder / "index.json").write_bytes(canonical({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]}))
    (folder / "oci-layout").write_bytes(canonical({"imageLayoutVersion": "1.0.0"}))
    return entry["digest"]


def write(module_path, folder):
    """Replaces what is in the folder."""
    module = Path(module_path).read_bytes()
    graph, (revision, seconds) = metadata(), commit()
    version = next(package["version"] for package in graph["packages"] if package["id"] == graph["resolve"]["root"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    digest = write_layout(folder / "oci", module, version, revision, seconds)
    (folder / MODULE_NAME).write_bytes(module)
    (folder / "sbom.cdx.json").write_bytes(canonical(sbom(graph, module, seconds)))
    names = [MODULE_NAME, "oci/index.json", "sbom.cdx.json"]
    sums = "".join(f"{sha256((folder / name).read_bytes())}  {name}\n" for name in names)
    (folder / "SHA256SUMS").write_text(sums)
    print(f"{folder}/oci: {version}, {digest}")


# === reading it back ===


def expect(condition, problem):
    if not condition:
        raise Invalid(problem)


def read_blob(layout, descriptor, media_type):
    """A blob, if it is what its descriptor says and of that type."""
    expect(descriptor["mediaType"] == media_type, f"media type {descriptor['mediaType']}, expected {media_type}")
    algorithm, digest = descriptor["digest"].split(":")
    data = (layout / "blobs" / algorithm / digest).read_bytes()
    expect(len(data) == descriptor["size"], f"{digest} has {len(data)} bytes, expected {descriptor['size']}")
    expect(sha256(data) == digest, f"{digest} has the digest {sha256(data)}")
    return data


def module_of(layout):
    """The module in a layout, as Istio and Envoy Gateway read the variant `compat`."""
    version = json.loads((layout / "oci-layout").read_bytes())["imageLayoutVersion"]
    expect(version == "1.0.0", f"image layout version {version}, expected 1.0.0")
    manifests = json.loads((layout / "index.json").read_bytes())["manifests"]
    expect(len(manifests) == 1, f"{len(manifests)} manifests, expected 1")
    manifest = json.loads(read_blob(layout, manifests[0], MANIFEST_TYPE))
    config = json.loads(read_blob(layout, manifest["config"], CONFIG_TYPE))
    expect(len(manifest["layers"]) == 1, f"{len(manifest['layers'])} layers, expected 1")
    layer = zlib.decompress(read_blob(layout, manifest["layers"][0], LAYER_TYPE), wbits=31)
    expect(config["rootfs"]["diff_ids"] == [f"sha256:{sha256(layer)}"], "diff_ids are not those of the layer")
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        expect(archive.getnames() == [PLUGIN], f"the layer has {archive.getnames()}, expected {PLUGIN}")
        return archive.extractfile(PLUGIN).read()


def check(folder):
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        expect(sha256((folder / name).read_bytes()) == digest, f"{name} is not what SHA256SUMS says")
    expect(module_of(folder / "oci") == (folder / MODULE_NAME).read_bytes(), f"the layer's module is not {MODULE_NAME}")
    subject = json.loads((folder / "sbom.cdx.json").read_bytes())["metadata"]["component"]
    digest = sha256((folder / MODULE_NAME).read_bytes())
    expect(subject["hashes"][0]["content"] == digest, "sbom.cdx.json is of another module")


def main(arguments):
    match arguments:
        case ["write", module, folder]:
            write(module, Path(folder))
        case ["check", folder]:
            check(Path(folder))
        case _:
            sys.exit(__doc__.strip())


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (Invalid, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"oci.py: {error}")
