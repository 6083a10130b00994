//! The time from the end of a request's input to the first byte of its response's body: where answers are streamed, about
//! the time to first token.

use std::rc::Rc;

use crate::host::HttpHost;

/// A response whose body is awaited.
#[derive(Debug)]
pub(super) struct FirstByte {
    /// The metric that counts it.
    metric: Rc<str>,
    /// Unix time in ns.
    input_ended_ns: u64,
}

const NS_PER_MS: u64 = 1_000_000;

// === impl FirstByte ===

impl FirstByte {
    /// Of a request whose input ended then, counted under `metric`.
    pub(super) fn awaited(metric: Rc<str>, input_ended_ns: u64) -> FirstByte {
        FirstByte { metric, input_ended_ns }
    }

    /// The response's headers are here: an error's body says nothing of prompts.
    pub(super) fn is_of(host: &impl HttpHost) -> bool {
        host.response_header(":status").is_some_and(|status| status.starts_with(b"2"))
    }

    /// It is here.
    pub(super) fn came(self, host: &impl HttpHost) {
        host.record(&self.metric, host.now_ns().saturating_sub(self.input_ended_ns) / NS_PER_MS);
    }
}
