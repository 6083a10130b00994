#!/usr/bin/env python3
"""Chat bodies to block chains in a VM (V8, through Node), beside the general tokenizer crate; prints a markdown table.

    text.py [ROUNDS]       41 rounds unless told otherwise

Builds benches/vm/text as a module with the profile of the filter's, and natively to compile the models' packages and to
compute the ids that the VM must give; benches/general, the crate `tokenizers` 1.0.0-rc.3 as a module of its own, must give
the same. Node runs as V8 does in Envoy: optimized code only, compiled before it is called. The tokenizers and templates
are those that scripts/tokenizers.py and scripts/templates.py install; it fetches what is missing.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import tools  # noqa: E402

OURS = ROOT / "target/wasm32-unknown-unknown/wasm/examples/vm_text.wasm"
NATIVE = ROOT / "target/release/examples/text_native"
GENERAL_TARGET = ROOT / "target/general"
GENERAL = GENERAL_TARGET / tools.WASM_TARGET / "release/warmroute_general.wasm"
FLAGS = ["--no-liftoff", "--no-wasm-tier-up", "--no-wasm-lazy-compilation"]
TOKENIZERS = ["llama3_1", "qwen3", "gemma3"]


def build():
    cargo = ["cargo", "rustc", "--quiet", "--target", tools.WASM_TARGET, "--profile", "wasm", "--example", "vm_text"]
    subprocess.run(cargo, cwd=ROOT, check=True)
    subprocess.run(["cargo", "build", "--quiet", "--release", "--example", "text_native"], cwd=ROOT, check=True)
    environment = {
        **os.environ,
        "RUSTFLAGS": '--cfg getrandom_backend="custom" -Ctarget-feature=+simd128',
        "CARGO_TARGET_DIR": str(GENERAL_TARGET),
    }
    cargo = ["cargo", "build", "--quiet", "--release", "--target", tools.WASM_TARGET]
    subprocess.run(cargo, cwd=ROOT / "benches/general", env=environment, check=True)


def lines(command):
    """The JSON objects that a command prints, by model and what they are of."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = map(json.loads, done.stdout.splitlines())
    return {(line.get("model"), line["what"]): line for line in found}


def compare(ours, general):
    """Exits unless both made the same ids of what is not in the plan."""
    for key in ours.keys() & general.keys():
        if ours[key].get("sum") != general[key].get("sum"):
            sys.exit(f"text.py: {key}: the general crate gives other ids")


def cell(line):
    if line is None:
        return ""
    parts = [f"{line['ms']:.2f} ms" if "ms" in line else "", f"least {line['least']:.2f}" if "least" in line else ""]
    parts += [f"{line['mb_per_s']:.0f} MB/s" if "mb_per_s" in line else ""]
    parts += [f"{line['memory'] / 1e6:.1f} MB" if "memory" in line else ""]
    return ", ".join(part for part in parts if part)


def main(arguments):
    rounds = arguments[0] if arguments else "41"
    if len(arguments) > 1 or not rounds.isdecimal():
        sys.exit(__doc__.strip())
    tools.wasm_target()
    node = str(tools.node())
    for script in (["tokenizers.py", *TOKENIZERS], ["templates.py"]):
        subprocess.run([sys.executable, str(ROOT / "scripts" / script[0]), *script[1:]], stdout=sys.stderr, check=True)
    build()
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        native = [str(NATIVE), str(tools.CACHE / "tokenizers"), str(tools.CACHE / "templates"), folder]
        plan.write_bytes(subprocess.run(native, stdout=subprocess.PIPE, check=True).stdout)
        run = [node, *FLAGS, str(HERE / "text.mjs")]
        ours = lines([*run, str(OURS), str(plan), rounds])
        general = lines([*run, str(GENERAL), str(plan), rounds, "--general"])
    compare(ours, general)
    print(tools.output(node, "-p", "`Node ${process.versions.node}, V8 ${process.versions.v8}`").strip())
    print(f"modules of {OURS.stat().st_size:,} and {GENERAL.stat().st_size:,} bytes; every answer as natively\n")
    print("| model | what | ours | tokenizers 1.0.0-rc.3 |\n|---|---|---|---|")
    for key in ours | general:
        model, what = key
        print(f"| {model or ''} | {what} | {cell(ours.get(key))} | {cell(general.get(key))} |")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except tools.Missing as what:
        sys.exit(f"text.py: {what}")
    except subprocess.CalledProcessError as failed:
        sys.exit(f"text.py: {failed.cmd[0]} failed with {failed.returncode}")
