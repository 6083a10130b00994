#!/usr/bin/env python3
"""Prints Cargo settings that keep this machine's folders out of the module, so that one commit makes one module everywhere.

    remap_paths.py > target/remap.toml; cargo rustc --config target/remap.toml …

Panic messages carry the paths of source files. Those of this package become /warmroute, those of dependencies /cargo, and
those of the standard library what they are in a toolchain without its sources.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = "wasm32-unknown-unknown"


def output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def remaps():
    """(folder, its name in the module); of several that fit a path the last one counts."""
    yield ROOT, "/warmroute"
    metadata = ["cargo", "metadata", "--format-version=1", "--locked", "--features=filter", f"--filter-platform={TARGET}"]
    packages = json.loads(output(*metadata))["packages"]
    # A registry's sources are in a folder named after it, and that folder in the user's home.
    for folder in sorted({Path(package["manifest_path"]).parent.parent for package in packages if package["source"]}):
        yield folder, "/cargo"
    sysroot = output("rustc", "--print", "sysroot").strip()
    version = dict(line.split(": ", 1) for line in output("rustc", "-vV").splitlines() if ": " in line)
    yield Path(sysroot) / "lib/rustlib/src/rust", f"/rustc/{version['commit-hash']}"


def main():
    flags = [f"--remap-path-prefix={folder}={name}" for folder, name in remaps()]
    # A list in a further file is added to that of .cargo/config.toml. JSON's strings are TOML's.
    print(f"[target.{TARGET}]\nrustflags = {json.dumps(flags)}")


if __name__ == "__main__":
    try:
        main()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"remap_paths.py: {error}")
