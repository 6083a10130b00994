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
use crate::native::hub::clock::hub_ms;
use crate::native::hub::state::HubState;
use crate::observation::Member;
use crate::publisher::message::{self, CacheStateUpdate, EventKind};
use crate::publisher::{Dropped, Publisher};

/// How many blocks are taken in without a pause.
const PIECE_BLOCKS: usize = 512;

/// How many blocks of a member are cleared without a pause.
const MAX_CLEARED_BLOCKS: u64 = 4_096;

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
        let reported_us = update.timestamp_us;
        let is_long = update.prefixes.len() > FEW_BLOCKS
            || update.prefixes.iter().any(|entry| entry.block_hashes.len() > FEW_BLOCKS);
        let (offered, pieces) = if is_long {
            let taken = self.heavy.run(Deadline(None), move || in_pieces(update)).await;
            taken.map_err(|_| Status::internal("the update was not taken in"))?
        } else {
            in_pieces(update)
        };
        let reported_us = self.state.wall().to_hub_us(reported_us);
        outcome.offered = outcome.offered.saturating_add(offered);
        // One time for all of it, however long it takes.
        let now_ms = hub_ms();
        for mut piece in pieces {
            piece.timestamp_us = reported_us;
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
        let mut event = reported_event(event);
        event.timestamp_us = self.state.wall().to_hub_us(event.timestamp_us);
        let dropped = take_event(&self.state, &event).await;
        Outcome { offered: 1, dropped }.ack()
    }
}

/// Takes in one event, whose time is the hub's.
async fn take_event(state: &HubState, event: &message::CacheEvent) -> Dropped {
    let now_ms = hub_ms();
    if let Some(member) = state.read(|publisher| publisher.cleared_by(event, now_ms)) {
        // Most of what it holds goes in pieces, so that others get their turn between any two. The rest goes at once:
        // whoever follows is told that all was cleared.
        let mut from = Some(0);
        while let Some(next) = from
            && state.read(|publisher| held_by(publisher, &member)) > MAX_CLEARED_BLOCKS
        {
            from = state.change(|publisher| publisher.clear_step(&member, next));
            yield_now().await;
        }
    }
    state.change(|publisher| publisher.event(event, now_ms))
}

/// How many blocks a member holds.
fn held_by(publisher: &Publisher, member: &Member) -> u64 {
    let index = publisher.index();
    index.dictionary().generations(member).map(|replica| index.pairs_of(replica)).sum()
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

/// How much the update says, and the update in pieces: lookups and streams get their turn between any two.
fn in_pieces(update: v1alpha1::CacheStateUpdate) -> (u64, Vec<CacheStateUpdate>) {
    let update = reported_update(update);
    (update.offered(), update.into_pieces(PIECE_BLOCKS))
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
    use crate::publisher::message::PrefixEntry;

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
        publisher.report(&report, hub_ms());
        let state = HubState::new(1, publisher, 1 << 20);
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
