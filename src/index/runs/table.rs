//! From a block's hash to the places where it may be.
//!
//! In: 64-bit hashes, well mixed. Out: [`Place`]s whose hash agrees in the bits kept here; the caller compares the key
//! itself. One entry is 8 bytes, without the key.
//!
//! Seven entries make a line, which is a cache line: nearly every look-up or change waits for memory once, and finds
//! its entry there without a branch that depends on the others. The table is made of shards of at most about 3,000
//! entries, each covering a range of hashes. A shard's lines go by hash, so that growing a shard, or splitting it in two,
//! copies it once from front to back and reads no key. Nothing is ever rehashed as a whole; the directory of shards
//! alone is doubled, at 4 bytes per thousand blocks.
//!
//! ```text
//! hash    root 6 bits | tag 28 bits | unused
//! entry   taken | tag 28 bits | run's high 3 bits
//!         run's low 21 bits | offset 11 bits
//! ```

/// Bits of an offset within a run.
pub(super) const OFFSET_BITS: u32 = 11;
/// Bits of a run's number.
pub(super) const RUN_BITS: u32 = 24;
const HIGH_RUN_BITS: u32 = 3;
const LOW_RUN_BITS: u32 = RUN_BITS - HIGH_RUN_BITS;
const TAG_BITS: u32 = 28;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
const TAKEN: u32 = 1 << 31;
const ROOT_BITS: u32 = 6;
/// Entries of a line.
const LINE: usize = 7;
/// A shard is split from here on, unless its hashes agree in all bits there are.
const SPLIT_AT: usize = 3_000;
/// Deepest split. Hashes that are not well mixed must not make the directory large either: it is doubled only while
/// there is a shard for every `SPARSE` of its entries. Where a shard cannot be split, it grows.
const MAX_DEPTH: u32 = 18;
const SPARSE: usize = 16;
/// Lines after the last home, for entries that are pushed on; more are added where they do not do.
const SPILL: usize = 1;

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The run's number, at least 1.
    pub run: u32,
    /// The block's offset in it.
    pub at: usize,
}

/// The places of all blocks, by hash.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// Shards by the first `ROOT_BITS + depth` bits of a hash.
    directory: Vec<u32>,
    depth: u32,
    shards: Vec<Shard>,
}

/// The entries of a range of hashes. An entry is in its home line or, where that was full, in the first after it that
/// was not: all lines between say so.
#[derive(Clone, Debug, Default)]
struct Shard {
    lines: Vec<Line>,
    /// Number of lines that are homes; those after them take what is pushed on.
    homes: u32,
    len: u32,
    /// Bits of the tag that all entries agree in.
    depth: u32,
}

/// Entries in no order, the halves of each at the same place of the two. The eighth place has none: in place of a tag it
/// has 1 where entries that belong here or before are after this line, and its other half is there to be written to.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line {
    tags: [u32; LINE + 1],
    places: [u32; LINE + 1],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u32,
    place: u32,
}

/// Entries of one tag, from its home on.
struct Candidates<'t> {
    tag: u32,
    lines: std::slice::Iter<'t, Line>,
    line: Option<&'t Line>,
    /// Slots of `line` that are still to come.
    left: u32,
    goes_on: bool,
}

// === impl Table ===

impl Table {
    pub fn new() -> Table {
        let shards = 1u32 << ROOT_BITS;
        Table { directory: (0..shards).collect(), depth: 0, shards: vec![Shard::default(); shards as usize] }
    }

    /// Places that may be that of the block with this hash.
    #[inline]
    pub fn candidates(&self, hash: u64) -> impl Iterator<Item = Place> {
        let tag = tag_of(hash);
        let lines = self.shard(hash).and_then(|shard| shard.lines.get(shard.home(tag)..)).unwrap_or_default();
        Candidates { tag, lines: lines.iter(), line: None, left: 0, goes_on: true }
    }

    /// Has the line where the block with this hash would be in cache soon. A write is not waited for as a read would be:
    /// what follows goes on while the line comes.
    #[inline]
    pub fn touch(&mut self, hash: u64) {
        let Some(shard) = self.shard_number(hash).and_then(|number| self.shards.get_mut(number)) else { return };
        let home = shard.home(tag_of(hash));
        if let Some(line) = shard.lines.get_mut(home) {
            line.places[LINE] = 0;
        }
    }

    /// Adds an entry.
    pub fn insert(&mut self, hash: u64, place: Place) {
        let Some(number) = self.shard_number(hash) else { return };
        let shards = self.shards.len();
        let Some(shard) = self.shards.get_mut(number) else { return };
        if !shard.is_full() {
            shard.insert(Entry::new(hash, place));
            return;
        }
        let doubles = shard.depth == self.depth;
        let sparse = self.directory.len() > shards * SPARSE;
        if shard.len as usize >= SPLIT_AT && shard.depth < MAX_DEPTH && !(doubles && sparse) {
            self.split(number, hash);
        } else {
            shard.resize();
        }
        // A half may be as full as the whole was, when the hashes are alike: then it is split again, or grown.
        self.insert(hash, place);
    }

    /// Takes an entry out.
    pub fn remove(&mut self, hash: u64, place: Place) {
        if let Some(shard) = self.shard_number(hash).and_then(|number| self.shards.get_mut(number)) {
            shard.remove(Entry::new(hash, place));
        }
    }

    /// Bytes asked of the allocator.
    pub fn bytes(&self) -> usize {
        let lines: usize = self.shards.iter().map(|shard| shard.lines.capacity() * size_of::<Line>()).sum();
        lines + self.shards.capacity() * size_of::<Shard>() + self.directory.capacity() * size_of::<u32>()
    }

    #[inline]
    fn shard_number(&self, hash: u64) -> Option<usize> {
        let prefix = hash >> (u64::BITS - ROOT_BITS - self.depth);
        self.directory.get(prefix as usize).map(|number| *number as usize)
    }

    #[inline]
    fn shard(&self, hash: u64) -> Option<&Shard> {
        self.shards.get(self.shard_number(hash)?)
    }

    /// Splits the shard that `hash` falls into at the next bit of the tag.
    fn split(&mut self, number: usize, hash: u64) {
        let Some(shard) = self.shards.get_mut(number) else { return };
        let upper = shard.split();
        let depth = shard.depth;
        let new = self.shards.len() as u32;
        self.shards.push(upper);
        if depth > self.depth {
            self.directory = self.directory.iter().flat_map(|number| [*number, *number]).collect();
            self.depth = depth;
        }
        // The directory entries of the old shard are one block of 2^(depth - its depth + 1); the upper half changes hands.
        let share = 1usize << (self.depth - depth);
        let first = (hash >> (u64::BITS - ROOT_BITS - depth)) as usize | 1;
        if let Some(entries) = self.directory.get_mut(first * share..(first + 1) * share) {
            entries.fill(new);
        }
    }
}

// === impl Shard ===

impl Shard {
    /// The line where an entry belongs.
    #[inline]
    fn home(&self, tag: u32) -> usize {
        let tag = u64::from(tag >> HIGH_RUN_BITS);
        ((((tag << self.depth) & TAG_MASK) * u64::from(self.homes)) >> TAG_BITS) as usize
    }

    /// Five entries a line. With more, one is too often pushed on to a line that is not in cache.
    #[inline]
    fn is_full(&self) -> bool {
        self.len >= self.homes * 5
    }

    /// Adds an entry and returns its line.
    #[inline]
    fn insert(&mut self, entry: Entry) -> usize {
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

    fn remove(&mut self, entry: Entry) {
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
    fn resize(&mut self) {
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
    fn split(&mut self) -> Shard {
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

// === impl Line ===

impl Line {
    /// The slots that `is` holds for, as bits. No branch depends on what is in the line.
    #[inline]
    fn slots(&self, is: impl Fn(u32) -> bool) -> u32 {
        self.tags.iter().enumerate().fold(0, |slots, (slot, tag)| slots | u32::from(is(*tag)) << slot)
    }

    #[inline]
    fn taken(&self) -> u32 {
        self.slots(|tag| tag & TAKEN != 0)
    }

    /// Whether entries that belong here or before are after it.
    #[inline]
    fn pushes_on(&self) -> bool {
        self.tags[LINE] != 0
    }

    #[inline]
    fn push_on(&mut self, on: bool) {
        self.tags[LINE] = u32::from(on);
    }

    /// Slots whose entries have this tag, of whatever run.
    #[inline]
    fn tagged(&self, tag: u32) -> u32 {
        self.slots(|other| (other ^ tag) >> HIGH_RUN_BITS == 0)
    }

    /// The entry's slot. Only the places of its tag are read: the line may have been touched just now.
    #[inline]
    fn find(&self, entry: Entry) -> Option<u32> {
        let mut slots = self.slots(|tag| tag == entry.tag);
        while slots != 0 {
            let slot = slots.trailing_zeros();
            if self.places.get(slot as usize) == Some(&entry.place) {
                return Some(slot);
            }
            slots &= slots - 1;
        }
        None
    }

    /// False if the line is full.
    #[inline]
    fn put(&mut self, entry: Entry) -> bool {
        let slot = self.taken().trailing_ones() as usize;
        if slot < LINE {
            self.set(slot, entry);
        }
        slot < LINE
    }

    #[inline]
    fn set(&mut self, slot: usize, entry: Entry) {
        if let (Some(tag), Some(place)) = (self.tags.get_mut(slot), self.places.get_mut(slot)) {
            (*tag, *place) = (entry.tag, entry.place);
        }
    }

    #[inline]
    fn clear(&mut self, slot: u32) {
        if let Some(tag) = self.tags.get_mut(slot as usize) {
            *tag = 0;
        }
    }

    fn entries(&self) -> impl Iterator<Item = (u32, Entry)> {
        let entries = self.tags.iter().zip(&self.places).zip(0..);
        entries
            .filter(|((tag, _), _)| **tag & TAKEN != 0)
            .map(|((tag, place), slot)| (slot, Entry { tag: *tag, place: *place }))
    }
}

// === impl Candidates ===

impl Iterator for Candidates<'_> {
    type Item = Place;

    #[inline]
    fn next(&mut self) -> Option<Place> {
        while self.left == 0 {
            if !self.goes_on {
                return None;
            }
            let line = self.lines.next()?;
            self.left = line.tagged(self.tag);
            self.goes_on = line.pushes_on();
            self.line = Some(line);
        }
        let slot = self.left.trailing_zeros() as usize;
        self.left &= self.left - 1;
        let line = self.line?;
        let entry = Entry { tag: *line.tags.get(slot)?, place: *line.places.get(slot)? };
        Some(entry.place())
    }
}

// === impl Entry ===

impl Entry {
    #[inline]
    fn new(hash: u64, Place { run, at }: Place) -> Entry {
        let high = run >> LOW_RUN_BITS & ((1 << HIGH_RUN_BITS) - 1);
        Entry { tag: tag_of(hash) | high, place: run << OFFSET_BITS | at as u32 }
    }

    #[inline]
    fn place(self) -> Place {
        let high = self.tag & ((1 << HIGH_RUN_BITS) - 1);
        let run = high << LOW_RUN_BITS | self.place >> OFFSET_BITS;
        Place { run, at: (self.place & ((1 << OFFSET_BITS) - 1)) as usize }
    }
}

/// The upper half of an entry, of a run whose high bits are zero.
#[inline]
fn tag_of(hash: u64) -> u32 {
    let tag = hash >> (u64::BITS - ROOT_BITS - TAG_BITS) & TAG_MASK;
    TAKEN | (tag as u32) << HIGH_RUN_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed(number: u64) -> u64 {
        let product = u128::from(number + 1) * 0x9E37_79B9_7F4A_7C15;
        let low = (product as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        low ^ (low >> 32)
    }

    fn place(number: u64) -> Place {
        Place { run: 1 + (number >> OFFSET_BITS) as u32, at: (number & ((1 << OFFSET_BITS) - 1)) as usize }
    }

    fn check(table: &Table, hash_of: fn(u64) -> u64, held: impl Iterator<Item = (u64, bool)>) {
        for (number, held) in held {
            let found = table.candidates(hash_of(number)).any(|candidate| candidate == place(number));
            assert_eq!(found, held, "{number}");
        }
        table.shards.iter().for_each(check_shard);
    }

    fn check_shard(shard: &Shard) {
        let mut len = 0;
        for (at, line) in shard.lines.iter().enumerate() {
            for (_, entry) in line.entries() {
                len += 1;
                let home = shard.home(entry.tag);
                assert!(
                    home <= at && shard.lines[home..at].iter().all(Line::pushes_on),
                    "{entry:?} of {home} is at {at}"
                );
            }
        }
        assert_eq!(len, shard.len);
    }

    #[test]
    fn what_is_put_in_is_found_until_it_is_taken_out() {
        let mut table = Table::new();
        for number in 0..200_000 {
            table.insert(mixed(number), place(number));
        }
        check(&table, mixed, (0..200_100).map(|number| (number, number < 200_000)));
        for number in (0..200_000).filter(|number| number % 3 > 0) {
            table.remove(mixed(number), place(number));
        }
        check(&table, mixed, (0..200_000).map(|number| (number, number % 3 == 0)));
        for number in (0..200_000).step_by(3) {
            table.remove(mixed(number), place(number));
        }
        assert!(table.shards.iter().all(|shard| shard.len == 0));
        assert!(table.bytes() < 400_000, "{}", table.bytes());
    }

    #[test]
    fn an_entry_keeps_every_bit_of_a_place() {
        for run in (0..RUN_BITS).map(|bit| 1 << bit).chain([(1 << RUN_BITS) - 1]) {
            for at in [0, 1, (1 << OFFSET_BITS) - 1] {
                let place = Place { run, at };
                let mut table = Table::new();
                table.insert(mixed(7), place);
                assert_eq!(table.candidates(mixed(7)).collect::<Vec<_>>(), [place]);
                table.remove(mixed(7), place);
                assert_eq!(table.candidates(mixed(7)).count(), 0);
            }
        }
    }

    #[test]
    fn entries_take_at_most_eighteen_bytes() {
        let mut table = Table::new();
        for number in 0..1_000_000 {
            table.insert(mixed(number), place(number));
            if number % 50_000 == 0 && number > 0 {
                let bytes = table.bytes() as f64 / number as f64;
                assert!(bytes < 18.0, "{bytes} at {number}");
            }
        }
    }

    #[test]
    fn hashes_that_agree_in_every_bit_that_counts_are_kept_apart_by_place() {
        fn same(_: u64) -> u64 {
            0x1234_5678_9ABC_DEF0
        }
        let mut table = Table::new();
        for number in 0..5_000 {
            table.insert(same(number), place(number));
        }
        check(&table, same, (0..5_001).map(|number| (number, number < 5_000)));
        for number in (0..5_000).filter(|number| number % 2 == 0) {
            table.remove(same(number), place(number));
        }
        check(&table, same, (0..5_000).map(|number| (number, number % 2 == 1)));
    }
}
