#!/usr/bin/env python3
"""Makes bodies.jsonl: chat bodies, and the prompts that vLLM's own functions and transformers make of them.

    bodies.py VLLM             writes bodies.jsonl; VLLM is the folder of an unpacked vllm 0.33.0 wheel
    bodies.py VLLM --check     the same, but compares instead of writing; exit code 1 if the file differs

Needs `pip install transformers==5.24.0 jinja2==3.1.6 openai pydantic`. vLLM is not installed: of its modules, the two that
read messages are loaded with everything that they import from elsewhere replaced by empty classes, and single functions
are taken out of the others. Bodies are random, from a fixed seed.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import random
import sys
import types
from collections import deque
from pathlib import Path
from typing import Any, Literal, Union
from unittest.mock import MagicMock

import jinja2
import jinja2.nodes
import pydantic
from openai.types.chat import ChatCompletionMessageParam
from transformers.utils import chat_template_utils

HERE = Path(__file__).resolve().parent
MESSAGE = "vllm.renderers.chat_utils.chat_message"
TYPES = "vllm.renderers.chat_utils.types"
ABSENT = ("vllm", "torch", "PIL", "openai_harmony", "fastapi")
BODIES = 240
SHOWN = "{% for m in messages %}{{ m }}\n{% endfor %}{{ tools | tojson }}{{ enable_thinking }}{{ reasoning_effort }}{{ x }}"
TEMPLATES = {
    "text": SHOWN,
    "parts": SHOWN + "{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
    "developers": SHOWN + "{{ 'developer' if false }}",
}


class Absent(types.ModuleType):
    """A module that has an empty class for every name."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        base = ValueError if name.endswith("Error") else object
        made = type(name, (base,), {"__class_getitem__": classmethod(lambda cls, _: cls)})
        if not name[0].isupper():
            made = MagicMock(name=name)
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Absent(spec.name)

    def exec_module(self, module):
        pass


def load(folder, name):
    """One module of vLLM, as it is."""
    spec = importlib.util.spec_from_file_location(name, folder / (name.replace(".", "/") + ".py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def taken(path, names, **scope):
    """Single functions and classes of a file."""
    source = path.read_text()
    for node in ast.parse(source).body:
        if getattr(node, "name", None) in names:
            exec(ast.get_source_segment(source, node), scope)  # vLLM's own text, from the folder that was given
    return types.SimpleNamespace(**{name: scope[name] for name in names})


class Reference:
    """vLLM from a body to a prompt."""

    def __init__(self, folder):
        sys.meta_path.insert(0, Finder())
        sys.modules["PIL"] = Absent("PIL")
        sys.modules["PIL"].Image = types.SimpleNamespace(Image=type("Image", (), {}))
        kinds = load(folder, TYPES)
        self.message = load(folder, MESSAGE)
        self.hf = taken(
            folder / "vllm/renderers/hf.py",
            ["_is_var_access", "_is_attr_access", "_is_var_or_elems_access", "_iter_nodes_assign_var_or_elems"]
            + ["_iter_nodes_assign_messages_item", "_iter_nodes_assign_content_item", "_convert_developer_to_system"]
            + ["_consolidate_system_messages"],
            jinja2=jinja2, deque=deque, ConversationMessage=dict,
        )
        self.merge_kwargs = taken(folder / "vllm/renderers/params.py", ["merge_kwargs"], Any=Any).merge_kwargs
        model = type("OpenAIBaseModel", (pydantic.BaseModel,), {"model_config": pydantic.ConfigDict(extra="allow")})
        scope = {"OpenAIBaseModel": model, "Any": Any, "Literal": Literal}
        scope |= {name: getattr(pydantic, name) for name in ("model_serializer", "model_validator")}
        path = folder / "vllm/entrypoints/generate/base/protocol.py"
        scope["FunctionDefinition"] = taken(path, ["FunctionDefinition"], **scope).FunctionDefinition
        path = folder / "vllm/entrypoints/openai/chat_completion/protocol.py"
        self.tool = taken(path, ["ChatCompletionToolsParam"], **scope).ChatCompletionToolsParam
        param = Union[ChatCompletionMessageParam, kinds.CustomChatCompletionMessageParam]
        # The model's setting holds for the messages in it: fields that the types do not have are kept.
        self.request = pydantic.create_model("Request", __base__=model, messages=list[param])

    def prompt(self, body, template):
        conversation = self.conversation(body["messages"], template)
        tools = [self.tool.model_validate(tool).model_dump() for tool in body["tools"]] if "tools" in body else None
        given = body.get("chat_template_kwargs")
        # As `build_chat_params`, and `preprocess_chat` with what it adds.
        more = {"add_generation_prompt": True, "reasoning_effort": body.get("reasoning_effort")}
        if more["reasoning_effort"] is not None and "enable_thinking" not in (given or {}):
            more["enable_thinking"] = more["reasoning_effort"] != "none"
        arguments = self.merge_kwargs({"tools": tools}, self.merge_kwargs(given, more))
        texts, _ = chat_template_utils.render_jinja_template(
            conversations=[chat_template_utils._normalize_chat_messages(conversation)],
            chat_template=template,
            **arguments,
        )
        return texts[0]

    def conversation(self, messages, template):
        for message in messages:  # As `_normalize_messages_before`.
            reasoning = message.pop("reasoning_content", None)
            if reasoning is not None and message.get("reasoning") is None:
                message["reasoning"] = reasoning
        return self.parsed(self.request.model_validate({"messages": messages}).messages, template)

    def parsed(self, messages, template):
        """Messages as templates see them, of messages that were validated."""
        tracker = MagicMock()
        parser = tracker.create_parser.return_value
        parser.model_config.enable_prompt_embeds = False
        parser.mm_placeholder_storage.return_value = {}
        conversation = []
        for message in messages:
            for name in ("tool_calls", "content"):
                if message.get(name) is not None and not isinstance(message[name], str):
                    message[name] = list(message[name])
            conversation += self.message.parse_chat_message_content(message, tracker, self.format(template), False)
        self.message._postprocess_messages(conversation)
        if any(m["role"] == "developer" for m in conversation) and "'developer'" not in template:
            conversation = self.hf._consolidate_system_messages(self.hf._convert_developer_to_system(conversation))
        return conversation

    def format(self, template):
        tree = chat_template_utils._compile_jinja_template(template).environment.parse(template)
        return "openai" if any(True for _ in self.hf._iter_nodes_assign_content_item(tree)) else "string"


class Bodies:
    """Random bodies that vLLM takes."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, share):
        return self.random.random() < share

    def text(self):
        header = "x-anthropic-billing-header"
        return self.random.choice(["", "a", "b c", "é\n", "it's", f"{header}: 1\nrest", header])

    def part(self, role):
        if role == "assistant" and self.chance(0.2):
            return {"type": "refusal", "refusal": self.text()}
        part = {"type": "text", "text": self.text()}
        if self.chance(0.3):
            part["cache_control"] = {"type": "ephemeral"}
        return part

    def call(self):
        texts = ['{"b": 1, "a": [1.5, null]}', "", "[]", "42", "no json", '{"x": {"y": true}}']
        function = {"name": "f", "arguments": self.random.choice(texts)}
        call = {"type": "function", "function": function, "id": "i"}
        if self.chance(0.3):
            call["index"] = 0
            function["extra"] = 1
        fields = list(call.items())
        self.random.shuffle(fields)
        return dict(fields)

    def message(self):
        role = self.random.choice(["user", "user", "assistant", "assistant", "system", "tool", "developer"])
        content = self.text() if self.chance(0.5) else [self.part(role) for _ in range(self.random.randint(1, 3))]
        message = {"role": role, "content": content}
        if role == "assistant":
            if self.chance(0.2):
                message["content"] = None
            if self.chance(0.5):
                message["tool_calls"] = [self.call() for _ in range(self.random.randint(0, 2))]
            if self.chance(0.3):
                message[self.random.choice(["reasoning", "reasoning_content"])] = self.random.choice(["why", None])
        if role == "tool":
            message["tool_call_id"] = "i"
        if self.chance(0.2):
            message["name"] = "n"
        return message

    def tool(self):
        function = {"strict": self.random.choice([True, False, None]), "other": 1, "name": "f"}
        if self.chance(0.5):
            function["parameters"] = {"type": "object", "properties": {"b": {}, "a": {"default": 1e-7}}}
        if self.chance(0.5):
            function["description"] = self.text()
        return {"function": function, "type": "function", "more": 1}

    def body(self):
        body = {"messages": [self.message() for _ in range(self.random.randint(1, 4))]}
        if self.chance(0.4):
            body["tools"] = [self.tool() for _ in range(self.random.randint(1, 2))]
        if self.chance(0.4):
            values = [True, False, None, "auto", "text", 1.0, ["x"]]
            names = self.random.sample(["enable_thinking", "reasoning_effort", "x", "add_generation_prompt"], 2)
            body["chat_template_kwargs"] = {name: self.random.choice(values) for name in names}
        if self.chance(0.3):
            body["reasoning_effort"] = self.random.choice(["none", "low", "high"])
        return body


def rows(folder):
    reference, bodies = Reference(folder), Bodies(1)
    for name, text in TEMPLATES.items():
        yield {"kind": "template", "name": name, "text": text}
    for number in range(BODIES):
        name = list(TEMPLATES)[number % len(TEMPLATES)]
        body = json.dumps(bodies.body(), ensure_ascii=False)
        yield {"kind": "body", "template": name, "body": body, "text": reference.prompt(json.loads(body), TEMPLATES[name])}


def main(arguments):
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(Path(arguments[0])))
    target = HERE / "bodies.jsonl"
    if "--check" not in arguments:
        target.write_text(text)
    elif target.read_text() != text:
        sys.exit("bodies.jsonl differs from what vLLM and transformers make now: run bodies.py")


if __name__ == "__main__":
    main(sys.argv[1:]) if len(sys.argv) > 1 else sys.exit(__doc__.strip())
