"""The module as an OCI image, read back as Istio and Envoy Gateway do."""

import contextlib
import filecmp
import io
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from needed import ROOT  # which makes the scripts importable

import oci

MODULE = ROOT / "target" / "warmroute.wasm"


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class Image(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        work = tempfile.TemporaryDirectory()
        cls.addClassCleanup(work.cleanup)
        cls.folder = Path(work.name) / "out"
        with contextlib.redirect_stdout(io.StringIO()):
            oci.write(MODULE, cls.folder)

    def manifest(self):
        layout = self.folder / "oci"
        entry = json.loads((layout / "index.json").read_bytes())["manifests"][0]
        return json.loads((layout / "blobs/sha256" / entry["digest"].split(":")[1]).read_bytes())

    def test_it_reads_back(self):
        oci.check(self.folder)
        self.assertEqual(oci.module_of(self.folder / "oci"), MODULE.read_bytes())
        done = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=self.folder, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_the_layer_is_what_other_programs_unpack(self):
        digest = self.manifest()["layers"][0]["digest"].split(":")[1]
        blob = self.folder / "oci/blobs/sha256" / digest
        with tempfile.TemporaryDirectory() as into:
            subprocess.run(["tar", "-xzf", blob, "-C", into], check=True)
            self.assertEqual(files(Path(into)), ["plugin.wasm"])
            self.assertEqual((Path(into) / "plugin.wasm").read_bytes(), MODULE.read_bytes())

    def test_it_is_the_variant_compat(self):
        manifest = self.manifest()
        self.assertEqual(manifest["annotations"]["module.wasm.image/variant"], "compat")
        self.assertEqual(manifest["mediaType"], "application/vnd.oci.image.manifest.v1+json")
        self.assertEqual(manifest["config"]["mediaType"], "application/vnd.oci.image.config.v1+json")
        layers = [layer["mediaType"] for layer in manifest["layers"]]
        self.assertEqual(layers, ["application/vnd.oci.image.layer.v1.tar+gzip"])

    def test_a_second_run_gives_the_same_bytes(self):
        with tempfile.TemporaryDirectory() as work:
            second = Path(work) / "elsewhere"
            command = [sys.executable, ROOT / "scripts/oci.py", "write", MODULE, second]
            subprocess.run(command, check=True, capture_output=True, cwd="/")
            self.assertEqual(files(second), files(self.folder))
            for name in files(second):
                self.assertTrue(filecmp.cmp(second / name, self.folder / name, shallow=False), name)

    def test_a_byte_that_is_changed_anywhere_is_found(self):
        for name in files(self.folder):
            if name in ("oci/oci-layout", "SHA256SUMS"):
                continue
            with self.subTest(name):
                path = self.folder / name
                whole = path.read_bytes()
                middle = len(whole) // 2
                path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
                with self.assertRaises((oci.Invalid, ValueError, KeyError, OSError)):
                    oci.check(self.folder)
                path.write_bytes(whole)
        oci.check(self.folder)


class PartsList(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.module = MODULE.read_bytes()
        cls.sbom = oci.sbom(oci.metadata(), cls.module, 0)

    def test_it_lists_what_is_in_the_module_and_nothing_of_the_hub(self):
        listed = {component["name"] for component in self.sbom["components"]}
        # Every crate whose sources a panic message of the module names.
        named = set(re.findall(rb"/([a-z0-9_-]+)-\d+\.\d+\.\d+[a-z0-9.-]*/src/", self.module)) - {b"dlmalloc", b"hashbrown"}
        self.assertGreater(len(named), 5)
        self.assertEqual({name.decode() for name in named} - listed, set())
        for other in ("tokio", "tonic", "serde_derive", "prost-build", "criterion"):
            self.assertNotIn(other, listed)

    def test_every_part_has_its_licence_and_checksum_and_a_place_in_the_graph(self):
        components = self.sbom["components"]
        references = {component["bom-ref"] for component in components}
        for component in components:
            self.assertRegex(component["hashes"][0]["content"], r"^[0-9a-f]{64}$", component["name"])
            self.assertNotIn("/", component["licenses"][0]["expression"], component["name"])
        root = self.sbom["metadata"]["component"]
        self.assertEqual(root["hashes"][0]["content"], oci.sha256(self.module))
        self.assertEqual({entry["ref"] for entry in self.sbom["dependencies"]}, references | {root["bom-ref"]})
        reached = {other for entry in self.sbom["dependencies"] for other in entry["dependsOn"]}
        self.assertEqual(reached, references)


class Module(unittest.TestCase):
    def test_it_names_no_folder_of_this_machine(self):
        module = MODULE.read_bytes()
        for folder in (ROOT, Path.home()):
            self.assertEqual(module.count(f"{folder}/".encode()), 0, f"{folder}: built without scripts/remap_paths.py")
