#!/usr/bin/env python3
"""A producer of cache state that knows nothing but the public contract, proto/inferencecache/v1alpha1.

    producer.py ADDRESS report|evict --replica ID --tenant T --model M --scheme S --hash HEX... [--token T] [--ca FILE]

`report` says that the replica holds these blocks, one chain of 16 tokens each; `evict` that it has none of them any more.
Prints the hub's answer. The packages it needs are installed on first use, into the cache of scripts/tools.py. Exit code 77
where they cannot be had, with the reason; 1 with the call's status where it is refused.
"""

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import tools  # noqa: E402

PACKAGES = ["grpcio==1.85.1", "grpcio-tools==1.85.1"]
ENVIRONMENT = tools.CACHE / "producer-1.85.1"
BLOCK_TOKENS = 16
CANNOT = 77


def in_environment():
    """Runs this script with the packages it needs."""
    python = ENVIRONMENT / "bin" / "python"
    done = ENVIRONMENT / "done"
    if not done.exists():
        tools.say(f"installing {', '.join(PACKAGES)} into {ENVIRONMENT}")
        venv.create(ENVIRONMENT, with_pip=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", *PACKAGES]
        if subprocess.run(pip, stdout=sys.stderr).returncode != 0:
            tools.say(f"pip cannot install {', '.join(PACKAGES)}")
            sys.exit(CANNOT)
        done.touch()
    os.execv(python, [str(python), __file__, *sys.argv[1:]])


def contract(into):
    """The modules for the contract, made from its proto."""
    from grpc_tools import protoc

    name = "inferencecache/v1alpha1/inferencecache.proto"
    made = protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={into}", f"--grpc_python_out={into}", name])
    if made != 0:
        sys.exit(f"producer.py: protoc fails with {made}")
    sys.path.insert(0, into)
    module = "inferencecache.v1alpha1.inferencecache_pb2"
    return importlib.import_module(module), importlib.import_module(f"{module}_grpc")


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("what", choices=["report", "evict"])
    for name in ("replica", "tenant", "model", "scheme"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--hash", nargs="+", required=True, type=bytes.fromhex)
    parser.add_argument("--token")
    parser.add_argument("--ca", type=Path)
    return parser.parse_args()


def report(messages, stub, given, metadata):
    entry = messages.PrefixEntry(
        prefix_hash=given.hash[-1],
        token_count=BLOCK_TOKENS * len(given.hash),
        block_hashes=given.hash,
        block_token_counts=[BLOCK_TOKENS] * len(given.hash),
    )
    update = messages.CacheStateUpdate(
        replica_id=given.replica,
        model_id=given.model,
        tenant_id=given.tenant,
        hash_scheme=given.scheme,
        prefixes=[entry],
    )
    return [stub.ReportCacheState(iter([update]), metadata=metadata, timeout=20)]


def evict(messages, stub, given, metadata):
    event = lambda block: messages.CacheEvent(  # noqa: E731
        type=messages.CacheEvent.Type.Value("PREFIX_EVICTED"),
        replica_id=given.replica,
        model_id=given.model,
        tenant_id=given.tenant,
        prefix_hash=block,
    )
    return [stub.PublishEvent(event(block), metadata=metadata, timeout=20) for block in given.hash]


def main():
    given = arguments()
    import grpc

    metadata = [("authorization", f"Bearer {given.token}")] if given.token else []
    with tempfile.TemporaryDirectory() as into:
        messages, services = contract(into)
        if given.ca:
            credentials = grpc.ssl_channel_credentials(given.ca.read_bytes())
            channel = grpc.secure_channel(given.address, credentials)
        else:
            channel = grpc.insecure_channel(given.address)
        with channel:
            stub = services.InferenceCacheStub(channel)
            try:
                answers = {"report": report, "evict": evict}[given.what](messages, stub, given, metadata)
            except grpc.RpcError as refused:
                sys.exit(f"producer.py: {refused.code().name}: {refused.details()}")
    for answer in answers:
        print(f"accepted={answer.accepted}")


if __name__ == "__main__":
    if Path(sys.prefix) != ENVIRONMENT:
        in_environment()
    main()
