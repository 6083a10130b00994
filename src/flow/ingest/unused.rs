//! Scopes that the log names and the hub does not.
//!
//! Generations of before the hub's restart may hold blocks in them, and serve until their successors are complete. So
//! one ends when everything is committed that was queued when it came out of use, and nothing is held in it any more.
//! They are looked at in turn, a bounded number with each message.

use std::collections::BTreeMap;

use super::{Ingest, PublishedScope};
use crate::index::Index;
use crate::observation::{Observation, ScopeSlot};

/// The most of them to look at with one message.
const LOOK_AT: usize = 512;

/// Scopes out of use, in the order of their numbers.
#[derive(Debug, Default)]
pub struct UnusedScopes {
    scopes: BTreeMap<ScopeSlot, Unused>,
    /// The next to look at.
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Unused {
    /// How many messages must have been taken.
    after: u64,
    /// The log may still have a number of the hub's for it.
    published: bool,
}

// === impl UnusedScopes ===

impl UnusedScopes {
    /// `slot` is out of use; it may end when `after` messages have been taken.
    pub fn add(&mut self, slot: ScopeSlot, after: u64) {
        self.scopes.insert(slot, Unused { after, published: after > 0 });
    }

    /// `slot` is in use again.
    pub fn remove(&mut self, slot: ScopeSlot) {
        self.scopes.remove(&slot);
    }

    /// The next ones to look at.
    fn turn(&mut self) -> Vec<ScopeSlot> {
        let from = ScopeSlot(self.next);
        let turn: Vec<ScopeSlot> =
            self.scopes.range(from..).chain(self.scopes.range(..from)).take(LOOK_AT).map(|(slot, _)| *slot).collect();
        self.next = turn.last().map_or(0, |slot| slot.0.saturating_add(1));
        turn
    }
}

// === impl Ingest ===

impl Ingest {
    /// After a reset: the scopes that it did not announce.
    pub(super) fn find_unused_scopes(&mut self) {
        let after = self.after_this_message();
        let mut unused = UnusedScopes::default();
        self.names.slots().for_each(|slot| unused.add(slot, after));
        for scope in self.scopes.values() {
            if let PublishedScope::Named(slot) = scope {
                unused.remove(*slot);
            }
        }
        self.unused = unused;
    }

    /// The hub gives a scope up. One that it never announced to this subscriber is none of the log's.
    pub(super) fn scope_gone(&mut self, published: ScopeSlot) {
        match self.scopes.remove(&published) {
            Some(PublishedScope::Named(slot)) => self.unused.add(slot, self.after_this_message()),
            Some(refused) => self.waiting_bytes = self.waiting_bytes.saturating_sub(refused.waiting_bytes()),
            None => {}
        }
    }

    /// Ends those of the next scopes out of use in which nothing is held; none while a reset is under way, which may
    /// use them again. Those that stay lose the hub's number, so that the next leader sees that they are not in use.
    pub(super) fn end_unused_scopes(&mut self, index: &Index, out: &mut Vec<Observation>) {
        for slot in self.unused.turn() {
            let Some(unused) = self.unused.scopes.get_mut(&slot).filter(|unused| unused.after <= self.queue.taken())
            else {
                continue;
            };
            let Some(scope) = index.dictionary().scope(slot) else { continue };
            if index.keys_of(slot) == 0 {
                self.names.remove(scope);
                self.unused.remove(slot);
                out.push(Observation::ScopeGone { slot });
            } else if std::mem::replace(&mut unused.published, false) {
                out.push(Observation::Scope { slot, scope: scope.clone() });
            }
        }
    }

    /// How many messages have been taken once the one that is being read is.
    fn after_this_message(&self) -> u64 {
        self.queue.taken_in_the_end() + 1
    }
}
