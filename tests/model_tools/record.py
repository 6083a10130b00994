#!/usr/bin/env python3
"""Records what an engine's /tokenize would answer to `warmroute-hub verify`, with PyPI `tokenizers` and Jinja2.

    pip install tokenizers==0.23.3 jinja2==3.1.6
    tests/model_tools/record.py target/debug/warmroute-hub           writes answers.json
    tests/model_tools/record.py target/debug/warmroute-hub --check   exits with 1 if it would change

answers.json has the ids by the SHA-256 of the request's body. Conversations are read as vLLM reads them into its
models, as far as those of `verify` go: see src/template/message.rs and src/template/tools.rs for what is followed.
"""

import hashlib
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent.parent / "demo" / "models" / "demo-bytes"
ANSWERS = HERE / "answers.json"

tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
config = json.loads((MODEL / "tokenizer_config.json").read_text())
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)


def refuse(message):
    raise ValueError(message)


environment.globals["raise_exception"] = refuse
template = environment.from_string((MODEL / "chat_template.jinja").read_text())


def message_of(message):
    message = dict(message)
    if isinstance(message.get("content"), list):
        message["content"] = "\n".join(part["text"] for part in message["content"])
    for call in message.get("tool_calls", []):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return message


def tool_of(tool):
    function = tool["function"]
    fields = {name: function.get(name) for name in ("name", "description", "parameters")}
    return {"type": tool["type"], "function": fields}


def ids_of(body):
    if "prompt" in body:
        return tokenizer.encode(body["prompt"], add_special_tokens=body["add_special_tokens"]).ids
    messages = [message_of(message) for message in body["messages"]]
    tools = [tool_of(tool) for tool in body.get("tools", [])] or None
    rendered = template.render(
        messages=messages,
        tools=tools,
        add_generation_prompt=body["add_generation_prompt"],
        bos_token=config["bos_token"],
        eos_token=config["eos_token"],
    )
    if body.get("continue_final_message"):
        last = messages[-1]["content"].strip()
        rendered = rendered[: rendered.rindex(last) + len(last)]
    return tokenizer.encode(rendered, add_special_tokens=body["add_special_tokens"]).ids


def main():
    answers = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            sent = self.rfile.read(int(self.headers["content-length"]))
            ids = ids_of(json.loads(sent))
            answers[hashlib.sha256(sent).hexdigest()] = ids
            answer = json.dumps({"tokens": ids, "count": len(ids), "max_model_len": 4096}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    engine = f"http://127.0.0.1:{server.server_port}"
    ended = subprocess.run([sys.argv[1], "verify", "--engine", engine, "--model", "demo", str(MODEL)])
    lines = ",\n".join(f'"{key}": {json.dumps(ids, separators=(",", ":"))}' for key, ids in sorted(answers.items()))
    text = f"{{\n{lines}\n}}\n"
    if "--check" in sys.argv:
        sys.exit(0 if ANSWERS.read_text() == text else f"{ANSWERS} would change")
    ANSWERS.write_text(text)
    print(f"{len(answers)} answers written; verify ended with {ended.returncode}")


if __name__ == "__main__":
    main()
