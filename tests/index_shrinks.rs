//! Memory comes back: when a pool shrinks, when a tenant leaves; and what has come back can be used again.
//!
//! A pool is as ordinary as it can be: prompts that all replicas hold, and as much that each holds alone, half of it
//! as the end of a shared prompt. Bytes are what the index says that it asked of the allocator.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failing test says so by panicking, helpers included"
)]

#[path = "index_shrinks/busy.rs"]
mod busy;
#[path = "index_shrinks/conversations.rs"]
mod conversations;
#[path = "index_shrinks/pool.rs"]
mod pool;
#[path = "index_shrinks/shared.rs"]
mod shared;
#[path = "support/vms/mod.rs"]
mod vms;

use std::ops::Range;

use pool::{ALONE, PER_REPLICA, Pool, SHARED, TENANTS, looked_up, scope_slot, slot};
use warmroute::index::Index;

const ALL: Range<u32> = 0..64;
const STAY: Range<u32> = 0..8;
const LEAVE: Range<u32> = 8..64;
/// What tables and lists keep whatever is in them: the two tables of places begin with 64 parts, each of which keeps a few
/// lines, and a chunk of runs is kept while one of them is in use.
const TABLES_BYTES: u64 = 80 << 10;
/// Runs, stretches and blocks of one step of the sweep.
const STEP: usize = 256;

fn bytes(index: &Index) -> u64 {
    index.size().bytes
}

/// Sweeps until memory has come back, in steps; nothing expires.
fn sweep(index: &mut Index) {
    let mut sweeps = 0;
    // What is retired while a sweep is under way is known to be gone only after the next.
    while sweeps < 3 {
        let before = index.sweep_at();
        let swept = index.sweep_step(STEP, |_, _, _| false);
        assert!(swept.complete || index.sweep_at() > before);
        sweeps += u32::from(swept.complete);
    }
}

/// What is looked up of each of the replicas that stay.
fn answers(index: &Index) -> Vec<Vec<(u32, i64)>> {
    STAY.flat_map(|replica| looked_up(index, 0, replica)).collect()
}

#[test]
fn memory_comes_back_as_a_pool_shrinks_and_is_used_again() {
    let mut pool = Pool::new();
    pool.join(0, ALL);
    let (peak, before) = (bytes(&pool.index), answers(&pool.index));
    assert_eq!(pool.index.pairs(), 64 * PER_REPLICA);
    assert_eq!(pool.index.keys_of(scope_slot(0)), SHARED + 64 * ALONE);

    pool.leave(0, LEAVE);
    assert_eq!(pool.index.pairs(), 8 * PER_REPLICA);
    assert_eq!(pool.index.replicas_holding(), 8);
    assert_eq!(LEAVE.map(|replica| pool.index.pairs_of(slot(0, replica))).sum::<u64>(), 0);
    let after = answers(&pool.index);
    assert_eq!(after, STAY.flat_map(|replica| pool::expected(replica, STAY)).collect::<Vec<_>>());
    assert_ne!(before, after, "those that are gone held the shared prompts too");

    sweep(&mut pool.index);
    let mut never_larger = Pool::new();
    never_larger.join(0, STAY);
    let (shrunk, small) = (bytes(&pool.index), bytes(&never_larger.index));
    println!("{peak} bytes with 64 replicas, {shrunk} after 56 have gone, {small} with 8 alone");
    assert_eq!(pool.index.keys_of(scope_slot(0)), SHARED + 8 * ALONE);
    assert_eq!(pool.index.pairs(), 8 * PER_REPLICA);
    assert!(shrunk <= small * 5 / 4 + TABLES_BYTES, "{shrunk} bytes, {small} in an index that was never larger");
    assert!(shrunk * 4 < peak, "{shrunk} bytes of {peak}");
    assert_eq!(answers(&pool.index), after);

    pool.join(0, 64..120);
    let again = bytes(&pool.index);
    println!("{again} bytes with 56 others");
    assert_eq!(pool.index.pairs(), 64 * PER_REPLICA);
    assert!(again <= peak + peak / 20, "{again} bytes, {peak} before");
}

#[test]
fn a_pool_that_changes_again_and_again_does_not_grow() {
    let mut pool = Pool::new();
    pool.join(0, 0..16);
    let first = bytes(&pool.index);
    let mut peaks = Vec::new();
    for round in 1..=12 {
        // All but half of it is replaced, so that something always remains of what was there.
        pool.leave(0, (round - 1) * 8..round * 8);
        sweep(&mut pool.index);
        pool.join(0, (round + 1) * 8..(round + 2) * 8);
        peaks.push(bytes(&pool.index));
        assert_eq!(pool.index.pairs(), 16 * PER_REPLICA);
    }
    println!("{first} bytes at first, then {peaks:?}");
    assert!(peaks.iter().all(|peak| *peak <= first + first / 10), "{first} bytes, then {peaks:?}");
}

#[test]
fn a_tenant_that_leaves_gives_its_memory_back() {
    let mut pool = Pool::new();
    pool.join(0, STAY);
    let (alone, before) = (bytes(&pool.index), answers(&pool.index));
    for tenant in 1..TENANTS {
        pool.join(tenant, ALL);
    }
    let all = bytes(&pool.index);
    for tenant in 1..TENANTS {
        pool.leave(tenant, ALL);
        pool.scope_gone(tenant);
        assert_eq!(pool.index.keys_of(scope_slot(tenant)), SHARED + 64 * ALONE, "until the sweep");
    }
    assert_eq!(pool.index.pairs(), 8 * PER_REPLICA);
    sweep(&mut pool.index);
    let left = bytes(&pool.index);
    println!("{alone} bytes alone, {all} with others, {left} after they have gone");
    assert!((1..TENANTS).all(|tenant| pool.index.keys_of(scope_slot(tenant)) == 0));
    assert_eq!(pool.index.dictionary().scopes().count(), 1);
    assert_eq!(pool.index.dictionary().replicas().count(), 8);
    assert!(left <= alone * 5 / 4 + TABLES_BYTES, "{left} bytes, {alone} before the others came");
    assert_eq!(answers(&pool.index), before);
}

#[test]
fn an_index_that_loses_everything_is_as_small_as_a_new_one() {
    let mut pool = Pool::new();
    pool.join(0, ALL);
    pool.leave(0, ALL);
    sweep(&mut pool.index);
    let (left, new) = (bytes(&pool.index), bytes(&Pool::new().index));
    println!("{left} bytes left, {new} in a new index");
    assert_eq!((pool.index.pairs(), pool.index.size().runs), (0, 0));
    assert!(left <= new + TABLES_BYTES, "{left} bytes, {new} in a new index");
}

#[test]
fn a_pool_of_conversations_gives_memory_back_and_takes_as_much_again() {
    let mut pool = Pool::new();
    let (said, pairs) = conversations::told(ALL, 2_000);
    pool.tell(said);
    let peak = bytes(&pool.index);
    assert_eq!(pool.index.pairs(), pairs);
    pool.tell(conversations::gone(LEAVE));
    sweep(&mut pool.index);
    let mut never_larger = Pool::new();
    let (said, left) = conversations::told(STAY, 2_000);
    never_larger.tell(said);
    let (shrunk, small) = (bytes(&pool.index), bytes(&never_larger.index));
    println!("{peak} bytes with 64 replicas, {shrunk} after 56 have gone, {small} with 8 alone");
    assert_eq!(pool.index.pairs(), left);
    assert!(shrunk <= small * 5 / 4 + TABLES_BYTES, "{shrunk} bytes, {small} in an index that was never larger");
    assert!(shrunk * 4 < peak, "{shrunk} bytes of {peak}");
    let (said, more) = conversations::told(64..120, 2_000);
    pool.tell(said);
    let again = bytes(&pool.index);
    println!("{again} bytes with 56 others");
    assert_eq!(pool.index.pairs(), left + more);
    assert!(again <= peak + peak / 20, "{again} bytes, {peak} before");
}
