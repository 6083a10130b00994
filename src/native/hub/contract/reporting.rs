//! `ReportCacheState` and `PublishEvent`: what producers say, and what they are told became of it.
//!
//! In: updates and events, whatever they are. Out: an [`Ack`], accepted unless everything was dropped, that names what was
//! dropped and how often.

use std::sync::Arc;

use tonic::{Status, Streaming};

use super::addresses::AddressBook;
use super::messages::v1alpha1::{Ack, CacheEvent, CacheStateUpdate};
use super::messages::{reported_event, reported_update};
use crate::native::hub::clock::unix_ms;
use crate::native::hub::state::HubState;
use crate::observation::Member;
use crate::publisher::Dropped;

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
    pub async fn take_all(&self, mut updates: Streaming<CacheStateUpdate>) -> Result<Ack, Status> {
        let mut outcome = Outcome::default();
        while let Some(update) = updates.message().await? {
            let update = reported_update(update);
            let member = Member::new(&*update.tenant_id, &*update.model_id, &*update.replica_id);
            let address = self.addresses.address(&member.tenant_id, &member.replica_id).await;
            outcome.offered = outcome.offered.saturating_add(update.offered());
            outcome.dropped += self.state.change(|publisher| {
                if let Some(address) = address {
                    publisher.set_address(member, &address.to_string());
                }
                publisher.report(&update, unix_ms())
            });
        }
        Ok(outcome.ack())
    }

    /// Takes in one event.
    pub fn event(&self, event: CacheEvent) -> Ack {
        let event = reported_event(event);
        let dropped = self.state.change(|publisher| publisher.event(&event, unix_ms()));
        Outcome { offered: 1, dropped }.ack()
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
