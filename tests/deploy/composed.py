"""The services of docker-compose.yml as local processes: their exact commands and configurations, without containers.

A container has an address, files and a name of its own. Here each service gets one loopback address for all its own, a folder for
its files, and the name server below for its names; this file is the one place where texts are rewritten for that:

    0.0.0.0, 127.0.0.1 and tcp://* of a service   become its loopback address
    <service>:<port>                              becomes that service's address, the port stays
    /etc/envoy/envoy.yaml and the like            become the same path in the service's folder

and the hub and Envoy are told of the name server, which in Docker their system knows.
"""

import json
import os
import random
import re
import shlex
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from nameserver import NameServer
from needed import ROOT, needed, tools

# Services that are run; what of the others is checked is in their tests.
RUN = ["engine-0", "engine-1", "engine-2", "hub", "envoy", "chats", "prometheus"]
# An image that is not built here begins its command with this.
ENTRYPOINTS = {"prom/prometheus": ["/bin/prometheus"]}
BINARIES = ROOT / "target" / "debug"
HEALTHY_WITHIN = 300
LINES_SHOWN = 30


def config(*files):
    """The compose files as Docker Compose reads them."""
    names = [part for file in files for part in ("-f", str(ROOT / file))]
    command = [needed(tools.compose), "--project-directory", str(ROOT), *names, "config", "--format", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


def stages():
    """The Dockerfile's stages by name, each as its instructions: (word, the rest)."""
    text = (ROOT / "Dockerfile").read_text()
    text = re.sub(r"\\\n", " ", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    found, current = {}, []
    for line in filter(None, text.splitlines()):
        word, rest = line.split(None, 1)
        if word == "FROM":
            current = found.setdefault(rest.split(" AS ")[1], [])
        current.append((word, " ".join(rest.split())))
    return found


def programs():
    """What a program of an image is on this machine."""
    return {
        "/usr/local/bin/warmroute-hub": BINARIES / "warmroute-hub",
        "/usr/local/bin/fake-engine": BINARIES / "fake-engine",
        "/usr/local/bin/loadgen": BINARIES / "loadgen",
        "/usr/local/bin/envoy": Path(os.environ.get("WARMROUTE_ENVOY") or needed(tools.envoy)),
        "/bin/prometheus": Path(needed(tools.prometheus, "prometheus")),
    }


def image_files():
    """What images have beside their programs, by path; as the Dockerfile's COPY says."""
    return {"/models": ROOT / "demo" / "models", "/etc/envoy/warmroute.wasm": ROOT / "target" / "warmroute.wasm"}


class Composed:
    """The running services. `with Composed() as composed: …`"""

    def __init__(self):
        self.services = config("docker-compose.yml")["services"]
        network = f"127.{random.randrange(64, 128)}.{random.randrange(256)}"
        self.addresses = {name: f"{network}.{number}" for number, name in enumerate(sorted(self.services), start=11)}
        self.folder = Path(tempfile.mkdtemp(prefix="warmroute-compose-"))
        self.names = NameServer((f"{network}.10", 5353), self.records())
        self.programs = programs()
        self.processes = {}

    def records(self):
        """The addresses of every name: services and what they have in common."""
        found = {}
        for name, service in self.services.items():
            for alias in [name, *(service["networks"]["default"] or {}).get("aliases", [])]:
                found.setdefault(alias, []).append(self.addresses[name])
        return found

    def __enter__(self):
        try:
            for program in self.programs.values():
                if not program.exists():
                    raise AssertionError(f"{program} is missing: cargo build --features native --bins, make wasm")
            for name in RUN:
                self.start(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.names.close()
        subprocess.run(["rm", "-r", self.folder], check=True)

    # === one service ===

    def start(self, name):
        """Starts a service once those that it depends on are healthy, as Compose does."""
        for other, condition in self.services[name].get("depends_on", {}).items():
            assert condition["condition"] == "service_healthy", condition
            self.wait_until_healthy(other)
        command = self.command(name)
        environment = {**os.environ, "RUST_LOG": "info"}
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)

    def command(self, name):
        """The entry point and the command, with programs and paths of this machine."""
        service = self.services[name]
        entrypoint = service.get("entrypoint")
        if entrypoint is None and "build" in service:
            instructions = dict(stages()[service["build"]["target"]])
            entrypoint = json.loads(instructions["ENTRYPOINT"])
        elif entrypoint is None:
            entrypoint = ENTRYPOINTS[service["image"].split(":")[0]]
        paths = self.lay_files(name)
        return [self.rewritten(part, name, paths) for part in [*entrypoint, *service["command"]]]

    def lay_files(self, name):
        """Puts a service's files where it looks for them, below a folder of its own; the folder's paths by the service's."""
        root = self.folder / name
        paths = {path: str(program) for path, program in self.programs.items()}
        for path, source in image_files().items():
            paths[path] = str(source)
        volumes = self.services[name].get("volumes", [])
        for volume in volumes:
            place = root / volume["target"].lstrip("/")
            paths[volume["target"]] = str(place)
            (place.parent if volume["type"] == "bind" else place).mkdir(parents=True, exist_ok=True)
        for volume in volumes:
            if volume["type"] == "bind":
                text = self.rewritten(Path(volume["source"]).read_text(), name, paths)
                Path(paths[volume["target"]]).write_text(self.told_of_names(text, name))
        return paths

    def rewritten(self, text, name, paths):
        """A command's part or a file, for this machine."""
        own = self.addresses[name]
        text = re.sub(r"\b(0\.0\.0\.0|127\.0\.0\.1)\b", own, text.replace("tcp://*:", f"tcp://{own}:"))
        others = "|".join(sorted(self.services, key=len, reverse=True))
        text = re.sub(rf"(?<![\w.-])({others})(?=:\d)", lambda found: self.addresses[found[1]], text)
        for path in sorted(paths, key=len, reverse=True):
            text = re.sub(rf"(?<![\w/.-]){re.escape(path)}(?![\w.-])", paths[path], text)
        return text

    def told_of_names(self, text, name):
        """The hub's and Envoy's configuration with the name server."""
        address, port = self.names.address
        if name == "hub":
            servers = f'- name_servers: ["{address}:{port}"]\n      name: engines'
            return replaced(text, "- name: engines", servers)
        if name == "envoy":
            resolver = {
                "@type": "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig",
                "resolvers": [{"socket_address": {"address": address, "port_value": port}}],
                "dns_resolver_options": {"no_default_search_domain": True},
            }
            extension = {"name": "envoy.network.dns_resolver.cares", "typed_config": resolver}
            return f"{text}\ntyped_dns_resolver_config: {json.dumps(extension)}\n"
        return text

    def wait_until_healthy(self, name):
        """Waits until the service's own health check succeeds, or fails with the end of its log."""
        test = self.services[name]["healthcheck"]["test"]
        paths = {path: str(program) for path, program in self.programs.items()}
        check = [self.rewritten(part, name, paths) for part in test[1:]]
        assert test[0] == "CMD", test
        eventually(lambda: self.is_running(name) and succeeds(check), HEALTHY_WITHIN, lambda: f"{shlex.join(check)}\n{self.log(name)}")

    def is_running(self, name):
        """Whether it does; an error with its log if it has ended."""
        if self.processes[name].poll() is not None:
            raise AssertionError(f"{name} has ended:\n{self.log(name)}")
        return True

    # === what they say ===

    def log(self, name):
        """The end of what a service wrote."""
        lines = self.log_lines(name)
        return "\n".join(lines[-LINES_SHOWN:])

    def log_lines(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace").splitlines()

    def get(self, name, port, path):
        """The body of a page of a service."""
        return fetch(f"http://{self.addresses[name]}:{port}{path}")


def succeeds(check):
    """Whether a health check does. Images have a wget that this machine may lack."""
    try:
        if check[0] == "wget":
            fetch(check[-1])
            return True
        return subprocess.run(check, capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def fetch(url):
    # No proxy of the environment: everything is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=20) as response:
        return response.read().decode()


def replaced(text, old, new):
    """A text with its one `old` replaced."""
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in\n{text}"
    return text.replace(old, new)


def eventually(condition, within, otherwise):
    """The first true value of a condition; fails with what `otherwise` says."""
    deadline = time.monotonic() + within
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {otherwise()}")
        time.sleep(0.3)
