//! From shared data to an index.
//!
//! A follower reads the head, then whatever is committed and not yet applied, one value a step, so that the caller can
//! stop at any time. When it has nothing, or has fallen off the ring, it loads the pages and replays the log from the
//! oldest page's sequence; where the ring has moved on meanwhile, it loads the pages again that it moved past, and only
//! those. Until it has reached the head that it saw after its last page it knows nothing it would say. When the log
//! starts a new life, it goes on serving from what it has until the new log is complete.

use super::keys::Keys;
use super::metrics;
use crate::host::{Host, SharedValue};
use crate::index::log::{Head, Incarnation, Page, Segment, Unreadable};
use crate::index::{Index, MAX_PAGES};

/// Segments of a log that are read from the beginning, without any page.
const SHORT_LOG: u64 = 64;

/// A VM's copy of what the log says.
#[derive(Debug, Default)]
pub struct Follower {
    serving: Option<Copy>,
    building: Option<Building>,
    catch_ups: CatchUps,
}

/// How often an index was built from pages and log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatchUps {
    /// Times that this was begun.
    pub begun: u64,
    /// Times that requests began to see what was built.
    pub completed: u64,
}

/// An index that is true of a committed log sequence.
#[derive(Debug)]
struct Copy {
    incarnation: Incarnation,
    index: Index,
    applied: u64,
}

#[derive(Debug)]
struct Building {
    copy: Copy,
    stage: Stage,
    /// Pages looked at for the first time, or found newer, and segments applied.
    gained: u64,
    /// Pages from here on have not been looked at.
    furthest: u32,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Pages { next: u32 },
    Log { target: u64 },
}

/// How far one step came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Everything committed is applied.
    CaughtUp,
    /// Something was applied; there is more.
    Advanced,
    /// The next value cannot be read now.
    Unreadable,
}

/// What a follower can say to a request.
#[derive(Clone, Copy, Debug)]
pub enum View<'a> {
    /// Look here.
    Index(&'a Index),
    /// The state is still being read.
    CatchingUp,
}

// === impl Follower ===

impl Follower {
    /// Takes steps until everything up to `head` is applied or `out_of_time` says so. True when caught up.
    pub fn follow(&mut self, host: &impl Host, keys: &Keys, head: &Head, out_of_time: impl Fn() -> bool) -> bool {
        loop {
            match self.step(host, keys, head) {
                Step::CaughtUp => return true,
                Step::Unreadable => {
                    host.count(metrics::SHARED_UNREADABLE, 1);
                    return false;
                }
                Step::Advanced if out_of_time() => return false,
                Step::Advanced => {}
            }
        }
    }

    /// What a request may look at.
    pub fn view(&self) -> View<'_> {
        self.serving.as_ref().map_or(View::CatchingUp, |copy| View::Index(&copy.index))
    }

    /// The life of the log that requests see.
    pub fn viewed_incarnation(&self) -> Option<Incarnation> {
        self.serving.as_ref().map(|copy| copy.incarnation)
    }

    /// The index of `head`'s log, if it is built and no part of it is missing.
    pub fn index_of(&self, head: &Head) -> Option<&Index> {
        self.copy_of(head).map(|copy| &copy.index)
    }

    /// As [`Follower::index_of`], for what is kept beside it.
    pub fn index_mut_of(&mut self, head: &Head) -> Option<&mut Index> {
        let built = self.building.as_mut().filter(|building| matches!(building.stage, Stage::Log { .. }));
        let copies = self.serving.iter_mut().chain(built.map(|building| &mut building.copy));
        let mut copies = copies.filter(|copy| copy.incarnation == head.incarnation && copy.applied == head.last);
        copies.next().map(|copy| &mut copy.index)
    }

    /// No copy keeps note of changes any more.
    pub fn stop_journal(&mut self) {
        let copies = self.serving.iter_mut().chain(self.building.iter_mut().map(|building| &mut building.copy));
        copies.for_each(|copy| copy.index.stop_journal());
    }

    /// How often an index was built so far.
    pub fn catch_ups(&self) -> CatchUps {
        self.catch_ups
    }

    /// The segments that are missing from what requests see, or will; none while pages are being loaded.
    pub fn lag(&self, head: &Head) -> Option<u64> {
        let built = self.building.as_ref().filter(|building| matches!(building.stage, Stage::Log { .. }));
        let mut copies = self.serving.iter().chain(built.map(|building| &building.copy));
        let copy = copies.find(|copy| copy.incarnation == head.incarnation)?;
        Some(head.last.saturating_sub(copy.applied))
    }

    /// A number that grows while steps bring something new.
    pub fn progress(&self) -> u64 {
        let serving = self.serving.as_ref().map_or(0, |copy| copy.applied);
        let building = self.building.as_ref().map_or(0, |building| building.gained);
        serving.wrapping_add(building)
    }

    /// As [`Follower::index_of`], to apply what was just committed.
    pub fn apply_committed(&mut self, segment: Segment) {
        let copy = match (&mut self.serving, &mut self.building) {
            (Some(copy), _) if copy.incarnation == segment.incarnation => copy,
            (_, Some(building)) if building.copy.incarnation == segment.incarnation => &mut building.copy,
            _ => return,
        };
        if copy.applied + 1 == segment.sequence {
            copy.apply(segment);
        }
    }

    /// Whether requests see all that `head` covers.
    pub fn serves_up_to(&self, head: &Head) -> bool {
        self.serving.as_ref().is_some_and(|copy| copy.incarnation == head.incarnation && copy.applied == head.last)
    }

    /// The index that may be swept: one that has applied all that `head` covers.
    pub fn sweepable(&mut self, head: &Head) -> Option<&mut Index> {
        let copy = self.serving.as_mut()?;
        (copy.incarnation == head.incarnation && copy.applied == head.last).then_some(&mut copy.index)
    }

    fn copy_of(&self, head: &Head) -> Option<&Copy> {
        let built = self.building.as_ref().filter(|building| matches!(building.stage, Stage::Log { .. }));
        self.serving
            .iter()
            .chain(built.map(|building| &building.copy))
            .find(|copy| copy.incarnation == head.incarnation && copy.applied == head.last)
    }

    fn step(&mut self, host: &impl Host, keys: &Keys, head: &Head) -> Step {
        if let Some(copy) = &self.serving
            && copy.incarnation == head.incarnation
        {
            self.building = None;
            if copy.applied + 1 >= head.first && copy.applied <= head.last {
                return self.follow_log(host, keys, head);
            }
            // What it has can be arbitrarily old: better to say nothing.
            host.count(metrics::FELL_OFF, 1);
            self.serving = None;
        }
        self.build(host, keys, head)
    }

    fn follow_log(&mut self, host: &impl Host, keys: &Keys, head: &Head) -> Step {
        match &mut self.serving {
            Some(copy) => copy.read_next(host, keys, head),
            None => Step::Unreadable,
        }
    }

    fn build(&mut self, host: &impl Host, keys: &Keys, head: &Head) -> Step {
        let building = match &mut self.building {
            Some(building) if building.copy.incarnation == head.incarnation => building,
            _ => match Building::new(head) {
                Ok(building) => {
                    self.catch_ups.begun += 1;
                    self.building.insert(building)
                }
                Err(Unreadable) => return Step::Unreadable,
            },
        };
        let step = building.step(host, keys, head);
        self.serve_what_is_built(head);
        step
    }

    /// Lets requests see what has been built. An empty log is a beginning, not news: what was known before stays until
    /// the hub has told all. Pages that are ahead of the head wait for a later one: served, they would be thrown away and
    /// read again until the time is up.
    pub fn serve_what_is_built(&mut self, head: &Head) {
        let built = self.building.as_ref().is_some_and(|building| {
            building.copy.incarnation == head.incarnation
                && building.copy.applied <= head.last
                && matches!(building.stage, Stage::Log { target } if building.copy.applied >= target)
        });
        if built && (head.complete || self.serving.is_none()) {
            self.serving = self.building.take().map(|building| building.copy);
            self.catch_ups.completed += 1;
        }
    }
}

// === impl Building ===

impl Building {
    fn new(head: &Head) -> Result<Building, Unreadable> {
        // The first is the dictionary's.
        let pages = head.pages.checked_sub(1).filter(|pages| *pages <= MAX_PAGES).ok_or(Unreadable)?;
        let copy = Copy { incarnation: head.incarnation, index: Index::new(pages), applied: 0 };
        Ok(Building { copy, stage: Stage::Pages { next: 0 }, gained: 0, furthest: 0 })
    }

    fn step(&mut self, host: &impl Host, keys: &Keys, head: &Head) -> Step {
        match self.stage {
            Stage::Pages { next } => match self.copy.needed_page(next, head) {
                Some(number) => {
                    let is_newer = self.copy.load_page(host, keys, number);
                    self.gained += u64::from(is_newer || number >= self.furthest);
                    self.furthest = self.furthest.max(number + 1);
                    self.stage = Stage::Pages { next: number + 1 };
                    Step::Advanced
                }
                None => {
                    self.copy.applied = self.copy.index.oldest_as_of();
                    self.stage = Stage::Log { target: head.last };
                    self.load_what_is_passed(host, head)
                }
            },
            Stage::Log { .. } => match self.load_what_is_passed(host, head) {
                Step::Advanced => {
                    let before = self.copy.applied;
                    let step = self.copy.read_next(host, keys, head);
                    self.gained += self.copy.applied - before;
                    step
                }
                other => other,
            },
        }
    }

    /// Goes back to the pages if the log no longer has all that the oldest of them lacks.
    fn load_what_is_passed(&mut self, host: &impl Host, head: &Head) -> Step {
        if self.copy.applied + 1 >= head.first {
            return Step::Advanced;
        }
        host.count(metrics::FELL_OFF, 1);
        self.copy.index.has_applied(self.copy.applied);
        self.stage = Stage::Pages { next: 0 };
        Step::Unreadable
    }
}

// === impl Copy ===

impl Copy {
    /// The first page from `next` on without which the log from `head.first` on is not enough. The dictionary's is
    /// always one: a number in a page of blocks must not be older news than its meaning.
    fn needed_page(&self, next: u32, head: &Head) -> Option<u32> {
        // A short log from its beginning is quicker to read than all the pages, most of which are empty.
        if head.first <= 1 && head.last <= SHORT_LOG {
            return None;
        }
        (next..head.pages).find(|number| {
            let as_of = self.index.page_as_of(*number).unwrap_or(0);
            *number == 0 || as_of == 0 || as_of + 1 < head.first
        })
    }

    /// Loads a page. False if there is nothing newer than what is loaded: a page that was never written, that an earlier
    /// life of the log left, or that cannot be read is an empty one from before the log. Whether the log still has all
    /// that it lacks, the replay finds out.
    fn load_page(&mut self, host: &impl Host, keys: &Keys, number: u32) -> bool {
        let SharedValue::Present { bytes, .. } = host.shared_get(&keys.page(number)) else { return false };
        let Ok(page) = Page::decode(&bytes) else {
            host.count(metrics::SHARED_UNREADABLE, 1);
            return false;
        };
        let loaded = self.index.page_as_of(number);
        if page.incarnation != self.incarnation || page.number != number || loaded.is_none_or(|at| page.as_of <= at) {
            return false;
        }
        match number.checked_sub(1) {
            None => self.index.load_dictionary(page.as_of, &page.records),
            Some(number) => {
                let Ok(number) = u16::try_from(number) else { return false };
                self.index.load_page(number, page.as_of, &page.records);
            }
        }
        true
    }

    fn read_next(&mut self, host: &impl Host, keys: &Keys, head: &Head) -> Step {
        if self.applied >= head.last {
            return Step::CaughtUp;
        }
        let sequence = self.applied + 1;
        let SharedValue::Present { bytes, .. } = host.shared_get(&keys.log(sequence, head.ring)) else {
            return Step::Unreadable;
        };
        match Segment::decode(&bytes) {
            Ok(segment) if segment.incarnation == self.incarnation && segment.sequence == sequence => {
                self.apply(segment);
                if self.applied >= head.last { Step::CaughtUp } else { Step::Advanced }
            }
            _ => Step::Unreadable,
        }
    }

    fn apply(&mut self, segment: Segment) {
        self.applied = segment.sequence;
        for record in segment.records {
            self.index.apply(segment.sequence, record);
        }
    }
}
