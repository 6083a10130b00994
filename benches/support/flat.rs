//! The baseline: one map from a block to its holders, probed block by block.

use hashbrown::HashMap;
use warmroute::observation::Tier;

/// Blocks by prefix hash. One holder is kept in place.
#[derive(Default)]
pub struct Flat {
    blocks: HashMap<u64, Holders>,
}

enum Holders {
    One(Held),
    Many(Vec<Held>),
}

#[derive(Clone, Copy)]
struct Held {
    last_seen: u32,
    replica: u16,
    tier: Tier,
}

/// A leading run in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlatRun {
    pub replica: u16,
    pub blocks: u32,
    pub last_seen: u32,
    pub tier: Tier,
}

impl Flat {
    pub fn store(&mut self, replica: u16, last_seen: u32, hashes: &[u64]) {
        let held = Held { last_seen, replica, tier: Tier::T1 };
        for hash in hashes {
            self.blocks.entry(*hash).and_modify(|holders| holders.put(held)).or_insert(Holders::One(held));
        }
    }

    pub fn remove(&mut self, replica: u16, hashes: &[u64]) {
        for hash in hashes {
            if self.blocks.get_mut(hash).is_some_and(|holders| holders.take(replica)) {
                self.blocks.remove(hash);
            }
        }
    }

    pub fn leading_runs(&self, hashes: &[u64]) -> Vec<FlatRun> {
        let mut runs: Vec<FlatRun> = Vec::new();
        for (done, hash) in hashes.iter().enumerate() {
            let Some(holders) = self.blocks.get(hash) else { break };
            if done == 0 {
                runs.extend(holders.as_slice().iter().map(|held| FlatRun {
                    replica: held.replica,
                    blocks: 1,
                    last_seen: held.last_seen,
                    tier: held.tier,
                }));
                continue;
            }
            let mut going = false;
            for held in holders.as_slice() {
                let run = runs.iter_mut().find(|run| run.replica == held.replica && run.blocks as usize == done);
                if let Some(run) = run {
                    run.blocks += 1;
                    run.last_seen = run.last_seen.min(held.last_seen);
                    run.tier = run.tier.max(held.tier);
                    going = true;
                }
            }
            if !going {
                break;
            }
        }
        runs.sort_unstable_by_key(|run| run.replica);
        runs
    }
}

impl Holders {
    fn as_slice(&self) -> &[Held] {
        match self {
            Holders::One(held) => std::slice::from_ref(held),
            Holders::Many(many) => many,
        }
    }

    fn put(&mut self, new: Held) {
        match self {
            Holders::One(held) if held.replica == new.replica => *held = new,
            Holders::One(held) => *self = Holders::Many(vec![*held, new]),
            Holders::Many(many) => match many.iter_mut().find(|held| held.replica == new.replica) {
                Some(held) => *held = new,
                None => many.push(new),
            },
        }
    }

    /// True if nobody is left.
    fn take(&mut self, replica: u16) -> bool {
        match self {
            Holders::One(held) => held.replica == replica,
            Holders::Many(many) => {
                many.retain(|held| held.replica != replica);
                many.is_empty()
            }
        }
    }
}
