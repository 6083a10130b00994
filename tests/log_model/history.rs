//! Random histories of a hub, and of the VMs that follow it.
//!
//! Numbers are concrete, so that any step can be left out. No two reports have the same time, and along a chain keys
//! get smaller: so what is equally old lies in one report, where both what comes later in the prompt and what has the
//! smaller key goes first. They must get smaller: a report need not be one run in every leader's index (one that loaded pages
//! may find a prompt's blocks in several, and single blocks are in no run), and between runs the smaller key goes first.

use warmroute::observation::{BlockKey, Member, Scope, Tier};
use warmroute::routing::policy::Eviction;

use crate::bounded::Bounds;
use crate::random::Random;

pub const STEPS: u64 = 90;
/// The longest chain.
pub const BLOCKS: u64 = 20;
/// Less than most reports are long.
const LEAST_CAP: usize = 4;
/// Tokens of a block.
pub const TOKENS: u32 = 16;
pub const VMS: usize = 4;
pub const REPLICAS: usize = 4;
/// Chains, each in a scope of its own, by the replicas that can hold them.
const CHAINS: [&[usize]; 5] = [&[0, 1, 3], &[0, 1, 3], &[0, 1, 3], &[2], &[2]];

/// A history.
#[derive(Clone, Debug)]
pub struct History {
    pub bounds: Bounds,
    /// The same under all policies: what a shorter one has ended in one VM, a longer one brings back in another.
    pub ttl_s: u64,
    /// Pages of blocks, and segments in the ring.
    pub pages: u64,
    pub segments: u64,
    pub steps: Vec<Step>,
}

/// One step.
#[derive(Clone, Debug)]
pub enum Step {
    /// The hub says something, and whoever leads meets this fate while it hears it.
    Say(Said, Fate),
    /// Time goes on, by seconds.
    Wait(u64),
    /// A request is answered by a VM from the first blocks of a chain.
    Hit {
        vm: usize,
        chain: usize,
        blocks: u64,
    },
    /// A VM stands still from now on; all go on.
    Stall(usize),
    Wake,
    /// A page of blocks is written over by somebody: the leader writes it anew, and it is younger than the others.
    Spoil(u64),
    /// A VM ends, and another begins in its place.
    Replace(usize),
    /// The hub begins anew: all that it knows is told again, under other numbers.
    RestartHub,
    /// A VM must know what the oracle knows.
    Check(usize),
}

/// What the hub says.
#[derive(Clone, Debug)]
pub enum Said {
    Stored(Report),
    Removed {
        replica: usize,
        chain: usize,
        blocks: (u64, u64),
    },
    Cleared {
        replica: usize,
    },
    /// A new generation.
    Up {
        replica: usize,
        complete: bool,
    },
    Complete {
        replica: usize,
    },
    Gone {
        replica: usize,
    },
    /// What is held in the chain's scope is removed, and the scope goes.
    ScopeGone {
        chain: usize,
    },
    Policy {
        tenant_id: Option<&'static str>,
        eviction: Eviction,
    },
    PolicyGone {
        tenant_id: Option<&'static str>,
    },
    /// At this many ms of the present second.
    Reasserted {
        replica: usize,
        mark_ms: u64,
    },
}

/// Blocks of a chain, from the first to the last of these.
#[derive(Clone, Debug)]
pub struct Report {
    pub replica: usize,
    pub chain: usize,
    pub blocks: (u64, u64),
    pub tier: Tier,
    /// So many seconds ago, at this many ms of that second.
    pub age_s: u64,
    pub mark_ms: u64,
    /// The block before the first is told.
    pub parent: bool,
}

/// What becomes of the leader.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    Leads,
    /// It ends, or stands still, after so many messages and ticks.
    Ends(u64),
    Stalls(u64),
}

/// The history with this seed.
pub fn history(seed: u64) -> History {
    let mut random = Random(seed);
    let quotas = random.below(2) == 0;
    let mut bounds = Bounds::default();
    if !quotas || random.below(2) == 0 {
        bounds.cap = Some(LEAST_CAP + random.below(62) as usize);
    }
    if quotas {
        bounds.quotas.extend([("t".to_owned(), 2 + random.below(14) as usize)]);
        bounds.quotas.extend((random.below(2) == 0).then(|| ("u".to_owned(), random.below(8) as usize)));
    }
    let ttl_s = random.pick(&[20, 60, 3_600]);
    let (pages, segments) = (3 + random.below(4), 4 + random.below(6));
    let up = (0..REPLICAS).map(|replica| Step::Say(Said::Up { replica, complete: true }, Fate::Leads));
    let told = (0..STEPS).map(|mark_ms| step(&mut random, mark_ms));
    let steps = up.chain(told).collect();
    History { bounds, ttl_s, pages, segments, steps }
}

fn step(random: &mut Random, mark_ms: u64) -> Step {
    let vm = random.below(VMS as u64) as usize;
    match random.below(100) {
        0..62 => Step::Say(said(random, mark_ms), fate(random)),
        62..68 => Step::Spoil(random.below(6)),
        68..72 => Step::Wait(1 + random.below(6)),
        72..84 => Step::Hit { vm, chain: random.below(CHAINS.len() as u64) as usize, blocks: 1 + random.below(BLOCKS) },
        84..89 => Step::Stall(vm),
        89..92 => Step::Wake,
        92..94 => Step::Replace(vm),
        94 => Step::RestartHub,
        _ => Step::Check(vm),
    }
}

fn fate(random: &mut Random) -> Fate {
    match random.below(24) {
        0 => Fate::Ends(random.below(4)),
        1 => Fate::Stalls(random.below(4)),
        _ => Fate::Leads,
    }
}

fn said(random: &mut Random, mark_ms: u64) -> Said {
    let chain = random.below(CHAINS.len() as u64) as usize;
    let replica = random.pick(CHAINS[chain]);
    let from = 1 + random.below(2) * random.below(BLOCKS);
    let blocks = (from, BLOCKS.min(from + random.below(8)));
    let tenant_id = random.pick(&[None, Some("t"), Some("t"), Some("u")]);
    match random.below(40) {
        0..24 => Said::Stored(Report {
            replica,
            chain,
            blocks,
            tier: random.pick(&[Tier::T1, Tier::T1, Tier::T2]),
            age_s: random.pick(&[0, 0, 0, 1, 3]),
            mark_ms,
            parent: random.below(2) == 0,
        }),
        24..28 => Said::Removed { replica, chain, blocks },
        28 => Said::Cleared { replica },
        29..31 => Said::Up { replica, complete: random.below(2) == 0 },
        31..33 => Said::Complete { replica },
        33 => Said::Gone { replica },
        34 => Said::ScopeGone { chain },
        35..38 => Said::Policy { tenant_id, eviction: random.pick(&[Eviction::Lru, Eviction::Lfu]) },
        38 => Said::PolicyGone { tenant_id },
        _ => Said::Reasserted { replica, mark_ms },
    }
}

/// Where a replica serves.
pub fn member(replica: usize) -> Member {
    match replica {
        2 => Member::new("u", "m", "a"),
        _ => Member::new("t", "m", ["a", "b", "", "c"][replica]),
    }
}

/// The scope of a chain. The first two of each tenant differ in their adapter only.
pub fn scope(chain: usize) -> Scope {
    let named = |tenant_id: &str, hash_scheme: &str, adapter_id: &str| Scope {
        tenant_id: tenant_id.into(),
        model_id: "m".into(),
        hash_scheme: hash_scheme.into(),
        adapter_id: adapter_id.into(),
    };
    match chain {
        0 => named("t", "vllm", ""),
        1 => named("t", "vllm", "lora"),
        2 => named("t", "sglang", ""),
        3 => named("u", "vllm", ""),
        _ => named("u", "vllm", "lora"),
    }
}

/// A block of a chain. One chain has wide keys.
pub fn key(chain: usize, block: u64) -> BlockKey {
    let rank = ((chain as u64) << 32) + 1_000 - block;
    match chain {
        2 => BlockKey::of_request(&[rank.to_be_bytes(), [7; 8]].concat()),
        _ => BlockKey::Hash64(rank),
    }
}
