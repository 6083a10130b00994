//! A shard of the table: the entries of a range of hashes.

use super::line::{Entry, HIGH_RUN_BITS, LINE, Line, TAG_BITS, TAG_MASK};

/// Lines after the last home, for entries that are pushed on; more are added where they do not do.
const SPILL: usize = 1;

/// The entries of a range of hashes. An entry is in its home line or, where that was full, in the first after it that
/// was not: all lines between say so.
#[derive(Clone, Debug, Default)]
pub struct Shard {
    pub lines: Vec<Line>,
    /// Number of lines that are homes; those after them take what is pushed on.
    homes: u32,
    pub len: u32,
    /// Bits of the tag that all entries agree in.
    pub depth: u32,
}

// === impl Shard ===

impl Shard {
    /// The line where an entry belongs.
    #[inline]
    pub fn home(&self, tag: u32) -> usize {
        let tag = u64::from(tag >> HIGH_RUN_BITS);
        ((((tag << self.depth) & TAG_MASK) * u64::from(self.homes)) >> TAG_BITS) as usize
    }

    /// Five entries a line. With more, one is too often pushed on to a line that is not in cache.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len >= self.homes * 5
    }

    /// Adds an entry and returns its line.
    #[inline]
    pub fn insert(&mut self, entry: Entry) -> usize {
        let mut at = self.home(entry.tag);
        loop {
            if at >= self.lines.len() {
                self.lines.reserve_exact(SPILL);
                self.lines.resize(at + 1, Line::default());
            }
            let Some(line) = self.lines.get_mut(at) else { break };
            if line.put(entry) {
                break;
            }
            line.push_on(true);
            at += 1;
        }
        self.len += 1;
        at
    }

    /// Takes an entry out.
    pub fn remove(&mut self, entry: Entry) {
        let mut at = self.home(entry.tag);
        while let Some(line) = self.lines.get_mut(at) {
            if let Some(slot) = line.find(entry) {
                line.clear(slot);
                self.len -= 1;
                break;
            }
            if !line.pushes_on() {
                return;
            }
            at += 1;
        }
        self.pull_back(at);
        // Memory comes back as the shard empties.
        if self.homes > 4 && self.len * 2 < self.homes * 5 {
            self.resize();
        }
    }

    /// A line has room: what was pushed on past it comes back, and so on where that was.
    #[inline]
    fn pull_back(&mut self, mut hole: usize) {
        while self.lines.get(hole).is_some_and(Line::pushes_on) {
            let pushed = self.first_pushed_past(hole);
            if let Some(line) = self.lines.get_mut(hole) {
                match pushed {
                    Some((_, _, entry)) => line.put(entry),
                    None => return line.push_on(false),
                };
            }
            let Some((at, slot, _)) = pushed else { return };
            if let Some(line) = self.lines.get_mut(at) {
                line.clear(slot);
            }
            hole = at;
        }
    }

    fn first_pushed_past(&self, hole: usize) -> Option<(usize, u32, Entry)> {
        for (at, line) in self.lines.iter().enumerate().skip(hole + 1) {
            if let Some((slot, entry)) = line.entries().find(|(_, entry)| self.home(entry.tag) <= hole) {
                return Some((at, slot, entry));
            }
            if !line.pushes_on() {
                break;
            }
        }
        None
    }

    /// Gives the shard a line for three and three quarters of its entries.
    pub fn resize(&mut self) {
        let old = std::mem::take(&mut self.lines);
        self.fill(self.len, old.iter().flat_map(Line::entries).map(|(_, entry)| entry));
    }

    /// Lays out `len` entries. How full each line is is counted apart: a line that was just written is slow to read.
    fn fill(&mut self, len: u32, entries: impl Iterator<Item = Entry>) {
        self.homes = (len * 4).div_ceil(15).max(2);
        self.lines = vec![Line::default(); self.homes as usize + SPILL];
        self.len = 0;
        let mut taken = vec![0u8; self.lines.len()];
        for entry in entries {
            let home = self.home(entry.tag);
            match (self.lines.get_mut(home), taken.get_mut(home)) {
                (Some(line), Some(taken)) if usize::from(*taken) < LINE => {
                    line.set(usize::from(*taken), entry);
                    *taken += 1;
                    self.len += 1;
                }
                _ => {
                    let at = self.insert(entry);
                    taken.resize(self.lines.len(), 0);
                    taken.iter_mut().skip(at).take(1).for_each(|taken| *taken += 1);
                }
            }
        }
    }

    /// Leaves the lower half of the hashes here and returns the upper.
    pub fn split(&mut self) -> Shard {
        let bit = 1u32 << (TAG_BITS + HIGH_RUN_BITS - 1 - self.depth);
        let old = std::mem::take(&mut self.lines);
        let entries = || old.iter().flat_map(Line::entries).map(|(_, entry)| entry);
        let upper_len = entries().filter(|entry| entry.tag & bit != 0).count() as u32;
        self.depth += 1;
        let mut upper = Shard { depth: self.depth, ..Shard::default() };
        upper.fill(upper_len, entries().filter(|entry| entry.tag & bit != 0));
        self.fill(self.len - upper_len, entries().filter(|entry| entry.tag & bit == 0));
        upper
    }
}
