//! From a block's hash to the places where it may be.
//!
//! In: 64-bit hashes, well mixed. Out: [`Place`]s whose hash agrees in the bits kept here; the caller compares the key
//! itself. One entry is 8 bytes, without the key. The table is made of shards of at most about 3,000 entries, each
//! covering a range of hashes and kept sorted by hash, so that growing a shard, or splitting it in two, copies it once
//! from front to back and reads no key. Nothing is ever rehashed as a whole; the directory of shards alone is doubled,
//! at 4 bytes per thousand blocks.
//!
//! ```text
//! hash   root 6 bits | tag 29 bits | unused
//! slot   tag 29 bits | run 24 bits | offset 11 bits       0: empty, as no run has number 0
//! ```

/// Bits of an offset within a run.
pub(super) const OFFSET_BITS: u32 = 11;
/// Bits of a run's number.
pub(super) const RUN_BITS: u32 = 24;
const PLACE_BITS: u32 = OFFSET_BITS + RUN_BITS;
const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;
const TAG_BITS: u32 = u64::BITS - PLACE_BITS;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
const ROOT_BITS: u32 = 6;
/// A shard is split from here on, unless its hashes agree in all bits there are.
const SPLIT_AT: usize = 3_000;
/// Deepest split. Hashes that are not well mixed must not make the directory large either: it is doubled only while
/// there is a shard for every `SPARSE` of its entries. Where a shard cannot be split, it grows.
const MAX_DEPTH: u32 = 18;
const SPARSE: usize = 16;
/// Slots after the last home, for entries that are pushed on; more are added where they do not do.
const SPILL: usize = 16;

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

/// The entries of a range of hashes, sorted by tag. An entry is at its home or, where that is taken, after it, without
/// a gap between.
#[derive(Clone, Debug, Default)]
struct Shard {
    slots: Vec<u64>,
    /// Number of homes; the slots after them take what is pushed on.
    homes: usize,
    len: usize,
    /// Bits of the tag that all entries agree in.
    depth: u32,
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
        self.shard(hash)
            .map_or(&[][..], |shard| shard.from(tag))
            .iter()
            .map_while(move |slot| (slot >> PLACE_BITS == tag).then(|| Place::from_slot(*slot)))
    }

    /// Reads where the block with this hash would be, so that it is in cache when it is looked for. Several reads before
    /// several look-ups wait for memory once instead of each time.
    #[inline]
    pub fn touch(&self, hash: u64) {
        let slot = self.shard(hash).and_then(|shard| shard.slots.get(shard.home(tag_of(hash))));
        std::hint::black_box(slot.copied());
    }

    /// Adds an entry.
    pub fn insert(&mut self, hash: u64, place: Place) {
        let slot = place.slot(hash);
        let Some(number) = self.shard_number(hash) else { return };
        let shards = self.shards.len();
        let Some(shard) = self.shards.get_mut(number) else { return };
        if shard.insert(slot) {
            return;
        }
        let doubles = shard.depth == self.depth;
        let sparse = self.directory.len() > shards * SPARSE;
        if shard.len >= SPLIT_AT && shard.depth < MAX_DEPTH && !(doubles && sparse) {
            self.split(number, hash);
        } else {
            shard.grow();
        }
        // A half may be as full as the whole was, when the hashes are alike: then it is split again, or grown.
        self.insert(hash, place);
    }

    /// Takes an entry out.
    pub fn remove(&mut self, hash: u64, place: Place) {
        let slot = place.slot(hash);
        if let Some(shard) = self.shard_number(hash).and_then(|number| self.shards.get_mut(number)) {
            shard.remove(slot);
        }
    }

    /// Bytes asked of the allocator.
    pub fn bytes(&self) -> usize {
        let slots: usize = self.shards.iter().map(|shard| shard.slots.capacity() * size_of::<u64>()).sum();
        slots + self.shards.capacity() * size_of::<Shard>() + self.directory.capacity() * size_of::<u32>()
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
    #[inline]
    fn home(&self, tag: u64) -> usize {
        ((((tag << self.depth) & TAG_MASK) * self.homes as u64) >> TAG_BITS) as usize
    }

    /// The slots from the first whose tag is `tag`, or where it would be.
    #[inline]
    fn from(&self, tag: u64) -> &[u64] {
        let slots = self.slots.get(self.home(tag)..).unwrap_or_default();
        let before = slots.iter().take_while(|slot| **slot != 0 && **slot >> PLACE_BITS < tag).count();
        slots.get(before..).unwrap_or_default()
    }

    /// False if the shard is full.
    fn insert(&mut self, slot: u64) -> bool {
        if self.len * 4 >= self.homes * 3 {
            return false;
        }
        let home = self.home(slot >> PLACE_BITS);
        if self.slots.last().is_none_or(|last| *last != 0) {
            self.slots.resize(self.slots.len() + SPILL, 0);
        }
        let slots = self.slots.get_mut(home..).unwrap_or_default();
        let smaller = slots.iter().take_while(|other| **other != 0 && **other < slot).count();
        // It goes there, and what follows without a gap is pushed on by one.
        let mut carried = slot;
        for place in slots.iter_mut().skip(smaller) {
            std::mem::swap(place, &mut carried);
            if carried == 0 {
                break;
            }
        }
        self.len += 1;
        true
    }

    fn remove(&mut self, slot: u64) {
        let home = self.home(slot >> PLACE_BITS);
        let Some(at) = self.slots.get(home..).and_then(|slots| {
            slots.iter().take_while(|other| **other != 0).position(|other| *other == slot).map(|at| at + home)
        }) else {
            return;
        };
        // What follows without a gap moves back, up to an entry that is at home.
        let mut hole = at;
        while let Some(next) = self.slots.get(hole + 1).copied() {
            let stays = next == 0 || self.home(next >> PLACE_BITS) > hole;
            if let Some(free) = self.slots.get_mut(hole) {
                *free = if stays { 0 } else { next };
            }
            if stays {
                break;
            }
            hole += 1;
        }
        // The last slot of all has none after it.
        if hole + 1 == self.slots.len()
            && let Some(last) = self.slots.get_mut(hole)
        {
            *last = 0;
        }
        self.len -= 1;
        // Memory comes back as the shard empties.
        if self.homes > 32 && self.len * 3 < self.homes {
            self.grow();
        }
    }

    /// Makes the shard twice as large as its content.
    fn grow(&mut self) {
        self.rebuild(homes_for(self.len));
    }

    fn rebuild(&mut self, homes: usize) {
        let entries = std::mem::take(&mut self.slots);
        self.fill(homes, entries.iter().copied());
    }

    /// Lays sorted slots out anew; empty ones are left out.
    fn fill(&mut self, homes: usize, entries: impl Iterator<Item = u64>) {
        self.homes = homes;
        self.slots = vec![0; homes + SPILL];
        self.len = 0;
        let mut next = 0;
        for slot in entries.filter(|slot| *slot != 0) {
            let at = self.home(slot >> PLACE_BITS).max(next);
            next = at + 1;
            if next >= self.slots.len() {
                self.slots.resize(next + SPILL, 0);
            }
            if let Some(free) = self.slots.get_mut(at) {
                *free = slot;
            }
            self.len += 1;
        }
    }

    /// Leaves the lower half of the hashes here and returns the upper.
    fn split(&mut self) -> Shard {
        let bit = 1u64 << (u64::BITS - 1 - self.depth);
        let entries = std::mem::take(&mut self.slots);
        let middle = entries.iter().filter(|slot| **slot != 0 && **slot & bit == 0).count();
        let mut upper = Shard { depth: self.depth + 1, ..Shard::default() };
        let (lower_homes, upper_homes) = (homes_for(middle), homes_for(self.len - middle));
        upper.fill(upper_homes, entries.iter().copied().filter(|slot| slot & bit != 0));
        self.depth += 1;
        self.fill(lower_homes, entries.iter().copied().filter(|slot| slot & bit == 0));
        upper
    }
}

/// How many homes a shard of `len` entries is given; it is full at three quarters.
fn homes_for(len: usize) -> usize {
    (len * 2).max(16)
}

// === impl Place ===

impl Place {
    #[inline]
    fn from_slot(slot: u64) -> Place {
        let place = slot & PLACE_MASK;
        Place { run: (place >> OFFSET_BITS) as u32, at: (place & ((1 << OFFSET_BITS) - 1)) as usize }
    }

    #[inline]
    fn slot(self, hash: u64) -> u64 {
        tag_of(hash) << PLACE_BITS | u64::from(self.run) << OFFSET_BITS | self.at as u64
    }
}

#[inline]
fn tag_of(hash: u64) -> u64 {
    hash >> (PLACE_BITS - ROOT_BITS) & TAG_MASK
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
        for shard in &table.shards {
            let sorted: Vec<u64> = shard.slots.iter().copied().filter(|slot| *slot != 0).collect();
            assert!(sorted.is_sorted());
            assert_eq!(sorted.len(), shard.len);
        }
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
    fn entries_take_at_most_seventeen_bytes() {
        let mut table = Table::new();
        for number in 0..1_000_000 {
            table.insert(mixed(number), place(number));
            if number % 50_000 == 0 && number > 0 {
                let bytes = table.bytes() as f64 / number as f64;
                assert!(bytes < 17.0, "{bytes} at {number}");
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
