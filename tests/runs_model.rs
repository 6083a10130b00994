//! The index of runs against a naive oracle, over seeded random histories.
//!
//! A history is a list of operations, and both see the same ones. Prompts branch off each other; their keys are prefix
//! hashes, or explicit ones that come in any order, 8 bytes wide or wider. Reports are chained or not, with the block
//! before them or without, whole prompts or single blocks; removals go forwards, backwards and across. Now and then the
//! index is rebuilt from its own pages. At every question both must agree: a run too long or a replica too many is an
//! overcount. A history that fails is shrunk before it is printed, and defects put in on purpose must be found.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failing test says so by panicking, helpers included"
)]

#[path = "support/held_blocks.rs"]
mod held_blocks;
#[path = "support/random.rs"]
mod random;

use held_blocks::{Held, HeldBlocks};
use random::Random;
use warmroute::index::LeadingRun;
use warmroute::index::runs::chain::{Blocks, PrefixHashes};
use warmroute::index::runs::{KeyRef, Report, Runs, Standing};
use warmroute::observation::{BlockKey, ReplicaSlot, ScopeSlot, Tier};
use warmroute::request::ChainBlock;

const HISTORIES: u64 = 1_200;
const OPERATIONS: usize = 120;
const PAGES: u16 = 5;
/// One replica is told not to count, as one whose state is still arriving would be.
const ARRIVING: ReplicaSlot = ReplicaSlot(5);
const BLOCK: u32 = 16;
const TTL_MS: u64 = 1_000;
const START_MS: u64 = 1_700_000_000_000;

/// One step of a history. Numbers are concrete, so that any of them can be left out.
#[derive(Clone, Debug)]
enum Operation {
    Store {
        replica: ReplicaSlot,
        scope: ScopeSlot,
        tier: Tier,
        last_seen_ms: u64,
        access_count: Option<u32>,
        parent: Option<BlockKey>,
        chained: bool,
        page: u16,
        blocks: Vec<(BlockKey, u32)>,
    },
    /// All that the replica holds is known to be held now.
    Reassert {
        replica: ReplicaSlot,
    },
    Remove {
        replica: ReplicaSlot,
        scope: ScopeSlot,
        keys: Vec<BlockKey>,
    },
    Clear {
        replica: ReplicaSlot,
    },
    /// Time goes on.
    Wait {
        ms: u64,
    },
    /// The sweep goes over everything, in steps.
    Sweep {
        budget: usize,
    },
    /// One step of the sweep; what has expired stays for now.
    SweepStep {
        budget: usize,
    },
    /// A new index from the pages.
    Rebuild,
    Credit {
        replica: ReplicaSlot,
        scope: ScopeSlot,
        keys: Vec<BlockKey>,
        proven: bool,
    },
    Look {
        scope: ScopeSlot,
        keys: Vec<BlockKey>,
        tokens: Vec<u32>,
        proven: bool,
    },
}

/// A defect put in on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    None,
    RemovedIgnored,
    ClearedIgnored,
    ExpiryIgnored,
    SweptTooEarly,
    /// Explicit keys of a request are taken for prefix hashes.
    RequestTakenForProven,
    /// Explicit keys of a report are taken for prefix hashes.
    ReportTakenForChained,
    /// A page is left out when the index is rebuilt.
    PageLost,
    CreditLost,
    ReassertionLost,
}

/// The index under test.
struct Subject {
    runs: Runs,
    defect: Defect,
    now_ms: u64,
}

// === impl Subject ===

impl Subject {
    fn new(defect: Defect) -> Subject {
        Subject { runs: Runs::new(PAGES.into()), defect, now_ms: START_MS }
    }

    /// What is said of a replica goes when it is cleared, or the index is made anew.
    fn introduce(&mut self, replica: ReplicaSlot) {
        if !self.runs.knows(replica) {
            self.runs.set_standing(replica, Standing { counts: replica != ARRIVING, reasserted_ms: 0 });
        }
    }

    fn is(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    fn rebuild(&mut self) {
        let mut rebuilt = Runs::new(PAGES.into());
        for replica in self.runs.replicas() {
            let counts = replica != ARRIVING;
            rebuilt.set_standing(replica, Standing { counts, ..self.runs.standing(replica) });
        }
        let first = u16::from(self.is(Defect::PageLost));
        for page in first..PAGES {
            for held in self.runs.page(page) {
                let report = Report {
                    scope: held.scope(),
                    replica: held.replica,
                    tier: held.tier(),
                    last_seen_ms: held.last_seen_ms(),
                    access_count: Some(held.access_count()),
                    parent: held.parent(),
                    chained: held.chained(),
                    page,
                    sequence: 1,
                };
                rebuilt.store(&report, held.blocks());
            }
        }
        let size = |runs: &Runs| (0..PAGES).map(|page| runs.page(page).map(|held| held.blocks().len()).sum()).collect();
        let (before, after): (Vec<usize>, Vec<usize>) = (size(&self.runs), size(&rebuilt));
        assert!(self.is(Defect::PageLost) || before == after, "a block changed its page: {before:?}, {after:?}");
        self.runs = rebuilt;
    }
}

fn references(keys: &[BlockKey]) -> impl ExactSizeIterator<Item = KeyRef<'_>> {
    keys.iter().map(KeyRef::from)
}

fn chain_blocks(keys: &[BlockKey], tokens: &[u32]) -> Vec<ChainBlock> {
    keys.iter().zip(tokens).map(|(key, tokens)| ChainBlock { key: key.clone(), tokens: *tokens as i32 }).collect()
}

/// Runs a history over both.
fn run(history: &[Operation], defect: Defect) -> Result<(), String> {
    let mut oracle = HeldBlocks::default();
    let mut subject = Subject::new(defect);
    for (at, operation) in history.iter().enumerate() {
        step(operation, &mut oracle, &mut subject).map_err(|problem| format!("operation {at}: {problem}"))?;
    }
    Ok(())
}

fn step(operation: &Operation, oracle: &mut HeldBlocks, subject: &mut Subject) -> Result<(), String> {
    match operation {
        Operation::Store { replica, scope, tier, last_seen_ms, access_count, parent, chained, page, blocks } => {
            subject.introduce(*replica);
            let report = Report {
                scope: *scope,
                replica: *replica,
                tier: *tier,
                last_seen_ms: *last_seen_ms,
                access_count: *access_count,
                parent: parent.as_ref().map(KeyRef::from),
                chained: *chained || subject.is(Defect::ReportTakenForChained),
                page: *page,
                sequence: 1,
            };
            let stored = subject.runs.store(&report, blocks.iter().map(|(key, count)| (KeyRef::from(key), *count)));
            let mut new = 0;
            for (key, token_count) in blocks {
                let held =
                    Held { tier: *tier, token_count: *token_count, last_seen_ms: *last_seen_ms, access_count: 0 };
                new += u64::from(oracle.store(*scope, key, *replica, held, *access_count));
            }
            same("new pairs", stored.new_pairs, new)
        }
        Operation::Remove { replica, scope, keys } => {
            let expected = oracle.remove(*scope, keys, *replica);
            if subject.is(Defect::RemovedIgnored) {
                return Ok(());
            }
            same("removed", subject.runs.remove(1, *scope, *replica, references(keys)), expected)
        }
        Operation::Clear { replica } => {
            oracle.clear(*replica);
            if !subject.is(Defect::ClearedIgnored) {
                subject.runs.clear(*replica);
            }
            Ok(())
        }
        Operation::Reassert { replica } => {
            oracle.reassert(*replica, subject.now_ms);
            if !subject.is(Defect::ReassertionLost) {
                let standing = Standing { counts: *replica != ARRIVING, reasserted_ms: subject.now_ms };
                subject.runs.set_standing(*replica, standing);
            }
            Ok(())
        }
        Operation::Wait { ms } => {
            subject.now_ms += ms;
            Ok(())
        }
        Operation::Sweep { budget } => {
            let truly_oldest_ms = subject.now_ms - TTL_MS;
            let oldest_ms = truly_oldest_ms + u64::from(subject.is(Defect::SweptTooEarly)) * TTL_MS / 2;
            oracle.sweep(truly_oldest_ms);
            // The first pass may have begun earlier.
            for _ in 0..2 {
                while !subject.runs.sweep(*budget, |_, _, last_seen_ms| last_seen_ms > oldest_ms, |_| true).complete {}
            }
            let expected = (1..=2).map(|scope| oracle.keys(ScopeSlot(scope))).collect::<Vec<_>>();
            same("keys", (1..=2).map(|scope| subject.runs.keys_of(ScopeSlot(scope))).collect(), expected)?;
            Ok(())
        }
        Operation::SweepStep { budget } => {
            subject.runs.sweep(*budget, |_, _, _| true, |_| true);
            Ok(())
        }
        Operation::Rebuild => {
            subject.rebuild();
            Ok(())
        }
        Operation::Credit { replica, scope, keys, proven } => {
            // As after a lookup: what is credited is held.
            let tokens = vec![BLOCK; keys.len()];
            let blocks = chain_blocks(keys, &tokens);
            let held = keys.iter().take_while(|key| oracle.held(*scope, key, *replica).is_some()).count();
            let credited = Blocks { blocks: &blocks, proven: *proven };
            if !subject.is(Defect::CreditLost) {
                subject.runs.count(1, (*scope, &credited), (*replica, 0..held), |hits| hits + 1);
            }
            oracle.credit(*scope, &keys[..held], *replica);
            Ok(())
        }
        Operation::Look { scope, keys, tokens, proven } => look(oracle, subject, *scope, keys, tokens, *proven),
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, not {expected:?}")) }
}

fn look(
    oracle: &mut HeldBlocks,
    subject: &Subject,
    scope: ScopeSlot,
    keys: &[BlockKey],
    tokens: &[u32],
    proven: bool,
) -> Result<(), String> {
    let truly_oldest_ms = subject.now_ms - TTL_MS;
    let oldest_ms = if subject.is(Defect::ExpiryIgnored) { 0 } else { truly_oldest_ms };
    let proven = proven || subject.is(Defect::RequestTakenForProven);
    let runs = &subject.runs;
    let counting = |runs: Vec<LeadingRun>| runs.into_iter().filter(|run| run.replica != ARRIVING).collect::<Vec<_>>();
    let mut found = Vec::new();
    let blocks = chain_blocks(keys, tokens);
    runs.leading_runs(scope, &Blocks { blocks: &blocks, proven }, oldest_ms, &mut found);
    let expected = oracle.runs(scope, keys, tokens, truly_oldest_ms);
    agree(&found, counting(expected))?;
    let hashes: Option<Vec<u64>> =
        keys.iter().map(|key| if let BlockKey::Hash64(hash) = key { Some(*hash) } else { None }).collect();
    if let Some(hashes) = hashes.filter(|_| proven) {
        let same_tokens = vec![BLOCK; keys.len()];
        runs.leading_runs(scope, &PrefixHashes { hashes: &hashes, block_size: BLOCK }, oldest_ms, &mut found);
        agree(&found, counting(oracle.runs(scope, keys, &same_tokens, truly_oldest_ms)))?;
    }
    for key in keys {
        agree(&runs.exact_runs(scope, key.into(), oldest_ms), counting(oracle.exact(scope, key, truly_oldest_ms)))?;
        for replica in (1..=5).map(ReplicaSlot) {
            let Some(held) = oracle.held(scope, key, replica).filter(|held| held.last_seen_ms > oldest_ms) else {
                continue;
            };
            same("access count", runs.access_count(scope, key.into(), replica), Some(held.access_count))?;
        }
    }
    Ok(())
}

fn agree(found: &[LeadingRun], expected: Vec<LeadingRun>) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let too_much = found.iter().any(|run| {
        expected
            .iter()
            .find(|truth| truth.replica == run.replica)
            .is_none_or(|truth| run.matched_tokens > truth.matched_tokens)
    });
    let what = if too_much { "overcount" } else { "undercount or another age, tier or order" };
    Err(format!("{what}: {found:?}, not {expected:?}"))
}

// === Histories ===

/// Prompts that branch off each other, and what a generator must remember.
struct Storyteller {
    random: Random,
    now_ms: u64,
}

/// Families 0 to 3 are prefix hashes, each branching off the one before at a depth; 4 and 5 are explicit keys.
const PREFIX_FAMILIES: u64 = 4;
const BRANCHES_AT: [u64; 4] = [0, 5, 40, 9];

fn key(family: u64, depth: u64) -> BlockKey {
    let mut family = family;
    while (1..PREFIX_FAMILIES).contains(&family) && depth < BRANCHES_AT[family as usize] {
        family -= 1;
    }
    match family {
        5 => BlockKey::from_bytes(&[family.to_be_bytes(), depth.to_be_bytes(), [7; 8]].concat()).unwrap(),
        _ => BlockKey::Hash64(family << 32 | depth),
    }
}

fn history(seed: u64) -> Vec<Operation> {
    let mut teller = Storyteller { random: Random(seed), now_ms: START_MS };
    (0..OPERATIONS).map(|_| teller.operation()).collect()
}

// === impl Storyteller ===

impl Storyteller {
    fn operation(&mut self) -> Operation {
        match self.random.below(100) {
            0..40 => self.store(),
            40..58 => self.remove(),
            58..60 => Operation::Clear { replica: self.replica() },
            60..65 => {
                let ms = self.random.pick(&[1, 20, 100, 300, 700]);
                self.now_ms += ms;
                Operation::Wait { ms }
            }
            65..68 => Operation::Sweep { budget: self.random.pick(&[1, 10, 100_000]) },
            68..70 => Operation::SweepStep { budget: self.random.pick(&[1, 3, 10]) },
            70..72 => Operation::Rebuild,
            72..75 => Operation::Reassert { replica: self.replica() },
            75..81 => {
                let (keys, proven) = self.prompt();
                Operation::Credit { replica: self.replica(), scope: self.scope(), keys, proven }
            }
            _ => {
                let (keys, proven) = self.prompt();
                let tokens = keys.iter().map(|_| self.random.pick(&[BLOCK, BLOCK, BLOCK, 1, 0])).collect();
                Operation::Look { scope: self.scope(), keys, tokens, proven }
            }
        }
    }

    fn replica(&mut self) -> ReplicaSlot {
        ReplicaSlot(self.random.pick(&[1, 1, 2, 2, 3, 4, 5]))
    }

    fn scope(&mut self) -> ScopeSlot {
        ScopeSlot(self.random.pick(&[1, 1, 1, 1, 2]))
    }

    fn length(&mut self) -> u64 {
        let most = self.random.pick(&[1, 1, 4, 12, 12, 60, 120]);
        1 + self.random.below(most)
    }

    /// A request: a prompt's keys from its start, or explicit keys, some of them where they do not belong.
    fn prompt(&mut self) -> (Vec<BlockKey>, bool) {
        let (family, length) = (self.random.below(6), self.length());
        let mut keys: Vec<BlockKey> = (0..length).map(|depth| key(family, depth)).collect();
        let proven = family < PREFIX_FAMILIES && self.random.below(4) > 0;
        if !proven && self.random.below(2) == 0 {
            let at = self.random.below(length) as usize;
            keys[at] = key(self.random.below(6), self.random.below(length + 4));
        }
        (keys, proven)
    }

    fn store(&mut self) -> Operation {
        let (family, length) = (self.random.below(6), self.length());
        let from = self.random.pick(&[0, 0, 0, 1, 3, 5, 30]);
        let chained = family < PREFIX_FAMILIES && self.random.below(5) > 0;
        let mut depths: Vec<u64> = (from..from + length).collect();
        if !chained && self.random.below(3) == 0 {
            let by = self.random.below(length) as usize;
            depths.rotate_left(by);
        }
        let mut keys: Vec<BlockKey> = depths.iter().map(|depth| key(family, *depth)).collect();
        if !chained && self.random.below(3) == 0 {
            let at = self.random.below(length) as usize;
            keys[at] = key(self.random.below(6), self.random.below(length + 4));
        }
        // Token counts that do not follow from the depth, now and then.
        let (scale, jump) = (self.random.pick(&[16, 16, 16, 16, 20_000, 7]), self.random.pick(&[0, 0, 0, 0, 1_000]));
        let count = |depth: u64| (depth as u32 + 1) * scale + if depth % 3 == 1 { jump } else { 0 };
        let ago = self.random.pick(&[0, 0, 0, 10, 500, 999, 1_000, 1_500]);
        Operation::Store {
            replica: self.replica(),
            scope: self.scope(),
            tier: self.random.pick(&[Tier::T1, Tier::T1, Tier::T1, Tier::T2, Tier::T3, Tier::Unspecified]),
            last_seen_ms: if self.random.below(3) == 0 { START_MS } else { self.now_ms - ago },
            access_count: self.random.pick(&[None, None, None, Some(0), Some(7)]),
            parent: from.checked_sub(1).filter(|_| self.random.below(4) > 0).map(|before| key(family, before)),
            chained,
            page: self.random.below(PAGES.into()) as u16,
            blocks: keys.into_iter().zip(depths.into_iter().map(count)).collect(),
        }
    }

    fn remove(&mut self) -> Operation {
        let (family, length, from) = (self.random.below(6), self.length(), self.random.below(20));
        let mut keys: Vec<BlockKey> = (from..from + length).map(|depth| key(family, depth)).collect();
        match self.random.below(4) {
            0 => keys.reverse(),
            1 => keys = keys.into_iter().step_by(2).collect(),
            _ => {}
        }
        Operation::Remove { replica: self.replica(), scope: self.scope(), keys }
    }
}

/// Leaves operations out, in ever smaller pieces, while what is left still fails.
fn shrink(mut history: Vec<Operation>, fails: impl Fn(&[Operation]) -> bool) -> Vec<Operation> {
    let mut size = history.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < history.len() {
            let mut shorter = history.clone();
            shorter.drain(at..(at + size).min(history.len()));
            if fails(&shorter) {
                history = shorter;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    history
}

/// The first failing history among those of `seeds`, shrunk, and what is wrong.
fn first_failure(seeds: std::ops::Range<u64>, defect: Defect) -> Option<(u64, Vec<Operation>, String)> {
    let seed = seeds.into_iter().find(|seed| run(&history(*seed), defect).is_err())?;
    let shrunk = shrink(history(seed), |shorter| run(shorter, defect).is_err());
    let problem = run(&shrunk, defect).unwrap_err();
    Some((seed, shrunk, problem))
}

#[test]
fn the_runs_agree_with_the_oracle() {
    if let Some((seed, shrunk, problem)) = first_failure(0..HISTORIES, Defect::None) {
        let steps: Vec<String> = shrunk.iter().map(|operation| format!("{operation:?}")).collect();
        panic!("seed {seed}: {problem}\n{}", steps.join("\n"));
    }
}

#[test]
fn every_planted_defect_is_found_and_shrinks() {
    for (defect, problem) in [
        (Defect::RemovedIgnored, ""),
        (Defect::ClearedIgnored, ""),
        (Defect::ExpiryIgnored, "overcount"),
        (Defect::SweptTooEarly, ""),
        (Defect::RequestTakenForProven, "overcount"),
        (Defect::ReportTakenForChained, "overcount"),
        (Defect::PageLost, ""),
        (Defect::CreditLost, "access count"),
        (Defect::ReassertionLost, "undercount"),
    ] {
        let found = (0..HISTORIES).find_map(|seed| {
            let (_, shrunk, found) = first_failure(seed..seed + 1, defect)?;
            found.contains(problem).then_some((seed, shrunk, found))
        });
        let (seed, shrunk, _) = found.unwrap_or_else(|| panic!("{defect:?} passes"));
        assert!(shrunk.len() <= 6, "{defect:?}, seed {seed}, is still {} long: {shrunk:#?}", shrunk.len());
    }
}

#[test]
fn a_prompt_longer_than_a_run_is_found_whole_and_leaves_nothing_behind() {
    const LONG: usize = 5_000;
    let hashes: Vec<u64> = (0..LONG as u64).map(|depth| Random(depth).next()).collect();
    let mut runs = Runs::new(PAGES.into());
    let report = Report {
        scope: ScopeSlot(1),
        replica: ReplicaSlot(1),
        tier: Tier::T1,
        last_seen_ms: START_MS,
        access_count: None,
        parent: None,
        chained: true,
        page: 0,
        sequence: 1,
    };
    let empty = runs.size();
    let counted = |range: std::ops::Range<usize>| range.map(|at| (KeyRef::Hash(hashes[at]), BLOCK * (at as u32 + 1)));
    assert_eq!(runs.store(&report, counted(0..LONG)).new_pairs, LONG as u64);
    // Another replica, one block at a time, each with the one before it.
    for at in 0..LONG {
        let parent = at.checked_sub(1).map(|before| KeyRef::Hash(hashes[before]));
        let report = Report { replica: ReplicaSlot(2), last_seen_ms: START_MS + at as u64, parent, ..report };
        runs.store(&report, counted(at..at + 1));
    }
    let mut found = Vec::new();
    let look = |runs: &Runs, found: &mut Vec<LeadingRun>| {
        let chain = PrefixHashes { hashes: &hashes, block_size: BLOCK };
        runs.leading_runs(ScopeSlot(1), &chain, 0, found);
        found.iter().map(|run| (run.replica.0, run.matched_tokens, run.last_seen_ms)).collect::<Vec<_>>()
    };
    let all = LONG as i64 * i64::from(BLOCK);
    assert_eq!(look(&runs, &mut found), [(1, all, START_MS), (2, all, START_MS)]);
    runs.remove(1, ScopeSlot(1), ReplicaSlot(2), [KeyRef::Hash(hashes[4_000])]);
    assert_eq!(look(&runs, &mut found), [(1, all, START_MS), (2, 4_000 * i64::from(BLOCK), START_MS)]);
    assert_eq!(runs.clear(ReplicaSlot(2)), LONG as u64 - 1);
    assert_eq!(look(&runs, &mut found), [(1, all, START_MS)]);
    assert_eq!(
        runs.remove(1, ScopeSlot(1), ReplicaSlot(1), hashes.iter().rev().map(|hash| KeyRef::Hash(*hash))),
        LONG as u64
    );
    while !runs.sweep(10, |_, _, _| true, |_| true).complete {}
    assert_eq!((runs.size().pairs, runs.size().runs), (0, 0));
    assert!(runs.size().bytes < empty.bytes + 30_000, "{:?}", runs.size());
}
