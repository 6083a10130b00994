//! A module that misbehaves on request, for tests of what survives it.
//!
//! A request with `x-fault-trap` makes it trap. One with `x-fault-overwrite: <key>` makes it overwrite that key of the
//! shared data of its vm_id, whatever is there, with something that is not a value of ours. One with `x-fault-read: <key>` is
//! answered with that key's value, or with those of the keys that `x-fault-numbers: <first>-<last>` at its end makes: each as
//! its length (u32, little-endian) and its bytes, of length 0 where there is none.
#![cfg(target_arch = "wasm32")]
#![allow(missing_docs, clippy::panic)]

use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

struct Faults;

impl Context for Faults {}

impl RootContext for Faults {
    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, _context_id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Faults))
    }
}

impl HttpContext for Faults {
    fn on_http_request_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        assert!(self.get_http_request_header("x-fault-trap").is_none(), "a trap was asked for");
        if let Some(key) = self.get_http_request_header("x-fault-overwrite") {
            // Without a number the write is unconditional.
            let _ = hostcalls::set_shared_data(&key, Some(b"not a value of ours"), None);
        }
        if let Some(key) = self.get_http_request_header("x-fault-read") {
            let numbers = self.get_http_request_header("x-fault-numbers").unwrap_or_default();
            self.send_http_response(200, Vec::new(), Some(&values(&key, &numbers)));
            return Action::Pause;
        }
        Action::Continue
    }
}

fn values(key: &str, numbers: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut put = |key: &str| {
        let value = hostcalls::get_shared_data(key).ok().and_then(|(value, _)| value).unwrap_or_default();
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(&value);
    };
    match numbers
        .split_once('-')
        .and_then(|(first, last)| Some((first.parse::<u32>().ok()?, last.parse::<u32>().ok()?)))
    {
        Some((first, last)) => (first..=last).for_each(|number| put(&format!("{key}{number}"))),
        None => put(key),
    }
    out
}

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| -> Box<dyn RootContext> { Box::new(Faults) });
}}
