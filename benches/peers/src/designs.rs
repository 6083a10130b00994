//! The designs, behind one face. Input is converted to each one's types outside the time.

use std::ops::Range;

use dynamo_kv_router::indexer::positional::{LevelIndex, PositionalIndexer, SearchMode};
use dynamo_kv_router::indexer::{RadixTree, SyncIndexer};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, RouterEvent, WorkerWithDpRank,
};
use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};
use rustc_hash::FxHashMap;
use warmroute::index::LeadingRun;
use warmroute::index::runs::Runs;

use crate::flat::Flat;
use crate::workload::{Event, Request, State};
use crate::{REPLICAS, ours};

/// An index under measurement.
pub trait Design {
    fn name(&self) -> &'static str;
    /// Converts events; the ones before are dropped.
    fn prepare(&mut self, _state: &State, _events: Range<usize>) {}
    fn store(&mut self, state: &State, events: Range<usize>);
    /// Converts an event's removal, all at once or each block in a call of its own.
    fn prepare_removal(&mut self, _state: &State, _event: usize, _each: bool) {}
    /// Removes an event's blocks, the last one first.
    fn remove(&mut self, state: &State, event: usize, each: bool);
    fn copy_requests(&mut self, _state: &State, _order: &[usize]) {}
    /// Reads what [`Design::look`] will read of the request.
    fn read_request(&mut self, state: &State, request: usize) {
        let Request { contents, hashes } = &state.requests[request];
        let xor = |numbers: &[u64]| numbers.iter().fold(0, |all, number| all ^ number);
        std::hint::black_box((xor(contents), xor(hashes)));
    }
    /// Looks a request up and returns something that depends on the answer.
    fn look(&mut self, state: &State, request: usize) -> u64;
    /// (Replica, blocks), sorted.
    fn answer(&mut self, state: &State, request: usize) -> Vec<(u64, u32)>;
}

/// A constructor for each design, or for those whose names contain a part that `ONLY` lists; the flat map, whose answers
/// are taken for true, comes first.
pub fn all() -> Vec<fn() -> Box<dyn Design>> {
    let all: Vec<fn() -> Box<dyn Design>> = vec![
        || Box::new(FlatMap(Flat::default())),
        || Box::new(Ours { runs: Runs::new(1_024), out: Vec::new() }),
        || Box::new(KvIndex::new(false)),
        || Box::new(KvIndex::new(true)),
        || Box::new(Radix { tree: RadixTree::new(), events: Vec::new(), copies: Vec::new() }),
        || {
            Box::new(Positional {
                index: PositionalIndexer::new_with_mode(32, SearchMode::Strided),
                blocks: FxHashMap::default(),
                events: Vec::new(),
                copies: Vec::new(),
            })
        },
    ];
    let Ok(only) = std::env::var("ONLY") else { return all };
    let wanted = |make: &fn() -> Box<dyn Design>| only.split(',').any(|part| make().name().contains(part));
    all.into_iter().enumerate().filter(|(at, make)| *at == 0 || wanted(make)).map(|(_, make)| make).collect()
}

struct FlatMap(Flat);

struct Ours {
    runs: Runs,
    out: Vec<LeadingRun>,
}

struct KvIndex {
    index: ChainIndex,
    maps: Vec<ChainBlockMap>,
    workers: Vec<u32>,
    blocks: Vec<Vec<StoredBlock>>,
    leaving: Vec<Vec<SequenceHash>>,
    /// Without a map for the answer.
    bare: bool,
}

struct Radix {
    tree: RadixTree,
    events: Vec<RouterEvent>,
    copies: Vec<Vec<LocalBlockHash>>,
}

struct Positional {
    index: PositionalIndexer,
    blocks: FxHashMap<WorkerWithDpRank, LevelIndex>,
    events: Vec<RouterEvent>,
    copies: Vec<Vec<LocalBlockHash>>,
}

fn hashes(state: &State, event: usize) -> (&[u64], Event) {
    let event = state.events[event];
    (&state.requests[event.request].hashes, event)
}

// === impl FlatMap ===

impl Design for FlatMap {
    fn name(&self) -> &'static str {
        "flat map"
    }

    fn store(&mut self, state: &State, events: Range<usize>) {
        for number in events {
            let (hashes, event) = hashes(state, number);
            self.0.store(event.replica as u16, number as u32, &hashes[event.from..]);
        }
    }

    fn remove(&mut self, state: &State, event: usize, _each: bool) {
        let (hashes, event) = hashes(state, event);
        for hash in hashes[event.from..].iter().rev() {
            self.0.remove(event.replica as u16, &[*hash]);
        }
    }

    fn look(&mut self, state: &State, request: usize) -> u64 {
        self.0.leading_runs(&state.requests[request].hashes).len() as u64
    }

    fn answer(&mut self, state: &State, request: usize) -> Vec<(u64, u32)> {
        let runs = self.0.leading_runs(&state.requests[request].hashes);
        runs.iter().map(|run| (u64::from(run.replica), run.blocks)).collect()
    }
}

// === impl Ours ===

impl Design for Ours {
    fn name(&self) -> &'static str {
        "warmroute runs"
    }

    fn store(&mut self, state: &State, events: Range<usize>) {
        for number in events {
            ours::store_event(&mut self.runs, state, number);
        }
    }

    fn remove(&mut self, state: &State, event: usize, each: bool) {
        let remove = if each { ours::remove_each } else { ours::remove_event };
        assert!(remove(&mut self.runs, state, event) > 0);
    }

    fn look(&mut self, state: &State, request: usize) -> u64 {
        ours::look(&self.runs, &state.requests[request].hashes, &mut self.out);
        self.out.len() as u64
    }

    fn answer(&mut self, state: &State, request: usize) -> Vec<(u64, u32)> {
        ours::look(&self.runs, &state.requests[request].hashes, &mut self.out);
        self.out.iter().map(|run| (u64::from(run.replica.0), run.matched_tokens / ours::BLOCK_SIZE)).collect()
    }
}

// === impl KvIndex ===

impl KvIndex {
    fn new(bare: bool) -> KvIndex {
        let index = ChainIndex::new();
        let workers = (0..REPLICAS).map(|replica| index.intern_worker(&replica.to_string()).expect("a free id"));
        KvIndex {
            workers: workers.collect(),
            maps: (0..REPLICAS).map(|_| ChainBlockMap::new()).collect(),
            index,
            blocks: Vec::new(),
            leaving: Vec::new(),
            bare,
        }
    }

    /// Content hashes as the crate's type, which is a `u64` in a struct: made outside the time in `prepare`.
    fn contents(state: &State, request: usize) -> Vec<ContentHash> {
        state.requests[request].contents.iter().map(|content| ContentHash(*content)).collect()
    }
}

impl Design for KvIndex {
    fn name(&self) -> &'static str {
        if self.bare { "kv-index ChainIndex, score_into" } else { "kv-index ChainIndex" }
    }

    fn prepare(&mut self, state: &State, events: Range<usize>) {
        self.blocks = events
            .map(|number| {
                let event = state.events[number];
                let request = &state.requests[event.request];
                let pairs = request.hashes.iter().zip(&request.contents).skip(event.from);
                pairs
                    .map(|(hash, content)| StoredBlock {
                        seq_hash: SequenceHash(*hash),
                        content_hash: ContentHash(*content),
                    })
                    .collect()
            })
            .collect();
    }

    fn store(&mut self, state: &State, events: Range<usize>) {
        for (number, blocks) in events.zip(&self.blocks) {
            let (hashes, event) = hashes(state, number);
            let parent = event.from.checked_sub(1).map(|before| SequenceHash(hashes[before]));
            let worker = event.replica as usize;
            self.index.apply_stored(self.workers[worker], blocks, parent, &mut self.maps[worker]).expect("stored");
        }
    }

    fn prepare_removal(&mut self, state: &State, event: usize, each: bool) {
        let (hashes, event) = hashes(state, event);
        let leaving = hashes[event.from..].iter().rev().map(|hash| SequenceHash(*hash));
        self.leaving = if each { leaving.map(|hash| vec![hash]).collect() } else { vec![leaving.collect()] };
    }

    fn remove(&mut self, state: &State, event: usize, _each: bool) {
        let worker = state.events[event].replica as usize;
        for hashes in &self.leaving {
            self.index.apply_removed(self.workers[worker], hashes, &mut self.maps[worker]);
        }
    }

    fn look(&mut self, state: &State, request: usize) -> u64 {
        let contents = &state.requests[request].contents;
        if self.bare {
            let mut found = 0;
            self.index.score_into(contents, |content| *content, false, |_, score| found += u64::from(score));
            return found;
        }
        // The same walk as `find_matches`, into the same map, without a copy of the request.
        let mut out = kv_index::OverlapScores::default();
        self.index.score_into(
            contents,
            |content| *content,
            false,
            |worker, score| {
                out.scores.insert(worker, score);
            },
        );
        out.scores.len() as u64
    }

    fn answer(&mut self, state: &State, request: usize) -> Vec<(u64, u32)> {
        let scores = self.index.find_matches(&KvIndex::contents(state, request), false).scores;
        let replica = |worker: u32| self.workers.iter().position(|known| *known == worker).expect("a worker") as u64;
        let mut scores: Vec<(u64, u32)> = scores.into_iter().map(|(worker, score)| (replica(worker), score)).collect();
        scores.sort_unstable();
        scores
    }
}

// === The other router's indexes ===

fn stored(state: &State, number: usize) -> RouterEvent {
    let (hashes, event) = hashes(state, number);
    let request = &state.requests[event.request];
    let blocks = request.hashes.iter().zip(&request.contents).skip(event.from);
    let data = KvCacheEventData::Stored(KvCacheStoreData {
        parent_hash: event.from.checked_sub(1).map(|before| ExternalSequenceBlockHash(hashes[before])),
        start_position: None,
        blocks: blocks
            .map(|(hash, content)| KvCacheStoredBlockData {
                block_hash: ExternalSequenceBlockHash(*hash),
                tokens_hash: LocalBlockHash(*content),
                mm_extra_info: None,
            })
            .collect(),
    });
    RouterEvent::new(u64::from(event.replica), KvCacheEvent { event_id: number as u64, data, dp_rank: 0 })
}

fn removed(state: &State, number: usize, each: bool) -> Vec<RouterEvent> {
    let (hashes, event) = hashes(state, number);
    let leaving: Vec<_> = hashes[event.from..].iter().rev().map(|hash| ExternalSequenceBlockHash(*hash)).collect();
    let calls = leaving.chunks(if each { 1 } else { leaving.len() }).map(|block_hashes| {
        let data = KvCacheEventData::Removed(KvCacheRemoveData { block_hashes: block_hashes.to_vec() });
        RouterEvent::new(u64::from(event.replica), KvCacheEvent { event_id: 1 << 32, data, dp_rank: 0 })
    });
    calls.collect()
}

fn local(state: &State, request: usize) -> Vec<LocalBlockHash> {
    state.requests[request].contents.iter().map(|content| LocalBlockHash(*content)).collect()
}

fn sorted(scores: dynamo_kv_router::protocols::OverlapScores) -> Vec<(u64, u32)> {
    let mut sorted: Vec<(u64, u32)> =
        scores.scores.into_iter().map(|(worker, score)| (worker.worker_id, score)).collect();
    sorted.sort_unstable();
    sorted
}

impl Design for Radix {
    fn name(&self) -> &'static str {
        "dynamo RadixTree"
    }

    fn prepare(&mut self, state: &State, events: Range<usize>) {
        self.events = events.map(|number| stored(state, number)).collect();
    }

    fn store(&mut self, _state: &State, _events: Range<usize>) {
        for event in std::mem::take(&mut self.events) {
            self.tree.apply_event(event).expect("stored");
        }
    }

    fn prepare_removal(&mut self, state: &State, event: usize, each: bool) {
        self.events = removed(state, event, each);
    }

    fn remove(&mut self, _state: &State, _event: usize, _each: bool) {
        for event in std::mem::take(&mut self.events) {
            self.tree.apply_event(event).expect("removed");
        }
    }

    fn copy_requests(&mut self, state: &State, order: &[usize]) {
        self.copies = order.iter().rev().map(|request| local(state, *request)).collect();
    }

    fn read_request(&mut self, _state: &State, _request: usize) {
        std::hint::black_box(self.copies.last().expect("a copy").iter().fold(0, |all, content| all ^ content.0));
    }

    fn look(&mut self, _state: &State, _request: usize) -> u64 {
        let request = self.copies.pop().expect("a copy for each request, in order");
        self.tree.find_matches(request, false).scores.len() as u64
    }

    fn answer(&mut self, state: &State, request: usize) -> Vec<(u64, u32)> {
        sorted(self.tree.find_matches(local(state, request), false))
    }
}

impl Design for Positional {
    fn name(&self) -> &'static str {
        "dynamo PositionalIndexer(32)"
    }

    fn prepare(&mut self, state: &State, events: Range<usize>) {
        self.events = events.map(|number| stored(state, number)).collect();
    }

    fn store(&mut self, _state: &State, _events: Range<usize>) {
        for event in std::mem::take(&mut self.events) {
            self.index.apply_event(&mut self.blocks, event, None).expect("stored");
        }
    }

    fn prepare_removal(&mut self, state: &State, event: usize, each: bool) {
        self.events = removed(state, event, each);
    }

    fn remove(&mut self, _state: &State, _event: usize, _each: bool) {
        for event in std::mem::take(&mut self.events) {
            self.index.apply_event(&mut self.blocks, event, None).expect("removed");
        }
    }

    fn copy_requests(&mut self, state: &State, order: &[usize]) {
        self.copies = order.iter().rev().map(|request| local(state, *request)).collect();
    }

    fn read_request(&mut self, _state: &State, _request: usize) {
        std::hint::black_box(self.copies.last().expect("a copy").iter().fold(0, |all, content| all ^ content.0));
    }

    fn look(&mut self, _state: &State, _request: usize) -> u64 {
        let request = self.copies.pop().expect("a copy for each request, in order");
        self.index.find_matches(&request, false).scores.len() as u64
    }

    fn answer(&mut self, state: &State, request: usize) -> Vec<(u64, u32)> {
        sorted(self.index.find_matches(&local(state, request), false))
    }
}
