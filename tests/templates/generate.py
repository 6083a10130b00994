#!/usr/bin/env python3
"""Makes the reference renders with transformers and Jinja2, which share no code with the library.

    generate.py                writes rows.jsonl: the templates and conversations here, and what transformers makes of them
    generate.py --check        the same, but compares instead of writing; exit code 1 if the file differs
    generate.py --packages     writes packages.jsonl: the same conversations through the model makers' templates that
                               scripts/templates.py has fetched; digests only, the templates stay where they are

Needs `pip install transformers==5.24.0 jinja2==3.1.6`; nothing else of this project does.
"""

import datetime
import hashlib
import json
import sys
from pathlib import Path

import jinja2
import transformers
from transformers.utils import chat_template_utils

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
UNIX_SECONDS = 1_796_040_000
# A model has tokens of its own; any will do here, since the reference and the library get the same.
BOS, EOS = "<s>", "</s>"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather now, e.g. in "Zürich" <b>today</b> & tomorrow',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of a city, it's required"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "default": 1, "minimum": 0.5, "maximum": 1e20},
            },
            "required": ["city"],
        },
    },
}
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": None,
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}, "default": []},
                "strict": {"type": "boolean", "default": False},
                "limit": {"type": ["integer", "null"], "default": None},
                "nested": {"type": "object", "properties": {"a": {"type": "number", "default": 1e-7}}},
            },
            "required": [],
        },
        "strict": True,
    },
}


def said(*texts):
    """Turns of user and assistant in alternation, after a system message if the first text is one."""
    roles = ["user", "assistant"]
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def system(text, *texts):
    return [{"role": "system", "content": text}, *said(*texts)]


def called(name, arguments, content="", **more):
    call = {"id": "abcdef123", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call], **more}


def result(content, **more):
    return {"role": "tool", "tool_call_id": "abcdef123", "content": content, **more}


def part(text):
    return {"type": "text", "text": text}


ARGUMENTS = {"city": "Zürich", "days": 3, "x": 1.0, "big": 1e20, "ok": True, "n": None, "l": [1, 2.5, {"k": "it's"}]}

CHATS = [
    {"messages": said("Hello!")},
    {"messages": system("Be brief.", "Hi", "Hello! How can I help?", "A joke about 数据库 & <tags> 😀, isn't it?")},
    {"messages": system("Be brief.", *(f"Turn {i}?\n\nwith lines" if i % 2 == 0 else f"- {i}\n- b" for i in range(21)))},
    {"messages": said("Weather in Paris?"), "tools": [WEATHER]},
    {"messages": system("Use tools.", "Weather?"), "tools": [WEATHER, SEARCH]},
    {
        "messages": [*said("Weather?"), called("get_weather", ARGUMENTS), result("rain"), *said("Thanks")[:1]],
        "tools": [WEATHER, SEARCH],
    },
    {"messages": [*said("Weather?"), called("get_weather", '{"city": "Paris"}'), result("ok", name="get_weather")]},
    {"messages": [*said("q"), called("search", {"q": "x"}, "Let me look."), result("a"), result("b")], "tools": [SEARCH]},
    {"messages": [{"role": "system", "content": [part("parts")]}, {"role": "user", "content": [part("one"), part("two")]}]},
    {"messages": [*said("q"), called("search", {}), result([part("as"), part("parts")])], "tools": [SEARCH]},
    {"messages": system("s", "think", "<think>\nhmm\n</think>\n\nAnswer", "more?")},
    {"messages": [*said("q"), {"role": "assistant", "content": "a", "reasoning_content": "because"}, *said("go on")[:1]]},
    {"messages": [*said("q"), called("search", {"q": "x"}, reasoning="why"), result("r")], "tools": [SEARCH]},
    {"messages": [*said("q"), {"role": "assistant", "content": "a", "thinking": "t", "reasoning": "r"}, *said("go")[:1]]},
    {"messages": system("s", "q"), "enable_thinking": True, "thinking": True},
    {"messages": system("s", "q"), "enable_thinking": False, "thinking": False},
    {"messages": system("s", "q"), "reasoning_effort": "high", "tools": [WEATHER]},
    {"messages": said("  spaces around  \n", "  x \n", "\ttab \u00a0\u2003\x1c")},
    {"messages": [*system("first", "a"), {"role": "system", "content": "mid"}, *said("b")]},
    {"messages": [{"role": "developer", "content": "rules"}, *said("q")]},
    {"messages": said("a", "b"), "add_generation_prompt": False},
    {"messages": said("a", "To be con"), "add_generation_prompt": False, "continue_final_message": True},
    {"messages": said("a", "trailing blank "), "add_generation_prompt": False, "continue_final_message": True},
    {
        "messages": [*said("a"), {"role": "assistant", "content": [part("first"), part("last")]}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    {"messages": said("about these"), "documents": [{"title": "One", "text": "1 < 2"}, {"text": "no title"}]},
    {"messages": [*said("q"), {"role": "assistant", "content": None, "tool_calls": []}, *said("again")[:1]]},
    {"messages": [*said("q"), {"role": "assistant", "tool_calls": [called("search", {})["tool_calls"][0]] * 2}]},
    {"messages": said("")},
    {"messages": [{"role": "user", "content": "named", "name": "Ann"}], "date_string": "1 Jan 2020", "x": [1, None, "é"]},
    {"messages": said("quotes ' and \" and \\ and {{ braces }} {% tags %}\r\nCRLF\x0bVT\u2028LS")},
    {"messages": [{"role": "user", "content": [part("look"), {"type": "image"}, part("here")]}]},
    {"messages": [*said("n"), called("f", {"i": 12345678901234567890, "neg": -0.0, "e": 1e-7, "": [], "o": {}})]},
]


class Clock(datetime.datetime):
    """`datetime.now()` fixed, in UTC."""

    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(UNIX_SECONDS, datetime.timezone.utc).replace(tzinfo=None)


def render(template, chat):
    """The reference's text, or its exception."""
    chat = dict(json.loads(json.dumps(chat)))
    chat.setdefault("add_generation_prompt", True)
    messages = chat.pop("messages")
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            conversations=[messages], chat_template=template, bos_token=BOS, eos_token=EOS, **chat
        )
    except Exception as error:  # Whatever the reference raises is its answer.
        return error
    return texts[0]


def meta(**more):
    versions = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
    return {"kind": "meta", "reference": versions, "unix_seconds": UNIX_SECONDS, **more}


def own_rows():
    templates = {path.name: path.read_text() for path in sorted(HERE.glob("*.jinja"))}
    yield meta()
    for name, text in templates.items():
        yield {"kind": "template", "name": name, "text": text}
    for number, chat in enumerate(CHATS):
        yield {"kind": "chat", "id": number, **chat}
    for name, text in templates.items():
        for number, chat in enumerate(CHATS):
            answer = render(text, chat)
            row = {"kind": "render", "template": name, "chat": number, "bos": BOS, "eos": EOS}
            if isinstance(answer, Exception):
                yield {**row, "raises": True, "err": f"{type(answer).__name__}: {answer}"[:100]}
            else:
                yield {**row, "text": answer}


def package_rows():
    """One row a template: the first 16 hex digits of each text's SHA-256, in the order of the conversations."""
    import templates as packages

    yield meta(chats="rows.jsonl")
    for path in packages.fetched():
        text = path.read_text()
        answers = [render(text, chat) for chat in CHATS]
        yield {
            "kind": "renders",
            "template": path.name,
            "template_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "bos": BOS,
            "eos": EOS,
            "texts": [
                "raises" if isinstance(answer, Exception) else hashlib.sha256(answer.encode()).hexdigest()[:16]
                for answer in answers
            ],
        }


def main(arguments):
    chat_template_utils.datetime = Clock
    target, rows = HERE / "rows.jsonl", own_rows
    if "--packages" in arguments:
        target, rows = HERE / "packages.jsonl", package_rows
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows())
    if "--check" in arguments:
        if target.read_text() != text:
            sys.exit(f"{target.name} differs from what the reference renders now: run generate.py")
        return
    target.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
