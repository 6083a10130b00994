//! Sees to it that filters are told the times of the wall clock as it is.
//!
//! What the hub knows does not change by a clock that jumps; but filters were told by the clock before when a block was last
//! seen, and compare that with clocks of their own. So those that follow are told everything again. It is looked at once a
//! second.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::metrics::Metrics;
use super::state::HubState;

/// How often the wall clock is looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// Looks at the wall clock until `stop`.
pub async fn run(state: Arc<HubState>, metrics: Arc<Metrics>, stop: CancellationToken) {
    while stop.run_until_cancelled(sleep(INTERVAL)).await.is_some() {
        if let Some(jump_ms) = state.look_at_wall() {
            warn!(jump_ms, "the wall clock was set: those that follow are told everything again");
            metrics.clock_jumped();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::hub::clock::tests::Hands;
    use crate::native::hub::contract::ModelLabels;
    use crate::publisher::{Publisher, PublisherLimits};

    const HOUR: u64 = 3_600_000;

    #[tokio::test(start_paused = true)]
    async fn every_jump_is_seen_within_a_second_or_two_counted_and_told() {
        let hands = Hands::at(10 * HOUR);
        let publisher = Publisher::new(PublisherLimits::default());
        let state = Arc::new(HubState::new(1, publisher, 1 << 20).with_wall(hands.wall()));
        let metrics = Arc::new(Metrics::new(ModelLabels::new(std::iter::empty())));
        let stop = CancellationToken::new();
        let watching = tokio::spawn(run(Arc::clone(&state), Arc::clone(&metrics), stop.clone()));
        let mut told = state.told_anew();
        for (count, unix_ms) in [(0, 10 * HOUR + 900), (1, 11 * HOUR), (2, 9 * HOUR), (3, 10 * HOUR)] {
            hands.set(10 * HOUR, unix_ms);
            sleep(2 * INTERVAL).await;
            assert_eq!(told.has_changed().unwrap(), count > 0, "{unix_ms}");
            told.mark_unchanged();
            let text = metrics.text(&state);
            assert!(text.contains(&format!("warmroute_hub_clock_jumps_total {count}\n")), "{unix_ms}: {text}");
        }
        stop.cancel();
        watching.await.unwrap();
    }
}
