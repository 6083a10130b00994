// The same chat through several builds of benches/vm/text/module.rs in turn, so that what else the machine does falls on all
// of them alike.
//
//     node turns.mjs ROUNDS MODEL MODULE:PLAN [MODULE:PLAN …]
//
// PLAN is what text_native of the same build printed. Node needs the flags that text.py gives it. Prints one line a module:
// the median and the least of the process's own time in ms, and memory in MB. Every answer is compared with the plan's.

import { readFileSync } from "node:fs";
import { argv, cpuUsage, exit } from "node:process";

const [rounds, name, ...builds] = argv.slice(2);
const PART_BYTES = 48 * 1024;

const hash = (vm) => BigInt.asUintN(64, vm.ids_hash());
const megabytes = (vm) => (vm.memory.buffer.byteLength / 1e6).toFixed(2);

function give(vm, bytes) {
  const at = vm.reserve(bytes.length);
  new Uint8Array(vm.memory.buffer, at, bytes.length).set(bytes);
}

function load(vm, model) {
  const bytes = readFileSync(model.package);
  vm.begin(BigInt.asIntN(64, BigInt(model.upper)), BigInt.asIntN(64, BigInt(model.lower)), model.length);
  for (let at = 0; at < bytes.length; at += PART_BYTES) {
    give(vm, bytes.subarray(at, at + PART_BYTES));
    vm.part();
  }
  vm.load();
}

function timed(build, what, run) {
  const start = cpuUsage();
  const blocks = build.vm.chain();
  const { user, system } = cpuUsage(start);
  if (blocks !== run.blocks || String(hash(build.vm)) !== run.hash) {
    console.error(`turns.mjs: ${build.path}, ${what}: not as natively`);
    exit(1);
  }
  build.times[what].push((user + system) / 1e3);
}

function prepared(build) {
  const [path, plan] = build.split(":");
  const model = JSON.parse(readFileSync(plan, "utf8")).find((each) => each.name === name);
  const vm = new WebAssembly.Instance(new WebAssembly.Module(readFileSync(path))).exports;
  load(vm, model);
  const runs = model.runs.filter((run) => run.body).map((run) => ({ ...run, bytes: readFileSync(run.body) }));
  return { path, vm, runs, loaded: megabytes(vm), times: { cold: [], "one turn later": [], again: [] } };
}

const all = builds.map(prepared);
for (let round = 0; round < rounds; round++) {
  for (const build of all) {
    const [chat, next] = build.runs;
    build.vm.forget();
    give(build.vm, chat.bytes);
    timed(build, "cold", chat);
    give(build.vm, next.bytes);
    timed(build, "one turn later", next);
    timed(build, "again", next);
  }
}
for (const { path, vm, loaded, times } of all) {
  const figures = Object.entries(times).map(([what, of]) => {
    const sorted = of.sort((a, b) => a - b);
    return `${what} ${sorted[sorted.length >> 1].toFixed(3)} (${sorted[0].toFixed(3)})`;
  });
  console.log(`${name} ${path}: ${figures.join(", ")}; ${loaded} MB loaded, ${megabytes(vm)} after`);
}
