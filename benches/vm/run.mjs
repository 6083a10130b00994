// Runs a plan of operations in a WebAssembly module and times them from outside, in V8.
//
//     node run.mjs MODULE PLAN [TRACE]
//
// PLAN is the JSON file that run.py writes; native.rs reads the same. Prints one JSON object a line: what an operation
// returned, added up, and its times in ns. A call's time is what passes between two reads of the clock, less the median of
// the same around an export that does nothing.

import { readFileSync } from "node:fs";
import { argv, hrtime, stdout } from "node:process";

const [modulePath, planPath, tracePath] = argv.slice(2);
const module = new WebAssembly.Module(readFileSync(modulePath));
const plan = JSON.parse(readFileSync(planPath, "utf8"));

const say = (line) => stdout.write(JSON.stringify(line) + "\n");
const instantiate = () => new WebAssembly.Instance(module).exports;
const bytes = (vm) => vm.memory.buffer.byteLength;

function feed(vm, pieces) {
  for (const piece of pieces) vm.piece(piece);
}

/// Gives the VM its workload: the trace, or the stand-in that it makes itself.
function giveWorkload(vm) {
  if (!tracePath) return vm.generated(plan.generated) >>> 0;
  for (const line of readFileSync(tracePath, "utf8").split("\n")) {
    if (!line) continue;
    feed(vm, JSON.parse(line).hash_ids);
    vm.end_request();
  }
  return vm.requests() >>> 0;
}

/// What each of these calls takes, in ns, and what they return, added up.
function timed(call, prepare, first, calls) {
  const times = new Float64Array(calls);
  let sum = 0;
  for (let at = 0; at < calls; at++) {
    if (prepare) prepare(first + at);
    const start = hrtime.bigint();
    const result = call(first + at);
    times[at] = Number(hrtime.bigint() - start);
    sum = (sum + result) >>> 0;
  }
  return { times, sum };
}

/// As timed, until a call returns 1.
function timedUntil(call, argument) {
  const times = [];
  let done = 0;
  while (!done) {
    const start = hrtime.bigint();
    done = call(argument);
    times.push(Number(hrtime.bigint() - start));
  }
  return { times: Float64Array.from(times), sum: 0 };
}

const quantile = (sorted, share) => sorted[Math.floor(share * (sorted.length - 1))];

function overheadOf(vm) {
  timed(vm.empty, null, 0, 20_000);
  return quantile(timed(vm.empty, null, 0, 20_000).times.sort(), 0.5);
}

function runOperation(vm, overhead, { op, prepare, calls, argument, until_done: untilDone }) {
  const ran = untilDone
    ? timedUntil(vm[op], argument)
    : timed(argument === undefined ? vm[op] : () => vm[op](argument), prepare && vm[prepare], 0, calls);
  const times = ran.times.map((time) => Math.max(0, time - overhead));
  const total = times.reduce((sum, time) => sum + time, 0);
  times.sort();
  return { sum: ran.sum, calls: times.length, total, p50: quantile(times, 0.5), p99: quantile(times, 0.99), max: quantile(times, 1) };
}

/// All calls between two reads of the clock, where that makes sense: for calls that are shorter than a read of it.
function runBatch(vm, { op, calls }) {
  const call = vm[op];
  let sum = 0;
  const start = performance.now();
  for (let at = 0; at < calls; at++) sum = (sum + call(at)) >>> 0;
  return { sum, calls, total: (performance.now() - start) * 1e6 };
}

function measure(vm, { rounds, warm, operations }) {
  const overhead = overheadOf(vm);
  for (let round = -warm; round < rounds; round++) {
    for (const operation of operations) {
      const ran = operation.batch ? runBatch(vm, operation) : runOperation(vm, overhead, operation);
      if (round >= 0) say({ name: operation.name, round, overhead, ...ran });
    }
  }
}

/// What memory grows by while an instance that holds nothing else takes in the events of another.
function measureMemory({ name, replicas, pairs, grow }) {
  const vm = instantiate();
  vm.pairs();
  const before = bytes(vm);
  if (grow) {
    vm.grow_prompts(pairs, grow.with_parents);
  } else {
    const source = instantiate();
    giveWorkload(source);
    source.plan_events(replicas, pairs);
    const events = source.events();
    for (let number = 0; number < events; number++) {
      const request = source.event_request(number);
      const length = source.request_len(request);
      for (let at = 0; at < length; at++) vm.piece(source.request_piece(request, at));
      vm.store_fed(source.event_replica(number), source.event_from(number), number);
    }
  }
  say({ name, sum: vm.pairs() >>> 0, memory: bytes(vm) - before, account: vm.account() >>> 0 });
}

for (const step of plan.steps) {
  if (step.memory) {
    step.memory.forEach(measureMemory);
    continue;
  }
  const vm = instantiate();
  say({ name: `${step.name}: requests`, sum: giveWorkload(vm) });
  for (const [operation, ...operands] of step.setup) {
    say({ name: `${step.name}: ${operation}`, sum: vm[operation](...operands) >>> 0 });
  }
  const before = bytes(vm);
  step.measures.forEach((each) => measure(vm, each));
  say({ name: `${step.name}: growth`, sum: bytes(vm) - before, memory: bytes(vm) });
}
