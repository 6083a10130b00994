//! Runs the plan that `run.mjs` runs in a VM, natively: the same operations, timed and printed in the same way.
//!
//!     vm_native PLAN        (the trace, if any, is what WARMROUTE_TRACE names)
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "a bench"
)]

mod decisions;
mod growing;
mod operations;
#[path = "../support/ours.rs"]
#[allow(dead_code, reason = "shared with other benches")]
mod ours;
#[path = "../support/workload.rs"]
#[allow(dead_code, reason = "shared with other benches")]
mod workload;

use std::hint::black_box;
use std::time::Instant;

use operations::{Bench, operations};
use serde::Deserialize;
use serde_json::json;
use workload::Workload;

#[derive(Deserialize)]
struct Plan {
    generated: u32,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Step {
    /// Of a VM's memory: natively `index_growth` counts it.
    Memory {
        memory: Vec<serde::de::IgnoredAny>,
    },
    Times {
        name: String,
        setup: Vec<(String, u32, u32)>,
        measures: Vec<Measure>,
    },
}

#[derive(Deserialize)]
struct Measure {
    rounds: u32,
    warm: u32,
    operations: Vec<Operation>,
}

#[derive(Deserialize)]
struct Operation {
    name: String,
    op: String,
    prepare: Option<String>,
    #[serde(default)]
    calls: u32,
    argument: Option<u32>,
    #[serde(default)]
    until_done: bool,
    #[serde(default)]
    batch: bool,
}

/// What calls took, in ns, and what they returned, added up.
struct Ran {
    sum: u32,
    times: Vec<f64>,
}

/// Does an operation by its name.
macro_rules! dispatch {
    ($($name:ident($($argument:ident),*);)*) => {
        /// The operation of this name, with as many of the operands as it takes.
        fn operation(name: &str) -> fn(&mut Bench, [u32; 3]) -> u32 {
            match name {
                $(stringify!($name) => |bench, _operands| {
                    let mut _next = _operands.into_iter();
                    bench.$name($({ let $argument = _next.next().unwrap_or_default(); $argument }),*)
                },)*
                _ => panic!("no operation {name}"),
            }
        }
    };
}

operations!(dispatch);

fn main() {
    let path = std::env::args().nth(1).expect("a plan, as run.py writes it");
    let plan: Plan = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for step in plan.steps {
        match step {
            Step::Memory { memory } => eprintln!("{} sizes of a VM's memory are left out", memory.len()),
            Step::Times { name, setup, measures } => {
                let mut bench = Bench::default();
                say(json!({ "name": format!("{name}: requests"), "sum": give_workload(&mut bench, plan.generated) }));
                for (op, first, second) in setup {
                    let sum = operation(&op)(&mut bench, [first, second, 0]);
                    say(json!({ "name": format!("{name}: {op}"), "sum": sum }));
                }
                measures.iter().for_each(|each| measure(&mut bench, each));
            }
        }
    }
}

fn say(line: serde_json::Value) {
    println!("{line}");
}

fn give_workload(bench: &mut Bench, generated: u32) -> u32 {
    let Some(trace) = Workload::trace() else { return bench.generated(generated) };
    for pieces in trace.requests() {
        for piece in pieces {
            bench.piece(*piece);
        }
        bench.end_request();
    }
    bench.requests()
}

fn measure(bench: &mut Bench, measure: &Measure) {
    let overhead = overhead(bench);
    for round in 0..measure.warm + measure.rounds {
        for operation in &measure.operations {
            let line = if operation.batch { batch(bench, operation) } else { call_by_call(bench, operation, overhead) };
            if let (Some(round), serde_json::Value::Object(mut line)) = (round.checked_sub(measure.warm), line) {
                line.extend([
                    ("name".to_owned(), json!(operation.name)),
                    ("round".to_owned(), json!(round)),
                    ("overhead".to_owned(), json!(overhead)),
                ]);
                say(line.into());
            }
        }
    }
}

/// What it takes to do nothing.
fn overhead(bench: &mut Bench) -> f64 {
    let nothing = Operation {
        name: String::new(),
        op: "empty".into(),
        prepare: None,
        calls: 20_000,
        argument: None,
        until_done: false,
        batch: false,
    };
    let mut ran = run(bench, &nothing);
    ran.times.sort_unstable_by(f64::total_cmp);
    quantile(&ran.times, 0.5)
}

fn run(bench: &mut Bench, operation_of: &Operation) -> Ran {
    let call = operation(&operation_of.op);
    let prepare = operation_of.prepare.as_deref().map(operation);
    let mut ran = Ran { sum: 0, times: Vec::with_capacity(operation_of.calls as usize) };
    let mut done = false;
    for number in 0.. {
        if done || (!operation_of.until_done && number == operation_of.calls) {
            break;
        }
        if let Some(prepare) = prepare {
            black_box(prepare(bench, [number, 0, 0]));
        }
        let operand = operation_of.argument.unwrap_or(number);
        let start = Instant::now();
        let result = black_box(call(bench, black_box([operand, 0, 0])));
        ran.times.push(start.elapsed().as_nanos() as f64);
        if operation_of.until_done {
            done = result == 1;
        } else {
            ran.sum = ran.sum.wrapping_add(result);
        }
    }
    ran
}

fn call_by_call(bench: &mut Bench, operation: &Operation, overhead: f64) -> serde_json::Value {
    let Ran { sum, times } = run(bench, operation);
    let mut times: Vec<f64> = times.iter().map(|time| (time - overhead).max(0.0)).collect();
    let total: f64 = times.iter().sum();
    times.sort_unstable_by(f64::total_cmp);
    json!({
        "sum": sum,
        "calls": times.len(),
        "total": total,
        "p50": quantile(&times, 0.5),
        "p99": quantile(&times, 0.99),
        "max": quantile(&times, 1.0),
    })
}

fn batch(bench: &mut Bench, operation_of: &Operation) -> serde_json::Value {
    let call = operation(&operation_of.op);
    let mut sum = 0_u32;
    let start = Instant::now();
    for number in 0..operation_of.calls {
        sum = sum.wrapping_add(black_box(call(bench, black_box([number, 0, 0]))));
    }
    json!({ "sum": sum, "calls": operation_of.calls, "total": start.elapsed().as_nanos() as f64 })
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    sorted[(share * (sorted.len() - 1) as f64) as usize]
}
