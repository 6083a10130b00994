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

mod line;
mod shard;

use line::{Candidates, Entry, Line, ROOT_BITS, tag_of};
pub(super) use line::{OFFSET_BITS, Place, RUN_BITS};
use shard::Shard;

/// A shard is split from here on, unless its hashes agree in all bits there are.
const SPLIT_AT: usize = 3_000;
/// Deepest split. Hashes that are not well mixed must not make the directory large either: it is doubled only while
/// there is a shard for every `SPARSE` of its entries. Where a shard cannot be split, it grows.
const MAX_DEPTH: u32 = 18;
const SPARSE: usize = 16;

/// The places of all blocks, by hash.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// Shards by the first `ROOT_BITS + depth` bits of a hash.
    directory: Vec<u32>,
    depth: u32,
    shards: Vec<Shard>,
    /// Lines of all shards, as asked of the allocator.
    lines: usize,
}

// === impl Table ===

impl Table {
    pub fn new() -> Table {
        let shards = 1u32 << ROOT_BITS;
        let shards_of_none = vec![Shard::default(); shards as usize];
        Table { directory: (0..shards).collect(), depth: 0, shards: shards_of_none, lines: 0 }
    }

    /// Places that may be that of the block with this hash.
    #[inline]
    pub fn candidates(&self, hash: u64) -> impl Iterator<Item = Place> {
        let tag = tag_of(hash);
        let lines = self.shard(hash).and_then(|shard| shard.lines.get(shard.home(tag)..)).unwrap_or_default();
        Candidates::new(tag, lines)
    }

    /// Has the line where the block with this hash would be in cache soon. A write is not waited for as a read would be:
    /// what follows goes on while the line comes.
    #[inline]
    pub fn touch(&mut self, hash: u64) {
        let Some(shard) = self.shard_number(hash).and_then(|number| self.shards.get_mut(number)) else { return };
        let home = shard.home(tag_of(hash));
        if let Some(line) = shard.lines.get_mut(home) {
            line.touch();
        }
    }

    /// Adds an entry.
    pub fn insert(&mut self, hash: u64, place: Place) {
        let Some(number) = self.shard_number(hash) else { return };
        let shards = self.shards.len();
        let Some(shard) = self.shards.get_mut(number) else { return };
        let before = shard.lines.capacity();
        if !shard.is_full() {
            shard.insert(Entry::new(hash, place));
            self.lines += shard.lines.capacity() - before;
            return;
        }
        let doubles = shard.depth == self.depth;
        let sparse = self.directory.len() > shards * SPARSE;
        if shard.len as usize >= SPLIT_AT && shard.depth < MAX_DEPTH && !(doubles && sparse) {
            self.split(number, hash);
        } else {
            shard.resize();
            self.lines = self.lines + shard.lines.capacity() - before;
        }
        // A half may be as full as the whole was, when the hashes are alike: then it is split again, or grown.
        self.insert(hash, place);
    }

    /// Takes an entry out.
    pub fn remove(&mut self, hash: u64, place: Place) {
        if let Some(shard) = self.shard_number(hash).and_then(|number| self.shards.get_mut(number)) {
            let before = shard.lines.capacity();
            shard.remove(Entry::new(hash, place));
            self.lines = self.lines + shard.lines.capacity() - before;
        }
    }

    /// Bytes asked of the allocator.
    pub fn bytes(&self) -> usize {
        self.lines * size_of::<Line>()
            + self.shards.capacity() * size_of::<Shard>()
            + self.directory.capacity() * size_of::<u32>()
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
        let before = shard.lines.capacity();
        let upper = shard.split();
        let depth = shard.depth;
        self.lines = self.lines + shard.lines.capacity() + upper.lines.capacity() - before;
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
        assert_eq!(table.lines, table.shards.iter().map(|shard| shard.lines.capacity()).sum::<usize>());
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
