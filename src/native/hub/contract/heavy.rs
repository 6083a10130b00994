//! What takes too long for a task that others wait for: it runs on threads of its own, a few at a time.
//!
//! In: the work, and until when it is waited for. Out: its result, in time or not at all. Work that is waited for no more
//! keeps its place until it ends, since it cannot be stopped half-way.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout_at;
use tracing::error;

use super::deadline::Deadline;
use crate::routing::lookup::Answer;
use crate::routing::reason::ReasonCode;

/// The most pieces of heavy work at once. More of them are no faster: each is bound by one core.
const MAX_AT_ONCE: usize = 4;
/// A chain of at most so many blocks is handled where it is: it takes less than handing it over.
pub const FEW_BLOCKS: usize = 4_096;

/// Threads for heavy work.
#[derive(Clone, Debug)]
pub struct Heavy {
    places: Arc<Semaphore>,
}

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// The time is up.
    Late,
    /// The work panicked.
    Failed,
}

// === impl Heavy ===

impl Heavy {
    /// Nothing is under way.
    pub fn new() -> Heavy {
        Heavy { places: Arc::new(Semaphore::new(MAX_AT_ONCE)) }
    }

    /// The result of `work`, once there is a place for it.
    ///
    /// # Errors
    /// When it is not there in time.
    pub async fn run<T: Send + 'static>(
        &self,
        deadline: Deadline,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotDone> {
        let places = Arc::clone(&self.places);
        let working = async move {
            let place = places.acquire_owned().await.map_err(|_| NotDone::Failed)?;
            let result = spawn_blocking(move || {
                let result = work();
                drop(place);
                result
            });
            result.await.map_err(|panicked| {
                error!("a call was not worked out: {panicked}");
                NotDone::Failed
            })
        };
        match deadline.0 {
            Some(deadline) => timeout_at(deadline, working).await.map_err(|_| NotDone::Late)?,
            None => working.await,
        }
    }
}

// === impl NotDone ===

impl From<NotDone> for Answer {
    /// A lookup fails open.
    fn from(not_done: NotDone) -> Answer {
        Answer::refused(match not_done {
            NotDone::Late => ReasonCode::Timeout,
            NotDone::Failed => ReasonCode::NoHint,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_few_run_at_once_and_who_waits_too_long_is_told() {
        let heavy = Heavy::new();
        let running = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let calls = (0..4 * MAX_AT_ONCE).map(|_| {
            let (heavy, running, most) = (heavy.clone(), Arc::clone(&running), Arc::clone(&most));
            tokio::spawn(async move {
                let work = move || {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                    running.fetch_sub(1, Ordering::SeqCst);
                };
                heavy.run(Deadline(None), work).await
            })
        });
        for call in calls.collect::<Vec<_>>() {
            assert_eq!(call.await.unwrap(), Ok(()));
        }
        assert!((1..=MAX_AT_ONCE).contains(&most.load(Ordering::SeqCst)));
        let soon = Deadline(Some(Instant::now() + Duration::from_millis(5)));
        let slow = heavy.run(soon, || std::thread::sleep(Duration::from_millis(100)));
        assert_eq!(slow.await, Err(NotDone::Late));
        assert_eq!(heavy.run(Deadline(None), || panic!("as work might")).await, Err::<(), _>(NotDone::Failed));
    }
}
