"""What is in the batches: for each row of the layouts a case, or none where the engine cannot say such a thing.

A scenario gives its name, its events, the blocks that count in the end as `[adapter, tier, prompt up to its end]`, and what
is skipped by reason. Blocks have 4 tokens. The receiver knows adapter number 7 as `math`, and no other.
"""

import hashlib

SIZE = 4
EMPTY = hash(())


# === Keys, as the engines make them ===


def page_hash(tokens):
    """SGLang up to 0.5.5: of the page alone."""
    return hash(tuple(tokens))


def keys_of(row, prompt, seed=b""):
    """A key for each block of `prompt`."""
    keys = []
    before = None
    for start in range(0, len(prompt), SIZE):
        block = tuple(prompt[start : start + SIZE])
        if row.engine == "sglang" and row.keys == "python":
            keys.append(page_hash(block))
        elif row.keys == "python":
            # vLLM up to 0.10.0: chained, with Python's own hash, which has a sign.
            before = hash((before if before is not None else 1, block, len(seed)))
            keys.append(before)
        else:
            text = b"".join(token.to_bytes(4, "little") for token in block)
            before = hashlib.sha256((before or seed) + text).digest()
            if row.keys == "sha":
                keys.append(int.from_bytes(before[:8], "big", signed=True))
            else:
                keys.append(int.from_bytes(before[24:], "big"))
    return keys


def long_keys_of(prompt):
    """The same of vLLM, whole: 32 bytes."""
    keys, before = [], b""
    for start in range(0, len(prompt), SIZE):
        text = b"".join(token.to_bytes(4, "little") for token in prompt[start : start + SIZE])
        before = hashlib.sha256(before + text).digest()
        keys.append(before)
    return keys


# === Events ===


def stored(row, prompt, skip=0, keys=None, **more):
    """The blocks of `prompt` after the first `skip`, as one event or, in SGLang, as one for each page."""
    keys = keys or keys_of(row, prompt)
    common = {"block_size": SIZE}
    if row.has("medium"):
        common["medium"] = "GPU"
    if row.has("group_idx") and row.engine == "vllm":
        common["group_idx"] = 0
    if row.has("kv_cache_spec_kind") and row.engine == "vllm":
        common["kv_cache_spec_kind"] = "full_attention"
    if row.has("extra_keys") and row.engine == "vllm":
        common["extra_keys"] = [None] * (len(keys) - skip)
    common |= more

    def event(first, last):
        parent = keys[first - 1] if first else (EMPTY if row.parent == "empty" else None)
        if row.parent == "nil" and first == skip:
            parent = None
        return {
            "type": "BlockStored",
            "block_hashes": keys[first:last],
            "parent_block_hash": parent,
            "token_ids": list(prompt[first * SIZE : last * SIZE]),
            **common,
        }

    if row.engine == "sglang" and row.keys == "python":
        return [event(at, at + 1) for at in range(skip, len(keys))]
    return [event(skip, len(keys))]


def removed(row, keys, **more):
    common = {"medium": "GPU"} if row.has("medium") else {}
    if row.has("group_idx") and row.engine == "vllm":
        common["group_idx"] = 0
    return [{"type": "BlockRemoved", "block_hashes": list(keys), **common, **more}]


CLEARED = [{"type": "AllBlocksCleared"}]


def blocks(prompt, adapter="", tier=1, only=None):
    """The blocks of `prompt` as they are credited."""
    ends = range(SIZE, len(prompt) + 1, SIZE)
    chosen = [end for at, end in enumerate(ends) if only is None or at in only]
    return [[adapter, tier, list(prompt[:end])] for end in chosen]


PROMPT = list(range(1, 13))
OTHER = [70_000, 5, 151_643, 9]


def nothing_proved(row):
    return row.parent == "nil"


# === Scenarios ===


def plain(row):
    """A prompt in two events, and another one that comes and goes."""
    events = (
        CLEARED
        + stored(row, PROMPT[:8])
        + stored(row, PROMPT, skip=2)
        + stored(row, OTHER)
        + removed(row, keys_of(row, OTHER))
    )
    if nothing_proved(row):
        return "plain", events, [], {"unproven_root": 3, "ambiguous_key": 2}
    return "plain", events, blocks(PROMPT), {}


def cleared(row):
    skipped = {}
    if row.keys == "python" and row.engine == "sglang":
        # Without a clear before it, a page may be elsewhere too.
        skipped = {"ambiguous_key": 2, "unproven_root": 1} if nothing_proved(row) else {"ambiguous_key": 2}
    return "cleared", stored(row, PROMPT) + CLEARED, [], skipped


def raw_keys(row):
    """Keys of 32 bytes, and an integer in the same batch."""
    if row.engine != "vllm" or row.keys != "vllm":
        return None
    keys = long_keys_of(PROMPT)
    short = keys_of(row, OTHER)
    events = stored(row, PROMPT[:8], keys=keys[:2]) + stored(row, PROMPT, skip=2, keys=keys) + stored(row, OTHER, keys=short)
    return "raw keys", events + removed(row, keys[2:]), blocks(PROMPT[:8]) + blocks(OTHER), {}


def adapter(row):
    if not row.has("lora_name"):
        return None
    more = {"lora_name": "sql"}
    if row.engine == "vllm":
        more["lora_id"] = 1
        if row.has("extra_keys"):
            more["extra_keys"] = [["sql"], ["sql"]]
    keys = keys_of(row, PROMPT[:8], b"sql")
    return "adapter", stored(row, PROMPT[:8], keys=keys, **more), blocks(PROMPT[:8], "sql"), {}


def adapter_numbers(row):
    """7 has a name where this is received, 8 has none."""
    if row.engine == "sglang" or (row.has("lora_name") and row.engine == "vllm"):
        return None
    events = stored(row, PROMPT, lora_id=7, keys=keys_of(row, PROMPT, b"7"))
    events += stored(row, PROMPT, lora_id=8, keys=keys_of(row, PROMPT, b"8"))
    return "adapter numbers", events, blocks(PROMPT, "math"), {"unnamed_adapter": 3}


def offloaded(row):
    """Blocks that go from the engine's cache to the machine's memory, in vLLM named by their keys alone."""
    if not row.has("medium") or row.engine == "tensorrt_llm":
        return None
    keys = keys_of(row, PROMPT[:8])
    if row.engine == "sglang":
        copy = stored(row, PROMPT[:8], medium="CPU_PINNED")
    else:
        names = long_keys_of(PROMPT[:8]) if row.offloaded_bytes else keys
        copy = [
            {
                "type": "BlockStored",
                "block_hashes": names,
                "parent_block_hash": None,
                "token_ids": [],
                "block_size": row.offloaded_size,
                "medium": "CPU",
            }
        ]
    events = stored(row, PROMPT[:8]) + copy + removed(row, [keys[1]])
    return "offloaded", events, blocks(PROMPT[:4]) + blocks(PROMPT[:8], tier=2, only=[1]), {}


def unknown_offloaded(row):
    if not row.has("medium") or row.engine != "vllm":
        return None
    event = {"block_hashes": long_keys_of(OTHER), "parent_block_hash": None, "token_ids": [], "block_size": row.offloaded_size}
    return "unknown offloaded", [{"type": "BlockStored", "medium": "CPU", **event}], [], {"no_tokens": 1}


def images(row):
    """An image in the second of three blocks."""
    if not row.has("extra_keys"):
        return None
    if row.engine == "tensorrt_llm":
        key = {"type": "mm_key", "hash": "0a" * 32, "start_offset": 0}
        tokens = PROMPT[:4] + ["0b" * 32, 6, 7, 8] + PROMPT[8:]
        (event,) = stored(row, PROMPT, mm_keys=[[], [key], []])
        return "images", [event | {"token_ids": tokens}], blocks(PROMPT[:4]), {"extra_keys": 2}
    image = ["a1b2c3", -3] if row.image_pairs else "a1b2c3"
    return "images", stored(row, PROMPT, extra_keys=[None, [image], None]), blocks(PROMPT[:4]), {"extra_keys": 2}


def salted(row):
    if row.engine == "vllm" and row.has("extra_keys"):
        # The first block alone has the salt, which nothing tells from an image or an adapter.
        events = stored(row, PROMPT, keys=keys_of(row, PROMPT, b"salt"), extra_keys=[["salt"], None, None])
        return "salted", events, [], {"extra_keys": 3}
    if row.engine == "sglang" and (row.metadata or row.has("cache_salt")):
        events = stored(row, PROMPT, keys=keys_of(row, PROMPT, b"salt"), cache_salt="salt")
        return "salted", events + stored(row, OTHER), blocks(OTHER), {"salted": 3}
    return None


def embeddings(row):
    if row.engine != "vllm" or not row.has("extra_keys"):
        return None
    digest = hashlib.sha256(b"embeddings").digest()
    return "embeddings", stored(row, PROMPT, extra_keys=[[digest], [digest], [digest]]), [], {"extra_keys": 3}


def groups(row):
    """Two groups of a hybrid cache: the first is of use to every prompt, where it is said that it is."""
    if row.engine != "vllm" or not row.has("group_idx"):
        return None
    second = {"group_idx": 1}
    if row.has("kv_cache_spec_kind"):
        second |= {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 512}
    events = stored(row, PROMPT) + stored(row, PROMPT, **second)
    events += removed(row, keys_of(row, PROMPT)[:1], group_idx=1)
    if row.has("kv_cache_spec_kind"):
        return "groups", events, blocks(PROMPT), {"group": 4}
    return "groups", events, [], {"group": 4}


def kinds(row):
    if row.engine != "vllm" or not row.has("kv_cache_spec_kind"):
        return None
    events = stored(row, PROMPT[:4], kv_cache_spec_kind="mla_attention")
    events += stored(row, OTHER, kv_cache_spec_kind="mamba")
    return "kinds", events, blocks(PROMPT[:4]), {"attention_kind": 1}


def skipped_blocks(row):
    """Tokens of three blocks, keys of two: which one is missing is not said, and the next one has an unknown parent."""
    if row.engine != "vllm":
        return None
    keys = keys_of(row, PROMPT + OTHER)
    (event,) = stored(row, PROMPT)
    event["block_hashes"] = [keys[0], keys[2]]
    if row.has("extra_keys"):
        event["extra_keys"] = [None, None]
    events = [event] + stored(row, PROMPT + OTHER, skip=3)
    return "skipped blocks", events, [], {"token_count": 2, "unknown_parent": 1}


def partial(row):
    if row.engine != "vllm" or row.array:
        return None
    part = {"block_size": 2, "token_ids": PROMPT[8:10], "block_hashes": [99]}
    (event,) = stored(row, PROMPT, skip=2)
    events = stored(row, PROMPT[:8]) + [event | part] + removed(row, [99]) + [event]
    return "partial", events, blocks(PROMPT), {"block_size": 1, "unknown_block": 1}


def announced_again(row):
    if not row.has("locality") or row.engine != "vllm":
        return None
    return "announced again", stored(row, PROMPT) + stored(row, PROMPT[:8], session_id="s", ownership="SHARED"), blocks(PROMPT), {}


def elsewhere(row):
    """On another machine, and in storages of every name."""
    if not row.has("locality") or row.engine != "vllm":
        return None
    events = stored(row, PROMPT[:4])
    copies = [({"medium": "cpu", "locality": "REMOTE"}, 3), ({"medium": "STORAGE", "locality": "LOCAL"}, 3)]
    copies += [({"medium": "FS"}, 3), ({"medium": "OBJ"}, 3), ({"medium": "cpu"}, 2), ({"medium": "GPU"}, 1)]
    credited = blocks(PROMPT[:4])
    for at, (place, tier) in enumerate(copies):
        prompt = [1_000 + at] * 4
        events += stored(row, prompt, **place)
        credited += blocks(prompt, tier=tier)
    events += stored(row, OTHER, medium="TAPE")
    return "elsewhere", events, credited, {"medium": 1}


def lookahead(row):
    if not row.has("lookahead_token_ids"):
        return None
    events = stored(row, PROMPT, lookahead_token_ids=[[5], [9], [13]])
    return "lookahead", events + stored(row, OTHER, lookahead_token_ids=[[]]), blocks(OTHER), {"lookahead": 3}


def bigrams(row):
    if not row.bigrams:
        return None
    events = stored(row, PROMPT[:8])
    events[0]["token_ids"] = [(token, token + 1) for token in PROMPT[:8]]
    return "bigrams", events + stored(row, OTHER), blocks(OTHER), {"lookahead": 2}


def same_page_twice(row):
    """The same tokens at two places of the tree, under one key."""
    if row.engine != "sglang" or row.keys != "python":
        return None
    one, two = [1, 1, 1, 1], [2, 2, 2, 2]
    events = CLEARED + stored(row, one + OTHER) + stored(row, two + OTHER)
    if nothing_proved(row):
        return "same page twice", events, [], {"unproven_root": 2, "ambiguous_key": 2}
    return "same page twice", events, blocks(one) + blocks(two), {"ambiguous_key": 1}


SCENARIOS = [
    plain,
    cleared,
    raw_keys,
    adapter,
    adapter_numbers,
    offloaded,
    unknown_offloaded,
    images,
    salted,
    embeddings,
    groups,
    kinds,
    skipped_blocks,
    partial,
    announced_again,
    elsewhere,
    lookahead,
    bigrams,
    same_page_twice,
]
