//! The lease on the head, and what may be written under it: commits and pages.
//!
//! The head's compare-and-swap number is the fence. Every write checks first that the head is still the one this leader
//! wrote, and the head is written last; a mismatch anywhere means that another VM leads, and [`Deposed`] ends this one's
//! lead with nothing half done that a reader could see. Records are applied to the leader's own index only after the
//! head that covers them is written, so that every page is true of a committed prefix.

use std::collections::VecDeque;

#[cfg(test)]
use super::defect::{self, Defect};
use super::follower::Follower;
use super::ingest::Position;
use super::keys::Keys;
use crate::host::{Cas, Host, SharedValue, SharedWrite};
use crate::index::Index;
use crate::index::log::{Head, Page, Segment};
use crate::observation::Observation;

/// Another VM leads now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deposed;

/// The lease that a leader holds.
#[derive(Debug)]
pub struct Lease {
    head: Head,
    cas: Cas,
}

/// What the leader knows of the pages in shared data.
#[derive(Debug)]
pub struct Checkpoint {
    /// The log sequence that each page is at least true of.
    as_of: Vec<u64>,
    /// Their numbers, the oldest first: what is written goes to the end.
    oldest_first: VecDeque<u32>,
}

// === impl Lease ===

impl Lease {
    /// Writes `head` in place of what has the number `cas`, and holds the lease if that worked.
    ///
    /// # Errors
    /// When another VM was faster.
    pub fn claim(host: &impl Host, keys: &Keys, head: Head, cas: Cas) -> Result<Lease, Deposed> {
        let cas = write_head(host, keys, &head, cas)?;
        Ok(Lease { head, cas })
    }

    /// The head as this leader wrote it.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Confirms the lease, writing what `change` does to the head.
    ///
    /// # Errors
    /// When another VM leads.
    pub fn renew(&mut self, host: &impl Host, keys: &Keys, change: impl FnOnce(&mut Head)) -> Result<(), Deposed> {
        let mut head = self.head.clone();
        head.beat = head.beat.wrapping_add(1);
        change(&mut head);
        self.cas = write_head(host, keys, &head, self.cas)?;
        self.head = head;
        Ok(())
    }

    /// Whether the ring has room for another commit: what falls out of it must be in every page.
    pub fn has_room(&self) -> bool {
        #[cfg(test)]
        if defect::present() == Defect::NoRingRule {
            return true;
        }
        self.first_after_next() <= self.head.oldest_page + 1
    }

    /// Commits `records` under the next log sequence, then applies them to the leader's own index. The ring must have
    /// [room](Lease::has_room).
    ///
    /// # Errors
    /// When another VM leads; nothing is committed then.
    pub fn commit(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        follower: &mut Follower,
        records: Vec<Observation>,
        change: impl FnOnce(&mut Head),
    ) -> Result<(), Deposed> {
        let sequence = self.head.last + 1;
        let first = self.first_after_next();
        let segment = Segment { incarnation: self.head.incarnation, term: self.head.term, sequence, records };
        #[cfg(test)]
        if defect::present() == Defect::ApplyBeforeCommit {
            follower.apply_committed(segment.clone());
        }
        let slot = keys.log(sequence, self.head.ring);
        let slot_cas = number_of(&host.shared_get(&slot));
        self.confirm(host, keys)?;
        if host.shared_set(&slot, &segment.encode(), slot_cas) != SharedWrite::Stored {
            return Err(Deposed);
        }
        self.renew(host, keys, |head| {
            change(head);
            head.first = first;
            head.last = sequence;
        })?;
        follower.apply_committed(segment);
        Ok(())
    }

    /// Rewrites the page that is oldest. False if every page is true of the log's end.
    ///
    /// # Errors
    /// When another VM leads.
    pub fn write_oldest_page(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        index: &Index,
        checkpoint: &mut Checkpoint,
    ) -> Result<bool, Deposed> {
        let Some(number) = checkpoint.oldest_before(self.head.last) else { return Ok(false) };
        self.write_page(host, keys, index, checkpoint, number)?;
        Ok(true)
    }

    /// Rewrites a page, true of the log's end.
    ///
    /// # Errors
    /// When another VM leads.
    pub fn write_page(
        &mut self,
        host: &impl Host,
        keys: &Keys,
        index: &Index,
        checkpoint: &mut Checkpoint,
        number: u32,
    ) -> Result<(), Deposed> {
        let as_of = self.head.last;
        let records = match number.checked_sub(1) {
            None => index.dictionary_observations(),
            Some(page) => index.page_observations(page_number(page)),
        };
        let page = Page { incarnation: self.head.incarnation, number, as_of, records };
        let key = keys.page(number);
        let page_cas = number_of(&host.shared_get(&key));
        self.write_value(host, keys, &key, &page.encode(), page_cas)?;
        checkpoint.written(number, as_of);
        Ok(())
    }

    /// Writes a value beside the log in place of what has the number `cas`.
    ///
    /// # Errors
    /// When another VM leads.
    pub fn write_value(&self, host: &impl Host, keys: &Keys, key: &str, value: &[u8], cas: Cas) -> Result<(), Deposed> {
        self.confirm(host, keys)?;
        match host.shared_set(key, value, cas) {
            SharedWrite::Stored => Ok(()),
            SharedWrite::Mismatch | SharedWrite::Refused => Err(Deposed),
        }
    }

    /// The first readable sequence once the next one is written.
    fn first_after_next(&self) -> u64 {
        // One slot fewer than there are: the slot that the commit after that takes is already out of range.
        let readable = u64::from(self.head.ring).saturating_sub(1).max(1);
        self.head.first.max((self.head.last + 2).saturating_sub(readable))
    }

    fn confirm(&self, host: &impl Host, keys: &Keys) -> Result<(), Deposed> {
        match host.shared_get(&keys.head()) {
            SharedValue::Present { cas, .. } if cas == self.cas => Ok(()),
            _ => Err(Deposed),
        }
    }
}

// === impl Checkpoint ===

impl Checkpoint {
    /// The pages as `index` was loaded from them; none is older than `head` says.
    pub fn new(index: &Index, head: &Head) -> Checkpoint {
        let as_of: Vec<u64> = index.loaded_as_of().map(|as_of| as_of.max(head.oldest_page)).collect();
        let mut by_age: Vec<(u64, u32)> = as_of.iter().copied().zip(0..).collect();
        by_age.sort_unstable();
        Checkpoint { as_of, oldest_first: by_age.into_iter().map(|(_, number)| number).collect() }
    }

    /// The log sequence that every page is at least true of.
    pub fn oldest_as_of(&self) -> u64 {
        self.oldest().map_or(0, |(_, as_of)| as_of)
    }

    /// What each page is at least true of, by number.
    pub fn as_of(&self) -> &[u64] {
        &self.as_of
    }

    /// The oldest page, if it is older than `sequence`.
    fn oldest_before(&self, sequence: u64) -> Option<u32> {
        self.oldest().filter(|(_, as_of)| *as_of < sequence).map(|(number, _)| number)
    }

    fn oldest(&self) -> Option<(u32, u64)> {
        let number = *self.oldest_first.front()?;
        Some((number, *self.as_of.get(number as usize)?))
    }

    /// Notes that a page is true of `as_of`, which no other page is ahead of.
    fn written(&mut self, number: u32, as_of: u64) {
        let Some(page) = self.as_of.get_mut(number as usize) else { return };
        *page = as_of;
        // Mostly the oldest is written, which is the first here.
        if let Some(at) = self.oldest_first.iter().position(|other| *other == number) {
            self.oldest_first.remove(at);
        }
        self.oldest_first.push_back(number);
    }
}

/// Notes in a head how far it covers the hub's changes; no position is "nothing that could be resumed".
///
/// During a reset, older state goes on serving, be it of a reset that was broken off: that the hub is heard does not make
/// it any fresher.
pub fn set_position(head: &mut Head, position: Option<Position>, heard_ms: u64) {
    head.hub_epoch = position.map_or(0, |position| position.epoch);
    head.hub_sequence = position.map_or(0, |position| position.sequence);
    if position.is_some() {
        head.heard_ms = heard_ms;
        head.complete = true;
    }
}

fn number_of(value: &SharedValue) -> Cas {
    match value {
        SharedValue::Present { cas, .. } => *cas,
        SharedValue::Absent => Cas::ABSENT,
    }
}

/// There are no more pages than such numbers.
fn page_number(number: u32) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

/// Writes the head and reads it back: the write's own number is not told.
fn write_head(host: &impl Host, keys: &Keys, head: &Head, cas: Cas) -> Result<Cas, Deposed> {
    let bytes = head.encode();
    if host.shared_set(&keys.head(), &bytes, cas) != SharedWrite::Stored {
        return Err(Deposed);
    }
    match host.shared_get(&keys.head()) {
        SharedValue::Present { bytes: read, cas } if read == bytes => Ok(cas),
        _ => Err(Deposed),
    }
}
