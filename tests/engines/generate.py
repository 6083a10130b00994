#!/usr/bin/env python3
"""Makes golden.json: event batches as each version of each engine encodes them, with what is in them and what of it counts.

    generate.py                   writes golden.json
    generate.py --check           compares instead; exit code 1 if it differs
    generate.py --packages DIR    makes every payload a second time, with the engines' own event classes, and fails if a
                                  byte differs; DIR has a folder `<engine>-<version>` with the engine's kv_events.py
                                  somewhere in it for each version that a row names as compared
    generate.py --corpus DIR      writes a part of the payloads as files, to start fuzzing from

Needs msgspec (PyPI), the encoder that the engines use. Payloads are made from the table below, one row a layout; what is
expected is written down here from the same inputs, with no knowledge of the code that is tested.
"""

import ast
import enum
import json
import sys
import typing
from pathlib import Path

import msgspec

from layouts import ROWS
from scenarios import SCENARIOS

HERE = Path(__file__).resolve().parent
TS = 1_760_000_000.25


# === The rows' own classes ===


def classes(row):
    """The row's event classes, built from its table."""
    form = {"array_like": row.array, "omit_defaults": row.omit, "gc": False, "tag": True}

    def struct(name, fields):
        plain = [(name, typing.Any) for name, required in fields if required]
        defaulted = [(name, typing.Any, None) for name, required in fields if not required]
        return msgspec.defstruct(name, plain + defaulted, **form)

    made = {
        "BlockStored": struct("BlockStored", row.stored),
        "BlockRemoved": struct("BlockRemoved", row.removed),
        "AllBlocksCleared": struct("AllBlocksCleared", []),
    }
    if row.metadata:
        # The field has no default: it is there in salted events only, which have a class of their own.
        metadata = msgspec.defstruct("BlockStoredMetadata", [("cache_salt", str)], omit_defaults=True)
        fields = row.stored + [("metadata", True)]
        salted = [(name, typing.Any) for name, _ in fields]
        made["BlockStoredWithMetadata"] = msgspec.defstruct("Salted", salted, **{**form, "tag": "BlockStored"})
        made["BlockStoredMetadata"] = metadata
    batch = [("ts", typing.Any), ("events", typing.Any)] + [(name, typing.Any, None) for name in row.rank]
    made["KVEventBatch"] = msgspec.defstruct("KVEventBatch", batch, array_like=True, omit_defaults=row.batch_omit)
    return made


# === The engines' own classes ===

WANTED = {"EventBatch", "KVCacheEvent", "BlockStored", "BlockStoredWithMetadata", "BlockStoredMetadata", "BlockRemoved"}
WANTED |= {"AllBlocksCleared", "KVEventBatch", "StorageMedium"}


def package_classes(folder):
    """The event classes of the engine's kv_events.py in `folder`, without the rest of the engine."""
    files = [path for path in folder.rglob("kv_events.py") if path.parent.name in ("distributed", "disaggregation")]
    (path,) = files
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in WANTED]
    names = {name: getattr(typing, name) for name in ("Any", "Optional", "Union")}
    names |= {"msgspec": msgspec, "enum": enum, "ExternalBlockHash": typing.Union[bytes, int], "__name__": "kv_events"}
    exec(compile(tree, str(path), "exec"), names)  # noqa: S102, these are the engine's own classes
    return names


# === Payloads ===


def payload(row, events, rank, made):
    """The batch, encoded with these classes."""
    objects = []
    for event in events:
        kind, values = event["type"], {name: value for name, value in event.items() if name != "type"}
        if kind == "BlockStored":
            fields = {name for name, _ in row.stored}
            salt = values.get("cache_salt")
            values = {name: value for name, value in values.items() if name in fields}
            if row.metadata and salt is not None:
                values["metadata"] = made["BlockStoredMetadata"](cache_salt=salt)
                kind = "BlockStoredWithMetadata"
            required = row.stored
        else:
            required = row.removed if kind == "BlockRemoved" else []
            fields = {name for name, _ in required}
            values = {name: value for name, value in values.items() if name in fields}
        for name, is_required in required:
            if is_required or kind == "BlockStoredWithMetadata":
                values.setdefault(name, None)
        objects.append(made[kind](**values))
    ranks = {name: rank for name in row.rank}
    return msgspec.msgpack.Encoder().encode(made["KVEventBatch"](ts=TS, events=objects, **ranks))


# === What is expected ===


def key(value):
    return {"bytes": value.hex()} if isinstance(value, bytes) else {"int": str(value % (1 << 64))}


def expected(row, event):
    """The event as it is to be read: every field that the layout can carry."""
    if event["type"] == "AllBlocksCleared":
        return {"type": "AllBlocksCleared"}
    fields = {name for name, _ in (row.stored if event["type"] == "BlockStored" else row.removed)}
    has = lambda name: event.get(name) if name in fields else None
    common = {
        "type": event["type"],
        "block_hashes": [key(value) for value in event["block_hashes"]],
        "medium": has("medium"),
        "group_idx": has("group_idx"),
        "remote": has("locality") not in (None, "LOCAL"),
    }
    if event["type"] == "BlockRemoved":
        return common
    tokens = event["token_ids"]
    plain = next((at for at, token in enumerate(tokens) if not isinstance(token, int)), len(tokens))
    images = has("mm_keys")
    extra = [["other"] if block else None for block in images] if images is not None else has("extra_keys")
    parent = event.get("parent_block_hash")
    return common | {
        "parent_block_hash": None if parent is None else key(parent),
        "token_ids": tokens[:plain],
        "further_tokens": len(tokens) - plain,
        "block_size": event["block_size"],
        "lora_id": has("lora_id"),
        "lora_name": has("lora_name"),
        "kv_cache_spec_kind": has("kv_cache_spec_kind"),
        "extra_keys": [told(keys) for keys in extra or []],
        "salted": bool(event.get("cache_salt")) and ("cache_salt" in fields or row.metadata),
        "looks_ahead": any(has("lookahead_token_ids") or []) or any(isinstance(token, tuple) for token in tokens),
    }


def told(keys):
    if not keys:
        return None
    return {"text": keys[0]} if len(keys) == 1 and isinstance(keys[0], str) and keys != ["other"] else "other"


# === The file ===


def cases(packages):
    for row in ROWS:
        own = classes(row)
        for scenario in SCENARIOS:
            made = scenario(row)
            if made is None:
                continue
            name, events, credited, skipped = made
            rank = 3 if row.rank else None
            data = payload(row, events, rank, own)
            for version in row.compared if packages else []:
                theirs = payload(row, events, rank, package_classes(packages / f"{row.engine}-{version}"))
                if data != theirs:
                    sys.exit(f"{row.engine} {version}, {name}: {data.hex()} is {theirs.hex()} with its own classes")
            yield {
                "engine": row.engine,
                "versions": row.versions,
                "case": name,
                "compared_with": [f"{row.engine} {version}" for version in row.compared],
                "payload": data.hex(),
                "rank": rank,
                "events": [expected(row, event) for event in events],
                "credited": credited,
                "skipped": skipped,
            }


def corpus(made, folder):
    """Each layout once, and each case once, as bytes."""
    chosen = {(case["engine"], case["versions"], "plain") for case in made}
    chosen |= {(case["engine"], case["versions"], case["case"]) for case in {case["case"]: case for case in made}.values()}
    folder.mkdir(parents=True, exist_ok=True)
    for case in made:
        if (name := (case["engine"], case["versions"], case["case"])) in chosen:
            (folder / "-".join(name).replace(" ", "-")).write_bytes(bytes.fromhex(case["payload"]))


def main():
    packages = Path(sys.argv[sys.argv.index("--packages") + 1]) if "--packages" in sys.argv else None
    made = list(cases(packages))
    text = "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in made) + "\n]\n"
    path = HERE / "golden.json"
    if "--corpus" in sys.argv:
        corpus(made, Path(sys.argv[sys.argv.index("--corpus") + 1]))
    elif "--check" in sys.argv:
        if path.read_text() != text:
            sys.exit(f"{path} differs")
    elif packages is None:
        path.write_text(text)
    elif path.exists() and path.read_text() != text:
        sys.exit(f"{path} is old: run without --packages first")
    print(f"{len(made)} cases, {len({(case['engine'], case['versions']) for case in made})} layouts")


if __name__ == "__main__":
    main()
