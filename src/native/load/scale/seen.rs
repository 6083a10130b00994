//! From an engine's event to a decision by it: conversations that have just become whole, asked for until they are credited.
//!
//! The time runs from when the batch with a conversation's last block is handed to its publisher. One that is credited late
//! is one of three things: slow, not credited in [`SEEN_WITHIN`] although its replica holds it, or gone, its replica having
//! let it go meanwhile, which says nothing of how long a credit takes. They are told apart by what the replica has published.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::ask::{Decision, replica_id, with_hashes};
use super::content::Conversation;
use super::measure::Latencies;
use super::pool::Pool;
use crate::native::load::client::Client;

/// How long a conversation may take from its engine to a decision, before it is given up.
const SEEN_WITHIN: Duration = Duration::from_secs(5);
/// Conversations looked for at one time, each over a connection of its own, so that every worker is asked.
const LOOKERS: usize = 8;
/// From one conversation to the next of the same looker.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often one that is not credited yet is asked for: what a time may be too long by.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// How often a replica is looked at for a conversation that is new.
const WAIT_EVERY: Duration = Duration::from_millis(5);
/// Slow conversations that the report names.
const MAX_EXAMPLES: usize = 3;

/// What came of those that were looked for.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// From the event to the credit, of what was still held; [`SEEN_WITHIN`] of what was given up.
    pub credited: Latencies,
    /// Held all the time and not credited in time.
    pub never: usize,
    /// Gone before they were credited.
    pub removed: usize,
    /// The slowest that were still held, with what was decided before the credit.
    pub slowest: Vec<(Duration, String)>,
}

/// What came of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    Credited,
    Removed,
    Never,
    Waiting,
}

/// Looks for new conversations of one replica after another, until `during` has passed.
pub async fn look(pool: &Arc<Pool>, base: &str, during: Duration) -> Seen {
    let end = Instant::now() + during;
    let mut lookers = JoinSet::new();
    for first in 0..LOOKERS.min(pool.len()) {
        lookers.spawn(look_at_some(Arc::clone(pool), base.to_owned(), first, end));
    }
    lookers.join_all().await.into_iter().reduce(Seen::and).unwrap_or_default()
}

async fn look_at_some(pool: Arc<Pool>, base: String, first: usize, end: Instant) -> Seen {
    let (client, mut seen) = (Client::default(), Seen::default());
    for place in (first..pool.len()).step_by(LOOKERS).cycle() {
        sleep(LOOK_EVERY).await;
        let Some((conversation, whole_at)) = next_whole(&pool, place, end).await else { break };
        let (mut last, url) = (None, format!("{base}/probe"));
        // Made once: its hashes take longer than an answer.
        let hashes = conversation.hashes_header();
        let came = loop {
            let answer = client.request(&url, with_hashes(&hashes), Bytes::new()).await;
            let decision = answer.map(|answer| Decision::of(&answer)).map_err(|failed| failed.to_string());
            let is_whole = decision.as_ref().is_ok_and(|decision| decision.is_whole(&conversation));
            match judged(is_whole, pool.holds(&conversation), whole_at.elapsed()) {
                Came::Waiting => {}
                came => break came,
            }
            last = Some(decision);
            sleep(ASK_EVERY).await;
        };
        seen.note(came, whole_at.elapsed(), &conversation, last);
    }
    seen
}

/// The next conversation that becomes whole at a replica, and when; `None` once it is too late to look for one.
async fn next_whole(pool: &Pool, place: usize, end: Instant) -> Option<(Conversation, Instant)> {
    let before = pool.whole_since(place);
    loop {
        if Instant::now() + LOOK_EVERY >= end {
            return None;
        }
        match pool.whole_since(place) {
            Some(latest) if before.is_none_or(|(before, _)| before != latest.0) => return Some(latest),
            _ => sleep(WAIT_EVERY).await,
        }
    }
}

/// A credit counts whatever happened since; without one a conversation that is gone is not waited for.
fn judged(is_whole: bool, is_held: bool, after: Duration) -> Came {
    match (is_whole, is_held) {
        (true, _) => Came::Credited,
        (false, false) => Came::Removed,
        (false, true) if after >= SEEN_WITHIN => Came::Never,
        (false, true) => Came::Waiting,
    }
}

// === impl Seen ===

impl Seen {
    /// Both.
    pub fn and(mut self, other: Seen) -> Seen {
        self.credited.extend(other.credited);
        self.never += other.never;
        self.removed += other.removed;
        self.slowest.extend(other.slowest);
        self.keep_the_slowest();
        self
    }

    fn note(
        &mut self,
        came: Came,
        took: Duration,
        conversation: &Conversation,
        last: Option<Result<Decision, String>>,
    ) {
        match came {
            Came::Removed => return self.removed += 1,
            Came::Never => self.never += 1,
            Came::Credited | Came::Waiting => {}
        }
        self.credited.add(took);
        if let Some(last) = last {
            let Conversation { replica, number } = conversation;
            let (replica, tokens) = (replica_id(*replica), conversation.tokens());
            self.slowest.push((took, format!("number {number} of {replica}, {tokens} tokens; before it: {last:?}")));
            self.keep_the_slowest();
        }
    }

    fn keep_the_slowest(&mut self) {
        self.slowest.sort_by_key(|(took, _)| std::cmp::Reverse(*took));
        self.slowest.truncate(MAX_EXAMPLES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_told_apart_from_what_is_late() {
        let (soon, late) = (Duration::from_millis(3), SEEN_WITHIN);
        assert_eq!(judged(true, true, late), Came::Credited);
        assert_eq!(judged(true, false, soon), Came::Credited);
        assert_eq!(judged(false, false, soon), Came::Removed);
        assert_eq!(judged(false, false, late), Came::Removed);
        assert_eq!(judged(false, true, soon), Came::Waiting);
        assert_eq!(judged(false, true, late), Came::Never);
    }

    #[test]
    fn what_was_removed_counts_for_no_percentile_and_the_slowest_are_named() {
        let conversation = Conversation { replica: 2, number: 7 };
        let mut seen = Seen::default();
        let mut note = |came, ms| seen.note(came, Duration::from_millis(ms), &conversation, Some(Err("x".to_owned())));
        (1..=9).for_each(|ms| note(Came::Credited, ms));
        note(Came::Removed, 4_000);
        note(Came::Never, 5_000);
        let seen = seen.and(Seen::default());
        assert_eq!((seen.credited.len(), seen.removed, seen.never), (10, 1, 1));
        assert_eq!((seen.credited.percentile_ms(0.9), seen.credited.percentile_ms(1.0)), (9.0, 5_000.0));
        let slowest: Vec<u128> = seen.slowest.iter().map(|(took, _)| took.as_millis()).collect();
        assert_eq!(slowest, [5_000, 9, 8]);
        assert!(seen.slowest[0].1.starts_with("number 7 of engine-2"), "{:?}", seen.slowest[0]);
    }
}
