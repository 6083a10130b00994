// Runs models in a WebAssembly module and times them from outside, in V8.
//
//     node text.mjs MODULE PLAN ROUNDS             ours: see benches/vm/text/module.rs
//     node text.mjs MODULE PLAN ROUNDS --general   the general crate: see benches/general
//
// PLAN is what text_native printed. Prints one JSON object a line; the process's own time in ms, memory in bytes. Every answer is compared
// with the plan's.

import { readFileSync } from "node:fs";
import { argv, cpuUsage, exit, stdout } from "node:process";

const [modulePath, planPath, rounds, general] = argv.slice(2);
const PART_BYTES = 48 * 1024;

const say = (line) => stdout.write(JSON.stringify(line) + "\n");
const [compiled, module] = timed(() => new WebAssembly.Module(readFileSync(modulePath)));
say({ what: "compile, all threads", ms: compiled });

const instantiate = () => new WebAssembly.Instance(module).exports;
const memory = (vm) => vm.memory.buffer.byteLength;
const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];
const least = (values) => Math.min(...values);
const files = new Map();

function file(path) {
  if (!files.has(path)) files.set(path, readFileSync(path));
  return files.get(path);
}

function give(vm, bytes) {
  const at = vm.reserve(bytes.length);
  new Uint8Array(vm.memory.buffer, at, bytes.length).set(bytes);
}

/// By the process's own time, which other work on the machine does not count into.
function timed(call) {
  const start = cpuUsage();
  const result = call();
  const { user, system } = cpuUsage(start);
  return [(user + system) / 1e3, result];
}

function check(what, found, expected) {
  if (String(found) !== String(expected)) {
    console.error(`text.mjs: ${what}: ${found}, natively ${expected}`);
    exit(1);
  }
}

function load(vm, model) {
  if (general) {
    give(vm, file(model.tokenizer));
    const [ms, loaded] = timed(vm.load);
    check(`${model.name} loaded`, loaded, 1);
    return ms;
  }
  const bytes = file(model.package);
  vm.begin(BigInt.asIntN(64, BigInt(model.upper)), BigInt.asIntN(64, BigInt(model.lower)), model.length);
  const parts = [];
  for (let at = 0; at < bytes.length; at += PART_BYTES) {
    give(vm, bytes.subarray(at, at + PART_BYTES));
    parts.push(timed(vm.part)[0]);
  }
  const [ms] = timed(vm.load);
  say({ model: model.name, what: "longest part", ms: Math.max(...parts) });
  return ms;
}

const hash = (vm) => BigInt.asUintN(64, vm.ids_hash());

/// The median and the least of the rounds.
function times_of(model, what, times, bytes) {
  return { model: model.name, what, ms: median(times), least: least(times), mb_per_s: bytes / median(times) / 1e3 };
}

/// A text to ids, by nothing but the tokenizer: what was seen before is forgotten each time where that can be told.
function encodings(vm, model) {
  for (const run of model.runs) {
    give(vm, file(run.text));
    const times = [];
    for (let round = 0; round < rounds; round++) {
      if (!general) vm.forget();
      const [ms, ids] = timed(vm.encode);
      check(`${model.name}, ${run.name}`, ids, run.ids);
      check(`${model.name}, ${run.name}`, hash(vm), run.hash);
      times.push(ms);
    }
    say({ model: model.name, what: `${run.name}: tokens, first`, ms: times[0], mb_per_s: run.text_bytes / times[0] / 1e3 });
    say(times_of(model, `${run.name}: tokens`, times, run.text_bytes));
  }
}

/// Chinese that neither side has seen: the same characters with clauses of other lengths each time. `sum` is over all ids.
function unseen(vm, model) {
  const run = model.runs.find((each) => each.name === "chinese");
  const characters = [...file(run.text).toString().replace(/[，。；？、]/g, "")];
  let state = 1;
  const random = (below) => (state = (state * 48271) % 0x7fffffff) % below;
  const times = [];
  let [sum, bytes] = [0n, 0];
  for (let round = 0; round < rounds; round++) {
    let text = "";
    for (let at = 0; at < characters.length; ) {
      const clause = characters.slice(at, (at += 6 + random(15)));
      text += clause.join("") + "，。；"[random(3)];
    }
    const encoded = new TextEncoder().encode(text);
    give(vm, encoded);
    if (!general) vm.forget();
    times.push(timed(vm.encode)[0]);
    sum = BigInt.asUintN(64, sum * 31n + hash(vm));
    bytes = encoded.length;
  }
  say({ ...times_of(model, "chinese, unseen: tokens", times, bytes), sum: String(sum) });
}

/// Bodies to block chains: the first with nothing seen before, the next one turn later.
function chains(vm, model) {
  const bodies = model.runs.filter((run) => run.body);
  const times = bodies.map(() => ({ chain: [], scan: [], hash: [] }));
  for (let round = 0; round < rounds; round++) {
    vm.forget();
    bodies.forEach((run, at) => {
      give(vm, file(run.body));
      const [ms, blocks] = timed(vm.chain);
      check(`${model.name}, ${run.name}`, blocks, run.blocks);
      check(`${model.name}, ${run.name}`, hash(vm), run.hash);
      times[at].chain.push(ms);
      times[at].scan.push(timed(vm.scan)[0]);
      times[at].hash.push(timed(vm.hash)[0]);
    });
  }
  bodies.forEach((run, at) => {
    for (const [what, of] of Object.entries(times[at])) say(times_of(model, `${run.name}: ${what}`, of, run.bytes));
  });
}

/// Texts that are out to take time, within the limits; with nothing remembered.
function hostile(vm, model) {
  for (const text of model.hostile) {
    give(vm, file(text.text));
    const times = [];
    for (let round = 0; round < 5; round++) {
      vm.forget();
      const [ms, ids] = timed(vm.bounded);
      check(`${model.name}, ${text.name}`, ids, text.ids);
      check(`${model.name}, ${text.name}`, hash(vm), text.hash);
      times.push(ms);
    }
    say({ model: model.name, what: `1 MB of ${text.name.replace("_", " ")}, within limits`, ms: median(times), least: least(times) });
  }
}

for (const model of JSON.parse(readFileSync(planPath, "utf8"))) {
  const loads = [];
  let vm;
  for (let round = 0; round < (general ? 1 : 5); round++) {
    vm = instantiate();
    loads.push(load(vm, model));
  }
  say({ model: model.name, what: "load", ms: median(loads), least: least(loads), memory: memory(vm) });
  if (!general) {
    const run = model.runs[0];
    give(vm, file(run.body));
    const [ms] = timed(vm.chain);
    say({ model: model.name, what: "the first chain of a VM", ms, memory: memory(vm) });
    chains(vm, model);
    say({ model: model.name, what: "after these chains", memory: memory(vm) });
  }
  encodings(vm, model);
  unseen(vm, model);
  if (!general) hostile(vm, model);
  say({ model: model.name, what: "memory in the end", memory: memory(vm) });
}
