use super::*;

fn up(slot: u32) -> Observation {
    let member = Member { tenant_id: "t".into(), model_id: "m".into(), replica_id: "a".into() };
    Observation::ReplicaUp {
        replica: ReplicaSlot(slot),
        member,
        address: "10.0.0.1:80".into(),
        data_parallel_rank: None,
    }
}

fn complete(slot: u32) -> Observation {
    Observation::ReplicaComplete { replica: ReplicaSlot(slot) }
}

fn known(observations: &[Observation]) -> Vec<(u32, Standing)> {
    let mut dictionary = Dictionary::default();
    for observation in observations {
        dictionary.apply(observation);
    }
    let mut known: Vec<_> = dictionary.replicas().map(|(slot, replica)| (slot.0, replica.standing)).collect();
    known.sort_unstable_by_key(|(slot, _)| *slot);
    known
}

#[test]
fn an_older_generation_counts_until_the_newer_is_complete() {
    assert_eq!(known(&[up(1), complete(1), up(2)]), [(1, Standing::Complete), (2, Standing::Arriving)]);
    assert_eq!(known(&[up(1), complete(1), up(2), complete(2)]), [(2, Standing::Complete)]);
}

#[test]
fn completing_again_keeps_a_newer_arrival() {
    assert_eq!(known(&[up(1), complete(1), up(2), complete(1)]), [(1, Standing::Complete), (2, Standing::Arriving)]);
}

#[test]
fn a_replica_that_goes_takes_its_older_generations_along_and_leaves_newer_ones() {
    let gone = |slot| Observation::ReplicaGone { replica: ReplicaSlot(slot) };
    assert_eq!(known(&[up(1), complete(1), up(2), gone(2)]), []);
    assert_eq!(known(&[up(1), complete(1), up(2), gone(1)]), [(2, Standing::Arriving)]);
}

#[test]
fn observations_rebuild_the_dictionary() {
    let scope =
        Scope { tenant_id: "t".into(), model_id: "m".into(), hash_scheme: "vllm".into(), adapter_id: String::new() };
    let facts = vec![
        Observation::Scope { slot: ScopeSlot(4), scope: scope.clone() },
        Observation::PublishedScope { slot: ScopeSlot(4), published: ScopeSlot(1) },
        up(1),
        Observation::PublishedReplica { replica: ReplicaSlot(1), published: ReplicaSlot(9) },
        Observation::Stats {
            replica: ReplicaSlot(1),
            stats: ReplicaStats { pressure: 0.5, hit_rate: 0.1, reported_ms: 3 },
        },
        complete(1),
        up(2),
    ];
    let mut dictionary = Dictionary::default();
    for fact in &facts {
        dictionary.apply(fact);
    }
    assert_eq!(dictionary.to_observations(), facts);
    assert_eq!(dictionary.scope_slot(&scope), Some(ScopeSlot(4)));
    assert_eq!(dictionary.published_replicas().collect::<Vec<_>>(), [(ReplicaSlot(9), ReplicaSlot(1))]);
}
#[test]
fn members_are_the_generations_that_count() {
    let mut dictionary = Dictionary::default();
    let turns = [up(1), complete(1), complete(1), up(2), complete(2), up(2)].map(|fact| dictionary.apply(&fact));
    let began = |slot| Turn { begun: Some(ReplicaSlot(slot)), ended: Vec::new() };
    let first_ended = Turn { begun: Some(ReplicaSlot(2)), ended: vec![ReplicaSlot(1)] };
    let arrives_again = Turn { begun: None, ended: vec![ReplicaSlot(2)] };
    assert_eq!(turns, [Turn::default(), began(1), Turn::default(), Turn::default(), first_ended, arrives_again]);
    assert_eq!(dictionary.members("t", "m").count(), 0);
    dictionary.apply(&complete(2));
    assert_eq!(dictionary.members("t", "m").map(|(slot, _)| slot.0).collect::<Vec<_>>(), [2]);
    assert_eq!(dictionary.members("m", "t").count(), 0);
    assert_eq!(dictionary.generations(&Member::new("t", "m", "a")).collect::<Vec<_>>(), [ReplicaSlot(2)]);
}

#[test]
fn an_adapter_has_the_models_that_it_was_seen_with() {
    let mut dictionary = Dictionary::default();
    let scopes = [("m", "vllm", "lora"), ("m", "sglang", "lora"), ("n", "vllm", "lora"), ("n", "vllm", "")];
    for (slot, (model_id, hash_scheme, adapter_id)) in scopes.into_iter().enumerate() {
        let scope = Scope {
            tenant_id: "t".into(),
            model_id: model_id.into(),
            hash_scheme: hash_scheme.into(),
            adapter_id: adapter_id.into(),
        };
        dictionary.apply(&Observation::Scope { slot: ScopeSlot(slot as u32), scope });
    }
    assert_eq!(dictionary.models_of_adapter("t", "lora").collect::<Vec<_>>(), ["m", "n"]);
    assert_eq!(dictionary.models_of_adapter("t", "").count(), 0);
    assert_eq!(dictionary.models_of_adapter("u", "lora").count(), 0);
}

#[test]
fn nothing_is_left_of_a_scope_that_is_gone() {
    let scope = |hash_scheme: &str| Scope {
        tenant_id: "t".into(),
        model_id: "m".into(),
        hash_scheme: hash_scheme.into(),
        adapter_id: "lora".into(),
    };
    let mut dictionary = Dictionary::default();
    for (slot, hash_scheme) in [(1, "vllm"), (2, "sglang"), (2, "sglang")] {
        dictionary.apply(&Observation::Scope { slot: ScopeSlot(slot), scope: scope(hash_scheme) });
        dictionary.apply(&Observation::PublishedScope { slot: ScopeSlot(slot), published: ScopeSlot(slot + 10) });
    }
    dictionary.apply(&Observation::ScopeGone { slot: ScopeSlot(2) });
    assert_eq!((dictionary.scope_slot(&scope("sglang")), dictionary.scope(ScopeSlot(2))), (None, None));
    assert_eq!(dictionary.scope_slot(&scope("vllm")), Some(ScopeSlot(1)));
    assert_eq!(dictionary.published_scopes().collect::<Vec<_>>(), [(ScopeSlot(11), ScopeSlot(1))]);
    assert_eq!(dictionary.models_of_adapter("t", "lora").collect::<Vec<_>>(), ["m"], "under another scheme");
    dictionary.apply(&Observation::Scope { slot: ScopeSlot(3), scope: scope("vllm") });
    dictionary.apply(&Observation::ScopeGone { slot: ScopeSlot(1) });
    assert_eq!(dictionary.scope_slot(&scope("vllm")), Some(ScopeSlot(3)), "it has a newer number");
    dictionary.apply(&Observation::ScopeGone { slot: ScopeSlot(3) });
    assert_eq!(dictionary.models_of_adapter("t", "lora").count(), 0);
    assert!(dictionary.adapters.is_empty() && dictionary.published_scopes.is_empty());
    assert_eq!(dictionary.to_observations(), []);
}
