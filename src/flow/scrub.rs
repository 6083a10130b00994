//! The leader's look at what stands in shared data.
//!
//! Every module of one vm_id can write there. A value that is not what the leader wrote would keep every VM that comes
//! late from its state, and one that follows from its news, for as long as nothing else is said. So the leader looks at one
//! page and one log segment a tick, without reading their records.

use super::keys::Keys;
use super::sizes::Sizes;
use crate::host::{Host, SharedValue};
use crate::index::log::{Head, Page, Segment};

/// Where to look next.
#[derive(Debug, Default)]
pub struct Scrub {
    page: u32,
    sequence: u64,
    pages: Sizes,
    log: Sizes,
}

// === impl Scrub ===

impl Scrub {
    /// The pages, as last looked at.
    pub fn pages(&self) -> &Sizes {
        &self.pages
    }

    /// The log's slots, as last looked at.
    pub fn log(&self) -> &Sizes {
        &self.log
    }

    /// The next page, if it cannot be loaded. `written_as_of` has what each page is at least true of, 0 for one that was
    /// never written.
    pub fn lost_page(&mut self, host: &impl Host, keys: &Keys, head: &Head, written_as_of: &[u64]) -> Option<u32> {
        let number = self.page % head.pages.max(1);
        self.page = number.wrapping_add(1);
        let as_of = *written_as_of.get(number as usize)?;
        let value = host.shared_get(&keys.page(number));
        self.pages.note(number, &value);
        let loads = match value {
            SharedValue::Absent => as_of == 0,
            SharedValue::Present { bytes, .. } => Page::stamp(&bytes).is_ok_and(|stamp| {
                if stamp.incarnation == head.incarnation {
                    stamp.number == number && stamp.as_of >= as_of
                } else {
                    // From an earlier life of the log: an empty page in this one.
                    as_of == 0
                }
            }),
        };
        (!loads).then_some(number)
    }

    /// The sequence of the next segment, if it cannot be read.
    pub fn lost_segment(&mut self, host: &impl Host, keys: &Keys, head: &Head) -> Option<u64> {
        let sequence =
            if self.sequence < head.last { self.sequence.max(head.first.saturating_sub(1)) + 1 } else { head.first };
        if sequence > head.last {
            return None;
        }
        self.sequence = sequence;
        let value = host.shared_get(&keys.log(sequence, head.ring));
        self.log.note(keys.slot(sequence, head.ring), &value);
        let reads = match value {
            SharedValue::Absent => false,
            SharedValue::Present { bytes, .. } => Segment::stamp(&bytes)
                .is_ok_and(|stamp| stamp.incarnation == head.incarnation && stamp.sequence == sequence),
        };
        (!reads).then_some(sequence)
    }
}
