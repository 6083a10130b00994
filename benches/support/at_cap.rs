//! Indexes at their cap: whatever comes in, something else has to go.

use warmroute::observation::{BlockKey, StoredBlock};
use warmroute::publisher::message::{CacheStateUpdate, PrefixEntry};
use warmroute::publisher::{Publisher, PublisherLimits};

use crate::ours;
use crate::workload::{Random, Request, State};

// === The hub's, which is told block by block ===

/// A publisher that holds as many reported pairs as it may.
pub struct Hub {
    publisher: Publisher,
    now_ms: u64,
    random: Random,
}

impl Hub {
    /// Reports a state. The cap is what that comes to.
    pub fn full(state: &State) -> Hub {
        let limits = PublisherLimits { max_entries: state.pairs as u64, ..PublisherLimits::default() };
        let mut hub = Hub { publisher: Publisher::new(limits), now_ms: ours::START_MS, random: Random(11) };
        for event in &state.events {
            hub.report(event.replica, &state.requests[event.request].hashes, event.from);
        }
        assert_eq!((hub.pairs(), hub.evicted()), (state.pairs as u64, 0));
        hub
    }

    /// Reports a block that nobody holds yet; the oldest one goes. The number of changes to pass on.
    pub fn report_one(&mut self) -> usize {
        let block = Request::apart(self.random.next(), 1);
        let replica = self.random.below(8) as u32;
        self.report(replica, &block.hashes, 0)
    }

    fn report(&mut self, replica: u32, hashes: &[u64], from: usize) -> usize {
        self.now_ms += 1;
        let before = from
            .checked_sub(1)
            .map(|at| StoredBlock { key: BlockKey::Hash64(hashes[at]), token_count: ours::BLOCK_SIZE * from as u32 });
        let hashes = &hashes[from..];
        let update = CacheStateUpdate {
            replica_id: format!("replica-{replica}"),
            model_id: "model".into(),
            tenant_id: "tenant".into(),
            hash_scheme: "vllm".into(),
            timestamp_us: self.now_ms as i64 * 1_000,
            prefixes: vec![PrefixEntry {
                block_hashes: hashes.iter().map(|hash| hash.to_be_bytes().to_vec()).collect(),
                block_token_counts: vec![ours::BLOCK_SIZE as i32; hashes.len()],
                before,
                ..PrefixEntry::default()
            }],
            ..CacheStateUpdate::default()
        };
        assert_eq!(self.publisher.report(&update, self.now_ms).total(), 0);
        self.publisher.take_changes().len()
    }

    /// (Block, replica) pairs.
    pub fn pairs(&self) -> u64 {
        self.publisher.index().pairs()
    }

    /// Pairs that went to make room.
    pub fn evicted(&self) -> u64 {
        self.publisher.evictions().entries.values().sum()
    }
}
