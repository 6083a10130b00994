use super::*;

fn cache(blocks: usize) -> BlockCache {
    let capacity = NonZeroUsize::new(blocks).unwrap();
    BlockCache::new(capacity, BlockSize::try_new(4).unwrap(), EngineKey::random_root())
}

/// A prompt of `blocks` blocks of 4 tokens and `rest` more; prompts with different `name` have no block in common.
fn prompt(name: u32, blocks: u32, rest: u32) -> Vec<u32> {
    (0..blocks * 4 + rest).map(|n| name * 1000 + n).collect()
}

/// Runs a prompt through: admit, compute, release.
fn run(cache: &mut BlockCache, prompt: &[u32]) -> (usize, Vec<KvEvent>) {
    let mut events = Vec::new();
    let mut sequence = cache.admit(Namespace::default(), prompt, 0, &mut events).unwrap();
    cache.store(&mut sequence, &mut events);
    let cached = sequence.cached_tokens();
    cache.release(sequence);
    check(cache);
    (cached, events)
}

fn check(cache: &BlockCache) {
    assert!(cache.stored.len() + cache.unstored <= cache.capacity, "{cache:?}");
    assert!(cache.blocks_in_use() + cache.reserved <= cache.capacity, "{cache:?}");
    let idle = cache.stored.values().filter(|stored| stored.users == 0).count();
    assert_eq!(idle, cache.idle.len());
}

fn stored_keys(events: &[KvEvent]) -> Vec<EngineKey> {
    let keys = events.iter().filter_map(|event| match event {
        KvEvent::BlockStored { keys, .. } => Some(keys.clone()),
        _ => None,
    });
    keys.flatten().collect()
}

fn removed_keys(events: &[KvEvent]) -> Vec<EngineKey> {
    let keys = events.iter().filter_map(|event| match event {
        KvEvent::BlockRemoved { key } => Some(*key),
        _ => None,
    });
    keys.collect()
}

#[test]
fn what_an_adapter_computes_is_its_own() {
    let mut cache =
        BlockCache::new(NonZeroUsize::new(10).unwrap(), BlockSize::try_new(4).unwrap(), EngineKey::random_root());
    let tokens: Vec<u32> = (0..9).collect();
    let mut reported = Vec::new();
    for (lora, cached) in [(None, 0), (Some("sql"), 0), (Some("sql"), 8), (Some("chat"), 0), (None, 8)] {
        let mut events = Vec::new();
        let mut sequence = cache.admit(Namespace { lora, salt: None }, &tokens, 0, &mut events).unwrap();
        assert_eq!(sequence.cached_tokens(), cached, "{lora:?}");
        cache.store(&mut sequence, &mut events);
        cache.release(sequence);
        reported.extend(events.into_iter().map(|event| match event {
            KvEvent::BlockStored { lora, keys, .. } => (lora.map(|name| name.to_string()), keys.len()),
            other => panic!("{other:?}"),
        }));
    }
    let expected = [(None, 2), (Some("sql".to_owned()), 2), (Some("chat".to_owned()), 2)];
    assert_eq!(reported, expected);
}

#[test]
fn a_prompt_is_stored_as_one_run_and_reused() {
    let mut cache = cache(8);
    let (cached, events) = run(&mut cache, &prompt(1, 2, 3));
    assert_eq!(cached, 0);
    let [KvEvent::BlockStored { keys, parent: None, token_ids, block_size: 4, lora: None, salt: None }] =
        events.as_slice()
    else {
        panic!("{events:?}");
    };
    assert_eq!((keys.len(), token_ids), (2, &prompt(1, 2, 0)));

    let (cached, events) = run(&mut cache, &prompt(1, 3, 1));
    assert_eq!(cached, 8);
    let [KvEvent::BlockStored { keys: more, parent, .. }] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((more.len(), *parent), (1, keys.last().copied()));
}

#[test]
fn at_least_the_last_token_is_computed() {
    let mut cache = cache(8);
    let whole = prompt(1, 3, 0);
    run(&mut cache, &whole);
    let (cached, events) = run(&mut cache, &whole);
    assert_eq!(cached, 8, "the third block would leave nothing to compute");
    assert_eq!(events, [], "a block that is stored already is not announced again");
    assert_eq!(run(&mut cache, &prompt(1, 3, 1)).0, 12);
}

#[test]
fn the_longest_idle_chain_goes_first_and_from_its_end() {
    let mut cache = cache(6);
    let first = stored_keys(&run(&mut cache, &prompt(1, 3, 0)).1);
    let second = stored_keys(&run(&mut cache, &prompt(2, 3, 0)).1);
    let third = run(&mut cache, &prompt(3, 2, 0)).1;
    assert_eq!(removed_keys(&third), [first[2], first[1]]);

    // The first prompt's remaining block is used again, so the second prompt's end is next: one block for the tail
    // that the reuse computes, which is given back empty, and one more beside it for the next prompt.
    let (cached, events) = run(&mut cache, &prompt(1, 1, 1));
    assert_eq!((cached, removed_keys(&events)), (4, vec![second[2]]));
    assert_eq!(removed_keys(&run(&mut cache, &prompt(4, 2, 0)).1), [second[1]]);
}

#[test]
fn blocks_in_use_are_not_evicted() {
    let mut cache = cache(4);
    let mut events = Vec::new();
    let mut running = cache.admit(Namespace::default(), &prompt(1, 3, 0), 0, &mut events).unwrap();
    cache.store(&mut running, &mut events);
    assert_eq!(cache.admit(Namespace::default(), &prompt(2, 2, 0), 0, &mut events).err(), Some(NoRoom));
    assert_eq!(run(&mut cache, &prompt(2, 1, 0)).0, 0);
    assert_eq!(cache.clear(&mut events), Err(BlocksInUse(3)));
    cache.release(running);
    assert_eq!(run(&mut cache, &prompt(1, 3, 0)).0, 8, "still there after the pressure");
}

#[test]
fn tokens_to_come_are_set_aside() {
    let mut cache = cache(4);
    let mut events = Vec::new();
    let mut running = cache.admit(Namespace::default(), &prompt(1, 1, 1), 6, &mut events).unwrap();
    check(&cache);
    assert_eq!(cache.admit(Namespace::default(), &prompt(2, 2, 0), 0, &mut events).err(), Some(NoRoom));
    run(&mut cache, &prompt(3, 1, 0));

    cache.store(&mut running, &mut events);
    events.clear();
    for token_id in 0..7 {
        cache.extend(&mut running, token_id, &mut events);
        check(&cache);
    }
    assert_eq!(stored_keys(&events).len(), 2, "11 of the 12 tokens it was admitted for, and one more");
    cache.release(running);
    check(&cache);
}

#[test]
fn generated_tokens_complete_blocks_for_the_next_turn() {
    let mut cache = cache(8);
    let mut events = Vec::new();
    let mut tokens = prompt(1, 1, 2);
    let mut sequence = cache.admit(Namespace::default(), &tokens, 7, &mut events).unwrap();
    cache.store(&mut sequence, &mut events);
    for token_id in 50..57 {
        cache.extend(&mut sequence, token_id, &mut events);
        tokens.push(token_id);
    }
    cache.release(sequence);
    let parents: Vec<_> = events
        .iter()
        .map(|event| match event {
            KvEvent::BlockStored { parent, keys, .. } => (*parent, keys.len()),
            other => panic!("{other:?}"),
        })
        .collect();
    let keys = stored_keys(&events);
    assert_eq!(parents, [(None, 1), (Some(keys[0]), 1), (Some(keys[1]), 1)]);
    assert_eq!(run(&mut cache, &tokens).0, 12);
}

#[test]
fn a_block_computed_twice_at_once_is_announced_once() {
    let mut cache = cache(8);
    let mut events = Vec::new();
    let mut one = cache.admit(Namespace::default(), &prompt(1, 2, 1), 0, &mut events).unwrap();
    let mut two = cache.admit(Namespace::default(), &prompt(1, 2, 1), 0, &mut events).unwrap();
    cache.store(&mut one, &mut events);
    cache.store(&mut two, &mut events);
    assert_eq!(stored_keys(&events).len(), 2);
    cache.release(one);
    assert_eq!(cache.blocks_in_use(), 3);
    cache.release(two);
    assert_eq!(cache.blocks_in_use(), 0);
    check(&cache);
}

#[test]
fn a_sequence_released_before_it_was_computed_leaves_nothing() {
    let mut cache = cache(4);
    let mut events = Vec::new();
    let sequence = cache.admit(Namespace::default(), &prompt(1, 3, 0), 4, &mut events).unwrap();
    cache.release(sequence);
    assert_eq!((cache.blocks_in_use(), cache.reserved, cache.stored.len()), (0, 0, 0));
    assert_eq!(run(&mut cache, &prompt(1, 3, 0)).0, 0);
}

#[test]
fn clearing_forgets_everything() {
    let mut cache = cache(4);
    run(&mut cache, &prompt(1, 3, 0));
    let mut events = Vec::new();
    assert_eq!(cache.clear(&mut events), Ok(()));
    assert_eq!(events, [KvEvent::AllBlocksCleared]);
    assert_eq!(run(&mut cache, &prompt(1, 3, 0)).0, 0);
}

/// Plays requests at random and keeps, from the events alone, what a subscriber would believe is stored.
#[test]
fn what_events_say_is_what_is_stored() {
    let mut cache = cache(12);
    let mut believed = std::collections::HashSet::new();
    let mut running: Vec<Sequence> = Vec::new();
    let mut random = 7_u64;
    for step in 0..20_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = (random >> 33) as u32;
        let mut events = Vec::new();
        match pick % 4 {
            0 => {
                let prompt = prompt(pick / 4 % 3, pick / 12 % 5, pick / 60 % 4 + 1);
                if let Ok(mut sequence) =
                    cache.admit(Namespace::default(), &prompt, (pick / 240 % 6) as usize, &mut events)
                {
                    if !pick.is_multiple_of(7) {
                        cache.store(&mut sequence, &mut events);
                    }
                    running.push(sequence);
                }
            }
            1 if !running.is_empty() => {
                let index = pick as usize % running.len();
                cache.release(running.swap_remove(index));
            }
            2 => drop(cache.clear(&mut events)),
            _ => {
                for sequence in &mut running {
                    cache.extend(sequence, pick % 2, &mut events);
                }
            }
        }
        for event in events {
            match event {
                KvEvent::BlockStored { keys, parent, .. } => {
                    assert!(parent.is_none_or(|parent| believed.contains(&parent)), "step {step}: parent unknown");
                    assert!(keys.into_iter().all(|key| believed.insert(key)), "step {step}: stored twice");
                }
                KvEvent::BlockRemoved { key } => assert!(believed.remove(&key), "step {step}: removed twice"),
                KvEvent::AllBlocksCleared => believed.clear(),
            }
        }
        assert_eq!(believed, cache.stored.keys().copied().collect(), "step {step}");
        check(&cache);
    }
}
