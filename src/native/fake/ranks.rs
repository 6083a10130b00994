//! The ranks of data parallelism of one engine: caches of their own behind one HTTP address.
//!
//! A request goes to the rank that its `x-data-parallel-rank` header names, as in vLLM, and without one to each in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::HeaderMap;

use super::cache::BlocksInUse;
use super::scheduler::{Load, Scheduler};

/// The header that names a rank, of a request and of the answer to it.
pub const RANK_HEADER: &str = "x-data-parallel-rank";

/// All ranks, at least one; clones share them.
#[derive(Clone)]
pub struct Ranks {
    first: Scheduler,
    others: Arc<[Scheduler]>,
    next: Arc<AtomicUsize>,
}

/// A header that names no rank there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSuchRank(pub String);

// === impl Ranks ===

impl Ranks {
    /// Rank 0 and those after it.
    pub fn new(first: Scheduler, others: Vec<Scheduler>) -> Ranks {
        Ranks { first, others: others.into(), next: Arc::default() }
    }

    /// The rank that is to serve a request with these headers, with its number.
    ///
    /// # Errors
    /// When they name another one.
    pub fn pick(&self, headers: &HeaderMap) -> Result<(usize, &Scheduler), NoSuchRank> {
        let count = 1 + self.others.len();
        let Some(named) = headers.get(RANK_HEADER) else {
            let rank = self.next.fetch_add(1, Ordering::Relaxed) % count;
            return Ok((rank, self.get(rank).unwrap_or(&self.first)));
        };
        let named = String::from_utf8_lossy(named.as_bytes()).into_owned();
        let rank = named.parse::<usize>().ok();
        rank.and_then(|rank| Some((rank, self.get(rank)?))).ok_or(NoSuchRank(named))
    }

    /// The most tokens that a prompt and its completion may have together.
    pub fn capacity_tokens(&self) -> usize {
        self.first.capacity_tokens()
    }

    /// The load of each.
    pub fn loads(&self) -> Vec<Load> {
        self.all().map(Scheduler::load).collect()
    }

    /// Empties every cache.
    ///
    /// # Errors
    /// When requests use blocks of one; those before it are empty.
    pub fn reset_prefix_cache(&self) -> Result<(), BlocksInUse> {
        self.all().try_for_each(Scheduler::reset_prefix_cache)
    }

    /// Starts over as a new process would: with empty caches, of which nothing is said, and numbers from 0.
    ///
    /// # Errors
    /// When requests use blocks of a cache; ranks before it have started over.
    pub fn restart(&self) -> Result<(), BlocksInUse> {
        self.all().try_for_each(Scheduler::restart)
    }

    /// Takes no more requests; those that wait are refused.
    pub fn shut_down(&self) {
        self.all().for_each(Scheduler::shut_down);
    }

    fn all(&self) -> impl Iterator<Item = &Scheduler> {
        std::iter::once(&self.first).chain(self.others.iter())
    }

    fn get(&self, rank: usize) -> Option<&Scheduler> {
        rank.checked_sub(1).map_or(Some(&self.first), |other| self.others.get(other))
    }
}
