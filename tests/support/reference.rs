//! Who holds what, the slow and obvious way: the oracle that the index is tested against.
//!
//! Nothing is shared with the index but the types of its inputs. Everything is one flat map, every question walks all of
//! it, and the score is computed in f64.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use warmroute::observation::{
    BlockKey, Counted, Member, Observation, ReplicaCounts, ReplicaSlot, ReplicaStats, Scope, ScopeSlot, Stored,
    StoredBlock, Tier,
};
use warmroute::request::RequestChain;
use warmroute::routing::policy::{Policy, Ranking};

/// Every observation so far, folded.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    scopes: BTreeMap<ScopeSlot, Scope>,
    generations: BTreeMap<ReplicaSlot, Generation>,
    held: BTreeMap<(ScopeSlot, BlockKey, ReplicaSlot), Held>,
    /// Blocks of ended generations that were taken back since the last sweep: an index need not look.
    taken_back: BTreeSet<(ScopeSlot, BlockKey)>,
}

/// A generation of a replica that has not ended.
#[derive(Clone, Debug)]
struct Generation {
    member: Member,
    address: String,
    complete: bool,
    stats: Option<ReplicaStats>,
}

/// What is known of one block at one generation.
#[derive(Clone, Copy, Debug)]
struct Held {
    tier: Tier,
    token_count: u32,
    last_seen_ms: u64,
    /// Delivered hits.
    hits: u32,
}

/// A block at a generation that has not ended.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "not every test that includes this compares whole states")]
pub struct Block {
    pub scope: ScopeSlot,
    pub key: BlockKey,
    pub replica: ReplicaSlot,
    pub tier: Tier,
    pub token_count: u32,
    pub last_seen_ms: u64,
}

/// A leading run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub tokens: i64,
    pub last_seen_ms: u64,
    pub tier: Tier,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    pub scope: Scope,
    pub chain: RequestChain,
    pub effective_tokens: i64,
    pub slo_ttft_ms: Option<u32>,
}

/// What the contract's steps come to.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    BelowMinimumPrefix,
    /// Nothing matched, whether or not anything is known.
    NoRun,
    BelowMatchedTokens,
    BelowRoutingFloor {
        best: f64,
    },
    /// By replica id: address, score and matched tokens.
    Match(BTreeMap<String, (String, f64, u32)>),
}

// === impl Reference ===

impl Reference {
    pub fn apply(&mut self, observation: &Observation) {
        match observation {
            Observation::Scope { slot, scope } => {
                self.scopes.insert(*slot, scope.clone());
            }
            Observation::ScopeGone { slot } => {
                self.scopes.remove(slot);
            }
            Observation::ReplicaUp { replica, member, address, .. } => {
                let generation =
                    Generation { member: member.clone(), address: address.clone(), complete: false, stats: None };
                self.generations.insert(*replica, generation);
            }
            Observation::ReplicaComplete { replica } => self.complete(*replica),
            Observation::ReplicaGone { replica } => self.gone(*replica),
            Observation::Stored(Stored { replica, scope, tier, last_seen_ms, access_count, blocks, .. }) => {
                let (tier, last_seen_ms) = (*tier, *last_seen_ms);
                for StoredBlock { key, token_count } in blocks {
                    let hits = access_count.or(self.hits(*scope, key, *replica)).unwrap_or(0);
                    let held = Held { tier, token_count: *token_count, last_seen_ms, hits };
                    self.held.insert((*scope, key.clone(), *replica), held);
                }
            }
            Observation::Counted(Counted { scope, keys, replicas }) => {
                for ReplicaCounts { replica, counts } in replicas {
                    for (key, count) in keys.iter().zip(counts) {
                        let held = self.held.get_mut(&(*scope, key.clone(), *replica));
                        held.into_iter().for_each(|held| held.hits = *count);
                    }
                }
            }
            Observation::Removed { replica, scope, keys } => {
                for key in keys {
                    let had = self.held.remove(&(*scope, key.clone(), *replica)).is_some();
                    if had && !self.generations.contains_key(replica) {
                        self.taken_back.insert((*scope, key.clone()));
                    }
                }
            }
            Observation::Cleared { replica } => {
                let ended = !self.generations.contains_key(replica);
                let taken = self.held.keys().filter(|(.., holder)| ended && holder == replica);
                self.taken_back.extend(taken.map(|(scope, key, _)| (*scope, key.clone())));
                self.held.retain(|(.., holder), _| holder != replica);
            }
            Observation::Stats { replica, stats } => {
                if let Some(generation) = self.generations.get_mut(replica) {
                    generation.stats = Some(*stats);
                }
            }
            Observation::Reasserted { .. }
            | Observation::Policy { .. }
            | Observation::PolicyGone { .. }
            | Observation::Model { .. }
            | Observation::ModelGone { .. }
            | Observation::PublishedScope { .. }
            | Observation::PublishedReplica { .. } => {}
        }
    }

    /// Forgets what was last seen at `oldest_ms` or before, what ended generations held, and what is in no known scope.
    pub fn sweep(&mut self, oldest_ms: u64) {
        let Reference { scopes, generations, held, taken_back } = self;
        taken_back.clear();
        held.retain(|(scope, _, replica), held| {
            held.last_seen_ms > oldest_ms && generations.contains_key(replica) && scopes.contains_key(scope)
        });
    }

    /// The leading run of every generation that counts and has one.
    pub fn runs(&self, scope: ScopeSlot, chain: &RequestChain, oldest_ms: u64) -> BTreeMap<ReplicaSlot, Run> {
        let complete = self.generations.iter().filter(|(_, generation)| generation.complete);
        complete.filter_map(|(replica, _)| Some((*replica, self.run(*replica, scope, chain, oldest_ms)?))).collect()
    }

    pub fn decide(&self, request: &Request, policy: &Policy, ranking: &Ranking, now_ms: u64) -> Outcome {
        if request.effective_tokens < i64::from(policy.minimum_prefix_tokens) {
            return Outcome::BelowMinimumPrefix;
        }
        let oldest_ms = now_ms.saturating_sub(policy.eviction_ttl_ms);
        let slot = self.scopes.iter().find(|(_, scope)| **scope == request.scope).map(|(slot, _)| *slot);
        let runs = slot.map(|slot| self.runs(slot, &request.chain, oldest_ms)).unwrap_or_default();
        if runs.is_empty() {
            return Outcome::NoRun;
        }
        let total = self.serving(&request.scope);
        let scored = runs.iter().filter(|(_, run)| run.tokens >= i64::from(policy.minimum_matched_tokens.max(1))).map(
            |(slot, run)| {
                let generation = &self.generations[slot];
                let sharing = match request.chain {
                    RequestChain::Exact { .. } => runs.len(),
                    RequestChain::Chain(_) | RequestChain::Prefixes { .. } => {
                        runs.values().filter(|other| other.tokens >= run.tokens).count()
                    }
                };
                let score = score(run, generation.stats.as_ref(), sharing, total, request, policy, ranking, now_ms);
                (generation.member.replica_id.clone(), (generation.address.clone(), score, run.tokens as u32))
            },
        );
        let scored: BTreeMap<_, _> = scored.collect();
        let Some(best) = scored.values().map(|(_, score, _)| *score).reduce(f64::max) else {
            return Outcome::BelowMatchedTokens;
        };
        if best < f64::from(policy.routing_floor_score) {
            return Outcome::BelowRoutingFloor { best };
        }
        Outcome::Match(scored)
    }

    fn run(&self, replica: ReplicaSlot, scope: ScopeSlot, chain: &RequestChain, oldest_ms: u64) -> Option<Run> {
        let held =
            |key: &BlockKey| self.held.get(&(scope, key.clone(), replica)).filter(|held| held.last_seen_ms > oldest_ms);
        match chain {
            RequestChain::Exact { key } => held(key).map(|held| Run {
                tokens: held.token_count.into(),
                last_seen_ms: held.last_seen_ms,
                tier: held.tier,
            }),
            RequestChain::Chain(blocks) => {
                let leading: Vec<_> =
                    blocks.iter().map_while(|block| Some((held(&block.key)?, i64::from(block.tokens)))).collect();
                Some(Run {
                    tokens: leading.iter().map(|(_, tokens)| tokens).sum(),
                    last_seen_ms: leading.iter().map(|(held, _)| held.last_seen_ms).min()?,
                    tier: leading.iter().map(|(held, _)| held.tier).max()?,
                })
            }
            RequestChain::Prefixes { .. } => panic!("requests bring their keys"),
        }
    }

    /// All that generations hold that have not ended, in scopes that have a name.
    #[allow(dead_code, reason = "not every test that includes this compares whole states")]
    pub fn blocks(&self) -> Vec<Block> {
        let known = self.held.iter().filter(|((scope, _, replica), _)| {
            self.scopes.contains_key(scope) && self.generations.contains_key(replica)
        });
        let block = |((scope, key, replica), held): (&(ScopeSlot, BlockKey, ReplicaSlot), &Held)| Block {
            scope: *scope,
            key: key.clone(),
            replica: *replica,
            tier: held.tier,
            token_count: held.token_count,
            last_seen_ms: held.last_seen_ms,
        };
        known.map(block).collect()
    }

    /// Delivered hits of a block, if the replica holds it.
    pub fn hits(&self, scope: ScopeSlot, key: &BlockKey, replica: ReplicaSlot) -> Option<u32> {
        self.held.get(&(scope, key.clone(), replica)).map(|held| held.hits)
    }

    /// Delivered hits of every block that a generation holds that has not ended.
    #[allow(dead_code, reason = "as blocks")]
    pub fn all_hits(&self) -> impl Iterator<Item = ((ScopeSlot, BlockKey, ReplicaSlot), u32)> {
        let known = self.held.iter().filter(|((.., replica), _)| self.generations.contains_key(replica));
        known.map(|(at, held)| (at.clone(), held.hits))
    }

    /// What a scope's number stands for.
    #[allow(dead_code, reason = "as blocks")]
    pub fn scope(&self, slot: ScopeSlot) -> Option<&Scope> {
        self.scopes.get(&slot)
    }

    /// The replica of a generation that has not ended, and whether the generation counts.
    #[allow(dead_code, reason = "as blocks")]
    pub fn generation(&self, slot: ReplicaSlot) -> Option<(&Member, bool)> {
        self.generations.get(&slot).map(|generation| (&generation.member, generation.complete))
    }

    /// The generations of a replica that have not ended, oldest first.
    #[allow(dead_code, reason = "as blocks")]
    pub fn generations(&self, member: &Member) -> Vec<ReplicaSlot> {
        self.generations.iter().filter(|(_, known)| known.member == *member).map(|(slot, _)| *slot).collect()
    }

    /// Replicas that count and hold anything under this tenant; this model of it; this hash scheme of that.
    pub fn holding(&self, tenant_id: &str, model_id: Option<&str>, hash_scheme: Option<&str>) -> BTreeSet<ReplicaSlot> {
        let alike = |scope: &Scope| {
            scope.tenant_id == tenant_id
                && model_id.is_none_or(|model_id| scope.model_id == model_id)
                && hash_scheme.is_none_or(|hash_scheme| scope.hash_scheme == hash_scheme)
        };
        self.held
            .keys()
            .filter(|(slot, ..)| self.scopes.get(slot).is_some_and(alike))
            .map(|(.., replica)| *replica)
            .filter(|replica| self.generations.get(replica).is_some_and(|generation| generation.complete))
            .collect()
    }

    /// Replicas that count for this tenant and model, whatever they hold.
    pub fn members(&self, tenant_id: &str, model_id: &str) -> BTreeSet<ReplicaSlot> {
        let of = |generation: &Generation| {
            generation.complete && generation.member.tenant_id == tenant_id && generation.member.model_id == model_id
        };
        self.generations.iter().filter(|(_, generation)| of(generation)).map(|(slot, _)| *slot).collect()
    }

    /// How many distinct blocks an index may count in a scope: those of ended generations as long as they may stay.
    pub fn keys(&self, scope: ScopeSlot) -> RangeInclusive<u64> {
        let held = self.held.keys().filter(|(slot, ..)| *slot == scope);
        let fewest: BTreeSet<&BlockKey> = held.clone().map(|(_, key, _)| key).collect();
        let mut most = fewest.clone();
        most.extend(self.taken_back.iter().filter(|(slot, _)| *slot == scope).map(|(_, key)| key));
        fewest.len() as u64..=most.len() as u64
    }

    fn serving(&self, scope: &Scope) -> usize {
        self.holding(&scope.tenant_id, Some(&scope.model_id), Some(&scope.hash_scheme)).len()
    }

    /// A complete generation ends the others of its replica, but for newer ones that are still arriving.
    fn complete(&mut self, slot: ReplicaSlot) {
        let Some(generation) = self.generations.get_mut(&slot) else { return };
        generation.complete = true;
        let member = generation.member.clone();
        self.generations.retain(|other, generation| {
            *other == slot || generation.member != member || (*other > slot && !generation.complete)
        });
    }

    /// A replica that is gone takes its older generations along.
    fn gone(&mut self, slot: ReplicaSlot) {
        let Some(generation) = self.generations.get(&slot) else { return };
        let member = generation.member.clone();
        self.generations.retain(|other, generation| generation.member != member || *other > slot);
    }
}

/// Matched tokens x freshness x pressure x SLO bias x distinguishing power.
#[allow(clippy::too_many_arguments, reason = "the formula has that many inputs")]
fn score(
    run: &Run,
    stats: Option<&ReplicaStats>,
    sharing: usize,
    total: usize,
    request: &Request,
    policy: &Policy,
    ranking: &Ranking,
    now_ms: u64,
) -> f64 {
    let ttl_ms = policy.eviction_ttl_ms;
    let age_ms = now_ms.saturating_sub(run.last_seen_ms);
    let freshness = if age_ms >= ttl_ms { 0.0 } else { 1.0 - age_ms as f64 / ttl_ms as f64 };
    let pressure = match stats {
        Some(stats) if now_ms.saturating_sub(stats.reported_ms) < ttl_ms => f64::from(stats.pressure),
        _ => 0.0,
    };
    let unloaded = (1.0 - f64::from(ranking.pressure_weight) * pressure).clamp(0.0, 1.0);
    let tight = request.slo_ttft_ms.is_some_and(|ttft_ms| ttft_ms > 0 && ttft_ms < ranking.slo_tight_ttft_ms);
    let bias = if tight { 1.0 + freshness * f64::from(ranking.slo_tight_bias) } else { 1.0 };
    let power = match total {
        0 | 1 => 1.0,
        _ if sharing >= total => 0.0,
        _ => 1.0 - sharing as f64 / total as f64,
    };
    run.tokens as f64 * freshness * unloaded * bias * power
}
