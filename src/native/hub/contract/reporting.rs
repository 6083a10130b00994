//! `ReportCacheState` and `PublishEvent`: what producers say, and what they are told became of it.
//!
//! In: updates and events, whatever they are. Out: an [`Ack`], accepted unless everything was dropped, that names what was
//! dropped and how often.

use std::sync::Arc;

use tokio::task::yield_now;
use tonic::{Status, Streaming};

use super::addresses::AddressBook;
use super::messages::v1alpha1::{self, Ack};
use super::messages::{reported_event, reported_update};
use crate::native::hub::clock::unix_ms;
use crate::native::hub::state::HubState;
use crate::observation::Member;
use crate::publisher::message::{self, CacheStateUpdate, EventKind};
use crate::publisher::{Dropped, Publisher};

/// How many blocks are taken in without a pause.
const PIECE_BLOCKS: usize = 1_024;

/// Takes in what producers say.
pub struct Reports {
    state: Arc<HubState>,
    addresses: AddressBook,
}

/// What became of the updates of a stream.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    /// Prefixes, statistics and events in them.
    offered: u64,
    dropped: Dropped,
}

// === impl Reports ===

impl Reports {
    /// Into `state`.
    pub fn new(state: &Arc<HubState>, addresses: AddressBook) -> Reports {
        Reports { state: Arc::clone(state), addresses }
    }

    /// Takes updates as they come, until the client has said all.
    ///
    /// # Errors
    /// When the stream breaks off; what came before stays.
    pub async fn take_all(&self, mut updates: Streaming<v1alpha1::CacheStateUpdate>) -> Result<Ack, Status> {
        let mut outcome = Outcome::default();
        while let Some(update) = updates.message().await? {
            let update = reported_update(update);
            let member = Member::new(&*update.tenant_id, &*update.model_id, &*update.replica_id);
            if let Some(address) = self.addresses.address(&member.tenant_id, &member.replica_id).await {
                self.state.change(|publisher| set_address(publisher, &member, &address.to_string()));
            }
            outcome.offered = outcome.offered.saturating_add(update.offered());
            // One time for all of it, however long it takes.
            let now_ms = unix_ms();
            for piece in pieces(update) {
                outcome.dropped += self.state.change(|publisher| publisher.report(&piece, now_ms));
                yield_now().await;
            }
        }
        Ok(outcome.ack())
    }

    /// Takes in one event.
    pub fn event(&self, event: v1alpha1::CacheEvent) -> Ack {
        let event = reported_event(event);
        let dropped = self.state.change(|publisher| publisher.event(&event, unix_ms()));
        Outcome { offered: 1, dropped }.ack()
    }
}

/// Says where a member is reached. What answers elsewhere than before is another process, which holds nothing yet.
fn set_address(publisher: &mut Publisher, member: &Member, address: &str) {
    if publisher.reported_address(member).is_some_and(|before| !before.is_empty() && before != address) {
        let cleared = message::CacheEvent {
            kind: EventKind::AllCleared,
            replica_id: member.replica_id.clone(),
            model_id: member.model_id.clone(),
            tenant_id: member.tenant_id.clone(),
            ..message::CacheEvent::default()
        };
        publisher.event(&cleared, unix_ms());
    }
    publisher.set_address(member, address);
}

/// The update in pieces, its statistics in the last: lookups and streams get their turn between any two. An entry is in
/// one piece, however long its chain.
fn pieces(mut update: CacheStateUpdate) -> Vec<CacheStateUpdate> {
    let mut prefixes = std::mem::take(&mut update.prefixes).into_iter().peekable();
    let mut pieces = Vec::new();
    loop {
        let mut piece = CacheStateUpdate { stats: None, ..update.clone() };
        let mut blocks = 0;
        while blocks < PIECE_BLOCKS
            && let Some(entry) = prefixes.next()
        {
            blocks += entry.block_hashes.len().max(1);
            piece.prefixes.push(entry);
        }
        if prefixes.peek().is_none() {
            piece.stats = update.stats;
            pieces.push(piece);
            return pieces;
        }
        pieces.push(piece);
    }
}

// === impl Outcome ===

impl Outcome {
    fn ack(self) -> Ack {
        let reasons = self.dropped.reasons().map(|(reason, count)| format!("{}={count}", reason.as_str()));
        let is_all = self.offered > 0 && self.dropped.total() >= self.offered;
        Ack { accepted: !is_all, reason_code: reasons.collect::<Vec<_>>().join(",") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publisher::PublisherLimits;
    use crate::publisher::message::{PrefixEntry, ReportedStats};

    fn update(entries: usize, chain: usize) -> CacheStateUpdate {
        let entry = |at: usize| PrefixEntry {
            token_count: at as i32,
            block_hashes: vec![vec![1]; chain],
            ..PrefixEntry::default()
        };
        CacheStateUpdate {
            replica_id: "a".into(),
            prefixes: (0..entries).map(entry).collect(),
            stats: Some(ReportedStats::default()),
            ..CacheStateUpdate::default()
        }
    }

    #[test]
    fn a_long_update_comes_in_pieces_that_say_the_same() {
        for (entries, chain, expected) in
            [(0, 0, 1), (PIECE_BLOCKS, 1, 1), (PIECE_BLOCKS + 1, 0, 2), (5, PIECE_BLOCKS, 5), (4_000, 3, 12)]
        {
            let whole = update(entries, chain);
            let pieces = pieces(whole.clone());
            assert_eq!(pieces.len(), expected, "{entries} entries of {chain}");
            assert_eq!(pieces.iter().map(CacheStateUpdate::offered).sum::<u64>(), whole.offered());
            assert!(pieces.iter().all(|piece| piece.replica_id == "a"));
            let (last, others) = pieces.split_last().unwrap();
            assert!(last.stats.is_some() && others.iter().all(|piece| piece.stats.is_none()));
            let prefixes: Vec<PrefixEntry> = pieces.into_iter().flat_map(|piece| piece.prefixes).collect();
            assert_eq!(prefixes, whole.prefixes);
        }
    }
    #[test]
    fn what_is_reached_elsewhere_holds_nothing_yet() {
        let mut publisher = Publisher::new(PublisherLimits::default());
        let member = Member::new("t", "m", "a");
        let entry = PrefixEntry { prefix_hash: b"p".to_vec(), token_count: 16, ..PrefixEntry::default() };
        let report = CacheStateUpdate {
            replica_id: "a".into(),
            model_id: "m".into(),
            tenant_id: "t".into(),
            hash_scheme: "s".into(),
            prefixes: vec![entry],
            ..CacheStateUpdate::default()
        };
        publisher.report(&report, unix_ms());
        for (address, pairs) in [("10.0.0.1:80", 1), ("10.0.0.1:80", 1), ("10.0.0.2:80", 0)] {
            set_address(&mut publisher, &member, address);
            assert_eq!(publisher.reported_address(&member), Some(address));
            assert_eq!(publisher.index().pairs(), pairs, "{address}");
        }
        assert_eq!(publisher.dropped().total(), 0);
    }
}
