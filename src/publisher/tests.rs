//! What a publisher says of what it is told, rule by rule; [`oracle`] has random histories against a naive one.

mod chains;
mod evicted;
mod followed;
mod oracle;
mod pieces;
mod reported;
mod scopes;

use super::message::{CacheEvent, CacheStateUpdate, EventKind, PrefixEntry, ReportedStats};
use super::*;
use crate::index::Holder;
use crate::observation::{BlockKey, RESERVED_TENANT, Scope, Tier};

const NOW_MS: u64 = 1_700_000_000_000;
const TTL_MS: u64 = 30 * 60 * 1000;

fn publisher() -> Publisher {
    Publisher::new(PublisherLimits::default())
}

/// A report of `replica_id` for tenant `t`, model `m` and scheme `vllm`.
fn update(replica_id: &str, prefixes: Vec<PrefixEntry>) -> CacheStateUpdate {
    CacheStateUpdate {
        replica_id: replica_id.into(),
        model_id: "m".into(),
        tenant_id: "t".into(),
        hash_scheme: "vllm".into(),
        prefixes,
        ..CacheStateUpdate::default()
    }
}

fn entry(hash: &str, token_count: i32) -> PrefixEntry {
    PrefixEntry { prefix_hash: hash.into(), token_count, ..PrefixEntry::default() }
}

fn chain(hashes: &[&str], counts: &[i32]) -> PrefixEntry {
    PrefixEntry {
        block_hashes: hashes.iter().map(|hash| hash.as_bytes().to_vec()).collect(),
        block_token_counts: counts.to_vec(),
        ..PrefixEntry::default()
    }
}

fn event(kind: EventKind, replica_id: &str, hash: &str) -> CacheEvent {
    CacheEvent {
        kind,
        replica_id: replica_id.into(),
        model_id: "m".into(),
        tenant_id: "t".into(),
        prefix_hash: hash.into(),
        ..CacheEvent::default()
    }
}

fn scope() -> Scope {
    in_adapter("")
}

fn in_adapter(adapter_id: &str) -> Scope {
    Scope { tenant_id: "t".into(), model_id: "m".into(), hash_scheme: "vllm".into(), adapter_id: adapter_id.into() }
}

fn key(hash: &str) -> BlockKey {
    BlockKey::from_bytes(hash.as_bytes()).unwrap()
}

fn reasons(dropped: &Dropped) -> Vec<(&'static str, u64)> {
    dropped.reasons().map(|(reason, count)| (reason.as_str(), count)).collect()
}

/// What the generations of a replica that count hold of a block.
fn held(index: &Index, scope: &Scope, hash: &str, replica_id: &str) -> Option<Holder> {
    let slot = index.dictionary().scope_slot(scope)?;
    let is_it = |holder: &Holder| {
        let replica = index.dictionary().complete_replica(holder.replica);
        replica.is_some_and(|replica| &*replica.replica_id == replica_id)
    };
    index.holders(slot, &key(hash)).find(is_it)
}

/// The hashes that `replica_id` holds in the scope of the base model, out of single letters.
fn letters(publisher: &Publisher, replica_id: &str) -> String {
    let letters = ('a'..='z').filter(|hash| held(&publisher.index, &scope(), &hash.to_string(), replica_id).is_some());
    letters.collect()
}

/// An index that has applied what a publisher made known.
#[derive(Debug)]
struct Subscriber(Index, u64);

impl Subscriber {
    fn new() -> Subscriber {
        Subscriber(Index::new(3), 0)
    }

    fn follow(&mut self, publisher: &mut Publisher) -> usize {
        let changes = publisher.take_changes();
        let count = changes.len();
        for change in changes {
            self.1 += 1;
            self.0.apply(self.1, change);
        }
        count
    }
}

#[test]
fn a_publisher_can_be_shared_between_threads() {
    fn assert_send<T: Send>(_: T) {}
    assert_send(publisher());
}

#[test]
fn reasons_have_names_of_their_own_and_are_counted_apart() {
    let names: std::collections::BTreeSet<&str> = DropReason::ALL.into_iter().map(DropReason::as_str).collect();
    assert_eq!(names.len(), DropReason::ALL.len());
    for (at, reason) in DropReason::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, at);
        let mut dropped = Dropped::default();
        dropped.add(reason, 2);
        dropped += dropped;
        assert_eq!((dropped.of(reason), dropped.total()), (4, 4));
        assert_eq!(dropped.reasons().collect::<Vec<_>>(), [(reason, 4)]);
    }
}
