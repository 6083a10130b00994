use super::*;
use crate::index::log::Incarnation;
use crate::observation::{
    BlockKey, MAX_NAME_BYTES, Member, ModelDigest, ModelPart, ModelVersion, Stored, StoredBlock, Tier,
};
use crate::routing::policy::Policy;

const HEARD: Heard = Heard { stream: StreamToken(1), at_ms: 1_000 };

/// An ingest with the index of its leader, to which every batch is committed at once.
struct Leader {
    ingest: Ingest,
    index: Index,
    committed: u64,
    number: u64,
}

// === impl Leader ===

impl Leader {
    fn new(max_pairs: u64) -> Leader {
        let index = Index::new(2);
        let ingest = Ingest::new(&Head::new(Incarnation(1), 1, 3, 8), &index, max_pairs, 500);
        Leader { ingest, index, committed: 0, number: 0 }
    }

    fn hear(&mut self, sequence: u64, body: StreamBody) -> Result<(), Violation> {
        self.number += 1;
        let message = StreamMessage { number: self.number, epoch: 7, sequence, body };
        self.ingest.accept(message, &self.index, HEARD)
    }

    fn commit(&mut self) {
        while let Some(batch) = self.ingest.take_batch(usize::MAX) {
            self.committed += 1;
            batch.records.into_iter().for_each(|record| self.index.apply(self.committed, record));
        }
    }

    fn reset(&mut self, observations: Vec<Observation>) {
        self.hear(0, StreamBody::Reset).unwrap();
        self.hear(0, StreamBody::Chunk(observations)).unwrap();
        self.commit();
        self.hear(0, StreamBody::ResetComplete).unwrap();
        self.commit();
    }

    fn delta(&mut self, sequence: u64, observations: Vec<Observation>) -> Result<(), Violation> {
        self.hear(sequence, StreamBody::Delta { first_sequence: sequence, observations })
    }

    fn pairs(&self) -> u64 {
        self.index.dictionary().replicas().map(|(slot, _)| self.index.pairs_of(slot)).sum()
    }
}

fn scope(published: u32, adapter_id: &str) -> Observation {
    Observation::Scope { slot: ScopeSlot(published), scope: scope_of(adapter_id) }
}

fn scope_of(adapter_id: &str) -> Scope {
    Scope { tenant_id: "t".into(), model_id: "m".into(), hash_scheme: "vllm".into(), adapter_id: adapter_id.into() }
}

fn up(published: u32) -> Observation {
    up_as(published, "a")
}

fn up_as(published: u32, replica_id: &str) -> Observation {
    Observation::ReplicaUp {
        replica: ReplicaSlot(published),
        member: Member::new("t", "m", replica_id),
        address: "10.0.0.1:80".into(),
        data_parallel_rank: None,
    }
}

fn complete(published: u32) -> Observation {
    Observation::ReplicaComplete { replica: ReplicaSlot(published) }
}

fn stored(published: u32, keys: std::ops::Range<u64>) -> Observation {
    Observation::Stored(Stored {
        replica: ReplicaSlot(published),
        scope: ScopeSlot(1),
        tier: Tier::T1,
        last_seen_ms: 900,
        blocks: keys.map(|key| StoredBlock { key: BlockKey::Hash64(key), token_count: 16 }).collect(),
        ..Stored::default()
    })
}

#[test]
fn the_index_takes_as_many_pairs_as_it_may_and_counts_the_rest() {
    let mut leader = Leader::new(10);
    leader.reset(vec![scope(1, ""), up(1), stored(1, 0..8), complete(1)]);
    leader.delta(1, vec![stored(1, 20..25)]).unwrap();
    leader.commit();
    assert_eq!(leader.pairs(), 10);
    assert_eq!(leader.ingest.take_refused(), Refused { full: 3, ..Refused::default() });
    assert_eq!(leader.ingest.take_refused(), Refused::default());
}

#[test]
fn what_a_newer_generation_replaces_takes_no_room_from_it() {
    let mut leader = Leader::new(10);
    leader.reset(vec![scope(1, ""), up(1), stored(1, 0..8), complete(1)]);
    leader.delta(1, vec![up(2), stored(2, 0..4)]).unwrap();
    leader.commit();
    leader.delta(2, vec![stored(2, 4..8), complete(2)]).unwrap();
    leader.commit();
    assert_eq!((leader.ingest.take_refused(), leader.pairs()), (Refused::default(), 8));
    leader.reset(vec![scope(1, ""), up(3), stored(3, 0..10), complete(3)]);
    assert_eq!((leader.ingest.take_refused(), leader.pairs()), (Refused::default(), 10));
}

#[test]
fn a_time_ahead_of_the_clock_is_taken_as_now() {
    let mut leader = Leader::new(10);
    let mut ahead = stored(1, 0..1);
    if let Observation::Stored(Stored { last_seen_ms, .. }) = &mut ahead {
        *last_seen_ms = 5_000;
    }
    leader.reset(vec![scope(1, ""), up(1)]);
    leader.delta(1, vec![ahead]).unwrap();
    let batch = leader.ingest.take_batch(usize::MAX).unwrap();
    assert!(matches!(batch.records[..], [Observation::Stored(Stored { last_seen_ms: 1_000, .. })]), "{batch:?}");
    assert_eq!(leader.ingest.take_refused(), Refused { future: 1, ..Refused::default() });
}

#[test]
fn a_replica_whose_number_the_hub_gives_another_is_gone() {
    let mut leader = Leader::new(10);
    leader.reset(vec![scope(1, ""), up(1), stored(1, 0..8), complete(1)]);
    leader.delta(1, vec![up_as(1, "b"), stored(1, 20..30), complete(1)]).unwrap();
    leader.commit();
    let there: Vec<&str> =
        leader.index.dictionary().replicas().map(|(_, replica)| &*replica.member.replica_id).collect();
    assert_eq!((there, leader.pairs()), (vec!["b"], 10));
}

#[test]
fn no_more_replicas_are_named_than_a_log_may_hold_nor_with_the_next_reset() {
    let mut leader = Leader::new(10);
    let all: Vec<_> = (0..MAX_GENERATIONS as u32).map(|number| up_as(number, &format!("{number}"))).collect();
    leader.reset(all.clone());
    let one_more = up_as(u32::MAX, "one more");
    leader.delta(1, vec![scope(1, ""), one_more.clone(), stored(u32::MAX, 0..3), complete(u32::MAX)]).unwrap();
    leader.commit();
    assert_eq!(leader.ingest.take_refused(), Refused { replicas: 3, names: 1, ..Refused::default() });
    assert_eq!(leader.index.dictionary().replicas().count(), MAX_GENERATIONS);
    leader.delta(2, vec![Observation::ReplicaGone { replica: ReplicaSlot(0) }]).unwrap();
    leader.delta(3, vec![Observation::ReplicaGone { replica: ReplicaSlot(u32::MAX) }, one_more]).unwrap();
    leader.delta(4, vec![stored(u32::MAX, 0..3), complete(u32::MAX)]).unwrap();
    leader.commit();
    assert_eq!((leader.ingest.take_refused(), leader.pairs()), (Refused::default(), 3));
    // What the reset is to end is still there.
    leader.hear(4, StreamBody::Reset).unwrap();
    leader.hear(4, StreamBody::Chunk(all)).unwrap();
    assert_eq!(leader.ingest.take_refused().names, MAX_GENERATIONS as u64);
}

#[test]
fn names_that_are_too_long_are_not_taken_and_cost_the_rest_of_the_stream_nothing() {
    let long = "x".repeat(MAX_NAME_BYTES + 1);
    let mut leader = Leader::new(100);
    let in_long = |observation| match observation {
        Observation::Stored(in_scope) => Observation::Stored(Stored { scope: ScopeSlot(2), ..in_scope }),
        other => other,
    };
    leader.reset(vec![
        scope(1, ""),
        scope(2, &long),
        up(1),
        up_as(2, &long),
        stored(1, 0..4),
        in_long(stored(1, 10..13)),
        stored(2, 20..25),
        Observation::Removed { replica: ReplicaSlot(2), scope: ScopeSlot(1), keys: vec![BlockKey::Hash64(20)] },
        complete(1),
        complete(2),
        Observation::Policy { tenant_id: Some(long.clone()), policy: Policy::default() },
    ]);
    let refused = leader.ingest.take_refused();
    assert_eq!(refused, Refused { scopes: 3, replicas: 5, names: 3, ..Refused::default() });
    assert_eq!((leader.pairs(), leader.index.dictionary().policies().count()), (4, 0));
    let longest = "y".repeat(MAX_NAME_BYTES);
    leader.delta(1, vec![scope(3, &longest), up_as(3, &longest)]).unwrap();
    assert_eq!(leader.ingest.take_refused(), Refused::default());
}

#[test]
fn the_names_of_scopes_take_a_bounded_number_of_bytes_and_what_waits_for_room_too() {
    let mut leader = Leader::new(10);
    let named = |number: u32| scope(number, &format!("{number:0>512}"));
    leader.reset(Vec::new());
    let each = scope_bytes(&Scope { adapter_id: "0".repeat(512), ..scope_of("") });
    let (fit, wait) = ((names::MAX_SCOPE_BYTES / each) as u32, (MAX_WAITING_BYTES / each) as u32);
    for number in 0..fit + wait + 10 {
        leader.delta(u64::from(number) + 1, vec![named(number)]).unwrap();
        leader.commit();
    }
    assert_eq!(leader.ingest.take_refused().names, u64::from(wait) + 10);
    assert_eq!(leader.index.dictionary().scope_count(), fit as usize);
    assert!(leader.ingest.waiting_bytes <= MAX_WAITING_BYTES);
    let more = (0..).map(|number| scope(1_000_000 + number, "another")).take(8);
    leader.delta(u64::from(fit + wait) + 11, more.collect()).unwrap();
}

#[test]
fn what_a_message_took_back_before_it_broke_the_contract_ends_with_the_next_reset() {
    let mut leader = Leader::new(10);
    let policy = Observation::Policy { tenant_id: Some("t".into()), policy: Policy::default() };
    leader.reset(vec![policy]);
    let gone = Observation::PolicyGone { tenant_id: Some("t".into()) };
    assert_eq!(leader.delta(1, vec![gone, complete(99)]), Err(Violation::UnknownNumber));
    leader.reset(Vec::new());
    assert_eq!(leader.index.dictionary().policies().count(), 0);
}

#[test]
fn a_scope_that_a_refused_message_named_is_named_again() {
    let mut leader = Leader::new(10);
    leader.reset(vec![scope(1, "")]);
    let refused = leader.delta(1, vec![scope(2, "lora"), stored(99, 0..1)]);
    assert_eq!(refused, Err(Violation::UnknownNumber));
    leader.ingest.start_over();
    leader.reset(vec![scope(1, ""), scope(2, "lora")]);
    let Observation::Scope { scope, .. } = scope(2, "lora") else { return };
    assert!(leader.index.dictionary().scope_slot(&scope).is_some(), "the log knows it");
}

#[test]
fn a_replica_that_is_gone_while_its_newer_generation_arrives_is_gone() {
    let mut leader = Leader::new(10);
    leader.reset(vec![scope(1, ""), up(1), stored(1, 0..2), complete(1)]);
    leader.delta(1, vec![up(1), Observation::ReplicaGone { replica: ReplicaSlot(1) }]).unwrap();
    leader.commit();
    assert_eq!(leader.index.dictionary().replicas().count(), 0);
}

#[test]
fn a_heartbeat_shows_what_was_missed() {
    let mut leader = Leader::new(10);
    leader.reset(vec![]);
    assert_eq!(leader.hear(0, StreamBody::Heartbeat), Ok(()));
    assert_eq!(leader.hear(3, StreamBody::Heartbeat), Err(Violation::Gap));
    let elsewhere = StreamMessage { number: 9, epoch: 8, sequence: 0, body: StreamBody::Heartbeat };
    assert_eq!(leader.ingest.accept(elsewhere, &leader.index, HEARD), Err(Violation::Epoch));
    leader.hear(0, StreamBody::Reset).unwrap();
    assert_eq!(leader.hear(0, StreamBody::Heartbeat), Ok(()), "a long reset");
}

#[test]
fn batches_are_taken_up_to_a_size_and_all_bytes_are_accounted_for() {
    let mut leader = Leader::new(1_000);
    leader.reset(vec![scope(1, ""), up(1)]);
    assert_eq!(leader.ingest.queued_bytes(), 0);
    for sequence in 1..=4 {
        leader.delta(sequence, vec![stored(1, 0..10)]).unwrap();
    }
    let one = leader.ingest.queued_bytes() / 4;
    assert!(one >= 10 * (8 + 4));
    let batch = leader.ingest.take_batch(2 * one + 1).unwrap();
    assert_eq!((batch.records.len(), batch.position), (2, Some(Position { epoch: 7, sequence: 2 })));
    assert_eq!(leader.ingest.queued_bytes(), 2 * one);
    assert_eq!(leader.ingest.take_batch(1).unwrap().records.len(), 1, "at least one");
    assert_eq!(leader.ingest.take_batch(usize::MAX).unwrap().number, leader.number);
    assert_eq!(leader.ingest.queued_bytes(), 0);
    assert!(leader.ingest.take_batch(usize::MAX).is_none());
}

#[test]
fn a_part_of_a_package_comes_alone_in_its_turn_and_moves_nothing() {
    let mut leader = Leader::new(10);
    leader.reset(vec![]);
    let part = ModelPart { digest: ModelDigest(1), number: 0, contents: vec![7; 40] };
    leader.delta(1, vec![]).unwrap();
    // What it says of the position is not looked at: it neither confirms nor refutes it.
    leader.hear(77, StreamBody::ModelPart(part.clone())).unwrap();
    leader.delta(2, vec![]).unwrap();
    assert_eq!(leader.ingest.queued_bytes(), 40);
    let taken: Vec<_> = std::iter::from_fn(|| leader.ingest.take_batch(usize::MAX))
        .map(|batch| (batch.number, batch.part, batch.position.map(|position| position.sequence)))
        .collect();
    assert_eq!(taken, [(4, None, Some(1)), (5, Some(part.clone()), None), (6, None, Some(2))]);
    assert_eq!(leader.ingest.queued_bytes(), 0);
    // In the middle of a reset as well, and before any state.
    leader.hear(0, StreamBody::Reset).unwrap();
    leader.hear(0, StreamBody::ModelPart(part.clone())).unwrap();
    leader.hear(2, StreamBody::ResetComplete).unwrap();
    assert_eq!(leader.ingest.position(), Some(Position { epoch: 7, sequence: 2 }));
    assert_eq!(Leader::new(10).hear(0, StreamBody::ModelPart(part)), Ok(()));
}

#[test]
fn a_reset_ends_the_models_that_it_does_not_announce_again() {
    let mut leader = Leader::new(10);
    let model = |model_id: &str, digest| Observation::Model {
        model_id: model_id.into(),
        version: ModelVersion { digest: ModelDigest(digest), length: 1 },
    };
    leader.reset(vec![model("a", 1), model("b", 2)]);
    leader.delta(1, vec![model("c", 3), model("b", 4)]).unwrap();
    leader.commit();
    leader.hear(0, StreamBody::Reset).unwrap();
    leader.hear(0, StreamBody::Chunk(vec![model("b", 4)])).unwrap();
    // A reset that is begun anew forgets nothing of what there was.
    leader.hear(0, StreamBody::Reset).unwrap();
    leader.hear(0, StreamBody::Chunk(vec![model("c", 5)])).unwrap();
    leader.commit();
    let models = |leader: &Leader| -> Vec<(String, u128)> {
        let models = leader.index.dictionary().models();
        models.map(|(model_id, version)| (model_id.to_owned(), version.digest.0)).collect()
    };
    assert_eq!(models(&leader), [("a".into(), 1), ("b".into(), 4), ("c".into(), 5)], "not yet");
    leader.hear(0, StreamBody::ResetComplete).unwrap();
    leader.commit();
    assert_eq!(models(&leader), [("c".into(), 5)]);
    // Another leader knows of those that the log has.
    let head = Head::new(Incarnation(1), 2, 3, 8);
    leader.ingest = Ingest::new(&head, &leader.index, 10, 500);
    leader.reset(vec![]);
    assert_eq!(models(&leader), []);
}

#[test]
fn a_log_announces_only_so_many_models() {
    let mut leader = Leader::new(10);
    let version = ModelVersion { digest: ModelDigest(1), length: 1 };
    let model = |at: usize| Observation::Model { model_id: at.to_string(), version };
    leader.reset((0..=MAX_MODELS).map(model).collect());
    assert_eq!(leader.index.dictionary().models().count(), MAX_MODELS);
    leader.delta(1, vec![Observation::ModelGone { model_id: "7".into() }, model(MAX_MODELS)]).unwrap();
    leader.commit();
    assert!(leader.index.dictionary().model("256").is_some() && leader.index.dictionary().model("7").is_none());
}

#[test]
fn messages_keep_the_stream_they_came_over() {
    let mut leader = Leader::new(10);
    leader.reset(vec![]);
    leader.delta(1, vec![]).unwrap();
    let later = Heard { stream: StreamToken(2), at_ms: 2_000 };
    let resumed = StreamMessage { number: 1, epoch: 7, sequence: 1, body: StreamBody::Resumed };
    leader.ingest.accept(resumed, &leader.index, later).unwrap();
    let batch = leader.ingest.take_batch(usize::MAX).unwrap();
    assert_eq!((batch.number, batch.heard), (1, later));
}

#[test]
fn blocks_of_more_scopes_than_a_log_may_name_are_not_taken() {
    let mut leader = Leader::new(10);
    let scopes: Vec<Observation> =
        (1..=MAX_SCOPES as u32 + 1).map(|number| scope(number, &number.to_string())).collect();
    let extra = MAX_SCOPES as u32 + 1;
    leader.reset(scopes.into_iter().chain([up(1), stored(1, 0..2), complete(1)]).collect());
    let mut more = stored(1, 0..3);
    if let Observation::Stored(Stored { scope, .. }) = &mut more {
        *scope = ScopeSlot(extra);
    }
    let removed =
        Observation::Removed { replica: ReplicaSlot(1), scope: ScopeSlot(extra), keys: vec![BlockKey::Hash64(1)] };
    leader.delta(1, vec![more, removed]).unwrap();
    leader.commit();
    assert_eq!(leader.ingest.take_refused(), Refused { scopes: 3, names: 1, ..Refused::default() });
    assert_eq!(leader.pairs(), 2);
}

fn adapters(numbers: std::ops::Range<u32>) -> Vec<Observation> {
    numbers.map(|number| scope(number, &format!("lora{number}"))).collect()
}

/// Heartbeats until every scope was looked at.
fn rest(leader: &mut Leader, sequence: u64) {
    for _ in 0..=MAX_SCOPES / 512 + 1 {
        leader.hear(sequence, StreamBody::Heartbeat).unwrap();
        leader.commit();
    }
}

#[test]
fn a_log_that_is_full_of_an_earlier_hubs_scopes_takes_those_of_the_next() {
    let mut leader = Leader::new(10);
    let all = MAX_SCOPES as u32;
    leader.reset(adapters(1..all + 1).into_iter().chain([up(1), stored(1, 0..2), complete(1)]).collect());
    assert_eq!(leader.ingest.names.len(), MAX_SCOPES);
    let in_scope = |published, keys| {
        let mut stored = stored(1, keys);
        if let Observation::Stored(Stored { scope, .. }) = &mut stored {
            *scope = ScopeSlot(published);
        }
        stored
    };
    leader.reset(vec![up(1), scope(1, "new"), stored(1, 0..3), complete(1)]);
    assert_eq!(leader.ingest.take_refused().scopes, 3, "there is no room yet");
    rest(&mut leader, 0);
    leader.delta(1, vec![in_scope(1, 0..3), scope(2, "newer"), in_scope(2, 0..4)]).unwrap();
    leader.commit();
    assert_eq!(leader.ingest.take_refused(), Refused::default());
    assert_eq!(leader.pairs(), 7);
    leader.index.sweep(|_, _, _| false);
    rest(&mut leader, 1);
    let mut known: Vec<u32> = leader.index.dictionary().scopes().map(|(slot, _)| slot.0).collect();
    known.sort_unstable();
    assert_eq!(known, [all + 1, all + 2], "numbers are not given again");
}

#[test]
fn a_scope_serves_while_a_generation_of_before_the_restart_does() {
    let mut leader = Leader::new(10);
    let slot = |leader: &Leader, adapter_id: &str| {
        let Observation::Scope { scope, .. } = scope(1, adapter_id) else { panic!() };
        leader.index.dictionary().scope_slot(&scope)
    };
    leader.reset(vec![scope(1, "old"), up(1), stored(1, 0..2), complete(1)]);
    let old = slot(&leader, "old");
    leader.reset(vec![scope(1, "new"), up(1), stored(1, 0..1)]);
    leader.hear(0, StreamBody::Heartbeat).unwrap();
    leader.commit();
    assert_eq!(slot(&leader, "old"), old, "its blocks still count");
    let next = Head { hub_epoch: 7, ..Head::new(Incarnation(1), 2, 3, 8) };
    let taken_over = Ingest::new(&next, &leader.index, 10, 500);
    assert!(
        !taken_over.scopes.values().any(|scope| matches!(scope, PublishedScope::Named(slot) if Some(*slot) == old))
    );
    leader.delta(1, vec![complete(1)]).unwrap();
    leader.commit();
    leader.hear(1, StreamBody::Heartbeat).unwrap();
    leader.commit();
    assert_eq!(slot(&leader, "old"), old, "until the sweep");
    leader.index.sweep(|_, _, _| false);
    leader.hear(1, StreamBody::Heartbeat).unwrap();
    leader.commit();
    assert_eq!(slot(&leader, "old"), None);
    leader.delta(2, vec![scope(2, "old")]).unwrap();
    leader.commit();
    assert!(slot(&leader, "old") > old, "a new number");
}

#[test]
fn a_scope_that_the_hub_gives_up_ends_unless_it_is_needed_again() {
    let mut leader = Leader::new(10);
    let gone = |slot| Observation::ScopeGone { slot: ScopeSlot(slot) };
    let removed =
        Observation::Removed { replica: ReplicaSlot(1), scope: ScopeSlot(1), keys: vec![BlockKey::Hash64(0)] };
    leader.reset(vec![scope(1, "a"), scope(2, "b"), up(1), stored(1, 0..1), complete(1)]);
    leader.delta(1, vec![removed, gone(1), gone(2), gone(99), scope(3, "b")]).unwrap();
    assert_eq!(leader.delta(2, vec![stored(1, 0..1)]), Err(Violation::UnknownNumber));
    leader.commit();
    leader.hear(1, StreamBody::Heartbeat).unwrap();
    leader.commit();
    let known: Vec<ScopeSlot> = leader.index.dictionary().scopes().map(|(slot, _)| slot).collect();
    assert_eq!(known, [ScopeSlot(2)]);
    assert_eq!(leader.ingest.names.len(), 1);
}

#[test]
fn a_generation_whose_successor_does_not_get_complete_ends_in_time() {
    let mut leader = Leader::new(10);
    leader.reset(vec![scope(1, ""), up(1), stored(1, 0..2), complete(1)]);
    leader.reset(vec![scope(1, ""), up(1)]);
    assert_eq!(leader.pairs(), 2, "it serves while its successor arrives");
    for (at_ms, pairs) in [(HEARD.at_ms + 500, 2), (HEARD.at_ms + 501, 0)] {
        let message = StreamMessage { number: 9, epoch: 7, sequence: 0, body: StreamBody::Heartbeat };
        leader.ingest.accept(message, &leader.index, Heard { at_ms, ..HEARD }).unwrap();
        leader.commit();
        assert_eq!(leader.pairs(), pairs);
    }
    assert_eq!(leader.index.dictionary().replicas().count(), 1, "the successor goes on arriving");
}

fn policy(tenant_id: &str, minimum_prefix_tokens: u32) -> Observation {
    let policy = Policy { minimum_prefix_tokens, ..Policy::default() };
    Observation::Policy { tenant_id: Some(tenant_id.to_owned()).filter(|tenant_id| !tenant_id.is_empty()), policy }
}

#[test]
fn policies_that_a_reset_does_not_announce_again_are_gone() {
    let mut leader = Leader::new(10);
    let policies = |leader: &Leader| {
        let policies = leader.index.dictionary().policies();
        let mut policies: Vec<(String, u32)> = policies
            .map(|(tenant_id, policy)| (tenant_id.unwrap_or_default().to_owned(), policy.minimum_prefix_tokens))
            .collect();
        policies.sort();
        policies
    };
    leader.reset(vec![policy("", 1), policy("a", 2), policy("b", 3)]);
    assert_eq!(policies(&leader), [("".into(), 1), ("a".into(), 2), ("b".into(), 3)]);
    leader.hear(0, StreamBody::Reset).unwrap();
    leader.commit();
    assert_eq!(policies(&leader).len(), 3, "until the reset is complete");
    leader.reset(vec![policy("a", 4)]);
    assert_eq!(policies(&leader), [("a".into(), 4)]);
    leader.delta(1, vec![Observation::PolicyGone { tenant_id: Some("a".into()) }, policy("c", 5)]).unwrap();
    leader.commit();
    assert_eq!(policies(&leader), [("c".into(), 5)]);
}

#[test]
fn a_log_holds_a_bounded_number_of_policies() {
    let mut leader = Leader::new(10);
    leader.reset((0..MAX_POLICIES as u32 + 5).map(|tenant| policy(&format!("t{tenant}"), 1)).collect());
    assert_eq!(leader.index.dictionary().policies().count(), MAX_POLICIES);
    leader.delta(1, vec![policy("t0", 7)]).unwrap();
    leader.commit();
    let known = leader.index.dictionary().policy(Some("t0")).map(|policy| policy.minimum_prefix_tokens);
    assert_eq!(known, Some(7), "a policy that is known can change");
}

#[test]
fn a_vm_without_memory_takes_nothing_in_and_goes_on_with_everything_else() {
    let mut leader = Leader::new(100);
    leader.reset(vec![scope(1, "a"), up(1), stored(1, 0..3), complete(1)]);
    leader.ingest.set_out_of_memory(true);
    let removed =
        Observation::Removed { replica: ReplicaSlot(1), scope: ScopeSlot(1), keys: vec![BlockKey::Hash64(0)] };
    leader.hear(2, StreamBody::Delta { first_sequence: 1, observations: vec![stored(1, 10..14), removed] }).unwrap();
    leader.commit();
    assert_eq!((leader.ingest.take_refused().memory, leader.pairs()), (4, 2));
    leader.ingest.set_out_of_memory(false);
    leader.delta(3, vec![stored(1, 10..14)]).unwrap();
    leader.commit();
    assert_eq!((leader.ingest.take_refused(), leader.pairs()), (Refused::default(), 6));
}

#[test]
fn a_hub_that_does_not_wait_for_acknowledgements_is_given_up() {
    let mut leader = Leader::new(10_000_000);
    leader.hear(0, StreamBody::Reset).unwrap();
    leader.hear(0, StreamBody::Chunk(vec![scope(1, "a"), up(1)])).unwrap();
    let endless =
        (0..100_000_u64).map(|at| leader.hear(0, StreamBody::Chunk(vec![stored(1, at * 100..at * 100 + 100)])));
    let accepted = endless.take_while(Result::is_ok).count();
    assert!(accepted < 100_000 && leader.ingest.queued_bytes() < MAX_QUEUED_BYTES + 64 * 1024, "{accepted}");
    // What came so far is committed, and then there is room again.
    leader.commit();
    assert_eq!(leader.hear(0, StreamBody::Chunk(vec![stored(1, 0..3)])), Ok(()));
}
