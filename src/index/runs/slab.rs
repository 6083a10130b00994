//! Runs by number.
//!
//! Runs stay where they are: the slab grows by a chunk at a time, and freed numbers are given again. A chunk without runs
//! is given back now and then; its numbers stay as they are.

use crate::index::runs::run::Run;
use crate::index::runs::table::RUN_BITS;

const CHUNK_BITS: u32 = 8;
const CHUNK: usize = 1 << CHUNK_BITS;

/// All runs. Number 0 is never given.
#[derive(Clone, Debug)]
pub(super) struct Slab {
    chunks: Vec<Chunk>,
    free: Vec<u32>,
    /// Chunks that were given back.
    given_back: Vec<u32>,
    live: usize,
    /// Bytes that the runs point to.
    heap: usize,
}

/// Runs with consecutive numbers; none at all once it is given back.
#[derive(Clone, Debug)]
struct Chunk {
    runs: Vec<Run>,
    live: usize,
}

// === impl Slab ===

impl Slab {
    pub fn new() -> Slab {
        let mut first = Chunk::new();
        first.runs.push(Run::vacant());
        Slab { chunks: vec![first], free: Vec::new(), given_back: Vec::new(), live: 0, heap: 0 }
    }

    /// Number of runs.
    pub fn live(&self) -> usize {
        self.live
    }

    /// One more than the highest number ever given.
    pub fn numbers(&self) -> u32 {
        let last = self.chunks.last().map_or(0, |chunk| chunk.runs.len());
        ((self.chunks.len().saturating_sub(1) << CHUNK_BITS) + last) as u32
    }

    #[inline]
    pub fn get(&self, number: u32) -> Option<&Run> {
        self.chunks.get(number as usize >> CHUNK_BITS)?.runs.get(number as usize & (CHUNK - 1))
    }

    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Run> {
        self.chunks.get_mut(number as usize >> CHUNK_BITS)?.runs.get_mut(number as usize & (CHUNK - 1))
    }

    /// Gives the run a number, unless there is none left.
    pub fn add(&mut self, run: Run) -> Option<u32> {
        if self.free.is_empty() {
            self.take_again();
        }
        let number = match self.free.pop() {
            Some(number) => {
                *self.get_mut(number)? = run;
                number
            }
            None => {
                let number = Some(self.numbers()).filter(|number| *number < 1 << RUN_BITS)?;
                self.push(run);
                number
            }
        };
        self.live += 1;
        self.chunk_of(number)?.live += 1;
        Some(number)
    }

    /// Takes the run back.
    pub fn take(&mut self, number: u32) -> Option<Run> {
        let run = std::mem::replace(self.get_mut(number)?, Run::vacant());
        self.heap = self.heap.saturating_sub(run.weighed as usize);
        self.free.push(number);
        self.live -= 1;
        self.chunk_of(number)?.live -= 1;
        Some(run)
    }

    /// Gives chunks back that have no run. Goes over the numbers that are free.
    pub fn give_back(&mut self) {
        // The last one is not full, maybe, and the number after it is the next.
        let full = self.chunks.len().saturating_sub(1);
        let before = self.given_back.len();
        for (at, chunk) in self.chunks.iter_mut().enumerate().take(full).filter(|(_, chunk)| chunk.is_idle()) {
            // Number 0 is not to be given.
            if at > 0 {
                chunk.runs = Vec::new();
                self.given_back.push(at as u32);
            }
        }
        if self.given_back.len() > before {
            let chunks = &self.chunks;
            let exists =
                |number: &u32| chunks.get(*number as usize >> CHUNK_BITS).is_some_and(|it| !it.runs.is_empty());
            self.free.retain(exists);
            self.free.shrink_to(self.free.len() * 2);
        }
    }

    /// Notes what a run that has changed takes now.
    pub fn weigh(&mut self, number: u32) {
        let Some(run) = self.get_mut(number) else { return };
        let now = run.heap_bytes();
        let before = std::mem::replace(&mut run.weighed, u32::try_from(now).unwrap_or(u32::MAX));
        self.heap = (self.heap + now).saturating_sub(before as usize);
    }

    /// Bytes asked of the allocator, what the runs point to included.
    pub fn bytes(&self) -> usize {
        let runs = (self.chunks.len() - self.given_back.len()) * CHUNK * size_of::<Run>();
        runs + self.chunks.capacity() * size_of::<Chunk>()
            + self.heap
            + (self.free.capacity() + self.given_back.capacity()) * size_of::<u32>()
    }

    fn push(&mut self, run: Run) {
        match self.chunks.last_mut() {
            Some(chunk) if chunk.runs.len() < CHUNK => chunk.runs.push(run),
            _ => {
                let mut chunk = Chunk::new();
                chunk.runs.push(run);
                self.chunks.push(chunk);
            }
        }
    }

    /// Has the numbers of a chunk that was given back be free again.
    fn take_again(&mut self) {
        let Some(again) = self.given_back.pop() else { return };
        if let Some(chunk) = self.chunks.get_mut(again as usize) {
            *chunk = Chunk::new();
            chunk.runs.resize_with(CHUNK, Run::vacant);
            let first = again << CHUNK_BITS;
            self.free.extend((first..first + CHUNK as u32).rev());
        }
    }

    fn chunk_of(&mut self, number: u32) -> Option<&mut Chunk> {
        self.chunks.get_mut(number as usize >> CHUNK_BITS)
    }
}

// === impl Chunk ===

impl Chunk {
    fn new() -> Chunk {
        Chunk { runs: Vec::with_capacity(CHUNK), live: 0 }
    }

    /// Whether there is memory in it that no run needs.
    fn is_idle(&self) -> bool {
        self.live == 0 && !self.runs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::runs::key::Keys;
    use crate::observation::ScopeSlot;

    fn run(scope: u32) -> Run {
        Run::new(ScopeSlot(scope), false, Keys::Hashes(Vec::new()))
    }

    #[test]
    fn chunks_without_runs_are_given_back_and_their_numbers_given_again() {
        let mut slab = Slab::new();
        let small = slab.bytes();
        let numbers: Vec<u32> = (0..4 * CHUNK as u32).map(|scope| slab.add(run(scope)).unwrap()).collect();
        let (large, highest) = (slab.bytes(), slab.numbers());
        // One stays in the second chunk.
        let stays = CHUNK as u32 + 7;
        for number in numbers.iter().filter(|number| **number != stays) {
            assert_eq!(slab.take(*number).unwrap().scope, ScopeSlot(number - 1));
        }
        slab.give_back();
        slab.give_back();
        assert!(slab.bytes() < small + (large - small) * 3 / 4, "{} bytes", slab.bytes());
        assert_eq!((slab.live(), slab.numbers()), (1, highest));
        assert_eq!(slab.get(stays).unwrap().scope, ScopeSlot(stays - 1));
        assert!(slab.get(2 * CHUNK as u32 + 1).is_none(), "a number of a chunk that was given back");
        let mut again: Vec<u32> = (1..4 * CHUNK as u32).map(|scope| slab.add(run(scope)).unwrap()).collect();
        again.push(stays);
        again.sort_unstable();
        assert_eq!(again, numbers);
        assert!(slab.bytes() <= large + 4 * size_of::<u32>() * 4 * CHUNK, "{} bytes, {large} before", slab.bytes());
    }
}
