//! A flow of changes that does not end, over more than the ring: nothing of it waits for pages to be written.

use super::{Pool, removed, stored};

/// From one change to the next, in simulated ns.
const EVERY_NS: u64 = 5_000_000;
/// What a look at the clock takes: with one a page, a step of 0.5 ms writes about twenty.
const LOOK_NS: u64 = 25_000;

/// The longest that a change waited until it was acknowledged, in ms.
fn longest_wait_ms(pool: &mut Pool, changes: u64) -> u64 {
    let (mut next_tick_ns, mut longest_ns, mut waiting) = (0, 0, None);
    for change in 0..changes {
        let due_ns = pool.host.0.elapsed_ns.get() + EVERY_NS;
        pool.delta(vec![if change % 2 == 0 { stored(&[change + 1]) } else { removed(&[change]) }]);
        while pool.host.0.elapsed_ns.get() < due_ns {
            let world = &pool.host.0;
            if world.elapsed_ns.get() >= next_tick_ns {
                pool.vms[0].tick(&pool.host, 1, &pool.config);
                next_tick_ns = world.elapsed_ns.get() + pool.vms[0].tick_period_ms(1, &pool.config) * 1_000_000;
            }
            world.elapsed_ns.set(world.elapsed_ns.get().max(due_ns.min(next_tick_ns)));
        }
        let now_ns = pool.host.0.elapsed_ns.get();
        if pool.stream().2 == pool.number {
            waiting = None;
        } else {
            longest_ns = longest_ns.max(now_ns - *waiting.get_or_insert(due_ns - EVERY_NS));
        }
    }
    longest_ns / 1_000_000
}

#[test]
fn pages_of_one_age_are_written_before_the_ring_needs_them() {
    let mut pool = Pool::new(1);
    (pool.config.limits.pages, pool.config.limits.log_segments) = (2_000, 2_000);
    pool.tick_all(30);
    pool.reset(&[1_000_000]);
    pool.tick_all(1);
    pool.host.0.look_ns.set(LOOK_NS);
    // Around the ring more than once: first all pages are of one age, then of many.
    let longest_ms = longest_wait_ms(&mut pool, 12_000);
    assert!(longest_ms <= 100, "{longest_ms} ms");
    assert!(pool.head().first > 2_000, "the ring came around: {:?}", pool.head());
}
