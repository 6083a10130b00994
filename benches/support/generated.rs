//! The stand-in for the conversation trace: requests of the same lengths that share as much.
//!
//! Three in five requests begin a conversation: the piece that all share, then new ones. The others go on from an
//! earlier request that none has gone on from yet. Most keep all of it but its last piece, which was not full, and add a
//! few; some of the long ones leave it somewhere and put about as much in the place of what they drop. The longer a
//! conversation already is, the likelier it goes on. The quantiles are the trace's; [`CONVERSATION`] is what must come of
//! them.

use super::{Random, Shape, Workload};

/// What the trace looks like.
pub const CONVERSATION: Shape = Shape {
    requests: 12_031,
    distinct: 182_790,
    length: [2, 14, 31, 54, 167],
    mean_length: 23.98,
    going_on: 0.387,
    known: 0.711,
    new: [1, 6, 18, 38, 141],
    holders: 1.363,
};
/// How far the stand-in may be off in the length of requests, but for their last hundredth, and in what they share.
const TOLERANCE: f64 = 0.05;

/// A distribution by its quantiles, with straight lines between.
type Quantiles = [(f64, f64)];

/// Pieces of a conversation's first request.
const FIRST: &Quantiles = &[
    (0.0, 1.5),
    (0.17, 2.4),
    (0.25, 3.4),
    (0.3, 4.0),
    (0.4, 7.6),
    (0.5, 10.6),
    (0.6, 14.6),
    (0.7, 22.0),
    (0.8, 31.0),
    (0.9, 50.0),
    (0.95, 76.0),
    (0.97, 101.0),
    (0.99, 176.0),
    (1.0, 247.0),
];
/// Pieces that the next request adds.
const ADDED: &Quantiles = &[
    (0.0, 0.6),
    (0.25, 1.4),
    (0.7, 2.4),
    (0.8, 4.0),
    (0.85, 6.0),
    (0.9, 10.0),
    (0.95, 15.0),
    (0.97, 20.0),
    (0.99, 34.0),
    (1.0, 90.0),
];
/// What a request that leaves the earlier one drops of it, as a share.
const DROPPED: &Quantiles = &[
    (0.0, 0.01),
    (0.1, 0.17),
    (0.2, 0.48),
    (0.3, 0.6),
    (0.4, 0.71),
    (0.5, 0.79),
    (0.7, 0.87),
    (0.9, 0.93),
    (1.0, 0.98),
];
/// How many requests ago the earlier one was.
const BACK: &Quantiles = &[
    (0.0, 5.0),
    (0.1, 141.0),
    (0.25, 229.0),
    (0.5, 422.0),
    (0.75, 901.0),
    (0.9, 1_660.0),
    (0.95, 2_129.0),
    (0.97, 2_555.0),
    (0.99, 5_101.0),
    (1.0, 10_514.0),
];
/// How likely a conversation goes on after so many turns.
const GOES_ON: [f64; 7] = [0.37, 0.42, 0.51, 0.59, 0.6, 0.68, 0.75];

/// A request that a later one may go on from.
struct Turn {
    pieces: Vec<u32>,
    /// Turns before it.
    before: usize,
    continued: bool,
}

struct Generator {
    random: Random,
    turns: Vec<Turn>,
    next_piece: u32,
}

// === impl Workload ===

impl Workload {
    /// A stand-in for the conversation trace.
    pub fn generated(requests: usize) -> Workload {
        let mut generator = Generator { random: Random(20), turns: Vec::with_capacity(requests), next_piece: 1 };
        for _ in 0..requests {
            let turn = generator.next_turn();
            generator.turns.push(turn);
        }
        Workload { name: "generated", requests: generator.turns.into_iter().map(|turn| turn.pieces).collect() }
    }

    /// States the shapes of the stand-in and of a trace, and asserts that the stand-in is like the conversation trace.
    pub fn state_and_check(trace: Option<&Workload>) {
        let generated = Workload::generated(CONVERSATION.requests).shape();
        println!("generated: {generated}");
        generated.assert_like(&CONVERSATION);
        if let Some(shape) = trace.map(Workload::shape) {
            println!("trace: {shape}");
            // Another trace may be measured as well; the stand-in is none for it.
            if (shape.requests, shape.distinct) == (CONVERSATION.requests, CONVERSATION.distinct) {
                generated.assert_like(&shape);
            }
        }
    }
}

// === impl Generator ===

impl Generator {
    fn next_turn(&mut self) -> Turn {
        let earlier = (self.random.unit() < 0.41).then(|| self.earlier()).flatten();
        let Some(earlier) = earlier else {
            let added = self.quantile(FIRST).round() as usize - 1;
            return Turn { pieces: self.with_new(vec![0], added), before: 0, continued: false };
        };
        let length = self.turns[earlier].pieces.len();
        let (dropped, added) = if length >= 18 && self.random.unit() < 0.3 {
            let dropped = (self.quantile(DROPPED) * length as f64).round().clamp(1.0, length as f64 - 2.0);
            let added = (dropped * (0.6 + 0.6 * self.random.unit())).round().max(1.0);
            (dropped as usize, added as usize)
        } else {
            (1, self.quantile(ADDED).round() as usize)
        };
        self.turns[earlier].continued = true;
        let kept = self.turns[earlier].pieces[..length - dropped].to_vec();
        let before = self.turns[earlier].before + 1;
        Turn { pieces: self.with_new(kept, added), before, continued: false }
    }

    /// A request to go on from, if one is found that may.
    fn earlier(&mut self) -> Option<usize> {
        for _ in 0..12 {
            let Some(number) = self.turns.len().checked_sub(self.quantile(BACK).round() as usize) else { continue };
            let Turn { pieces, before, continued } = &self.turns[number];
            if *continued || pieces.len() < 3 {
                continue;
            }
            let long = if pieces.len() < 80 { 1.0 } else { 0.65 };
            if self.random.unit() < GOES_ON[(*before).min(GOES_ON.len() - 1)] * long {
                return Some(number);
            }
        }
        None
    }

    fn with_new(&mut self, mut pieces: Vec<u32>, added: usize) -> Vec<u32> {
        pieces.extend(self.next_piece..self.next_piece + added as u32);
        self.next_piece += added as u32;
        pieces
    }

    fn quantile(&mut self, points: &Quantiles) -> f64 {
        let at = self.random.unit();
        let pair = points.windows(2).find(|pair| at < pair[1].0).unwrap_or(&points[points.len() - 2..]);
        let (low, high) = (pair[0], pair[1]);
        low.1 + (high.1 - low.1) * (at - low.0) / (high.0 - low.0)
    }
}

// === impl Shape ===

impl Shape {
    /// Panics unless both are about the same.
    fn assert_like(&self, trace: &Shape) {
        let lengths =
            self.length.iter().zip(&trace.length).take(4).map(|(ours, theirs)| (*ours as f64, *theirs as f64));
        let figures = [
            (self.mean_length, trace.mean_length),
            (self.distinct as f64, trace.distinct as f64),
            (self.going_on, trace.going_on),
            (self.known, trace.known),
            (self.holders, trace.holders),
        ];
        for (ours, theirs) in lengths.chain(figures) {
            assert!((ours - theirs).abs() <= TOLERANCE * theirs, "the stand-in has {ours}, the trace {theirs}: {self}");
        }
    }
}
