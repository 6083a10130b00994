//! A report of blocks and load: `ReportCacheState`.
//!
//! In the contract's order: the entries one by one, then the statistics, then the tenant's quota, then the cap. A chain
//! is taken up to its first block that means nothing: no leading run can go past it, and the tokens up to a later block
//! are not known.

use std::sync::Arc;

use hashbrown::HashMap;

use super::dropped::{DropReason, Dropped};
use super::entries::{ReplicaName, ScopeName};
use super::message::{CacheStateUpdate, PrefixEntry, ReportedStats};
use super::{Publisher, Reported, StatsRecord};
use crate::observation::{
    BlockKey, MAX_KEY_BYTES, MAX_NAME_BYTES, Member, Observation, RESERVED_TENANT, ReplicaStats, Scope, ScopeSlot,
    Stored, StoredBlock, Tier,
};

/// The blocks of an entry.
#[derive(Debug, Default)]
struct EntryBlocks {
    /// Those of its chain, in order.
    chain: Vec<StoredBlock>,
    /// The one whose hash stands for the whole prefix. Nothing is known of its place in a chain.
    whole: Option<StoredBlock>,
}

// === impl Publisher ===

impl Publisher {
    /// Takes in what a producer reports. What was left out is returned, and counted.
    pub fn report(&mut self, update: &CacheStateUpdate, now_ms: u64) -> Dropped {
        if update.tenant_id == RESERVED_TENANT {
            return self.count_all_dropped(DropReason::ReservedTenant, update);
        }
        self.report_any_tenant(update, now_ms)
    }

    /// The same, for the reserved tenant as well: for probes from within.
    pub fn report_any_tenant(&mut self, update: &CacheStateUpdate, now_ms: u64) -> Dropped {
        let member = Member::new(&*update.tenant_id, &*update.model_id, &*update.replica_id);
        let reported_ms = time_ms(update.timestamp_us, now_ms);
        if let Err(reason) = self.check_member(&member, reported_ms, now_ms) {
            return self.count_all_dropped(reason, update);
        }
        let mut dropped = Dropped::default();
        for entry in &update.prefixes {
            if let Err((reason, count)) = self.store_entry(&member, update, entry, reported_ms, &mut dropped) {
                dropped.add(reason, count);
            }
        }
        if let Some(stats) = update.stats
            && let Err(reason) = self.store_stats(&member, stats, reported_ms)
        {
            dropped.add(reason, 1);
        }
        self.enforce_limits(&member, update, &mut dropped);
        self.dropped += dropped;
        dropped
    }

    /// Whether a member can be reported at all.
    pub(super) fn check_member(&self, member: &Member, reported_ms: u64, now_ms: u64) -> Result<(), DropReason> {
        if member.replica_id.is_empty() {
            return Err(DropReason::EmptyReplica);
        }
        if member.names().iter().any(|name| name.len() > MAX_NAME_BYTES) {
            return Err(DropReason::LongName);
        }
        if reported_ms > now_ms.saturating_add(self.limits.future_tolerance_ms) {
            return Err(DropReason::FutureTimestamp);
        }
        if self.is_followed(member) { Err(DropReason::FollowedReplica) } else { Ok(()) }
    }

    /// Stores an entry's blocks. Blocks that mean nothing are counted in `dropped`.
    fn store_entry(
        &mut self,
        member: &Member,
        update: &CacheStateUpdate,
        entry: &PrefixEntry,
        last_seen_ms: u64,
        dropped: &mut Dropped,
    ) -> Result<(), (DropReason, u64)> {
        let adapter_id = if entry.adapter_id.is_empty() { &update.adapter_id } else { &entry.adapter_id };
        if update.hash_scheme.is_empty() {
            return Err((DropReason::EmptyScheme, entry.count()));
        }
        if update.hash_scheme.len() > MAX_NAME_BYTES || adapter_id.len() > MAX_NAME_BYTES {
            return Err((DropReason::LongName, entry.count()));
        }
        let EntryBlocks { chain, whole } = entry.blocks(dropped);
        let count = (chain.len() + usize::from(whole.is_some())) as u64;
        if count == 0 {
            return Ok(());
        }
        let scope = scope_of(update, entry);
        let replica = self.reported_replica(member).ok_or((DropReason::TooManyMembers, count))?;
        let scope = self.reported_scope(&scope).and_then(|slot| self.scope_name(slot));
        let scope = scope.ok_or((DropReason::TooManyScopes, count))?;
        let tier = tier_of(entry.tier);
        let mut before = entry.before.as_ref().map(|before| before.key.clone());
        for block in chain {
            let parent = before.replace(block.key.clone());
            self.store(&replica, &scope, tier, last_seen_ms, parent, block);
        }
        if let Some(whole) = whole {
            self.store(&replica, &scope, tier, last_seen_ms, None, whole);
        }
        Ok(())
    }

    /// Records that `replica` has the block, which comes after `parent`; nothing changes if that is known, time included.
    /// Keys are as the producer makes them: that one follows another proves nothing of what is before it.
    fn store(
        &mut self,
        replica: &ReplicaName,
        scope: &ScopeName,
        tier: Tier,
        last_seen_ms: u64,
        parent: Option<BlockKey>,
        block: StoredBlock,
    ) {
        let held = self.index.holder(scope.slot, &block.key, replica.slot);
        let is_known = held.is_some_and(|held| {
            (held.tier, held.last_seen_ms, held.token_count) == (tier, last_seen_ms, block.token_count)
        });
        if is_known {
            return;
        }
        let key = block.key.clone();
        self.changing(replica, scope, &key, |publisher| {
            let (replica, scope) = (replica.slot, scope.slot);
            publisher.commit(Observation::Stored(Stored {
                replica,
                scope,
                tier,
                last_seen_ms,
                parent,
                blocks: vec![block],
                ..Stored::default()
            }));
        });
    }

    /// Takes away what is beyond the tenant's quota, then the cap. What this very update brought is counted in `dropped`;
    /// what an earlier one did is not, nor what other replicas hold.
    fn enforce_limits(&mut self, member: &Member, update: &CacheStateUpdate, dropped: &mut Dropped) {
        let replica = self.members.get(member).map(|reported| reported.replica.slot);
        let mut gone: HashMap<(ScopeSlot, BlockKey), DropReason> = HashMap::new();
        let mut note = |reason, scope, key: &BlockKey, holder| {
            if Some(holder) == replica {
                gone.insert((scope, key.clone()), reason);
            }
        };
        self.enforce_quota(&update.tenant_id, |scope, key, holder| note(DropReason::OverQuota, scope, key, holder));
        self.enforce_cap(|scope, key, holder| note(DropReason::OverCap, scope, key, holder));
        if gone.is_empty() {
            return;
        }
        for entry in &update.prefixes {
            let Some(scope) = self.index.dictionary().scope_slot(&scope_of(update, entry)) else { continue };
            let EntryBlocks { chain, whole } = entry.blocks(&mut Dropped::default());
            for block in chain.into_iter().chain(whole) {
                if let Some(reason) = gone.get(&(scope, block.key)) {
                    dropped.add(*reason, 1);
                }
            }
        }
    }

    /// Records a member's load.
    fn store_stats(&mut self, member: &Member, stats: ReportedStats, reported_ms: u64) -> Result<(), DropReason> {
        let replica = self.reported_replica(member).ok_or(DropReason::TooManyMembers)?.slot;
        let stats = ReportedStats { hit_rate: finite(stats.hit_rate), pressure: finite(stats.pressure), ..stats };
        if let Some(reported) = self.members.get_mut(member) {
            reported.stats = Some(StatsRecord { stats, last_seen_ms: reported_ms });
        }
        let stats = ReplicaStats { pressure: stats.pressure, hit_rate: stats.hit_rate, reported_ms };
        let known = self.index.dictionary().replica(replica).and_then(|replica| replica.stats);
        if known != Some(stats) {
            self.commit(Observation::Stats { replica, stats });
        }
        Ok(())
    }

    /// The number of a member that is reported, a new one if it was not so far.
    fn reported_replica(&mut self, member: &Member) -> Option<ReplicaName> {
        if let Some(reported) = self.members.get(member) {
            return Some(reported.replica.clone());
        }
        if self.members.len() >= self.limits.max_members && !self.make_room() {
            return None;
        }
        let address = self.addresses.get(member).cloned().unwrap_or_default();
        let slot = self.announce(member.clone(), &address, None)?;
        // A producer adds to what it said before; there is no point at which it has said all.
        self.commit(Observation::ReplicaComplete { replica: slot });
        self.entries.reported.insert(slot);
        let replica = ReplicaName { replica_id: Arc::from(&*member.replica_id), slot };
        self.members.insert(member.clone(), Reported { replica: replica.clone(), stats: None });
        Some(replica)
    }

    fn count_all_dropped(&mut self, reason: DropReason, update: &CacheStateUpdate) -> Dropped {
        let mut dropped = Dropped::default();
        dropped.add(reason, update.offered());
        self.dropped += dropped;
        dropped
    }
}

// === impl CacheStateUpdate ===

impl CacheStateUpdate {
    /// How much it says: as much as is left out of it at most.
    pub fn offered(&self) -> u64 {
        let blocks: u64 = self.prefixes.iter().map(PrefixEntry::count).sum();
        blocks.saturating_add(u64::from(self.stats.is_some()))
    }
}

// === impl PrefixEntry ===

impl PrefixEntry {
    /// The blocks it has a key for; those that mean nothing are counted in `dropped`.
    fn blocks(&self, dropped: &mut Dropped) -> EntryBlocks {
        let mut blocks = EntryBlocks::default();
        if self.has_chain() {
            if self.block_hashes.len() != self.block_token_counts.len() {
                dropped.add(DropReason::MismatchedChain, self.count());
                return blocks;
            }
            if let Err(reason) = self.chain(&mut blocks.chain) {
                dropped.add(reason, self.block_hashes.len().saturating_sub(blocks.chain.len()) as u64);
            }
            if self.prefix_hash.is_empty() {
                return blocks;
            }
        }
        match stored_block(&self.prefix_hash, self.token_count.into()) {
            Ok(block) => blocks.whole = Some(block),
            Err(reason) => dropped.add(reason, 1),
        }
        blocks
    }

    /// Appends the blocks of its chain, up to the first that means nothing.
    ///
    /// # Errors
    /// When there is one: why it means nothing.
    pub(super) fn chain(&self, blocks: &mut Vec<StoredBlock>) -> Result<(), DropReason> {
        let mut tokens = self.before.as_ref().map_or(0, |before| i64::from(before.token_count));
        for (hash, count) in self.block_hashes.iter().zip(&self.block_token_counts) {
            tokens = tokens_with(tokens, *count)?;
            blocks.push(stored_block(hash, tokens)?);
        }
        Ok(())
    }

    pub(super) fn has_chain(&self) -> bool {
        !self.block_hashes.is_empty() || !self.block_token_counts.is_empty()
    }

    /// How many blocks it says something of, at least 1.
    pub(super) fn count(&self) -> u64 {
        let chain = self.block_hashes.len().max(self.block_token_counts.len());
        let whole = usize::from(!self.prefix_hash.is_empty());
        (chain.saturating_add(whole)).max(1) as u64
    }
}

/// The scope that an entry is of.
fn scope_of(update: &CacheStateUpdate, entry: &PrefixEntry) -> Scope {
    let adapter_id = if entry.adapter_id.is_empty() { &update.adapter_id } else { &entry.adapter_id };
    Scope {
        tenant_id: update.tenant_id.clone(),
        model_id: update.model_id.clone(),
        hash_scheme: update.hash_scheme.clone(),
        adapter_id: adapter_id.clone(),
    }
}

/// The tokens up to the end of a block of `count` after `tokens`.
fn tokens_with(tokens: i64, count: i32) -> Result<i64, DropReason> {
    if count < 1 { Err(DropReason::TokenCount) } else { Ok(tokens.saturating_add(count.into())) }
}

/// A block with a key and a token count that mean something.
fn stored_block(hash: &[u8], tokens: i64) -> Result<StoredBlock, DropReason> {
    if hash.len() > MAX_KEY_BYTES {
        return Err(DropReason::LongHash);
    }
    let key = BlockKey::from_bytes(hash).map_err(|_| DropReason::EmptyHash)?;
    let in_range = u32::try_from(tokens).ok().filter(|tokens| (1..=i32::MAX as u32).contains(tokens));
    let token_count = in_range.ok_or(DropReason::TokenCount)?;
    Ok(StoredBlock { key, token_count })
}

/// The contract's tier; one that it does not name is the coldest, since nothing can be assumed.
fn tier_of(number: i32) -> Tier {
    match number {
        0 => Tier::T1,
        number => Tier::from_number(u32::try_from(number).unwrap_or(0)),
    }
}

/// A time of the contract in Unix ms.
pub(super) fn time_ms(timestamp_us: i64, now_ms: u64) -> u64 {
    match timestamp_us {
        0 => now_ms,
        timestamp_us => u64::try_from(timestamp_us / 1000).unwrap_or(0),
    }
}

fn finite(value: f32) -> f32 {
    if value.is_finite() { value } else { 0.0 }
}
