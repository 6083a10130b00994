//! The hub's changes as the contract's events.
//!
//! In: [`Observation`]s in the order of the hub's history, and which of them a client asked for. Out: [`CacheEvent`]s. A new
//! generation of a replica holds nothing yet, and a replica that is gone nothing any more: both are `ALL_CLEARED`. Pure.

use std::collections::{HashMap, VecDeque};

use super::messages::v1alpha1::{CacheEvent, StreamEventsRequest, cache_event::Type};
use crate::native::hub::clock::Wall;
use crate::native::hub::state::Names;
use crate::observation::{BlockKey, Member, Observation, ReplicaSlot, Scope, ScopeSlot, Stored};

/// Turns changes into the events that a client asked for.
#[derive(Debug)]
pub struct EventFilter {
    wanted: StreamEventsRequest,
    scopes: HashMap<ScopeSlot, Scope>,
    members: HashMap<ReplicaSlot, Member>,
}

// === impl EventFilter ===

impl EventFilter {
    /// What `wanted` asks for. Later changes can use these `names`.
    pub fn new(wanted: StreamEventsRequest, names: Names) -> EventFilter {
        EventFilter { wanted, scopes: names.scopes.into_iter().collect(), members: names.members.into_iter().collect() }
    }

    /// Appends the events that `observation` is, their times by `wall`; those that have none happened now.
    pub fn take(&mut self, observation: &Observation, wall: &Wall, events: &mut VecDeque<CacheEvent>) {
        let now_ms = wall.now_ms();
        match observation {
            Observation::Scope { slot, scope } => {
                self.scopes.insert(*slot, scope.clone());
            }
            Observation::ScopeGone { slot } => {
                self.scopes.remove(slot);
            }
            Observation::ReplicaUp { replica, member, .. } => self.up(*replica, member, now_ms, events),
            Observation::ReplicaComplete { replica } => self.replica(Type::ReplicaUpdated, *replica, now_ms, events),
            Observation::ReplicaGone { replica } => {
                self.replica(Type::AllCleared, *replica, now_ms, events);
                self.members.remove(replica);
            }
            Observation::Cleared { replica } => self.replica(Type::AllCleared, *replica, now_ms, events),
            // A load that was forgotten is no news of the replica: `ALL_CLEARED` is.
            Observation::Stats { stats, .. } if stats.reported_ms == 0 => {}
            Observation::Stats { replica, stats } => {
                self.replica(Type::ReplicaUpdated, *replica, wall.of_hub_ms(stats.reported_ms), events);
            }
            Observation::Stored(Stored { replica, scope, last_seen_ms, blocks, .. }) => {
                let keys = blocks.iter().map(|block| &block.key);
                self.blocks(Type::PrefixAdded, (*replica, *scope), keys, wall.of_hub_ms(*last_seen_ms), events);
            }
            Observation::Removed { replica, scope, keys } => {
                self.blocks(Type::PrefixEvicted, (*replica, *scope), keys.iter(), now_ms, events);
            }
            // That it is still held is no news of a block.
            Observation::Reasserted { .. }
            | Observation::Counted(_)
            | Observation::Policy { .. }
            | Observation::PolicyGone { .. }
            | Observation::Model { .. }
            | Observation::ModelGone { .. }
            | Observation::PublishedScope { .. }
            | Observation::PublishedReplica { .. } => {}
        }
    }

    fn up(&mut self, replica: ReplicaSlot, member: &Member, now_ms: u64, events: &mut VecDeque<CacheEvent>) {
        let before = self.members.iter().find(|(_, known)| *known == member).map(|(slot, _)| *slot);
        if let Some(before) = before {
            self.replica(Type::AllCleared, before, now_ms, events);
            self.members.remove(&before);
        }
        self.members.insert(replica, member.clone());
    }

    /// Appends an event that is not about a block.
    fn replica(&self, kind: Type, replica: ReplicaSlot, at_ms: u64, events: &mut VecDeque<CacheEvent>) {
        if let Some(member) = self.members.get(&replica)
            && self.wants(kind, member)
        {
            events.push_back(event(kind, member, at_ms));
        }
    }

    /// Appends an event for each block.
    fn blocks<'a>(
        &self,
        kind: Type,
        (replica, scope): (ReplicaSlot, ScopeSlot),
        keys: impl Iterator<Item = &'a BlockKey>,
        at_ms: u64,
        events: &mut VecDeque<CacheEvent>,
    ) {
        let (Some(member), Some(scope)) = (self.members.get(&replica), self.scopes.get(&scope)) else { return };
        if !self.wants(kind, member) {
            return;
        }
        events.extend(keys.map(|key| {
            let mut hash = Vec::with_capacity(key.width());
            key.write_to(&mut hash);
            CacheEvent { prefix_hash: hash.into(), adapter_id: scope.adapter_id.clone(), ..event(kind, member, at_ms) }
        }));
    }

    fn wants(&self, kind: Type, member: &Member) -> bool {
        let is = |wanted: &str, value: &str| wanted.is_empty() || wanted == value;
        let StreamEventsRequest { model_id, tenant_id, types } = &self.wanted;
        is(model_id, &member.model_id)
            && is(tenant_id, &member.tenant_id)
            && (types.is_empty() || types.contains(&kind.into()))
    }
}

fn event(kind: Type, member: &Member, at_ms: u64) -> CacheEvent {
    CacheEvent {
        r#type: kind.into(),
        replica_id: member.replica_id.clone(),
        model_id: member.model_id.clone(),
        tenant_id: member.tenant_id.clone(),
        timestamp_us: i64::try_from(at_ms.saturating_mul(1_000)).unwrap_or(i64::MAX),
        ..CacheEvent::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::hub::clock::tests::Hands;
    use crate::observation::{ReplicaStats, StoredBlock, Tier};

    const A: ReplicaSlot = ReplicaSlot(1);
    const SCOPE: ScopeSlot = ScopeSlot(1);

    fn changes() -> Vec<Observation> {
        let scope =
            Scope { tenant_id: "t".into(), model_id: "m".into(), hash_scheme: "s".into(), adapter_id: "lora".into() };
        let block = |hash| StoredBlock { key: BlockKey::Hash64(hash), token_count: 16 };
        let up = |replica| Observation::ReplicaUp {
            replica,
            member: Member::new("t", "m", "a"),
            address: String::new(),
            data_parallel_rank: None,
        };
        vec![
            Observation::Scope { slot: SCOPE, scope },
            up(A),
            Observation::Stored(Stored {
                replica: A,
                scope: SCOPE,
                tier: Tier::T1,
                last_seen_ms: 7,
                blocks: vec![block(1), block(2)],
                ..Stored::default()
            }),
            Observation::ReplicaComplete { replica: A },
            Observation::Stats { replica: A, stats: ReplicaStats { reported_ms: 8, ..ReplicaStats::default() } },
            Observation::Stats { replica: A, stats: ReplicaStats::default() },
            Observation::Removed { replica: A, scope: SCOPE, keys: vec![BlockKey::Hash64(1)] },
            up(ReplicaSlot(2)),
            Observation::Cleared { replica: ReplicaSlot(2) },
            Observation::ReplicaGone { replica: ReplicaSlot(2) },
            Observation::Cleared { replica: ReplicaSlot(2) },
        ]
    }

    fn events(wanted: StreamEventsRequest) -> Vec<CacheEvent> {
        let wall = Hands::at(9).wall();
        let mut filter = EventFilter::new(wanted, Names { sequence: 0, scopes: Vec::new(), members: Vec::new() });
        let mut events = VecDeque::new();
        changes().iter().for_each(|change| filter.take(change, &wall, &mut events));
        events.into()
    }

    #[test]
    fn every_change_is_told_block_by_block() {
        let events = events(StreamEventsRequest::default());
        let told: Vec<(Type, i64)> = events.iter().map(|event| (event.r#type(), event.timestamp_us)).collect();
        let expected = [
            (Type::PrefixAdded, 7_000),
            (Type::PrefixAdded, 7_000),
            (Type::ReplicaUpdated, 9_000),
            (Type::ReplicaUpdated, 8_000),
            (Type::PrefixEvicted, 9_000),
            (Type::AllCleared, 9_000),
            (Type::AllCleared, 9_000),
            (Type::AllCleared, 9_000),
        ];
        assert_eq!(told, expected);
        assert_eq!(events[1].prefix_hash.as_ref(), 2_u64.to_be_bytes());
        assert_eq!((events[1].adapter_id.as_str(), events[1].replica_id.as_str()), ("lora", "a"));
    }

    #[test]
    fn only_what_was_asked_for_is_told() {
        let wanted = |model_id: &str, tenant_id: &str, types: &[Type]| StreamEventsRequest {
            model_id: model_id.into(),
            tenant_id: tenant_id.into(),
            types: types.iter().map(|kind| (*kind).into()).collect(),
        };
        assert_eq!(events(wanted("m", "t", &[])).len(), 8);
        assert_eq!(events(wanted("n", "", &[])).len(), 0);
        assert_eq!(events(wanted("", "u", &[])).len(), 0);
        assert_eq!(events(wanted("", "t", &[Type::PrefixEvicted])).len(), 1);
    }
}
