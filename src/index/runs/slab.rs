//! Runs by number.
//!
//! Runs stay where they are: the slab grows by a chunk at a time, and freed numbers are given again.

use crate::index::runs::run::Run;
use crate::index::runs::table::RUN_BITS;

const CHUNK_BITS: u32 = 8;
const CHUNK: usize = 1 << CHUNK_BITS;

/// All runs. Number 0 is never given.
#[derive(Clone, Debug)]
pub(super) struct Slab {
    chunks: Vec<Vec<Run>>,
    free: Vec<u32>,
    live: usize,
}

// === impl Slab ===

impl Slab {
    pub fn new() -> Slab {
        let mut first = Vec::with_capacity(CHUNK);
        first.push(Run::vacant());
        Slab { chunks: vec![first], free: Vec::new(), live: 0 }
    }

    /// Number of runs.
    pub fn live(&self) -> usize {
        self.live
    }

    /// One more than the highest number ever given.
    pub fn numbers(&self) -> u32 {
        let last = self.chunks.last().map_or(0, Vec::len);
        ((self.chunks.len().saturating_sub(1) << CHUNK_BITS) + last) as u32
    }

    #[inline]
    pub fn get(&self, number: u32) -> Option<&Run> {
        self.chunks.get(number as usize >> CHUNK_BITS)?.get(number as usize & (CHUNK - 1))
    }

    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Run> {
        self.chunks.get_mut(number as usize >> CHUNK_BITS)?.get_mut(number as usize & (CHUNK - 1))
    }

    /// Gives the run a number, unless there is none left.
    pub fn add(&mut self, run: Run) -> Option<u32> {
        let number = match self.free.last() {
            Some(number) => *number,
            None => Some(self.numbers()).filter(|number| *number < 1 << RUN_BITS)?,
        };
        self.live += 1;
        match self.free.pop() {
            Some(_) => *self.get_mut(number)? = run,
            None => self.push(run),
        }
        Some(number)
    }

    /// Takes the run back.
    pub fn take(&mut self, number: u32) -> Option<Run> {
        let run = std::mem::replace(self.get_mut(number)?, Run::vacant());
        self.free.push(number);
        self.live -= 1;
        Some(run)
    }

    /// Bytes asked of the allocator, what the runs point to included.
    pub fn bytes(&self) -> usize {
        let runs: usize = self.chunks.iter().map(|chunk| chunk.capacity() * size_of::<Run>()).sum();
        let heap: usize = self.chunks.iter().flatten().map(Run::heap_bytes).sum();
        runs + heap + self.free.capacity() * size_of::<u32>()
    }

    fn push(&mut self, run: Run) {
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push(run),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(run);
                self.chunks.push(chunk);
            }
        }
    }
}
