#!/usr/bin/env python3
"""Trains the demo's tokenizers on text of our own, and makes the cases of tests/demo_models.rs with them.

    train_tokenizer.py            writes demo/models/*/tokenizer.json and tokenizer_config.json, tests/demo_models/cases.jsonl
    train_tokenizer.py --check    exits with 1 if they would change

The chat templates beside them are written by hand. It runs itself in a Python environment in the cache, with PyPI
`tokenizers` to train and `transformers` with Jinja2 to render: neither shares code with the library.
"""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import tools

# `tokenizers.py` beside this file is not the package.
sys.path.pop(0)

PACKAGES = ["tokenizers==0.23.3", "transformers==5.24.0", "jinja2==3.1.6"]
ENVIRONMENT = tools.CACHE / "reference-1"
MODELS = tools.ROOT / "demo" / "models"
CASES = tools.ROOT / "tests" / "demo_models" / "cases.jsonl"
MAX_MODEL_BYTES = 300_000

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

# === the text ===

WHO = (
    "the router|the cache|a replica|the engine|the hub|this filter|the leader|a follower|our team|the client|an operator"
    "|the user|your assistant|the travel desk|the recipe book|a reviewer|the tax helper|every worker|someone|nobody|the server"
).split("|")
DOES = (
    "sends|holds|reads|writes|answers|finds|forgets|remembers|computes|counts|stores|removes|asks for|checks|compares|keeps"
    "|returns|explains|suggests|repeats|measures|waits for|looks up|matches|follows|reports|orders|books|teaches|lists"
).split("|")
WHAT = (
    "the prompt|a prefix of the prompt|the first block|every token|a long question|the short answer|one request|the next turn"
    "|a system prompt|its own log|the whole conversation|the price of a ticket|a table of results|the function call|the source"
    "|an early train to the city|a careful reason|the number of tokens|a page of the index|the cost of each step|a message"
    "|the weather in the city|the order of the month|a given detail|an hour of work|the last change|the name of the model"
).split("|")
WHEN = (
    "before noon|after the second turn|in the same minute|without waiting|as soon as it can|when nobody is looking|at once"
    "|under load|again and again|on every machine|for the first time|in a few milliseconds|with care|never twice|on time"
).split("|")
LINES = [
    "You are a helpful assistant. Answer in short sentences, and say so when you do not know.",
    "You are the travel desk. Please suggest trains, name the price, and check the date before you book.",
    "It's the client's turn; they've said that we'll see, I'm sure you don't mind, and he'd agree.",
    '{"type": "object", "properties": {"city": {"type": "string", "description": "Name of a city"}}, "required": ["city"]}',
    '{"name": "get_weather", "arguments": {"city": "Lisbon", "unit": "celsius", "days": 3, "detailed": true}}',
    '{"name": "search", "description": "Search the documents", "parameters": {"type": "object", "properties": {}}}',
    "def total(prices):\n    return sum(price for price in prices if price is not None)\n",
    "fn main() {\n    let blocks: Vec<u32> = tokens.chunks(16).map(|chunk| chunk.len() as u32).collect();\n}\n",
    "for (const turn of conversation) {\n  console.log(`${turn.role}: ${turn.content}`);\n}\n",
    "| Step | Cost | Result |\n|---|---|---|\n| 1 | 12.50 | done |\n| 2 | 980 | open |\n",
    "# A heading\n\n- first, a list\n- then, another item\n\n1. one\n2. two\n",
    "Ein früher Zug fährt über Zürich nach München, das kostet ungefähr fünfzig Franken.",
    "Le café est ouvert de midi à cinq heures; où êtes-vous, et à quelle heure arrivez-vous ?",
    "¿Cuánto cuesta el billete de mañana, señor? No más de veinte euros.",
    "Кэш помнит начало запроса, и ответ приходит быстрее.",
    "前缀缓存只计算一次相同的开头，所以后面的请求更快。",
    "キャッシュは前の計算を覚えています。",
    "about after answer before careful check city cost detail early follow given list month never number order please price "
    "question reason result short source step suggest table teach train under which write",
]
ASCII = [chr(code) for code in range(0x21, 0x7F)]


class Draw:
    """A linear congruential generator (Knuth's MMIX constants): the same numbers in every version of Python."""

    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % bound

    def one(self, of):
        return of[self.below(len(of))]


def text(sentences=6_000):
    """Sentences of the words above, with numbers and the lines between them."""
    draw = Draw(7)
    for number in range(sentences):
        sentence = " ".join([draw.one(WHO), draw.one(DOES), draw.one(WHAT), draw.one(WHEN)])
        ending = draw.one([".", ".", ".", ";", "?", ", which is why", " and then", ":\n", ".\n\n", " (see below)."])
        yield sentence[0].upper() + sentence[1:] + ending if draw.below(2) else sentence + ending
        if number % 5 == 0:
            yield f"{draw.below(3000)} tokens, {draw.below(24):02}:{draw.below(60):02}, {draw.below(10_000) / 100} EUR"
        if number % 7 == 0:
            yield draw.one(LINES)


# === the tokenizers ===


def special(content):
    from tokenizers import AddedToken

    return AddedToken(content, special=True, normalized=False)


def byte_level():
    """As Llama-3's: bytes, words by a pattern, tokens of control behind the vocabulary, a start token added."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated")
    by_byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, by_byte])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1800, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(text(), trainer)
    names = ["begin", "role", "text", "end", "call"]
    tokenizer.add_tokens([special(f"<|{name}|>") for name in names])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))]
    )
    return tokenizer, {"bos_token": "<|begin|>", "eos_token": "<|end|>"}


def characters():
    """As SentencePiece's: characters, a mark for each blank, bytes for what is not in the vocabulary, no start token."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never", split=True)
    trainer = trainers.BpeTrainer(
        vocab_size=1700, special_tokens=first, initial_alphabet=["▁", *ASCII], show_progress=False
    )
    tokenizer.train_from_iterator(text(), trainer)
    data = json.loads(tokenizer.to_str())
    # Bytes are ordinary tokens; and as in Gemma's files nothing splits the text.
    data["added_tokens"] = [token for token in data["added_tokens"] if not token["content"].startswith("<0x")]
    data["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(data))
    names = ["TOOLS", "/TOOLS", "SYSTEM", "/SYSTEM", "USER", "/USER", "RESULT", "/RESULT", "CALL"]
    tokenizer.add_tokens([special(f"[{name}]") for name in names])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


# === the cases ===

TEXTS = [
    "The router sends each request to the replica that holds its prefix.",
    "  two blanks before, two after  ",
    "\n\n\tA tab.\r\n\r\n \n  x\n",
    "It's the client's, they've said; we'll SEE'LL I'M don'T",
    "12 345 6789 01234567890 1,000,000.50 ½",
    "Zürich, où, señor, Кэш, 前缀缓存, キャッシュ, 캐시, e\u0301",
    "\U0001f680 \U0001f469\u200d\U0001f4bb ❤️ \0\x07\x7f\u2028",
    "<|begin|>no <|end|><|role|> [USER] [/USER][CALL]</s><s> <unk> <0x0A>",
    "fn main() { let x: Vec<u8> = vec![0; 16]; println!(\"{:?}\", x); }",
    "▁▁ a▁b ▁",
    "=" * 70 + " " * 40 + "ab" * 60,
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather in a city, e.g. "Zürich" & <others>',
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Zürich", "days": 2, "exact": 0.5}'},
}
TURNS = [
    {"role": "system", "content": "You are the travel desk. Please check the date before you book. "},
    {"role": "user", "content": "Which train goes to Zürich, and what's the weather there?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call-1", "content": '{"sky": "clear", "celsius": 21.5}'},
    {"role": "assistant", "content": "The early one.\nIt will be clear."},
    {"role": "user", "content": [{"type": "text", "text": "Thanks!"}, {"type": "text", "text": " And the price?"}]},
]
BODIES = [
    {"messages": TURNS[1:2]},
    {"messages": TURNS[:2]},
    {"messages": TURNS[:2], "tools": [WEATHER]},
    {"messages": TURNS[:4], "tools": [WEATHER]},
    {"messages": TURNS[1:2], "tools": [WEATHER, WEATHER]},
    {"messages": TURNS, "tools": [WEATHER]},
    {"messages": TURNS[4:]},
    {"messages": TURNS[:2], "add_generation_prompt": False},
    {"messages": [{"role": "user", "content": "<|end|> [/USER] </s> in a text"}]},
]


def conversation(body, parts):
    """The messages as vLLM hands them to a template, which gets texts or parts."""
    for message in body["messages"]:
        given = message.get("content")
        texts = [given] if isinstance(given, str) else [part["text"] for part in given or []]
        content = [{"type": "text", "text": text} for text in texts] if parts else "\n".join(texts)
        calls = message.get("tool_calls", [])
        parsed = [call | {"function": with_parsed_arguments(call["function"])} for call in calls]
        yield message | {"content": content} | ({"tool_calls": parsed} if parsed else {})


def with_parsed_arguments(function):
    return function | {"arguments": json.loads(function["arguments"])}


def cases(model, folder, parts):
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    for text in TEXTS:
        for add in [True, False]:
            ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=add).ids
            yield {"model": model, "text": text, "add_special_tokens": add, "ids": ids}
    for body in BODIES:
        prompt = tokenizer.apply_chat_template(
            list(conversation(body, parts)),
            tools=body.get("tools"),
            add_generation_prompt=body.get("add_generation_prompt", True),
            tokenize=False,
        )
        ids = tokenizer.backend_tokenizer.encode(prompt, add_special_tokens=False).ids
        yield {"model": model, "body": json.dumps(body, ensure_ascii=False), "prompt": prompt, "ids": ids}


# === files ===


def write(path, text, check, changed):
    """Writes a file, or notes that it would change."""
    if not path.exists() or path.read_bytes() != text.encode():
        changed.append(str(path.relative_to(tools.ROOT)))
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())


def main(arguments):
    if arguments not in ([], ["--check"]):
        return __doc__
    check, changed, rows = bool(arguments), [], []
    for model, train, parts in [("demo-bytes", byte_level, False), ("demo-chars", characters, True)]:
        tokenizer, tokens = train()
        folder = MODELS / model
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **tokens}
        write(folder / "tokenizer.json", tokenizer.to_str() + "\n", check, changed)
        write(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n", check, changed)
        size = sum(file.stat().st_size for file in folder.iterdir())
        if size > MAX_MODEL_BYTES:
            return f"train_tokenizer.py: {model} takes {size} bytes, allowed are {MAX_MODEL_BYTES}"
        rows.extend(cases(model, folder, parts))
    write(CASES, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), check, changed)
    print(f"{'would change' if check else 'written'}: {', '.join(changed) or 'nothing'}")
    return 1 if check and changed else 0


def in_environment():
    """Runs this script with the packages it needs, which are installed on first use."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        tools.say(f"installing {', '.join(PACKAGES)} into {ENVIRONMENT}")
        venv.create(ENVIRONMENT, with_pip=True)
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], stdout=sys.stderr)
        if done.returncode != 0:
            python.unlink()
            sys.exit("train_tokenizer.py: pip cannot install them")
    os.execv(python, [str(python), __file__, *sys.argv[1:]])


if __name__ == "__main__":
    if Path(sys.prefix) != ENVIRONMENT:
        in_environment()
    sys.exit(main(sys.argv[1:]))
