#!/usr/bin/env python3
"""Makes the small tokenizers and the cases of tests/tokenizers.rs with the reference, PyPI `tokenizers`.

    pip install tokenizers==0.23.3
    scripts/tokenizers.py                     installs the large tokenizers
    tests/tokenizers/generate.py              writes small/*.json and cases.jsonl
    tests/tokenizers/generate.py --check      exits with 1 if they would change

The small tokenizers are trained here on the texts below, one for each kind of pipeline, with added tokens of every
flag. The large ones are those of real models: only their ids are written, not their files.

Rows of cases.jsonl, one JSON object a line:

    {"kind": "tokenizer", "name": …, "file": …}   "file" is beside this script; without it the tokenizer is installed
    {"kind": "text", "id": …, "text": …}
    {"kind": "ids", "tok": …, "text": …, "n": …, "ids": […]}
    {"kind": "ids", …, "add_special_tokens": true}
    {"kind": "ids", …, "n": …, "ids_head": […], "ids_sha256": …}   over the ids as little-endian u32
"""

import hashlib
import json
import runpy
import struct
import sys
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

VERSION = "0.23.3"
HERE = Path(__file__).resolve().parent
INSTALLER = runpy.run_path(str(HERE.parent.parent / "scripts" / "tokenizers.py"))
CACHE, QWEN35_PATTERN, LARGE = INSTALLER["CACHE"], INSTALLER["QWEN35_PATTERN"], INSTALLER["TOKENIZERS"]
HEAD = 16
LISTED = 400

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN = CL100K.replace("{1,3}", "")
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+{suffix}"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*{suffix}"
    r"|\p{N}{digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = CASED.replace("{suffix}", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?").replace("{digits}", "{1,3}")
TEKKEN = CASED.replace("{suffix}", "").replace("{digits}", "")
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]

TEXTS = [
    "",
    "A router sends each request to the replica that holds its prefix.",
    "The cache was cold, so the first turn cost 1843 ms; the second cost 212.",
    "  two blanks before, two after  ",
    "\n\n\tA tab after newlines.\r\nAnd a carriage return.\r\n\r\n \n  x\n",
    "It's the client's, they've said; we'll SEE'LL I'M 'tis don'T 'S's",
    "it'\u017fa lo\u017ft 's'\u017f",
    "12 345 6789 01234567890 1,000,000.50 ½ ² Ⅷ ٣٤٥ 一二三 x86_64 v2.0",
    "fn main() { let x: Vec<u8> = vec![0; 16]; println!(\"{:?} // {}\", x, \"a/b\"); }",
    "class Kv(dict):\n    def __getitem__(self, key):\n        return super().get(key, None)  # none\n",
    "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi \\u00e9\"}],\"n\":1,\"stream\":true}",
    "https://example.net/v1/chat/completions?x=1&y=%20z#top  ./a/../b//c///\n///\r\n/",
    "camelCase PascalCase HTTPServer XMLHttpRequest ABCdef aBC ǅungla ǈubav Ĳssel",
    "前缀缓存把相同的开头只算一次。后面的请求更快，真的吗？对！",
    "キャッシュは前の計算を覚えています。ｶﾀｶﾅ、ひらがな、漢字混じり。",
    "캐시는 앞부분을 기억합니다. 그래서 더 빠릅니다.",
    "Кэш помнит начало запроса; дальше всё быстрее.",
    "المخبأ يتذكر البداية ثم يكمل، מטמון זוכר את ההתחלה.",
    "कैश शुरुआत याद रखता है। แคชจำส่วนต้นไว้",
    "e\u0301te\u0301 \u0301\u0302 a\u030a\u0323 \u1e9b\u0323 \u212b \u2126 ﬁn \uac00\u11a8 \u0344",
    "\U0001f680\U0001f680 \U0001f469\u200d\U0001f4bb \U0001f1e8\U0001f1ed 1\ufe0f\u20e3 ❤️ \u2764",
    "nul \0 bell \a esc \x1b[0m del \x7f nel \x85 nbsp\xa0ls\u2028ps\u2029zwsp\u200bzwj\u200dbom\ufeff",
    "▁marks ▁▁ x▁y >▁</ ▁ a▁ ▁",
    "<0x0A><0x41> <unk><unk> <s></s> <pad>",
    "a<one>b <one> c\n<one>\t<one><one>",
    "a<left>b  <left> c \n<left>\u3000<left>",
    "a<right>b <right>  c <right> \n\t<right>\u00a0x<right>",
    "a<both>b  <both>  c<both> <both> d",
    "alone stand alone standalone alone, _alone alone_ éalone alone\u0301 alone",
    "Same same SAME \u00e9toile e\u0301toile <one>\u00e9toile",
    "<one><two> <two<two> <on <one><onetwo>",
    "one<both> alone <left> <right> alone<one>",
    "\n\n\n \n\n\n\n  \n",
    "=" * 90 + "\n" + "-" * 70 + "  " + "#" * 33,
    " " * 200,
    "ab" * 150,
    "界" * 120,
    "the " * 40 + "end",
]

TRAINING = [text for text in TEXTS if "<" not in text] * 3 + [
    "The replica that holds the prefix answers first, since it has the blocks of the prompt in its cache already.",
    "A prefix is a run of tokens from the start; a block is sixteen of them; only full blocks count.",
    "When the router knows who holds what, it sends the request there, and says why it did so.",
    "When it does not know, the request goes where the proxy would have sent it, unchanged and on time.",
    "Messages of a chat come again with each turn: what was said before is the prefix of what is said next.",
    "Blocks are stored, removed, cleared. The hub hears of it, the leader writes it down, the others follow.",
    "Nothing is sent that was not reported. A guess would be a bug; a miss is only a slower answer.",
]

LARGE_TEXTS = [1, 2, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 22, 23, 32, 33, 34, 35, 36]


def added_tokens():
    return [
        AddedToken("<one>", special=True, normalized=False),
        AddedToken("<two>", special=False, normalized=False),
        AddedToken("<one><two>", special=True, normalized=False),
        AddedToken("<left>", lstrip=True, special=True, normalized=False),
        AddedToken("<right>", rstrip=True, special=True, normalized=False),
        AddedToken("<both>", lstrip=True, rstrip=True, special=False, normalized=False),
        AddedToken("alone", single_word=True, special=False, normalized=False),
        AddedToken("étoile", special=False, normalized=True),
        AddedToken("said", special=False, normalized=True, lstrip=True),
    ]


def template(before, after):
    pieces = [*before, "$A", *after]
    return " ".join(pieces)


def trained(model, normalizer, pre_tokenizer, special, size=420, alphabet=(), train_pre_tokenizer=None):
    """A tokenizer of `size` tokens. `special` are the first ones of its vocabulary, and stay ordinary tokens."""
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizer
    first = train_pre_tokenizer or pre_tokenizer
    if first:
        tokenizer.pre_tokenizer = first
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=list(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(data))
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_tokens(added_tokens())
    return tokenizer


def byte_level(patterns, normalizer=None, ignore_merges=False, add_prefix_space=False):
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    last = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=not patterns)
    pre_tokenizer = pre_tokenizers.Sequence([*splits, last]) if splits else last
    model = models.BPE(ignore_merges=ignore_merges)
    return trained(model, normalizer, pre_tokenizer, [], alphabet=pre_tokenizers.ByteLevel.alphabet())


def characters(normalizer, pre_tokenizer, fallback, fuse, train_pre_tokenizer=None, size=360):
    special = ["<unk>", "<s>", "</s>"] + ([f"<0x{byte:02X}>" for byte in range(256)] if fallback else [])
    model = models.BPE(unk_token="<unk>", byte_fallback=fallback, fuse_unk=fuse)
    return trained(model, normalizer, pre_tokenizer, special, size + len(special), "▁", train_pre_tokenizer)


def small():
    nfc = normalizers.NFC()
    marked = normalizers.Replace(" ", "▁")
    by_mark = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never", split=True)
    tokenizers = {
        "gpt2": byte_level([], add_prefix_space=True),
        "gpt2_plain": byte_level([]),
        "cl100k": byte_level([CL100K], ignore_merges=True),
        "qwen": byte_level([QWEN], nfc),
        "qwen35": byte_level([QWEN35_PATTERN], nfc),
        "o200k": byte_level([O200K], ignore_merges=True),
        "tekken": byte_level([TEKKEN]),
        "deepseek": byte_level(DEEPSEEK),
        # Merges that cross marks, and merges that do not.
        "mistral": characters(normalizers.Sequence([normalizers.Prepend("▁"), marked]), None, True, True),
        "gemma": characters(marked, pre_tokenizers.Split(" ", "merged_with_previous"), True, True, by_mark),
        "first": characters(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=True), False, False),
        "always": characters(None, pre_tokenizers.Metaspace(prepend_scheme="always", split=False), False, True, by_mark),
    }
    around(tokenizers["cl100k"], "<one>", None)
    around(tokenizers["mistral"], "<s>", None)
    around(tokenizers["first"], "<s>", "</s>")
    return tokenizers


def around(tokenizer, before, after):
    single = template([before], [after] if after else [])
    tokens = [(token, tokenizer.token_to_id(token)) for token in (before, after) if token]
    processor = processors.TemplateProcessing(single=single, special_tokens=tokens)
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processor])


def ids_row(tokenizer, name, text, add_special_tokens=False):
    ids = tokenizer.encode(TEXTS[text], add_special_tokens=add_special_tokens).ids
    row = {"kind": "ids", "tok": name, "text": text, "n": len(ids)}
    if add_special_tokens:
        row["add_special_tokens"] = True
    if len(ids) <= LISTED:
        return row | {"ids": ids}
    packed = struct.pack(f"<{len(ids)}I", *ids)
    return row | {"ids_head": ids[:HEAD], "ids_sha256": hashlib.sha256(packed).hexdigest()}


def rows(small_tokenizers):
    for text, content in enumerate(TEXTS):
        yield {"kind": "text", "id": text, "text": content}
    for name, tokenizer in small_tokenizers.items():
        yield {"kind": "tokenizer", "name": f"small/{name}", "file": f"small/{name}.json"}
        for text in range(len(TEXTS)):
            yield ids_row(tokenizer, f"small/{name}", text)
        if tokenizer.post_processor:
            for text in (0, 1, 24):
                yield ids_row(tokenizer, f"small/{name}", text, True)
    for name in LARGE:
        tokenizer = Tokenizer.from_file(str(CACHE / f"{name}.json"))
        yield {"kind": "tokenizer", "name": name}
        for text in LARGE_TEXTS:
            yield ids_row(tokenizer, name, text)
        for text in (0, 1):
            yield ids_row(tokenizer, name, text, True)


def files():
    small_tokenizers = small()
    for name, tokenizer in small_tokenizers.items():
        yield f"small/{name}.json", tokenizer.to_str() + "\n"
    # From the written form: it is what the test compiles.
    read = {name: Tokenizer.from_str(tokenizer.to_str()) for name, tokenizer in small_tokenizers.items()}
    yield "cases.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(read))


def main(arguments):
    if tokenizers.__version__ != VERSION:
        return f"generate.py: tokenizers is {tokenizers.__version__}, needed is {VERSION}"
    if arguments not in ([], ["--check"]):
        return __doc__
    changed = []
    for name, text in files():
        path = HERE / name
        if not path.exists() or path.read_bytes() != text.encode():
            changed.append(name)
            if not arguments:
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(text.encode())
    print(f"{'would change' if arguments else 'written'}: {', '.join(changed) or 'nothing'}")
    return 1 if arguments and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
