#!/usr/bin/env python3
"""Makes the golden files from the formats' definitions, independently of the Rust code.

    generate.py            verifies what the vectors are known to be, and writes fingerprints.json, affinity.json,
                           domains.json and shared_data.json
    generate.py --check    the same, but compares instead of writing; exit code 1 if a file differs

XXH3-64 is written out here from its specification (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md),
with every length class, in plain Python.
"""

import hashlib
import json
import struct
import sys
from pathlib import Path

import shared_data

HERE = Path(__file__).resolve().parent

# === XXH3-64 ===

MASK64 = (1 << 64) - 1
PRIME32_1, PRIME32_2, PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
PRIME64_1, PRIME64_2, PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
PRIME64_4, PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
PRIME_MX1, PRIME_MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
STRIPE = 64
ACCUMULATORS = [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1]


def u32(data, at):
    return struct.unpack_from("<I", data, at)[0]


def u64(data, at):
    return struct.unpack_from("<Q", data, at)[0]


def swap32(value):
    return int.from_bytes(value.to_bytes(4, "little"), "big")


def swap64(value):
    return int.from_bytes(value.to_bytes(8, "little"), "big")


def rotate_left(value, bits):
    return (value << bits | value >> (64 - bits)) & MASK64


def fold(left, right):
    """The two halves of a 128-bit product, xored."""
    product = left * right
    return (product & MASK64) ^ (product >> 64)


def avalanche(value):
    value ^= value >> 37
    value = value * PRIME_MX1 & MASK64
    return value ^ value >> 32


def avalanche_xxh64(value):
    value ^= value >> 33
    value = value * PRIME64_2 & MASK64
    value ^= value >> 29
    value = value * PRIME64_3 & MASK64
    return value ^ value >> 32


def xxh3_64(data, seed):
    """XXH3 with 64 bits of output and the default secret."""
    length = len(data)
    if length == 0:
        return avalanche_xxh64(seed ^ u64(SECRET, 56) ^ u64(SECRET, 64))
    if length <= 3:
        return hash_1_to_3(data, seed)
    if length <= 8:
        return hash_4_to_8(data, seed)
    if length <= 16:
        return hash_9_to_16(data, seed)
    if length <= 128:
        return hash_17_to_128(data, seed)
    if length <= 240:
        return hash_129_to_240(data, seed)
    return hash_long(data, seed)


def hash_1_to_3(data, seed):
    length = len(data)
    combined = data[-1] | length << 8 | data[0] << 16 | data[length >> 1] << 24
    flip = (u32(SECRET, 0) ^ u32(SECRET, 4)) + seed & MASK64
    return avalanche_xxh64(combined ^ flip)


def hash_4_to_8(data, seed):
    length = len(data)
    seed ^= swap32(seed & 0xFFFFFFFF) << 32
    flip = (u64(SECRET, 8) ^ u64(SECRET, 16)) - seed & MASK64
    value = (u32(data, length - 4) | u32(data, 0) << 32) ^ flip
    value ^= rotate_left(value, 49) ^ rotate_left(value, 24)
    value = value * PRIME_MX2 & MASK64
    value ^= (value >> 35) + length
    value = value * PRIME_MX2 & MASK64
    return value ^ value >> 28


def hash_9_to_16(data, seed):
    length = len(data)
    low = (u64(SECRET, 24) ^ u64(SECRET, 32)) + seed & MASK64 ^ u64(data, 0)
    high = (u64(SECRET, 40) ^ u64(SECRET, 48)) - seed & MASK64 ^ u64(data, length - 8)
    return avalanche(length + swap64(low) + high + fold(low, high) & MASK64)


def mix(data, at, secret_at, seed):
    """16 bytes of data with 16 bytes of secret."""
    low = u64(data, at) ^ (u64(SECRET, secret_at) + seed & MASK64)
    high = u64(data, at + 8) ^ (u64(SECRET, secret_at + 8) - seed & MASK64)
    return fold(low, high)


def hash_17_to_128(data, seed):
    length = len(data)
    total = length * PRIME64_1
    for i in range((length - 1) // 32, -1, -1):
        total += mix(data, 16 * i, 32 * i, seed)
        total += mix(data, length - 16 * (i + 1), 32 * i + 16, seed)
    return avalanche(total & MASK64)


def hash_129_to_240(data, seed):
    length = len(data)
    total = length * PRIME64_1
    for i in range(8):
        total += mix(data, 16 * i, 16 * i, seed)
    total = avalanche(total & MASK64)
    for i in range(8, length // 16):
        total += mix(data, 16 * i, 16 * (i - 8) + 3, seed)
    total += mix(data, length - 16, 136 - 17, seed)
    return avalanche(total & MASK64)


def seeded_secret(seed):
    """The default secret, moved by the seed: only the long form uses it."""
    parts = []
    for at in range(0, len(SECRET), 16):
        parts.append(struct.pack("<Q", u64(SECRET, at) + seed & MASK64))
        parts.append(struct.pack("<Q", u64(SECRET, at + 8) - seed & MASK64))
    return b"".join(parts)


def accumulate(accumulators, data, at, secret, secret_at):
    """One stripe of 64 bytes."""
    for lane in range(8):
        value = u64(data, at + 8 * lane)
        keyed = value ^ u64(secret, secret_at + 8 * lane)
        accumulators[lane ^ 1] = accumulators[lane ^ 1] + value & MASK64
        accumulators[lane] = accumulators[lane] + (keyed & 0xFFFFFFFF) * (keyed >> 32) & MASK64


def scramble(accumulators, secret):
    for lane in range(8):
        value = accumulators[lane]
        value ^= value >> 47
        value ^= u64(secret, len(secret) - STRIPE + 8 * lane)
        accumulators[lane] = value * PRIME32_1 & MASK64


def hash_long(data, seed):
    length = len(data)
    secret = seeded_secret(seed)
    accumulators = list(ACCUMULATORS)
    stripes_a_block = (len(secret) - STRIPE) // 8
    for stripe in range((length - 1) // STRIPE):
        within = stripe % stripes_a_block
        accumulate(accumulators, data, stripe * STRIPE, secret, 8 * within)
        if within == stripes_a_block - 1:
            scramble(accumulators, secret)
    accumulate(accumulators, data, length - STRIPE, secret, len(secret) - STRIPE - 7)

    value = length * PRIME64_1
    for pair in range(4):
        low = accumulators[2 * pair] ^ u64(secret, 11 + 16 * pair)
        high = accumulators[2 * pair + 1] ^ u64(secret, 11 + 16 * pair + 8)
        value += fold(low, high)
    return avalanche(value & MASK64)


# === Fingerprints ===

HASH_SEED = 1337


def content_hash(block):
    return xxh3_64(struct.pack(f"<{len(block)}I", *block), HASH_SEED)


def extended(parent, content):
    return xxh3_64(struct.pack("<QQ", parent, content), HASH_SEED)


def chain(token_ids, block_size, parent):
    """The content hashes and the prefix hashes of the full blocks."""
    contents, prefixes = [], []
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        contents.append(content_hash(token_ids[start : start + block_size]))
        parent = contents[-1] if parent is None else extended(parent, contents[-1])
        prefixes.append(parent)
    return contents, prefixes


def counting(first, count):
    """The ids first, first + 1, …"""
    return {"first": first, "count": count}


# name, token ids, block size, parent, and the last prefix hash where somebody else has published or computed it.
# The first seven are the public fixtures of the contract's own server.
VECTORS = [
    ("single_full_block", counting(1, 16), 16, None, 16863443419780771464),
    ("partial_tail_dropped", counting(100, 20), 16, None, 10823191264391160519),
    ("two_block_chain", counting(1, 32), 16, None, 12466389667045779788),
    ("multi_block_chain", counting(0, 64), 16, None, 3888788807566526800),
    ("parent_chain", counting(50, 32), 16, 0xDEADBEEF, 2998384554010166533),
    ("partial_only_no_blocks", counting(0, 10), 16, None, None),
    ("qwen_hello_world", [14990, 1879], 2, None, 2562323614806148766),
    ("token_id_extremes", [0, 1, 4294967295, 2147483648] * 4, 16, None, 10889205801227397864),
    ("all_zero_block", [0] * 16, 16, None, 5523182284766269584),
    ("parent_zero_is_still_a_parent", counting(0, 16), 16, 0, 14832642960014564522),
    ("block_size_1", counting(1, 4), 1, None, 13067224698470837106),
    ("block_size_3", counting(7, 9), 3, None, None),
    ("block_size_4", counting(7, 12), 4, None, None),
    ("block_size_5", counting(7, 15), 5, None, None),
    ("block_size_32", counting(1000, 64), 32, None, 14908719570377643093),
    ("block_size_33", counting(1000, 66), 33, None, None),
    ("block_size_60", counting(1000, 120), 60, None, None),
    ("block_size_61", counting(1000, 122), 61, None, None),
    ("block_size_64", counting(1000, 128), 64, None, 11788397496893737194),
    ("block_size_128", counting(1000, 128), 128, None, 13369718237690293114),
    ("block_size_256", counting(1000, 512), 256, None, None),
    ("block_size_300", counting(1000, 600), 300, None, None),
    ("chain_of_1000_blocks", counting(0, 16000), 16, None, 0x9DDCD83A25A828D3),
]

# Chains longer than this keep their last prefix hash only.
LONGEST_CHAIN_LISTED = 16

NOTE = (
    "Made by generate.py. token_ids is a list, or {first, count} for consecutive ids; hashes are 16 hex digits, most"
    " significant first. A long chain lists its last prefix hash only."
)


def hexadecimal(value):
    return None if value is None else f"{value:016x}"


def vector(name, token_ids, block_size, parent, known):
    ids = token_ids
    if isinstance(token_ids, dict):
        ids = list(range(token_ids["first"], token_ids["first"] + token_ids["count"]))
    contents, prefixes = chain(ids, block_size, parent)
    last = prefixes[-1] if prefixes else None
    if known is not None and last != known:
        sys.exit(f"generate.py: {name} ends in {last}, known is {known}")
    listed = len(prefixes) <= LONGEST_CHAIN_LISTED
    return {
        "name": name,
        "token_ids": token_ids,
        "block_size": block_size,
        "parent": hexadecimal(parent),
        "blocks": len(prefixes),
        "content_hashes": [hexadecimal(value) for value in contents] if listed else None,
        "prefix_hashes": [hexadecimal(value) for value in prefixes] if listed else None,
        "last_prefix_hash": hexadecimal(last),
    }


def fingerprints():
    """The file's text: one vector a line."""
    lines = ",\n".join("    " + json.dumps(vector(*each)) for each in VECTORS)
    return f'{{\n  "note": {json.dumps(NOTE)},\n  "seed": {HASH_SEED},\n  "vectors": [\n{lines}\n  ]\n}}\n'


# === Affinity ===

# name, the prompt's keys (a text is one key for the whole prefix, a list is one a block), replica ids. The picks under
# "modulo" and "chain" that are known are those of the contract's own server.
AFFINITY_VECTORS = [
    ("a single key of three", "any-fingerprint", ["r-1", "r-2", "r-3"], "r-3"),
    ("a single key of two", "seed", ["r-2", "r-1"], "r-1"),
    ("a single key of four", "prompt-fingerprint", ["r-4", "r-3", "r-2", "r-1"], "r-2"),
    ("one block of two", ["block"], ["r-1", "r-2"], "r-1"),
    ("one block of four", ["identical-prompt-block"], ["r-1", "r-2", "r-3", "r-4"], "r-3"),
    ("ids are sorted as bytes", "key", ["replica-10", "replica-9", "Replica-1", "r\u00e9plique"], None),
    ("a lone replica", ["a", "b"], ["only"], "only"),
    ("keys of different widths", ["ab", "c"], ["r-1", "r-2", "r-3", "r-4", "r-5"], None),
    ("the same bytes in other blocks", ["a", "bc"], ["r-1", "r-2", "r-3", "r-4", "r-5"], None),
    ("a long chain", [f"block {number}" for number in range(300)], [f"10.0.0.{n}:8000" for n in range(17)], None),
    ("its head", ["block 0"], [f"10.0.0.{n}:8000" for n in range(17)], None),
]


def seed_of(keys):
    if isinstance(keys, str):
        return keys.encode()
    return b"".join(struct.pack(">I", len(key.encode())) + key.encode() for key in keys)


def pick(seed, ids, rendezvous):
    prompt = int.from_bytes(hashlib.sha256(seed).digest()[:8], "big")
    ids = sorted(ids, key=lambda replica_id: replica_id.encode())
    if rendezvous:
        return max(ids, key=lambda replica_id: xxh3_64(replica_id.encode(), prompt))
    return ids[prompt % len(ids)]


def affinity_vector(name, keys, ids, known):
    head = keys if isinstance(keys, str) else keys[:1]
    picks = {
        "modulo_chain": pick(seed_of(keys), ids, False),
        "modulo_head": pick(seed_of(head), ids, False),
        "rendezvous_chain": pick(seed_of(keys), ids, True),
        "rendezvous_head": pick(seed_of(head), ids, True),
    }
    if known is not None and picks["modulo_chain"] != known:
        sys.exit(f"generate.py: {name} picks {picks['modulo_chain']}, known is {known}")
    return {"name": name, "keys": keys, "replica_ids": ids, **picks}


def affinity():
    """The file's text: one vector a line."""
    lines = ",\n".join("    " + json.dumps(affinity_vector(*each)) for each in AFFINITY_VECTORS)
    note = "Made by generate.py. keys is one key for the whole prefix, or a list with one a block; UTF-8."
    return f'{{\n  "note": {json.dumps(note)},\n  "vectors": [\n{lines}\n  ]\n}}\n'


# === Domains of indexes ===

DURATION_UNITS_MS = {"h": 3_600_000, "m": 60_000, "s": 1_000}
DEFAULT_TTL_MS = 30 * 60_000
EVICTIONS = {"LRU": 0, "LFU": 1}


def number(value):
    return struct.pack("<Q", value)


def text(value):
    encoded = value.encode()
    return number(len(encoded)) + encoded


def texts(values):
    listed = sorted({value.encode() for value in values})
    return number(len(listed)) + b"".join(number(len(each)) + each for each in listed)


def duration_ms(duration, default):
    return default if duration is None else int(duration[:-1]) * DURATION_UNITS_MS[duration[-1]]


def policy_bytes(spec):
    ttl_ms = duration_ms(spec.get("evictionTTL"), DEFAULT_TTL_MS)
    return number(EVICTIONS[spec.get("eviction", "LRU")]) + number(ttl_ms)


def domain(plugin):
    """The digest of what decides an index's contents, from the plugin configuration."""
    sections = ("subscribe", "limits", "policies", "quotas")
    subscribe, limits, policies, quotas = (plugin.get(name, {}) for name in sections)
    hubs = sorted(plugin.get("hub_clusters") or [plugin["hub_cluster"]], key=str.encode)
    data = text(hubs[0])
    data += texts(subscribe.get("models", [])) + texts(subscribe.get("tenants", []))
    data += number(limits.get("max_index_entries", 4_000_000))
    data += number(limits.get("max_index_bytes", 512 << 20)) + number(duration_ms(limits.get("lfu_half_life"), 0))
    data += number(limits.get("pages", 8_192))
    data += number(limits.get("log_segments", 8_192)) + number(limits.get("segment_bytes", 6_144))
    data += policy_bytes(plugin.get("policy", {})) + number(len(policies))
    for tenant_id in sorted(policies, key=str.encode):
        data += text(tenant_id) + policy_bytes(policies[tenant_id])
    data += number(len(quotas))
    for tenant_id in sorted(quotas, key=str.encode):
        data += text(tenant_id) + number(quotas[tenant_id])
    for hub in hubs[1:]:
        data += text(hub)
    return hexadecimal(xxh3_64(data, 0))


PLUGIN = {"hub_cluster": "hub", "models": [{"model_id": "m"}]}

PLUGINS = [
    PLUGIN,
    PLUGIN | {"subscribe": {"models": ["b", "a", "b"]}, "policies": {"t": {"evictionTTL": "1m"}}},
    PLUGIN | {"hub_cluster": "warmroute_hub", "policy": {"eviction": "LFU", "evictionTTL": "2h"}},
    PLUGIN | {"policies": {"b": {"eviction": "LFU"}, "a": {"evictionTTL": "90s", "affinityRouting": "Disabled"}}},
    PLUGIN | {"limits": {"max_index_entries": 1000, "pages": 8, "log_segments": 16, "segment_bytes": 4096}},
    PLUGIN | {"limits": {"max_index_bytes": 16 << 20, "lfu_half_life": "10m"}},
    PLUGIN | {"quotas": {"z": 0, "é": 200_000, "a": 1}},
    PLUGIN | {"subscribe": {"tenants": ["é", "z"]}, "policies": {"z": {}, "é": {"eviction": "LFU"}}},
    {"hub_clusters": ["hub-b", "hub-a", "hub-c"], "models": [{"model_id": "m"}]},
]

DOMAIN_NOTE = "Made by generate.py. A plugin configuration, and the domain of the index that it asks for."


def domains():
    """The file's text: one configuration a line."""
    lines = ",\n".join(
        "    " + json.dumps({"domain": domain(plugin), "plugin": plugin}, ensure_ascii=False) for plugin in PLUGINS
    )
    return f'{{\n  "note": {json.dumps(DOMAIN_NOTE)},\n  "domains": [\n{lines}\n  ]\n}}\n'


# === Values in shared data ===

SHARED_DATA_NOTE = "Made by generate.py. Values in shared data, piece by piece: what it is, and its bytes in hex."


def shared_values():
    """The file's text: one piece a line."""
    values = []
    for name, pieces in shared_data.VALUES.items():
        lines = ",\n".join("      " + json.dumps(piece) for piece in shared_data.checked(pieces, xxh3_64))
        values.append(f"    {json.dumps(name)}: [\n{lines}\n    ]")
    joined = ",\n".join(values)
    return f'{{\n  "note": {json.dumps(SHARED_DATA_NOTE)},\n  "values": {{\n{joined}\n  }}\n}}\n'


FILES = {
    "fingerprints.json": fingerprints,
    "affinity.json": affinity,
    "domains.json": domains,
    "shared_data.json": shared_values,
}


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit(__doc__.strip())
    for name, made in ((name, make()) for name, make in FILES.items()):
        file = HERE / name
        if not arguments:
            file.write_text(made)
        elif not file.exists() or file.read_text() != made:
            sys.exit(f"generate.py: {name} differs from what the generator makes; run generate.py and review the change")


if __name__ == "__main__":
    main(sys.argv[1:])
