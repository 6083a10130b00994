//! Lets go of what is too old, once a minute, in steps: others get their turn between any two.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::clock::unix_ms;
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
        let steps = state.read(|publisher| publisher.sweep_steps());
        for _ in 0..steps {
            state.change(|publisher| publisher.sweep_step(unix_ms()));
            yield_now().await;
        }
    }
}
