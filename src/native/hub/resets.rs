//! The full state that subscribers begin with, one copy for all that begin at about the same time.
//!
//! However many subscribers there are and however slowly they read: a copy is used as long as it is in the newer half of
//! the ring of changes, and a subscriber that is still being told one that has left the ring is closed. So there are two or
//! three copies at most, and none once nobody needs it.

use std::sync::{Arc, Mutex as Cell, OnceLock, PoisonError, Weak};

use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};

use super::copying::copy;
use super::snapshot::{ReplicaSnapshot, Snapshot};
use super::state::HubState;
use crate::observation::Observation;

/// Makes the copies.
#[derive(Debug, Default)]
pub struct Resets {
    latest: Mutex<Weak<Reset>>,
}

/// The full state as of a sequence.
#[derive(Debug)]
pub struct Reset {
    /// The sequence.
    pub sequence: u64,
    /// Scopes, policies and models.
    pub first: Vec<Observation>,
    /// Every followed replica.
    pub replicas: Vec<Arc<ReplicaReset>>,
    /// What producers report.
    pub reported: Vec<Observation>,
}

/// What rebuilds one replica, made when it is first needed.
#[derive(Debug)]
pub struct ReplicaReset {
    snapshot: Cell<Option<ReplicaSnapshot>>,
    made: OnceLock<Vec<Observation>>,
    /// Who waits does not take a thread.
    turn: Mutex<()>,
}

// === impl Resets ===

impl Resets {
    /// The full state, as of now or a little earlier.
    ///
    /// # Errors
    /// When the runtime is being shut down.
    pub async fn current(&self, state: &Arc<HubState>) -> Result<Arc<Reset>, JoinError> {
        let mut latest = self.latest.lock().await;
        if let Some(reset) = latest.upgrade().filter(|reset| state.is_recent(reset.sequence)) {
            return Ok(reset);
        }
        let state = Arc::clone(state);
        let reset = spawn_blocking(move || Arc::new(Reset::new(copy(&state)))).await?;
        *latest = Arc::downgrade(&reset);
        Ok(reset)
    }
}

// === impl Reset ===

impl Reset {
    fn new(snapshot: Snapshot) -> Reset {
        let Snapshot { sequence, scopes, policies, models, replicas, reported } = snapshot;
        let scopes = scopes.into_iter().map(|(slot, scope)| Observation::Scope { slot, scope });
        let first = scopes.chain(policies).chain(models).collect();
        let replica = |snapshot| {
            let snapshot = Cell::new(Some(snapshot));
            Arc::new(ReplicaReset { snapshot, made: OnceLock::new(), turn: Mutex::default() })
        };
        Reset { sequence, first, replicas: replicas.into_iter().map(replica).collect(), reported }
    }
}

// === impl ReplicaReset ===

impl ReplicaReset {
    /// What rebuilds it.
    ///
    /// # Errors
    /// When the runtime is being shut down.
    pub async fn observations(self: &Arc<ReplicaReset>) -> Result<&[Observation], JoinError> {
        if self.made.get().is_none() {
            let _turn = self.turn.lock().await;
            // Sorting millions of blocks into runs takes long enough to hold up other tasks.
            let replica = Arc::clone(self);
            spawn_blocking(move || replica.make().len()).await?;
        }
        Ok(self.make())
    }

    fn make(&self) -> &[Observation] {
        self.made.get_or_init(|| {
            let snapshot = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).take();
            snapshot.into_iter().flat_map(ReplicaSnapshot::into_observations).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::hub::config::HubConfig;
    use crate::publisher::{Publisher, PublisherLimits};

    fn state() -> Arc<HubState> {
        Arc::new(HubState::new(7, Publisher::new(PublisherLimits::default()), 1 << 20))
    }

    fn announce(state: &HubState, addresses: std::ops::Range<u16>) {
        let yaml = "replicas: [{id: a, address: 'h:1', kv_events: 'tcp://h:2', model: m}]";
        let replica = state.follow(&HubConfig::from_yaml(yaml).unwrap().replicas[0], None);
        addresses.for_each(|port| assert!(state.announce(replica, &format!("10.0.0.1:{port}"))));
    }

    #[tokio::test]
    async fn all_who_begin_at_about_the_same_time_share_one_copy() {
        let (state, resets) = (state(), Resets::default());
        announce(&state, 1..20);
        let first = resets.current(&state).await.unwrap();
        announce(&state, 20..22);
        assert!(Arc::ptr_eq(&first, &resets.current(&state).await.unwrap()));
        let one = first.replicas[0].observations().await.unwrap();
        assert!(std::ptr::eq(one, first.replicas[0].observations().await.unwrap()) && !one.is_empty());
        announce(&state, 30..99);
        let second = resets.current(&state).await.unwrap();
        assert!(!Arc::ptr_eq(&first, &second) && second.sequence == state.sequence());
    }

    #[tokio::test]
    async fn a_copy_that_nobody_needs_is_gone() {
        let (state, resets) = (state(), Resets::default());
        announce(&state, 1..2);
        drop(resets.current(&state).await.unwrap());
        assert!(resets.latest.lock().await.upgrade().is_none());
    }
}
