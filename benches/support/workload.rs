//! What the index is measured on: requests as block chains, and the reports that a pool of replicas makes of them.
//!
//! Requests come from a trace of 512-token pieces named by number, one JSON object a line with `hash_ids`
//! (`WARMROUTE_TRACE` names the file), or from [`Workload::generated`], a [stand-in](generated) of the same shape. [`Shape`]
//! states both, [`Workload::state_and_check`] compares them.
//!
//! Request `i` is served by replica `i % replicas`, which reports the blocks that it did not hold yet as one event.
//! Nothing is ever evicted.

mod generated;

use std::collections::{HashMap, HashSet};

use warmroute::fingerprint::{ContentHash, PrefixHash};

/// Blocks of 16 tokens in a piece of the trace.
pub const PIECE_BLOCKS: usize = 32;

/// Requests in order.
pub struct Workload {
    pub name: &'static str,
    /// Pieces of each request.
    requests: Vec<Vec<u32>>,
}

/// A request's blocks.
pub struct Request {
    pub contents: Vec<u64>,
    pub hashes: Vec<u64>,
}

/// A replica has stored the blocks of a request from one on.
#[derive(Clone, Copy)]
pub struct Event {
    pub request: usize,
    pub from: usize,
    pub replica: u32,
}

/// Requests and events, up to a number of (block, replica) pairs.
#[derive(Default)]
pub struct State {
    pub requests: Vec<Request>,
    pub events: Vec<Event>,
    pub pairs: usize,
}

/// What a workload looks like, in pieces.
pub struct Shape {
    pub requests: usize,
    pub distinct: usize,
    pub length: [usize; 5],
    pub mean_length: f64,
    /// Share of requests that find more than the shared piece.
    pub going_on: f64,
    /// Of those, the share of their pieces that is known.
    pub known: f64,
    /// Pieces that nobody has seen, where the request has any.
    pub new: [usize; 5],
    /// (Piece, replica) pairs for each distinct piece, with 8 replicas.
    pub holders: f64,
}

/// A 64-bit generator (splitmix64, public domain, by Sebastiano Vigna).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

impl Workload {
    /// Requests by their pieces.
    pub fn of(name: &'static str, requests: Vec<Vec<u32>>) -> Workload {
        Workload { name, requests }
    }

    /// The pieces of each request.
    pub fn requests(&self) -> &[Vec<u32>] {
        &self.requests
    }

    /// The trace that `WARMROUTE_TRACE` names, if any.
    pub fn trace() -> Option<Workload> {
        let path = std::env::var_os("WARMROUTE_TRACE")?;
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("WARMROUTE_TRACE {path:?}: {error}"));
        let requests = text.lines().map(|line| {
            let request: serde_json::Value = serde_json::from_str(line).expect("a JSON object a line");
            let ids = request["hash_ids"].as_array().expect("hash_ids");
            ids.iter().map(|id| id.as_u64().expect("a number") as u32).collect()
        });
        Some(Workload { name: "trace", requests: requests.collect() })
    }

    pub fn shape(&self) -> Shape {
        let mut seen = HashSet::new();
        let mut held = HashSet::new();
        let (mut lengths, mut new) = (Vec::new(), Vec::new());
        let (mut going_on, mut known) = (0, 0.0);
        for (number, pieces) in self.requests.iter().enumerate() {
            let hit = pieces.iter().take_while(|piece| seen.contains(*piece)).count();
            if hit > 1 {
                going_on += 1;
                known += hit as f64 / pieces.len() as f64;
            }
            if hit < pieces.len() {
                new.push(pieces.len() - hit);
            }
            lengths.push(pieces.len());
            seen.extend(pieces.iter().copied());
            held.extend(pieces.iter().map(|piece| (*piece, number % 8)));
        }
        Shape {
            requests: lengths.len(),
            distinct: seen.len(),
            mean_length: lengths.iter().sum::<usize>() as f64 / lengths.len() as f64,
            length: quantiles(lengths),
            going_on: going_on as f64 / self.requests.len() as f64,
            known: known / going_on as f64,
            new: quantiles(new),
            holders: held.len() as f64 / seen.len() as f64,
        }
    }

    /// The first requests, until `replicas` replicas hold `pairs` blocks between them.
    pub fn state(&self, replicas: u32, pairs: usize) -> State {
        let mut state = State { requests: Vec::new(), events: Vec::new(), pairs: 0 };
        let mut held: HashMap<(u32, u64), ()> = HashMap::new();
        for (number, pieces) in self.requests.iter().enumerate() {
            let request = Request::of_pieces(pieces);
            let replica = number as u32 % replicas;
            // A replica's holdings are closed under prefixes here, so the last piece of each prefix says it all.
            let ends = request.hashes.chunks(PIECE_BLOCKS).map(|piece| *piece.last().expect("a full piece"));
            let from = ends.clone().take_while(|end| held.contains_key(&(replica, *end))).count() * PIECE_BLOCKS;
            held.extend(ends.map(|end| ((replica, end), ())));
            if from < request.hashes.len() {
                state.pairs += request.hashes.len() - from;
                state.events.push(Event { request: number, from, replica });
            }
            state.requests.push(request);
            if state.pairs >= pairs {
                break;
            }
        }
        state
    }
}

impl Request {
    /// The blocks of these pieces.
    pub fn of_pieces(pieces: &[u32]) -> Request {
        let blocks = pieces.iter().flat_map(|piece| {
            let mut random = Random(u64::from(*piece) << 8);
            std::iter::repeat_with(move || random.next()).take(PIECE_BLOCKS)
        });
        Request::of_contents(blocks.collect())
    }

    pub fn of_contents(contents: Vec<u64>) -> Request {
        let mut parent: Option<PrefixHash> = None;
        let hashes = contents.iter().map(|content| {
            let hash = match parent {
                Some(parent) => parent.extended_by(ContentHash(*content)),
                None => PrefixHash(*content),
            };
            parent = Some(hash);
            hash.0
        });
        Request { hashes: hashes.collect(), contents }
    }

    /// A request like no other, of some length.
    pub fn apart(seed: u64, blocks: usize) -> Request {
        let mut random = Random(seed ^ 0xA5A5_0000_0000);
        Request::of_contents((0..blocks).map(|_| random.next()).collect())
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} requests of {:?} pieces (p10 p50 p75 p90 p99, mean {:.1}), {} distinct; {:.2} go on, with {:.2} of their \
             pieces known; {:?} new ones; {:.2} holders of a piece at 8 replicas",
            self.requests,
            self.length,
            self.mean_length,
            self.distinct,
            self.going_on,
            self.known,
            self.new,
            self.holders
        )
    }
}

fn quantiles(mut values: Vec<usize>) -> [usize; 5] {
    values.sort_unstable();
    [0.1, 0.5, 0.75, 0.9, 0.99].map(|share| values[(share * (values.len() - 1) as f64) as usize])
}
