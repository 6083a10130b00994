//! A module that misbehaves on request, for tests of what survives it.
//!
//! | Header of a request | What follows |
//! |---|---|
//! | `x-fault-trap` | it traps |
//! | `x-fault-overwrite: <key>` | that key of its vm_id's shared data is overwritten, whatever is there, with what `x-fault-with` says |
//! | `x-fault-read: <key>` | the answer is that key's value: its length (u32, little-endian) and its bytes, of length 0 where there is none |
//! | `x-fault-numbers: <first>-<last>` | with either: the keys with each of these numbers at their end |
//! | `x-fault-with: <way>` | `text` (the default), `empty`, `noise`, `large`, or `flipped`: what is there, with a bit of each hundred bytes wrong |
//! | `x-fault-enqueue: <name>` | noise into that shared queue, a thousand times |
//! | `x-fault-stall: <ms>` | each VM of this module in turn does nothing else for so long, on its own thread, and counts that in `fault_stalls` |
#![cfg(target_arch = "wasm32")]
#![allow(missing_docs, clippy::panic)]

use std::time::{Duration, SystemTime};

use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType, MetricType};

/// The key that says who is to stall.
const STALL: &str = "fault/stall";
const TICK: Duration = Duration::from_millis(50);
/// Between the end of one stall and the next one's beginning.
const BETWEEN_STALLS: Duration = Duration::from_millis(500);

/// The module. A root context remembers which stall was its last.
#[derive(Default)]
struct Faults {
    stalled: Option<u64>,
}

impl Context for Faults {}

impl RootContext for Faults {
    fn on_configure(&mut self, _size: usize) -> bool {
        self.set_tick_period(TICK);
        true
    }

    fn on_tick(&mut self) {
        let Ok((Some(value), cas)) = hostcalls::get_shared_data(STALL) else { return };
        let Some((round, not_before_ms, stall_ms)) = stall_of(&value) else { return };
        let now_ms = now_ms();
        if self.stalled == Some(round) || now_ms < not_before_ms {
            return;
        }
        let next_ms = now_ms + stall_ms + BETWEEN_STALLS.as_millis() as u64;
        if hostcalls::set_shared_data(STALL, Some(stall(round, next_ms, stall_ms).as_bytes()), cas).is_err() {
            return;
        }
        self.stalled = Some(round);
        while crate::now_ms() < now_ms + stall_ms {}
        if let Ok(metric) = hostcalls::define_metric(MetricType::Counter, "fault_stalls") {
            let _ = hostcalls::increment_metric(metric, 1);
        }
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, _context_id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Faults::default()))
    }
}

impl HttpContext for Faults {
    fn on_http_request_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        assert!(self.get_http_request_header("x-fault-trap").is_none(), "a trap was asked for");
        let numbers = self.get_http_request_header("x-fault-numbers").unwrap_or_default();
        if let Some(key) = self.get_http_request_header("x-fault-overwrite") {
            let way = self.get_http_request_header("x-fault-with").unwrap_or_default();
            for key in keys(&key, &numbers) {
                // Without a number the write is unconditional.
                let _ = hostcalls::set_shared_data(&key, Some(&wrong(&key, &way)), None);
            }
        }
        if let Some(name) = self.get_http_request_header("x-fault-enqueue") {
            enqueue(&name);
        }
        if let Some(stall_ms) = self.get_http_request_header("x-fault-stall").and_then(|ms| ms.parse().ok()) {
            let value = stall(now_ms(), 0, stall_ms);
            let _ = hostcalls::set_shared_data(STALL, Some(value.as_bytes()), None);
        }
        if let Some(key) = self.get_http_request_header("x-fault-read") {
            self.send_http_response(200, Vec::new(), Some(&values(&key, &numbers)));
            return Action::Pause;
        }
        Action::Continue
    }
}

fn now_ms() -> u64 {
    let now = hostcalls::get_current_time().unwrap_or(SystemTime::UNIX_EPOCH);
    now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Which stall it is, when the next one may begin, and how long each is, in ms.
fn stall(round: u64, not_before_ms: u64, stall_ms: u64) -> String {
    format!("{round} {not_before_ms} {stall_ms}")
}

fn stall_of(value: &[u8]) -> Option<(u64, u64, u64)> {
    let mut numbers = str::from_utf8(value).ok()?.split(' ').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The key, or those with the numbers at its end.
fn keys(key: &str, numbers: &str) -> Vec<String> {
    let range = numbers.split_once('-');
    let range = range.and_then(|(first, last)| Some((first.parse::<u32>().ok()?, last.parse::<u32>().ok()?)));
    match range {
        Some((first, last)) => (first..=last).map(|number| format!("{key}{number}")).collect(),
        None => vec![key.to_owned()],
    }
}

fn value(key: &str) -> Vec<u8> {
    hostcalls::get_shared_data(key).ok().and_then(|(value, _)| value).unwrap_or_default()
}

fn values(key: &str, numbers: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for key in keys(key, numbers) {
        let value = value(&key);
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(&value);
    }
    out
}

/// What is put in a value's place.
fn wrong(key: &str, way: &str) -> Vec<u8> {
    match way {
        "empty" => Vec::new(),
        "noise" => noise(200),
        "large" => noise(64 * 1024),
        "flipped" => {
            let mut value = value(key);
            value.iter_mut().step_by(100).for_each(|byte| *byte ^= 16);
            value
        }
        _ => b"not a value of ours".to_vec(),
    }
}

fn noise(bytes: u64) -> Vec<u8> {
    let seed = now_ms();
    (0..bytes).map(|at| ((seed + at).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u8).collect()
}

fn enqueue(name: &str) {
    let vm_id = hostcalls::get_property(vec!["plugin_vm_id"]).ok().flatten().unwrap_or_default();
    let queue = hostcalls::resolve_shared_queue(&String::from_utf8_lossy(&vm_id), name);
    if let Ok(Some(queue)) = queue {
        for _ in 0..1_000 {
            let _ = hostcalls::enqueue_shared_queue(queue, Some(&noise(300)));
        }
    }
}

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| -> Box<dyn RootContext> { Box::new(Faults::default()) });
}}
