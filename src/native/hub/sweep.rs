//! Lets go of what is too old, once a minute, in steps: others get their turn between any two.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::clock::hub_ms;
use super::state::HubState;

/// How often all is swept; the contract's.
const INTERVAL: Duration = Duration::from_secs(60);

/// Sweeps `state` until `stop`.
pub async fn run(state: Arc<HubState>, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = sweep_forever(&state) => {}
    }
}

async fn sweep_forever(state: &HubState) {
    let mut ticks = interval_at(Instant::now() + INTERVAL, INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        while !state.change(|publisher| publisher.sweep_step(hub_ms())) {
            yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::Observation;
    use crate::publisher::message::{CacheStateUpdate, PrefixEntry};
    use crate::publisher::{Publisher, PublisherLimits};

    fn report(hash: &[u8], timestamp_ms: u64) -> CacheStateUpdate {
        CacheStateUpdate {
            replica_id: "a".into(),
            model_id: "m".into(),
            tenant_id: "t".into(),
            hash_scheme: "s".into(),
            timestamp_us: timestamp_ms as i64 * 1_000,
            prefixes: vec![PrefixEntry { prefix_hash: hash.into(), token_count: 16, ..PrefixEntry::default() }],
            ..CacheStateUpdate::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_old_goes_within_a_minute_and_the_change_is_published() {
        let publisher = Publisher::new(PublisherLimits::default());
        let state = Arc::new(HubState::new(1, publisher, 1 << 20));
        let now_ms = hub_ms();
        for (hash, timestamp_ms) in [(b"old", now_ms - 3_600_000), (b"new", now_ms)] {
            state.change(|publisher| publisher.report(&report(hash, timestamp_ms), now_ms));
        }
        let before = state.sequence();
        let stop = CancellationToken::new();
        let sweeping = tokio::spawn(run(Arc::clone(&state), stop.clone()));
        tokio::time::sleep(INTERVAL - Duration::from_secs(1)).await;
        assert_eq!(state.read(|publisher| publisher.index().pairs()), 2);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(state.read(|publisher| publisher.index().pairs()), 1);
        let changes = state.after(before, usize::MAX).unwrap();
        assert!(matches!(changes[0].observation, Observation::Removed { .. }) && changes.len() == 1);
        stop.cancel();
        sweeping.await.unwrap();
    }
}
