//! `ReportCacheState` and `PublishEvent`: what producers say, and what they are told became of it.
//!
//! In: updates and events, whatever they are. Out: an [`Ack`], accepted unless everything was dropped, that names what was
//! dropped and how often.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::yield_now;
use tonic::{Status, Streaming};

use super::addresses::AddressBook;
use super::deadline::Deadline;
use super::heavy::{FEW_BLOCKS, Heavy};
use super::messages::v1alpha1::{self, Ack};
use super::messages::{reported_event, reported_update};
use crate::native::hub::clock::unix_ms;
use crate::native::hub::state::HubState;
use crate::observation::{MAX_KEY_BYTES, Member};
use crate::publisher::Dropped;
use crate::publisher::message::{self, CacheStateUpdate, EventKind, PrefixEntry};

/// How many blocks are taken in without a pause.
const PIECE_BLOCKS: usize = 512;

/// Takes in what producers say.
pub struct Reports {
    state: Arc<HubState>,
    addresses: Arc<AddressBook>,
    heavy: Heavy,
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
    pub fn new(state: &Arc<HubState>, addresses: AddressBook, heavy: Heavy) -> Reports {
        Reports { state: Arc::clone(state), addresses: Arc::new(addresses), heavy }
    }

    /// Takes updates as they come, until the client has said all.
    ///
    /// # Errors
    /// When the stream breaks off; what came before stays.
    pub async fn take_all(&self, mut updates: Streaming<v1alpha1::CacheStateUpdate>) -> Result<Ack, Status> {
        let mut outcome = Outcome::default();
        while let Some(update) = updates.message().await? {
            self.take(update, &mut outcome).await?;
        }
        Ok(outcome.ack())
    }

    async fn take(&self, update: v1alpha1::CacheStateUpdate, outcome: &mut Outcome) -> Result<(), Status> {
        let member = Member::new(&*update.tenant_id, &*update.model_id, &*update.replica_id);
        let address = self.addresses.known(&member.tenant_id, &member.replica_id);
        if let Some(address) = address {
            self.found(&member, address).await;
        }
        let is_long = update.prefixes.len() > FEW_BLOCKS
            || update.prefixes.iter().any(|entry| entry.block_hashes.len() > FEW_BLOCKS);
        let (offered, pieces) = if is_long {
            let taken = self.heavy.run(Deadline(None), move || in_pieces(update)).await;
            taken.map_err(|_| Status::internal("the update was not taken in"))?
        } else {
            in_pieces(update)
        };
        outcome.offered = outcome.offered.saturating_add(offered);
        // One time for all of it, however long it takes.
        let now_ms = unix_ms();
        for piece in pieces {
            outcome.dropped += self.state.change(|publisher| publisher.report(&piece, now_ms));
            yield_now().await;
        }
        if address.is_none() && self.state.read(|publisher| publisher.reported_address(&member).is_some()) {
            self.find(member);
        }
        Ok(())
    }

    /// Asks where a reported member is, without holding up its reports.
    fn find(&self, member: Member) {
        let Some(asking) = AddressBook::ask(&self.addresses, &member) else { return };
        let state = Arc::clone(&self.state);
        tokio::spawn(async move {
            for (member, address) in asking.answer().await {
                set_address(&state, &member, &address.to_string()).await;
            }
        });
    }

    async fn found(&self, member: &Member, address: SocketAddr) {
        set_address(&self.state, member, &address.to_string()).await;
    }

    /// Takes in one event.
    pub async fn event(&self, event: v1alpha1::CacheEvent) -> Ack {
        let dropped = take_event(&self.state, &reported_event(event)).await;
        Outcome { offered: 1, dropped }.ack()
    }
}

/// Takes in one event.
async fn take_event(state: &HubState, event: &message::CacheEvent) -> Dropped {
    state.change(|publisher| publisher.event(event, unix_ms()))
}

/// Says where a member is reached. What answers elsewhere than before is another process, which holds nothing yet.
async fn set_address(state: &HubState, member: &Member, address: &str) {
    let is_elsewhere = state.read(|publisher| {
        publisher.reported_address(member).is_some_and(|before| !before.is_empty() && before != address)
    });
    if is_elsewhere {
        let cleared = message::CacheEvent {
            kind: EventKind::AllCleared,
            replica_id: member.replica_id.clone(),
            model_id: member.model_id.clone(),
            tenant_id: member.tenant_id.clone(),
            ..message::CacheEvent::default()
        };
        take_event(state, &cleared).await;
    }
    state.change(|publisher| publisher.set_address(member, address));
}

/// How much the update says, and the update in pieces.
fn in_pieces(update: v1alpha1::CacheStateUpdate) -> (u64, Vec<CacheStateUpdate>) {
    let update = reported_update(update);
    (update.offered(), pieces(update))
}

/// The update in pieces, its statistics in the last: lookups and streams get their turn between any two.
fn pieces(mut update: CacheStateUpdate) -> Vec<CacheStateUpdate> {
    let prefixes = std::mem::take(&mut update.prefixes);
    let mut prefixes = prefixes.into_iter().flat_map(short_entries).peekable();
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

/// Entries that say the same as `entry`, and none of them takes long. A block of a chain is a prefix by its own hash, with
/// the tokens up to it; where the chain stops making sense, what is left of it remains one entry, to be dropped as such.
fn short_entries(entry: PrefixEntry) -> Vec<PrefixEntry> {
    if entry.block_hashes.len() <= PIECE_BLOCKS || entry.block_hashes.len() != entry.block_token_counts.len() {
        return vec![entry];
    }
    let PrefixEntry { prefix_hash, token_count, block_hashes, block_token_counts, tier, adapter_id } = entry;
    let same = || PrefixEntry { tier, adapter_id: adapter_id.clone(), ..PrefixEntry::default() };
    let mut entries = Vec::with_capacity(block_hashes.len() + 1);
    let mut tokens = 0_i32;
    let mut blocks = block_hashes.into_iter().zip(block_token_counts);
    for (hash, count) in blocks.by_ref() {
        let sum = tokens.checked_add(count).filter(|_| count > 0);
        match sum {
            Some(sum) if !hash.is_empty() && hash.len() <= MAX_KEY_BYTES => {
                tokens = sum;
                entries.push(PrefixEntry { prefix_hash: hash, token_count: sum, ..same() });
            }
            _ => {
                // A sum that is no int32 is dropped for the same reason as a count below 1.
                let first = (hash, if sum.is_some() { count } else { 0 });
                let (block_hashes, block_token_counts) = std::iter::once(first).chain(blocks).unzip();
                entries.push(PrefixEntry { block_hashes, block_token_counts, ..same() });
                break;
            }
        }
    }
    if !prefix_hash.is_empty() {
        entries.push(PrefixEntry { prefix_hash, token_count, ..same() });
    }
    entries
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
    use crate::native::hub::followed::Followed;
    use crate::publisher::message::ReportedStats;
    use crate::publisher::{Publisher, PublisherLimits};

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
            [(0, 0, 1), (PIECE_BLOCKS, 1, 1), (PIECE_BLOCKS + 1, 0, 2), (5, PIECE_BLOCKS, 5), (4_000, 3, 24)]
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
    fn a_long_chain_in_pieces_is_taken_and_dropped_as_in_one() {
        let length = 3 * PIECE_BLOCKS + 7;
        let chain = PrefixEntry {
            block_hashes: (0..length as u64).map(|at| at.to_be_bytes().to_vec()).collect(),
            block_token_counts: vec![4; length],
            tier: 2,
            ..PrefixEntry::default()
        };
        let with = |change: &dyn Fn(&mut PrefixEntry)| {
            let mut entry = chain.clone();
            change(&mut entry);
            entry
        };
        for (name, entry) in [
            ("whole", chain.clone()),
            ("and prefix", with(&|entry| (entry.prefix_hash, entry.token_count) = (b"p".to_vec(), 9))),
            ("lopsided", with(&|entry| entry.block_token_counts.truncate(PIECE_BLOCKS))),
            ("no hash", with(&|entry| entry.block_hashes[700].clear())),
            ("long hash", with(&|entry| entry.block_hashes[701] = vec![1; 300])),
            ("no tokens", with(&|entry| entry.block_token_counts[702] = 0)),
            ("below zero", with(&|entry| entry.block_token_counts[0] = -3)),
            ("too many tokens", with(&|entry| entry.block_token_counts[703] = i32::MAX)),
            ("bad prefix", with(&|entry| (entry.prefix_hash, entry.token_count) = (b"p".to_vec(), -1))),
        ] {
            let whole = CacheStateUpdate {
                model_id: "m".into(),
                tenant_id: "t".into(),
                hash_scheme: "s".into(),
                prefixes: vec![entry],
                ..update(0, 0)
            };
            let taken = |updates: Vec<CacheStateUpdate>| {
                let mut publisher = Publisher::new(PublisherLimits::default());
                let mut dropped = Dropped::default();
                let now_ms = 1_700_000_000_000;
                updates.iter().for_each(|update| dropped += publisher.report(update, now_ms));
                let held = publisher.index().blocks_of(publisher.reported()[0].0);
                let mut held: Vec<_> = held
                    .into_iter()
                    .map(|(scope, key)| {
                        let holder = *publisher.index().holder(scope, &key, publisher.reported()[0].0).unwrap();
                        (format!("{key:?}"), holder.token_count, holder.tier)
                    })
                    .collect();
                held.sort();
                (dropped.reasons().collect::<Vec<_>>(), held)
            };
            let pieces = pieces(whole.clone());
            assert!(name == "lopsided" || pieces.len() > 1, "{name}");
            assert_eq!(taken(pieces), taken(vec![whole]), "{name}");
        }
    }

    #[tokio::test]
    async fn what_is_reached_elsewhere_holds_nothing_yet() {
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
        let state = HubState::new(1, publisher, Followed::new(&[]), 1 << 20);
        for (address, pairs) in [("10.0.0.1:80", 1), ("10.0.0.1:80", 1), ("10.0.0.2:80", 0)] {
            set_address(&state, &member, address).await;
            state.read(|publisher| {
                assert_eq!(publisher.reported_address(&member), Some(address));
                assert_eq!(publisher.index().pairs(), pairs, "{address}");
                assert_eq!(publisher.dropped().total(), 0);
            });
        }
    }
}
