#!/usr/bin/env python3
"""Makes apis.jsonl: bodies of /v1/responses and /v1/messages, and the prompts that vLLM and transformers make of them.

    apis.py VLLM             writes apis.jsonl; VLLM is the folder of an unpacked vllm 0.33.0 wheel, and the templates of
                             real models are those that scripts/templates.py has fetched
    apis.py VLLM --check     the same, but compares instead of writing; exit code 1 if the file differs

Needs what bodies.py needs, with openai 3.57.0. vLLM's request classes and the functions that make chat messages of them are
taken as they are; types that they only carry along are replaced by anything. Bodies are random, from a fixed seed. A row
without a text is a body that vLLM refuses. A row of the kind `trial` says what vLLM finds out about a model's template.
"""

import dataclasses
import hashlib
import json
import logging
import sys
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Iterable, Literal, get_args
from unittest.mock import MagicMock

import jinja2
import jinja2.sandbox
import openai.types.responses as items
import pydantic
from openai.types import responses
from openai.types.chat import chat_completion_message_tool_call_param
from openai.types.responses import response_function_tool_call_output_item, response_input_item_param
from openai.types.responses import tool as tool_types
from openai.types.responses.response import ToolChoice
from openai.types.shared import Metadata, Reasoning
from transformers.utils import chat_template_utils

import bodies
from bodies import TEMPLATES, taken

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
from templates import fetched

HERE = Path(__file__).resolve().parent
ROWS = 480
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
ENTRYPOINTS = "vllm/entrypoints"


class Refused(Exception):
    """What vLLM raises where a request is at fault."""

    def __init__(self, message, parameter=None):
        super().__init__(message)


class Reference(bodies.Reference):
    """vLLM from the body of an API to a prompt."""

    def __init__(self, folder):
        super().__init__(folder)
        self.params = taken(
            folder / "vllm/renderers/params.py",
            ["merge_kwargs", "map_reasoning_effort", "TokenizeParams"],
            Any=Any, Literal=Literal, field=dataclasses.field, overload=typing.overload,
            **{name: Any for name in ("TokenizerLike", "TextPrompt", "TokensPrompt", "EmbedsPrompt", "_S")},
        )
        self.params.TokenizeParams = dataclasses.dataclass(self.params.TokenizeParams)
        model = type("OpenAIBaseModel", (pydantic.BaseModel,), {"model_config": pydantic.ConfigDict(extra="allow")})
        self.load_tools(folder)
        self.load_responses(folder, model)
        self.load_messages(folder, model)

    def load_tools(self, folder):
        scope = {name: getattr(tool_types, name) for name in ("CustomTool", "FunctionTool", "NamespaceTool")}
        scope |= {"Any": Any, "Sequence": list, "ChatCompletionToolsParam": self.tool, "ResponsesTool": tool_types.Tool}
        scope |= {"Tool": Any, "_NAMESPACE_TOOL_SEPARATOR": "__", "CUSTOM_TOOL_INPUT_KEY": "input"}
        names = ["custom_tool_parameters", "custom_tool_as_function_dict", "flat_namespace_tool_name"]
        names += ["get_function_tools", "iter_response_function_tool_dicts"]
        self.tools = taken(folder / "vllm/tool_parsers/utils.py", names, **scope)

    def load_responses(self, folder, model):
        path = folder / ENTRYPOINTS / "openai/responses"
        scope = {name: getattr(pydantic, name) for name in ("BeforeValidator", "Field", "PrivateAttr", "ValidationError")}
        scope |= {name: getattr(pydantic, name) for name in ("field_validator", "model_validator")}
        scope |= {name: getattr(responses, name) for name in (
            "ResponseFunctionToolCall", "ResponseOutputMessage", "ResponseReasoningItem", "ResponsePrompt",
            "ResponseOutputItem",
        )}
        scope |= {"OpenAIBaseModel": model, "Annotated": Annotated, "Any": Any, "Literal": Literal, "logger": logging}
        scope |= {"Metadata": Metadata, "Reasoning": Reasoning, "ToolChoice": ToolChoice, "Tool": tool_types.Tool}
        item = response_input_item_param.ResponseInputItemParam | responses.ResponseOutputItem
        scope |= {"ResponseInputOutputItem": item, "ModelConfig": Any, "ChatTemplateContentFormatOption": Any}
        scope |= {"_INT64_MIN": -(2**63), "_INT64_MAX": 2**63 - 1, "random_uuid": lambda: "0"}
        scope |= {name: Any for name in (
            "ResponseTextConfig", "TopLogprobsParam", "PromptCacheOptionsParam", "PromptCacheRetention", "MMPayload",
            "OpenAIHarmonyMessage", "StructuredOutputsParams", "StopParam", "SamplingParams", "ChatParams",
        )}
        scope |= {"validate_cache_salt": lambda salt: None, "resolve_return_mm_kwargs_alias": lambda data: data}
        scope |= {"VLLMValidationError": Refused, "TokenizeParams": self.params.TokenizeParams, "ChatParams": MagicMock}
        names = ["_default_input_image_details", "_tool_field", "_resolve_named_tool_choice", "ResponsesRequest"]
        # The class imports these two where it uses them.
        module = types.ModuleType("vllm.tool_parsers.utils")
        module.flat_namespace_tool_name = self.tools.flat_namespace_tool_name
        sys.modules[module.__name__] = module
        self.responses_request = taken(path / "protocol.py", names, **scope).ResponsesRequest
        self.responses_request.model_rebuild(_types_namespace=scope)
        call = chat_completion_message_tool_call_param
        scope |= {"Iterable": Iterable, "json": json, "CUSTOM_TOOL_INPUT_KEY": "input", "FunctionCallTool": call.Function}
        scope |= {"ChatCompletionMessageToolCallParam": call.ChatCompletionMessageToolCallParam}
        scope |= {"ChatCompletionAssistantMessageParam": dict, "ChatCompletionToolMessageParam": dict}
        scope |= {"ChatCompletionMessageParam": dict, "ChatCompletionToolsParam": self.tool}
        scope["ResponseFunctionToolCallOutputItem"] = (
            response_function_tool_call_output_item.ResponseFunctionToolCallOutputItem
        )
        scope["FunctionDefinition"] = self.tool.model_fields["function"].annotation
        scope |= vars(self.tools)
        names = ["encode_custom_tool_input", "_item_type", "_item_dict", "should_continue_final_message"]
        names += ["construct_input_messages", "construct_chat_messages_with_tool_call"]
        names += ["_construct_message_from_response_item", "convert_tool_responses_to_completions_format"]
        names += ["construct_tool_dicts"]
        self.utils = taken(path / "utils.py", names, **scope)

    def load_messages(self, folder, model):
        sys.modules["vllm.envs"] = types.SimpleNamespace(VLLM_MAX_STOP_STRINGS=16)
        base = types.ModuleType("vllm.entrypoints.generate.base.protocol")
        base.MMPayload, base.resolve_return_mm_kwargs_alias = Any, lambda data: data
        for name in ("JsonSchemaResponseFormat", "ResponseFormat", "StreamOptions"):
            setattr(base, name, MagicMock())
        sys.modules[base.__name__] = base
        chat = types.ModuleType("vllm.entrypoints.openai.chat_completion.protocol")
        chat.ChatCompletionRequest = pydantic.create_model(
            "ChatCompletionRequest", __base__=self.request, tools=(Any, None), tool_choice=(Any, "none"),
            reasoning_effort=(Any, None), chat_template_kwargs=(Any, None),
        )
        chat.ChatCompletionToolsParam, chat.ChatCompletionResponse = self.tool, object
        chat.ChatCompletionNamedToolChoiceParam, chat.ChatCompletionStreamResponse = MagicMock(), object
        sys.modules[chat.__name__] = chat
        bodies.load(folder, "vllm.entrypoints.anthropic.protocol")
        serving = bodies.load(folder, "vllm.entrypoints.anthropic.serving")
        self.messages_request = sys.modules["vllm.entrypoints.anthropic.protocol"].AnthropicMessagesRequest
        self.serving, self.efforts = serving.AnthropicServingMessages, get_args(serving.AnthropicEffort)

    def responses(self, body, template):
        request = self.responses_request.model_validate(body)
        tools = self.utils.construct_tool_dicts(request.tools, request.tool_choice)
        messages = self.utils.construct_input_messages(
            request_instructions=request.instructions, request_input=request.input
        )
        continues = self.utils.should_continue_final_message(request.input)
        effort = None if request.reasoning is None else request.reasoning.effort
        # As `build_chat_params`, `render_responses` and `preprocess_chat`.
        given = request.chat_template_kwargs
        more = {"add_generation_prompt": not continues, "continue_final_message": continues, "reasoning_effort": effort}
        if effort is not None and "enable_thinking" not in (given or {}):
            more["enable_thinking"] = effort != "none"
        arguments = self.merge_kwargs(given, more)
        arguments = self.merge_kwargs(self.merge_kwargs(arguments, {"tools": tools}), arguments)
        special = request.build_tok_params(types.SimpleNamespace(max_model_len=1)).add_special_tokens
        return self.rendered(self.parsed(messages, template), template, arguments), special

    def messages(self, body, template):
        request = self.messages_request.model_validate(body)
        request = self.serving.to_chat_completion_request(
            request,
            merge_inline_system=self.serving._detect_merge_inline_system(template),
            disabled_thinking_effort=self.disabled(template),
        )
        tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
        return self.chat(request.messages, template, request.chat_template_kwargs, request.reasoning_effort, tools), False

    def disabled(self, template):
        """As `DisabledThinkingEffortResolver` probes it."""

        def prompt(effort):
            try:
                return self.chat([{"role": "user", "content": "Hi"}], template, TOKENS, effort, None)
            except Exception:
                return None

        none = prompt("none")
        return "low" if none is None or none in map(prompt, self.efforts) else "none"

    def chat(self, messages, template, given, effort, tools):
        more = {"add_generation_prompt": True, "reasoning_effort": effort}
        if effort is not None and "enable_thinking" not in (given or {}):
            more["enable_thinking"] = effort != "none"
        arguments = self.merge_kwargs({"tools": tools}, self.merge_kwargs(given, more))
        return self.rendered(self.parsed(messages, template), template, arguments)

    def rendered(self, conversation, template, arguments):
        texts, _ = chat_template_utils.render_jinja_template(
            conversations=[chat_template_utils._normalize_chat_messages(conversation)],
            chat_template=template,
            **arguments,
        )
        return texts[0]


class Bodies(bodies.Bodies):
    """Random bodies that vLLM takes, for the most part."""

    def one(self, *choices):
        return self.random.choice(choices)

    def some(self, make, least, most):
        return [make() for _ in range(self.random.randint(least, most))]

    def arguments(self, body):
        if self.chance(0.3):
            values = [True, False, None, "auto", "text", 1.0, ["x"]]
            names = self.random.sample(["enable_thinking", "reasoning_effort", "x", "add_generation_prompt"], 2)
            body["chat_template_kwargs"] = {name: self.one(*values) for name in names}

    def responses(self):
        body = {"model": "m", "input": self.text() if self.chance(0.1) else self.some(self.item, 1, 6)}
        if self.chance(0.2) and isinstance(body["input"], list):
            body["input"].append(self.answer() | {"id": "msg_1", "status": "incomplete"})
        if self.chance(0.4):
            body["instructions"] = self.text()
        if self.chance(0.3):
            body["tools"] = self.some(self.response_tool, 0, 3)
        if self.chance(0.3):
            body["reasoning"] = {"effort": self.one("none", "low", "high", None), "summary": "auto"}
        self.arguments(body)
        return body

    def item(self):
        make = self.one(self.easy, self.easy, self.typed, self.answer, self.answer, self.reasoning, self.function_call)
        return self.one(make, make, self.function_call, self.output, self.custom)()

    def input_part(self):
        part = {"type": "input_text", "text": self.text()}
        if self.chance(0.2):
            part["prompt_cache_breakpoint"] = {"mode": "explicit"}
        return part

    def easy(self):
        content = self.text() if self.chance(0.5) else self.some(self.input_part, 1, 3)
        item = {"role": self.one("user", "user", "assistant", "system", "developer"), "content": content}
        for name, value in (("id", "i"), ("status", "completed"), ("name", "n"), ("phase", "commentary")):
            if self.chance(0.1):
                item[name] = value
        return item

    def typed(self):
        return {"type": "message"} | self.easy()

    def answer(self):
        texts = self.some(lambda: {"type": "output_text", "text": self.text()}, 1, 2)
        if self.chance(0.5):
            texts[0]["annotations"] = []
        if self.chance(0.1):
            texts.append({"type": "refusal", "refusal": "no"})
        item = {"type": "message", "role": "assistant", "content": texts}
        if self.chance(0.5):
            item |= {"id": "msg_1", "status": self.one("completed", "completed", "incomplete", "in_progress")}
        return item

    def reasoning(self):
        item = {"type": "reasoning", "summary": self.some(lambda: {"type": "summary_text", "text": "brief"}, 0, 2)}
        if self.chance(0.5):
            item["content"] = self.some(lambda: {"type": "reasoning_text", "text": self.one("", "why", "so")}, 0, 2)
        if self.chance(0.3):
            item |= {"id": "rs_1", "status": self.one("completed", "incomplete", None), "encrypted_content": self.one("", None)}
        return item

    def function_call(self):
        texts = ['{"b": 1, "a": [1.5, null]}', "", "[]", "no json", '{"x": {"y": true}}']
        item = {"type": "function_call", "name": "f", "call_id": self.one("c", "d"), "arguments": self.one(*texts)}
        if self.chance(0.2):
            item |= {"id": "fc_1", "status": "completed", "namespace": self.one("space", None, "")}
        return item

    def output(self):
        kind = self.one("function_call_output", "function_call_output", "custom_tool_call_output")
        part = lambda: {"type": "input_text", "text": self.text()}
        output = self.text() if self.chance(0.7) else self.some(part, 1, 2)
        item = {"type": kind, "call_id": "c", "output": output}
        if self.chance(0.2):
            item |= {"id": "o_1", "status": "completed"}
        return item

    def custom(self):
        return {"type": "custom_tool_call", "call_id": "c", "name": "g", "input": self.text()}

    def response_tool(self):
        function = {"type": "function"} | self.tool()["function"]
        if self.chance(0.5):
            return function
        space = {"type": "namespace", "name": "space", "description": "d", "tools": [function, {"type": "custom", "name": "g"}]}
        custom = {"type": "custom", "name": "g", "description": self.one("d", None), "format": {"type": "text"}}
        return self.one(space, custom, {"type": "web_search"}, {"type": "code_interpreter", "container": {"type": "auto"}})

    def messages(self):
        body = {"model": "m", "max_tokens": 4096, "messages": [self.first()] + self.some(self.turn, 0, 4)}
        if self.chance(0.4):
            body["system"] = self.text() if self.chance(0.5) else self.some(self.block_text, 0, 3)
        if self.chance(0.4):
            body["tools"] = self.some(self.schema, 0, 2)
        if self.chance(0.4):
            kind = self.one("enabled", "disabled", "disabled", "adaptive")
            body["thinking"] = {"type": kind} | ({"budget_tokens": 2048} if kind == "enabled" else {})
        if self.chance(0.3):
            body["output_config"] = {"effort": self.one("low", "high", "max", None)}
        self.arguments(body)
        return body

    def block_text(self):
        block = {"type": "text", "text": self.text()}
        if self.chance(0.2):
            block["cache_control"] = {"type": "ephemeral"}
        return block

    def turn(self):
        role = self.one("user", "user", "assistant", "system" if self.chance(0.5) else "user")
        if role == "system":
            return {"role": role, "content": self.text() if self.chance(0.5) else self.some(self.block_text, 1, 3)}
        blocks = {"user": [self.block_text, self.result, self.result], "assistant": [self.block_text, self.use, self.thinking]}
        content = self.text() if self.chance(0.3) else self.some(lambda: self.one(*blocks[role])(), 0, 4)
        return {"role": role, "content": content}

    def first(self):
        return {"role": "user", "content": self.text() if self.chance(0.5) else [{"type": "text", "text": "q"}]}

    def use(self):
        use = {"type": "tool_use", "id": self.one("c", "d"), "name": "f"}
        return use | {"input": self.one({}, {"b": 1, "a": [1.5, None, "é"]}, {"x": {"y": 1e22, "z": -0.0}})}

    def result(self):
        result = {"type": "tool_result", "tool_use_id": self.one("c", "d")}
        if self.chance(0.8):
            more = [{"type": "tool_reference", "tool_name": "f"}, {"type": "document", "source": {}}]
            parts = lambda: self.one(self.block_text(), self.block_text(), *more)
            result["content"] = self.text() if self.chance(0.5) else self.some(parts, 0, 3)
        if self.chance(0.2):
            result["is_error"] = True
        return result

    def thinking(self):
        kinds = {"type": "thinking", "thinking": self.one("", "why"), "signature": "s"}, {"type": "redacted_thinking", "data": "d"}
        return self.one(*kinds)

    def schema(self):
        schema = {"properties": {"b": {}, "a": {"default": 1e-7}}} | self.one({}, {"type": "object"})
        return {"name": "f", "input_schema": schema} | self.one({}, {"description": self.text()}, {"strict": True})


# vLLM tries templates without tools, and would not start if that failed in Python rather than in Jinja.
TEMPLATES = {name: text.replace("{{ tools | tojson }}", "{{ tools | tojson if tools is defined }}") for name, text in TEMPLATES.items()}
TEMPLATES |= {
    "efforts": TEMPLATES["text"] + "{{ raise_exception('no') if reasoning_effort == 'none' }}",
    "spoken": "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}{{ '<assistant>' if add_generation_prompt }}",
    "guarded": TEMPLATES["text"].replace(
        "{{ m }}", "{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}{{ m }}"
    ),
    "dated": TEMPLATES["text"] + "{{ strftime_now('x') }}",
    "marked": TEMPLATES["text"].replace("{{ m }}", "{% generation %}{{ m }}{% endgeneration %}"),
    "attentive": TEMPLATES["parts"] + "{{ strftime_now('x') if strftime_now is defined }}",
    "thoughtless": TEMPLATES["text"].replace("{{ enable_thinking }}{{ reasoning_effort }}", ""),
}


def rows(folder):
    reference, random = Reference(folder), Bodies(2)
    for name, text in TEMPLATES.items():
        yield {"kind": "template", "name": name, "text": text}
    for number in range(ROWS):
        name = list(TEMPLATES)[number % len(TEMPLATES)]
        api = ("responses", "messages")[number // len(TEMPLATES) % 2]
        body = json.dumps(getattr(random, api)(), ensure_ascii=False)
        row = {"kind": "body", "template": name, "api": api, "body": body}
        try:
            row["text"], row["special"] = getattr(reference, api)(json.loads(body), TEMPLATES[name])
        except (Refused, pydantic.ValidationError, jinja2.TemplateError, ValueError, AttributeError) as error:
            row["raises"] = str(error).split("\n")[0]
        yield row
    for path in fetched():
        text = path.read_text()
        row = {"kind": "trial", "template": path.name, "template_sha256": hashlib.sha256(text.encode()).hexdigest()}
        try:
            yield row | {"merges": reference.serving._detect_merge_inline_system(text), "effort": reference.disabled(text)}
        except TypeError:  # What is not Jinja's error ends vLLM.
            pass


def main(arguments):
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(Path(arguments[0])))
    target = HERE / "apis.jsonl"
    if "--check" not in arguments:
        target.write_text(text)
    elif target.read_text() != text:
        sys.exit("apis.jsonl differs from what vLLM and transformers make now: run apis.py")


if __name__ == "__main__":
    main(sys.argv[1:]) if len(sys.argv) > 1 else sys.exit(__doc__.strip())
