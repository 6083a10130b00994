#!/usr/bin/env python3
"""The index and the decision in a VM (V8, through Node), beside the same functions natively; prints markdown tables.

    run.py            at full size: 1 M and 4 M pairs, some minutes
    run.py --quick    small, to see that it works

Builds the operations of benches/vm/operations.rs twice, as a module with the profile of the filter's and as a program,
and lets both go through one plan. They must answer alike: what calls return is added up and compared. Node is found as for
the tests (scripts/tools.py). The workload is the trace that WARMROUTE_TRACE names, else the generated stand-in.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import tools  # noqa: E402

MODULE = ROOT / "target/wasm32-unknown-unknown/wasm/examples/vm_bench.wasm"
NATIVE = ROOT / "target/release/examples/vm_native"

GENERATED_REQUESTS = 12_031
# Requests of a decision have so many blocks.
DECISION_BLOCKS = 512
# As many events as operations.rs takes out and in again.
CHUNK = 64
SWEEP_STEP = 1_000
REPLICA = 3


def millions(pairs):
    return f"{pairs / 1e6:g} M pairs"


def decisions(pairs, rounds, calls):
    """Token ids to a ranked list at 64 replicas."""
    operations = [
        {"name": "decision, hits", "op": "decide", "prepare": "prepare_hit", "calls": calls},
        {"name": "decision, next requests", "op": "decide", "prepare": "prepare_next", "calls": calls},
        {"name": "decision, hits, explicit hashes", "op": "decide", "prepare": "prepare_explicit", "calls": calls},
        {"name": "hashing alone", "op": "hash", "prepare": "prepare_hit", "calls": calls},
    ]
    return {
        "name": f"decisions, {millions(pairs)}",
        "setup": [["load_index", 64, pairs]],
        "measures": [{"rounds": rounds, "warm": rounds // 2, "operations": operations}],
    }


def runs(pairs, rounds, calls, change_rounds):
    """Look-ups, and the last events out and in again, at 8 replicas."""
    of = f", {millions(pairs)}"
    lookups = [
        {"name": "lookup, request in cache" + of, "op": "look", "prepare": "touch", "calls": calls},
        {"name": "lookup, from memory" + of, "op": "look", "calls": calls},
        {"name": "lookup, from memory, untimed calls" + of, "op": "look", "calls": calls, "batch": True},
    ]
    changes = [
        {"name": "removal, a call an event" + of, "op": "remove_event", "calls": CHUNK},
        {"name": "ingest" + of, "op": "store_event", "calls": CHUNK},
        {"name": "removal, a call a block" + of, "op": "remove_each", "calls": CHUNK},
        {"name": "ingest, again" + of, "op": "store_event", "calls": CHUNK},
    ]
    return {
        "name": f"runs, 8 replicas{of}",
        "setup": [["load_runs", 8, pairs]],
        "measures": [
            {"rounds": rounds, "warm": rounds // 2, "operations": lookups},
            {"rounds": change_rounds, "warm": 1, "operations": changes},
        ],
    }


def clearing(pairs, rounds):
    """One replica of 64 is cleared, swept, and loaded again."""
    of = f", {millions(pairs)}"
    operations = [
        {"name": "clear" + of, "op": "clear", "calls": 1, "argument": REPLICA},
        {"name": f"sweep step of {SWEEP_STEP:,}" + of, "op": "sweep", "argument": SWEEP_STEP, "until_done": True},
        {"name": "reload" + of, "op": "reload", "calls": 1, "argument": REPLICA},
    ]
    return {
        "name": f"runs, 64 replicas{of}",
        "setup": [["load_runs", 64, pairs]],
        "measures": [{"rounds": rounds, "warm": 1, "operations": operations}],
    }


def memory(pairs):
    """What holds so many pairs."""
    return [
        {"name": f"8 replicas, LRU, {millions(pairs)}", "replicas": 8, "pairs": pairs},
        {"name": f"64 replicas, LRU, {millions(pairs)}", "replicas": 64, "pairs": pairs},
        {
            "name": f"worst case: one event a block, with parents, {millions(pairs)}",
            "pairs": pairs,
            "grow": {"with_parents": 1},
        },
        {
            "name": f"worst case: one event a block, without, {millions(pairs)}",
            "pairs": pairs,
            "grow": {"with_parents": 0},
        },
    ]


def plan(quick):
    """What both sides do. At least 100,000 pairs: the chunk of events has to be there."""
    sizes, rounds, change_rounds = ([200_000], 3, 2) if quick else ([1_000_000, 4_000_000], 41, 25)
    # Short rounds: where other work is on the machine, some of them are spared.
    calls = 400
    steps = [decisions(sizes[0], rounds, calls)]
    steps += [runs(pairs, rounds, calls, change_rounds) for pairs in sizes]
    steps += [clearing(pairs, change_rounds) for pairs in sizes]
    steps += [{"memory": [each for pairs in sizes for each in memory(pairs)]}]
    return {"generated": GENERATED_REQUESTS, "steps": steps}


def build():
    cargo = ["cargo", "rustc", "--quiet", "--target", tools.WASM_TARGET, "--profile", "wasm", "--example", "vm_bench"]
    subprocess.run(cargo, cwd=ROOT, check=True)
    subprocess.run(["cargo", "build", "--quiet", "--release", "--example", "vm_native"], cwd=ROOT, check=True)


def lines(command):
    """The JSON objects that a command prints, by name, each name in order."""
    tools.say(f"running {Path(command[0]).name}")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = {}
    for line in done.stdout.splitlines():
        line = json.loads(line)
        found.setdefault(line["name"], []).append(line)
    return found


def compare(vm, native):
    """Exits unless both sides returned the same wherever both did something."""
    apart = [
        f"{name}: {a['sum']} in the VM, {b['sum']} natively"
        for name in vm.keys() & native.keys()
        for a, b in zip(vm[name], native[name], strict=True)
        if a["sum"] != b["sum"]
    ]
    if apart:
        sys.exit("run.py: the answers differ\n" + "\n".join(sorted(apart)))
    print(f"\n{len(vm.keys() & native.keys())} operations, every round: the same answers in the VM and natively.")


def spread(rounds, figure):
    """Median and least of a figure over the rounds."""
    values = [figure(each) for each in rounds]
    return statistics.median(values), min(values)


def cell(pair, digits):
    return f"{pair[0]:,.{digits}f} ({pair[1]:,.{digits}f})"


def calls_table(vm, native, names):
    """Calls on the request path. The ratio is of the medians of p50, of the least means where there is no p50."""
    print("\n| us a call, median of the rounds (least round) | VM p50 | p99 | mean | native p50 | p99 | mean | VM / native |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        cells, compared = [], []
        for rounds in (vm[name], native[name]):
            figures = {part: spread(rounds, lambda each: each[part] / 1e3) for part in ("p50", "p99") if part in rounds[0]}
            figures["mean"] = spread(rounds, lambda each: each["total"] / each["calls"] / 1e3)
            cells += [cell(figures[part], 2) if part in figures else "" for part in ("p50", "p99", "mean")]
            compared.append(figures["p50"][0] if "p50" in figures else figures["mean"][1])
        print(f"| {name} | {' | '.join(cells)} | {compared[0] / compared[1]:.2f} |")


def ns_a_block(line):
    """An event returns how many blocks it changed; a decision's blocks are always as many."""
    return line["p50"] / DECISION_BLOCKS if "hashing" in line["name"] else line["total"] / line["sum"]


def blocks_table(vm, native, names):
    print("\n| ns a block, median of the rounds (least round) | VM | native | VM / native, least rounds |")
    print("|---|---|---|---|")
    for name in names:
        a, b = spread(vm[name], ns_a_block), spread(native[name], ns_a_block)
        print(f"| {name} | {cell(a, 1)} | {cell(b, 1)} | {a[1] / b[1]:.2f} |")


def sweep_table(vm, native, names):
    print("\n| us, median of the rounds (least round) | VM, in all | longest call | native, in all | longest call | calls |")
    print("|---|---|---|---|---|---|")
    for name in names:
        cells = []
        for rounds in (vm[name], native[name]):
            cells.append(cell(spread(rounds, lambda each: each["total"] / 1e3), 1))
            cells.append(cell(spread(rounds, lambda each: each["max"] / 1e3), 1))
        print(f"| {name} | {' | '.join(cells)} | {vm[name][0]['calls']} |")


def memory_table(vm, steps):
    """Each state in an instance of its own, which holds nothing else."""
    print("\n| state | pairs | B/pair, growth of the VM's memory | B/pair, the index's own account |")
    print("|---|---|---|---|")
    for step in steps:
        [line] = vm[step["name"]]
        pairs = line["sum"]
        print(f"| {step['name']} | {pairs:,} | {line['memory'] / pairs:.1f} | {line['account'] / pairs:.1f} |")


def main(arguments):
    if arguments not in ([], ["--quick"]):
        sys.exit(__doc__.strip())
    tools.wasm_target()
    node = str(tools.node())
    build()
    trace = os.environ.get("WARMROUTE_TRACE")
    steps = plan(quick=bool(arguments))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(json.dumps(steps))
        native = lines([str(NATIVE), str(path)])
        vm = lines([node, str(HERE / "run.mjs"), str(MODULE), str(path), *([trace] if trace else [])])
    version = tools.output(node, "-p", "`Node ${process.versions.node}, V8 ${process.versions.v8}`").strip()
    print(f"{version}; {'the trace' if trace else 'the generated stand-in'}; {MODULE.stat().st_size:,} bytes of module")
    compare(vm, native)
    per_block = ("removal", "ingest", "hashing")
    names = [name for name in vm if "round" in vm[name][0]]
    steps_names = [name for name in names if name.startswith(("clear", "sweep", "reload"))]
    blocks = [name for name in names if name.startswith(per_block)]
    calls_table(vm, native, [name for name in names if name not in steps_names and name not in blocks])
    blocks_table(vm, native, blocks)
    sweep_table(vm, native, steps_names)
    memory_table(vm, next(step["memory"] for step in steps["steps"] if "memory" in step))
    for name in (name for name in vm if name.endswith(": growth")):
        [line] = vm[name]
        print(f"\n{name} of the VM's memory while it was measured: {line['sum']:,} bytes, to {line['memory']:,}.")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except tools.Missing as what:
        sys.exit(f"run.py: {what}")
    except subprocess.CalledProcessError as failed:
        sys.exit(f"run.py: {failed.cmd[0]} failed with {failed.returncode}")
