"""The layouts of KV events, one row for each that an engine has had.

A field is `(name, required)`: a required one is always there, nil where unset; the others are left out at their default
where the layout omits defaults.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Row:
    engine: str
    versions: str
    # Versions whose own classes were found to make the same bytes.
    compared: list
    array: bool
    omit: bool
    batch_omit: bool
    # The batch's fields after `events`.
    rank: list
    stored: list
    removed: list
    # How the engine makes its keys: python, vllm, sha (see scenarios.py).
    keys: str
    # A salt is a map at the end of a salted block's array.
    metadata: bool = False
    # vLLM: images are a pair with an offset.
    image_pairs: bool = False
    # vLLM: what an offloaded block has for a size, and whether its key is the 32 bytes.
    offloaded_size: int = 0
    offloaded_bytes: bool = False
    # SGLang: what stands before the first page: "empty" (the hash of no tokens), "nil" even deep in a prompt, or "root".
    parent: str = "root"
    # SGLang: tokens can be pairs.
    bigrams: bool = False

    def has(self, *names):
        fields = {name for name, _ in self.stored}
        return all(name in fields for name in names)


def required(*names):
    return [(name, True) for name in names]


def defaulted(*names):
    return [(name, False) for name in names]


CORE = required("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id")
REMOVED = required("block_hashes")

VLLM_0_9_0 = Row("vllm", "0.9.0", [], True, True, True, [], CORE, REMOVED, "python")
VLLM_0_9_2 = replace(VLLM_0_9_0, versions="0.9.2-0.10.0", compared=["0.9.2"], rank=["data_parallel_rank"])
VLLM_0_10_2 = replace(
    VLLM_0_9_2,
    versions="0.10.2-0.13.0",
    compared=["0.10.2"],
    keys="vllm",
    stored=CORE + required("medium"),
    removed=REMOVED + required("medium"),
    offloaded_size=4,
    offloaded_bytes=True,
)
VLLM_0_14 = replace(
    VLLM_0_10_2, versions="0.14.1-0.16.0", compared=["0.14.1"], stored=VLLM_0_10_2.stored + required("lora_name")
)
VLLM_0_17 = replace(
    VLLM_0_14, versions="0.17.1-0.19.1", compared=["0.17.1"], stored=VLLM_0_14.stored + defaulted("extra_keys")
)
VLLM_0_20 = replace(
    VLLM_0_17,
    versions="0.20.2-0.21.0",
    compared=["0.20.2"],
    stored=VLLM_0_17.stored + defaulted("group_idx"),
    removed=VLLM_0_17.removed + defaulted("group_idx"),
    image_pairs=True,
    offloaded_size=0,
    offloaded_bytes=False,
)
VLLM_0_22 = replace(
    VLLM_0_20,
    versions="0.22.1-0.23.0",
    compared=["0.23.0"],
    stored=VLLM_0_20.stored + defaulted("kv_cache_spec_kind", "kv_cache_spec_sliding_window"),
)
VLLM_0_24 = replace(VLLM_0_22, versions="0.24.0-0.25.1", compared=["0.24.0"], array=False)
VLLM_0_26 = replace(
    VLLM_0_24,
    versions="0.26.0-0.28.0",
    compared=["0.26.0"],
    stored=VLLM_0_24.stored + defaulted("locality"),
    removed=VLLM_0_24.removed + defaulted("locality"),
)
VLLM_0_29 = replace(
    VLLM_0_26,
    versions="0.29.0",
    compared=["0.29.0"],
    stored=VLLM_0_26.stored + defaulted("ownership"),
    removed=VLLM_0_26.removed + defaulted("ownership"),
)
VLLM_0_30 = replace(VLLM_0_29, versions="0.30.0-0.32.0", compared=[], stored=VLLM_0_29.stored + defaulted("session_id"))
VLLM_0_33 = replace(
    VLLM_0_30, versions="0.33.0", compared=["0.33.0"], stored=VLLM_0_30.stored + defaulted("lookahead_token_ids")
)

SGLANG_0_4_8 = Row(
    "sglang", "0.4.8-0.4.10", ["0.4.8", "0.4.10"], True, True, True, ["attn_dp_rank"], CORE, REMOVED, "python", parent="empty"
)
SGLANG_0_5_1 = replace(SGLANG_0_4_8, versions="0.5.1-0.5.5", compared=["0.5.5"], parent="nil")
SGLANG_0_5_7 = replace(SGLANG_0_5_1, versions="0.5.7", compared=["0.5.7"], keys="sha", parent="root")
SGLANG_0_5_9 = replace(
    SGLANG_0_5_7,
    versions="0.5.9-0.5.16",
    compared=["0.5.9"],
    stored=CORE + defaulted("medium"),
    removed=REMOVED + defaulted("medium"),
    bigrams=True,
)
SGLANG_0_5_17 = replace(SGLANG_0_5_9, versions="0.5.17", compared=["0.5.17"], omit=False, batch_omit=False)
SGLANG_0_5_18 = replace(SGLANG_0_5_17, versions="0.5.18-0.5.19", compared=["0.5.18"], metadata=True)
SGLANG_0_5_20 = replace(
    SGLANG_0_5_18,
    versions="0.5.20-0.5.21",
    compared=["0.5.20"],
    array=False,
    omit=True,
    metadata=False,
    stored=SGLANG_0_5_9.stored + defaulted("cache_salt", "session_id"),
)
SGLANG_0_5_22 = replace(
    SGLANG_0_5_20, versions="0.5.22-0.5.23", compared=["0.5.23"], stored=SGLANG_0_5_20.stored + defaulted("lora_name")
)

# The native publisher of the KV cache manager V2. Its package cannot be had without a CUDA runtime.
TENSORRT_LLM = Row(
    "tensorrt_llm",
    "1.3",
    [],
    False,
    True,
    True,
    ["data_parallel_rank"],
    CORE
    + required("medium", "lora_name")
    + defaulted("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "mm_keys"),
    REMOVED + required("medium") + defaulted("group_idx", "locality"),
    "vllm",
)

ROWS = [
    VLLM_0_9_0,
    VLLM_0_9_2,
    VLLM_0_10_2,
    VLLM_0_14,
    VLLM_0_17,
    VLLM_0_20,
    VLLM_0_22,
    VLLM_0_24,
    VLLM_0_26,
    VLLM_0_29,
    VLLM_0_30,
    VLLM_0_33,
    SGLANG_0_4_8,
    SGLANG_0_5_1,
    SGLANG_0_5_7,
    SGLANG_0_5_9,
    SGLANG_0_5_17,
    SGLANG_0_5_18,
    SGLANG_0_5_20,
    SGLANG_0_5_22,
    TENSORRT_LLM,
]
