//! What is written into a request, and onto its response: the decision, in headers and filter state.

use super::compare::Foretold;
use crate::host::HttpHost;
use crate::request::names;
use crate::routing::decision::{Decision, RankedReplica};
use crate::routing::reason::{Detail, ReasonCode};

/// What was written into the request.
#[derive(Debug)]
pub(super) struct Sent {
    pub reason: ReasonCode,
    pub detail: Detail,
    replica_id: String,
    matched_tokens: u32,
    /// The best replica's rank, where the engine at its address has several and is to be told.
    data_parallel_rank: Option<u32>,
    /// The addresses in the destination header, best first.
    pub addresses: Vec<String>,
    /// What the response is compared with.
    pub foretold: Option<Box<Foretold>>,
}

// === impl Sent ===

impl Sent {
    /// What `decision` comes to.
    pub(super) fn new(decision: Decision, foretold: Option<Foretold>) -> Sent {
        let best = decision.ranked.first();
        Sent {
            reason: decision.reason,
            detail: decision.detail,
            replica_id: best.map(|best| one_line(&best.replica_id)).unwrap_or_default(),
            matched_tokens: best.map_or(0, |best| best.matched_tokens),
            data_parallel_rank: best.and_then(|best| best.data_parallel_rank),
            addresses: decision.ranked.iter().map(|RankedReplica { address, .. }| address.to_string()).collect(),
            foretold: foretold.map(Box::new),
        }
    }

    /// Writes it into the request.
    pub(super) fn write_request(&self, host: &impl HttpHost) {
        self.write(|[header, state], value| {
            host.set_request_header(header, value);
            host.set_filter_state(state, value);
        });
        if !self.addresses.is_empty() {
            host.set_request_header(names::DESTINATION_ENDPOINT, &self.addresses.join(","));
        }
    }

    /// Repeats it on the response, but for the destination.
    pub(super) fn write_response(&self, host: &impl HttpHost) {
        self.write(|[header, _], value| host.set_response_header(header, value));
    }

    /// Each value that there is, with the names of its header and of its filter state.
    fn write(&self, mut set: impl FnMut([&str; 2], &str)) {
        set([names::REASON_CODE, "inferencecache_reason_code"], self.reason.as_str());
        set([names::MATCHED_TOKENS, "inferencecache_matched_tokens"], &self.matched_tokens.to_string());
        if self.detail != Detail::None {
            set([names::DETAIL, "inferencecache_detail"], self.detail.as_str());
        }
        if !self.replica_id.is_empty() {
            set([names::REPLICA_ID, "inferencecache_replica_id"], &self.replica_id);
        }
        if let Some(rank) = self.data_parallel_rank {
            set([names::DATA_PARALLEL_RANK, "inferencecache_data_parallel_rank"], &rank.to_string());
        }
    }
}

/// An id as it is if it is printable ASCII, else escaped: it goes into headers and access logs.
fn one_line(id: &str) -> String {
    if id.bytes().all(|byte| matches!(byte, 0x20..=0x7E)) { id.to_owned() } else { id.escape_default().to_string() }
}
