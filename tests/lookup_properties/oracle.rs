//! Who holds what, the slow and obvious way: one flat map from what was reported, and every question walks all of it.
//!
//! Nothing is shared with the index or the publisher: not a key type, not a rule.

use std::collections::{BTreeMap, BTreeSet};

use crate::arbitrary::Happening;
use crate::cases::messages::{Event, EventKind, Prefix, Request, Update};

/// Everything so far.
#[derive(Clone, Debug)]
pub struct Oracle {
    now_ms: i64,
    ttl_ms: i64,
    held: BTreeMap<Place, Held>,
}

/// One key at one replica.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    tenant_id: String,
    model_id: String,
    hash_scheme: String,
    adapter_id: String,
    hash: Vec<u8>,
    replica_id: String,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    tokens: i64,
    since_ms: i64,
}

// === impl Oracle ===

impl Oracle {
    /// Knows nothing yet.
    pub fn new(ttl_ms: i64) -> Oracle {
        Oracle { now_ms: 0, ttl_ms, held: BTreeMap::new() }
    }

    pub fn happens(&mut self, happening: &Happening) {
        match happening {
            Happening::Report(update) => self.report(update),
            Happening::Event(event) => self.event(event),
            Happening::Advance(ms) => self.now_ms += ms,
            Happening::Sweep => {}
        }
    }

    fn report(&mut self, update: &Update) {
        for prefix in &update.prefixes {
            for (hash, tokens) in blocks(prefix) {
                let adapter = if prefix.adapter_id.is_empty() { &update.adapter_id } else { &prefix.adapter_id };
                let place = Place {
                    tenant_id: update.tenant_id.clone(),
                    model_id: update.model_id.clone(),
                    hash_scheme: update.hash_scheme.clone(),
                    adapter_id: adapter.clone(),
                    hash,
                    replica_id: update.replica_id.clone(),
                };
                self.held.insert(place, Held { tokens, since_ms: self.now_ms });
            }
        }
    }

    fn event(&mut self, event: &Event) {
        self.held.retain(|place, _| {
            let is_of = place.replica_id == event.replica_id
                && place.tenant_id == event.tenant_id
                && place.model_id == event.model_id;
            let is_named = place.hash == event.prefix_hash.0
                && (event.adapter_id.is_empty() || place.adapter_id == event.adapter_id);
            match event.kind {
                EventKind::AllCleared => !is_of,
                EventKind::PrefixEvicted => !(is_of && is_named),
                _ => true,
            }
        });
    }

    /// Tokens of the request that each replica holds from its start on; only those that hold any.
    pub fn matched(&self, request: &Request) -> BTreeMap<String, i64> {
        let replicas: BTreeSet<&String> = self.held.keys().map(|place| &place.replica_id).collect();
        let runs = replicas.into_iter().map(|replica_id| (replica_id.clone(), self.run(request, replica_id)));
        runs.filter(|(_, tokens)| *tokens > 0).collect()
    }

    fn run(&self, request: &Request, replica_id: &str) -> i64 {
        if request.block_hashes.is_empty() {
            return self.tokens(request, &request.prefix_hash.0, replica_id).unwrap_or(0);
        }
        let blocks = request.block_hashes.iter().zip(&request.block_token_counts);
        let held = blocks.take_while(|(hash, _)| self.tokens(request, &hash.0, replica_id).is_some());
        held.map(|(_, tokens)| i64::from(*tokens)).sum()
    }

    fn tokens(&self, request: &Request, hash: &[u8], replica_id: &str) -> Option<i64> {
        let place = Place {
            tenant_id: request.tenant_id.clone(),
            model_id: request.model_id.clone(),
            hash_scheme: request.hash_scheme.clone(),
            adapter_id: request.adapter_id.clone(),
            hash: hash.to_vec(),
            replica_id: replica_id.to_owned(),
        };
        let held = self.held.get(&place)?;
        (self.now_ms - held.since_ms < self.ttl_ms).then_some(held.tokens)
    }
}

/// What an entry says is held, with the tokens up to it: a chain up to its first block that means nothing.
fn blocks(prefix: &Prefix) -> Vec<(Vec<u8>, i64)> {
    let mut blocks = Vec::new();
    if prefix.block_hashes.len() != prefix.block_token_counts.len() {
        return blocks;
    }
    let mut tokens = 0;
    for (hash, count) in prefix.block_hashes.iter().zip(&prefix.block_token_counts) {
        tokens += i64::from(*count);
        if *count < 1 || hash.0.is_empty() {
            break;
        }
        blocks.push((hash.0.clone(), tokens));
    }
    if !prefix.prefix_hash.0.is_empty() && prefix.token_count >= 1 {
        blocks.push((prefix.prefix_hash.0.clone(), prefix.token_count.into()));
    }
    blocks
}
