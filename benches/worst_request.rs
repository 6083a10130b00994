//! The time that hostile requests take, body by body, at the limits that a filter has by default.

#![allow(clippy::unwrap_used, reason = "a bench says what went wrong by panicking")]

#[path = "../tests/support/worst.rs"]
mod worst;

use std::time::{Duration, Instant};

use worst::{Filter, requests};

/// Times that each is read; the shortest counts.
const TIMES: usize = 5;

fn main() {
    let filter = Filter::new();
    println!("| Body of a megabyte | ms | keys |\n|---|---|---|");
    for request in requests() {
        let timed = |_| {
            let start = Instant::now();
            let keys = filter.read(&request);
            (start.elapsed(), keys)
        };
        let (least, keys) = (0..TIMES).map(timed).min().unwrap_or((Duration::ZERO, 0));
        println!("| {} | {:.1} | {keys} |", request.name, least.as_secs_f64() * 1e3);
    }
}
