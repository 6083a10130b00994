"""The values in shared data, written from their layout (src/index/log.rs) and the protobuf wire format.

A value is made as a list of pieces, each named, so that a change of the golden file says what has changed.
"""

import struct

FORMAT = 1
INCARNATION = 0x1122334455667788

# Protobuf wire types.
VARINT, BYTES, FIXED32 = 0, 2, 5

# The fields of `Fact`, one for each kind of record.
SCOPE, REPLICA_UP, REPLICA_COMPLETE, REPLICA_GONE, STORED, REMOVED, CLEARED, STATS = range(1, 9)
PUBLISHED_SCOPE, PUBLISHED_REPLICA, POLICY, POLICY_GONE, SCOPE_GONE, REASSERTED, COUNTED = range(9, 16)
MODEL, MODEL_GONE = 16, 17

LFU = 1

# === Protobuf ===


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(field, wire_type):
    return varint(field << 3 | wire_type)


def present(field, value):
    """An integer or bool that is written whatever it is."""
    return tag(field, VARINT) + varint(int(value))


def number(field, value):
    return present(field, value) if value else b""


def single(field, value):
    """A float."""
    return tag(field, FIXED32) + struct.pack("<f", value) if value else b""


def message(field, encoded):
    return tag(field, BYTES) + varint(len(encoded)) + encoded


def data(field, value):
    """Bytes or a string."""
    encoded = value.encode() if isinstance(value, str) else value
    return message(field, encoded) if encoded else b""


def packed(field, values):
    return data(field, b"".join(map(varint, values)))


# === Records ===


def record(kind, *fields):
    """An entry of `Chunk.facts`."""
    return message(1, message(kind, b"".join(fields)))


def keys(field, listed):
    """The keys and, in the next field, the width of one."""
    return data(field, b"".join(listed)) + number(field + 1, len(listed[0]))


def key(value):
    return struct.pack(">Q", value)


def scope(slot, tenant_id, model_id, hash_scheme, adapter_id):
    texts = [tenant_id, model_id, hash_scheme, adapter_id]
    return record(SCOPE, number(1, slot), *(data(field, text) for field, text in enumerate(texts, 2)))


def replica_up(replica, replica_id, address, tenant_id, model_id, rank=None):
    texts = [replica_id, address, tenant_id, model_id]
    rank = b"" if rank is None else present(6, rank)
    return record(REPLICA_UP, number(1, replica), *(data(field, text) for field, text in enumerate(texts, 2)), rank)


def stored(replica, scope, tier, last_seen_ms, listed, token_counts, parent=b"", chained=False, page=0, count=None):
    fields = [number(1, replica), number(2, scope), number(3, tier), number(4, last_seen_ms), keys(5, listed)]
    fields += [packed(7, token_counts), data(8, parent), number(9, chained), number(10, page)]
    return record(STORED, *fields, b"" if count is None else present(11, count))


def policy(tenant_id, eviction, eviction_ttl_ms, tokens, floor_score, timeout_ms, flags):
    fields = [data(1, tenant_id), number(2, eviction), number(3, eviction_ttl_ms), number(4, tokens[0])]
    fields += [number(5, tokens[1]), single(6, floor_score), number(7, timeout_ms)]
    return record(POLICY, *fields, *(number(field, flag) for field, flag in enumerate(flags, 8)))


def published(kind, slot, hub_number):
    return record(kind, number(1, slot), number(2, hub_number))


def stats(replica, pressure, hit_rate, reported_ms):
    return record(STATS, number(1, replica), single(2, pressure), single(3, hit_rate), number(4, reported_ms))


def counted(scope, listed, replicas):
    at = [message(4, number(1, replica) + packed(2, counts)) for replica, counts in replicas]
    return record(COUNTED, number(1, scope), keys(2, listed), *at)


def model(model_id, digest, length):
    return record(MODEL, data(1, model_id), data(2, digest), number(3, length))


# === Values ===


def value(kind, *pieces, incarnation=INCARNATION):
    """All pieces but the checksum, which is of all of them."""
    start = [("magic, kind, format", b"WR" + kind + bytes([FORMAT])), ("incarnation", struct.pack("<Q", incarnation))]
    return start + list(pieces)


def u64(name, each):
    return name, struct.pack("<Q", each)


def u32(name, each):
    return name, struct.pack("<I", each)


HEAD = value(
    b"H",
    u64("term", 0x0102030405060708),
    u64("first", 21),
    u64("last", 532),
    u64("oldest_page", 20),
    u32("pages", 1_025),
    u32("ring", 512),
    u64("hub_epoch", 0xA0A1A2A3A4A5A6A7),
    u64("hub_sequence", 9_000),
    u64("heard_ms", 1_700_000_000_123),
    u64("beat", 77),
    u32("next_replica", 65),
    u32("next_scope", 7),
    u32("flags: the leader serves, complete", 1 | 2),
)

# A leader that does not serve, in a log that has not seen a reset to its end.
NEW_HEAD = value(
    b"H",
    *(u64(name, each) for name, each in [("term", 9), ("first", 1), ("last", 0), ("oldest_page", 0)]),
    *(u32(name, each) for name, each in [("pages", 2), ("ring", 4)]),
    *(u64(name, 0) for name in ["hub_epoch", "hub_sequence", "heard_ms", "beat"]),
    *(u32(name, each) for name, each in [("next_replica", 1), ("next_scope", 1), ("flags", 0)]),
)

WIDE = bytes(range(32))
DIGEST = bytes(range(1, 17))
# Of a package of two whole parts and one of five bytes.
LENGTH = 2 * 48 * 1024 + 5

SEGMENT = value(
    b"L",
    u64("term", 2),
    u64("sequence", 532),
    ("Scope", scope(3, "t", "m", "vllm", "lora")),
    ("PublishedScope", published(PUBLISHED_SCOPE, 3, 12)),
    ("ReplicaUp", replica_up(40, "r-1", "10.0.0.1:8000", "t", "m")),
    ("PublishedReplica", published(PUBLISHED_REPLICA, 40, 5)),
    ("ReplicaUp, rank 3 of several", replica_up(43, "r-3/dp3", "10.0.0.3:8000", "t", "m", 3)),
    ("Stats", stats(40, 0.25, 0.5, 1_700_000_000_000)),
    ("Stored, chained", stored(40, 3, 1, 1_700_000_000_001, [key(1), key(2)], [16, 32], key(7), True, 300)),
    ("Stored, wide keys", stored(40, 3, 2, 5, [WIDE], [200])),
    ("Stored, no tier", stored(40, 3, 0, 5, [key(9)], [48], WIDE[:3])),
    ("ReplicaComplete", record(REPLICA_COMPLETE, number(1, 40))),
    ("Reasserted", record(REASSERTED, number(1, 40), number(2, 1_700_000_000_002))),
    ("Counted", counted(3, [key(1), key(2)], [(40, [4, 300]), (41, [0])])),
    ("Removed", record(REMOVED, number(1, 40), number(2, 3), keys(3, [key(1), key(2)]))),
    ("Removed, wide keys", record(REMOVED, number(1, 40), number(2, 3), keys(3, [WIDE]))),
    ("Cleared", record(CLEARED, number(1, 41))),
    ("ReplicaGone", record(REPLICA_GONE, number(1, 39))),
    ("ScopeGone", record(SCOPE_GONE, number(1, 2))),
    ("Policy", policy("t", LFU, 90_000, (10, 20), 1.5, 30, [True, False, True, False])),
    ("Policy, of all others", policy("", 0, 1, (0, 0), 0.0, 0, [False, True, False, True])),
    ("PolicyGone", record(POLICY_GONE, data(1, "u"))),
    ("PolicyGone, of all others", record(POLICY_GONE)),
    ("ModelVersion", model("m", DIGEST, LENGTH)),
    ("ModelGone", record(MODEL_GONE, data(1, "n"))),
)

DICTIONARY = value(
    b"P",
    u32("number", 0),
    u64("as_of", 532),
    ("Scope", scope(3, "t", "m", "vllm", "")),
    ("PublishedScope", published(PUBLISHED_SCOPE, 3, 12)),
    ("Scope, of another tenant", scope(4, "u", "m", "sglang", "")),
    ("ReplicaUp", replica_up(40, "r-1", "[fd00::1]:8000", "t", "m")),
    ("PublishedReplica", published(PUBLISHED_REPLICA, 40, 5)),
    ("Stats", stats(40, 1.0, 0.0, 6)),
    ("Reasserted", record(REASSERTED, number(1, 40), number(2, 9))),
    ("ReplicaComplete", record(REPLICA_COMPLETE, number(1, 40))),
    ("ReplicaUp, still arriving", replica_up(41, "r-2", "", "u", "m")),
    ("ReplicaUp, rank 0 of several", replica_up(44, "r-4/dp0", "10.0.0.4:8000", "t", "m", 0)),
    ("Policy", policy("u", 0, 60_000, (0, 0), 0.0, 0, [True, False, True, True])),
    ("ModelVersion", model("m", DIGEST, LENGTH)),
    ("ModelVersion, one byte", model("n", DIGEST[::-1], 1)),
)

PAGE = value(
    b"P",
    u32("number", 301),
    u64("as_of", 532),
    (
        "a run from its beginning, hit",
        stored(40, 3, 1, 1_700_000_000_001, [key(1), key(2), key(3)], [16, 32, 48], b"", True, 300, 128),
    ),
    ("another holder, from its second block", stored(41, 3, 1, 8, [key(2), key(3)], [32, 48], key(1), True, 300, 0)),
    ("not chained, wide keys", stored(41, 4, 3, 7, [WIDE, WIDE[::-1]], [5, 9], page=300, count=1)),
)

FIRST_PAGE = value(b"P", u32("number", 1), u64("as_of", 8), ("a block", stored(1, 1, 1, 7, [key(6)], [16], count=0)))

CREDITS = value(
    b"C",
    ("two replicas", counted(3, [key(1), key(0x0203)], [(40, [7, 7]), (41, [7])])),
    ("a wide key", counted(4, [WIDE], [(41, [1])])),
)

MODEL_PART = value(b"M", ("digest", DIGEST), u32("number", 2), ("contents", bytes(range(5))), incarnation=0)

MODEL_LIST = value(
    b"I",
    ("digest", DIGEST),
    u32("length", LENGTH),
    ("digest", DIGEST[::-1]),
    u32("length", 1),
    incarnation=0,
)

VALUES = {
    "head": HEAD,
    "new head": NEW_HEAD,
    "segment": SEGMENT,
    "dictionary": DICTIONARY,
    "page": PAGE,
    "first page": FIRST_PAGE,
    "credits": CREDITS,
    "model part": MODEL_PART,
    "model list": MODEL_LIST,
}


def checked(pieces, xxh3_64):
    """The pieces in hex, and the checksum after them."""
    before = b"".join(each for _, each in pieces)
    checksum = ("checksum", struct.pack("<Q", xxh3_64(before, 0)))
    return [[name, each.hex()] for name, each in [*pieces, checksum]]
