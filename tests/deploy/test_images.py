"""The compose files and the Dockerfile, read as Docker reads them, against each other and against the sources."""

import fnmatch
import json
import re
import subprocess
import unittest

import composed
from composed import BINARIES, stages
from needed import ROOT, needed, tools


class ComposeFiles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.services = composed.config("docker-compose.yml")["services"]
        cls.vllm = composed.config("docker-compose.yml", "docker-compose.vllm.yml")["services"]

    def test_a_file_that_is_not_one_is_refused(self):
        with self.assertRaisesRegex(AssertionError, "deploy/compose/hub.yaml"):
            composed.config("deploy/compose/hub.yaml")

    def test_every_service_is_there_and_checked(self):
        self.assertEqual(sorted(self.services), sorted([*composed.RUN, "grafana"]))
        for name, service in self.services.items():
            self.assertEqual(service["healthcheck"]["test"][0], "CMD", name)
            for other in service.get("depends_on", {}):
                self.assertIn("healthcheck", self.services[other])

    def test_nothing_is_reachable_from_other_machines(self):
        for name, service in (self.services | self.vllm).items():
            for port in service.get("ports", []):
                self.assertEqual(port.get("host_ip"), "127.0.0.1", name)

    def test_services_may_do_no_more_than_they_need(self):
        for name, service in self.services.items():
            self.assertTrue(service["read_only"], name)
            self.assertEqual((service["cap_drop"], service["security_opt"]), (["ALL"], ["no-new-privileges:true"]), name)

    def test_what_is_mounted_is_in_the_repository(self):
        for service in (self.services | self.vllm).values():
            for volume in service.get("volumes", []):
                if volume["type"] == "bind":
                    listed = subprocess.run(["git", "ls-files", "--error-unmatch", volume["source"]], cwd=ROOT, capture_output=True)
                    self.assertEqual(listed.returncode, 0, volume["source"])
                    self.assertTrue(volume["read_only"], volume["source"])

    def test_what_is_not_built_has_a_version(self):
        for name, service in (self.services | self.vllm).items():
            if "build" not in service:
                self.assertRegex(service["image"], r":v?\d+\.\d+\.\d+$", name)

    def test_vllm_takes_the_place_of_every_fake_engine(self):
        engines = {name: service for name, service in self.vllm.items() if name.startswith("engine-")}
        self.assertEqual(len(engines), 3)
        for name, service in engines.items():
            self.assertNotIn("build", service, name)
            self.assertIn("engines", service["networks"]["default"]["aliases"])
            flag = "--kv-events-config="
            events = json.loads(next(part for part in service["command"] if part.startswith(flag)).removeprefix(flag))
            self.assertEqual((events["publisher"], events["enable_kv_cache_events"]), ("zmq", True))
            hub = (ROOT / "deploy/compose/hub.vllm.yaml").read_text()
            for key, field in (("endpoint", "kv_events_port"), ("replay_endpoint", "kv_replay_port")):
                self.assertIn(f"{field}: {events[key].rsplit(':')[-1]}", hub)
            # One model for vLLM, the hub, the filter and the chats.
            model = service["command"][1]
            self.assertIn(f"model: {model},", hub)
            self.assertIn(f'"model_id": "{model}"', (ROOT / "deploy/compose/envoy.yaml").read_text())
            self.assertIn(model, self.vllm["chats"]["command"])
            self.assertIn(f"/models/{model}", self.vllm["model-files"]["command"][0])

    def test_the_hub_takes_both_configurations(self):
        for file in ("hub.yaml", "hub.vllm.yaml"):
            text = (ROOT / "deploy/compose" / file).read_text().replace("/models", str(ROOT / "demo/models"))
            done = subprocess.run([BINARIES / "warmroute-hub", "check-config", "/dev/stdin"], input=text, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)


class EnvoyConfiguration(unittest.TestCase):
    def test_it_keeps_what_must_stay_from_the_sample(self):
        sample = (ROOT / "envoy/envoy.yaml").read_text()
        ours = {line.strip() for line in (ROOT / "deploy/compose/envoy.yaml").read_text().splitlines()}
        kept = re.findall(r"^ *((?:- remove:|- \{ tag_name:|failure_policy:|allow_on_headers|retry_on:|- header: x-|per_conn|vm_id:).*)", sample, re.M)
        self.assertGreater(len(kept), 15)
        self.assertEqual([line for line in kept if line not in ours], [])


class Dockerfile(unittest.TestCase):
    def setUp(self):
        self.stages = stages()

    def test_hadolint_has_nothing_to_say(self):
        done = subprocess.run([needed(tools.hadolint), ROOT / "Dockerfile"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_every_image_that_is_built_is_a_stage_of_an_unprivileged_user(self):
        for name, service in composed.config("docker-compose.yml")["services"].items():
            if "build" in service:
                instructions = dict(self.stages[service["build"]["target"]])
                self.assertRegex(instructions["USER"], r"^[1-9]\d*:[1-9]\d*$", name)

    def test_what_is_copied_exists(self):
        for name, instructions in self.stages.items():
            for word, rest in instructions:
                if word != "COPY":
                    continue
                *sources, _ = [part for part in rest.split() if not part.startswith("--")]
                stage = re.match(r"--from=(\w+)", rest)
                for source in sources:
                    if stage:
                        made = " ".join(rest for word, rest in self.stages[stage[1]] if word == "RUN")
                        self.assertIn(source.rsplit("/", 1)[-1], made, name)
                    else:
                        self.assertTrue((ROOT / source).exists(), source)

    def test_it_builds_as_the_makefile_does(self):
        makefile = " ".join((ROOT / "Makefile").read_text().split())
        commands = [part.strip() for stage in self.stages.values() for word, rest in stage if word == "RUN" for part in rest.split("&&")]
        commands = [re.sub(r"--mount=\S+ ", "", command) for command in commands]
        builds = [command for command in commands if command.startswith(("cargo", "make"))]
        # The hub's image also finds pods.
        self.assertEqual(builds, ["make wasm", "cargo build --release --features kubernetes --bins"])
        self.assertIn("wasm: setup", makefile)
        self.assertIn(builds[1].replace("kubernetes", "native"), makefile)

    def test_versions_are_those_of_the_sources(self):
        channel = re.search(r'channel = "(.+)"', (ROOT / "rust-toolchain.toml").read_text())[1]
        self.assertIn(f"rust:{channel}-", self.stages["source"][0][1])
        self.assertIn(("ENV", f"RUSTUP_TOOLCHAIN={channel}"), self.stages["source"])
        self.assertIn(f"envoyproxy/envoy:v{tools.ENVOY_VERSION}", self.stages["envoy"][0][1])

    def test_nothing_that_is_built_from_is_left_out(self):
        ignored = [line.strip("/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
        includes = set()
        for file in [*(ROOT / "src").rglob("*.rs"), ROOT / "build.rs"]:
            for path in re.findall(r'include_(?:str|bytes)!\("([^"]+)"\)', file.read_text()):
                includes.add((file.parent / path).resolve().relative_to(ROOT))
        self.assertTrue(includes)
        # Cargo wants every target of the manifest to be there.
        targets = re.findall(r'path = "([^"]+)"', (ROOT / "Cargo.toml").read_text())
        for path in [*map(str, includes), *targets, "Makefile", "Cargo.lock", "proto", "scripts", "benches/index.rs", "demo"]:
            for pattern in ignored:
                self.assertFalse(path == pattern or path.startswith(f"{pattern}/") or fnmatch.fnmatch(path, pattern), f"{path}: {pattern}")
