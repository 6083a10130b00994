//! A log that begins anew, for who knew another one.

use super::{DOMAIN, Pool, scope, stored};
use crate::flow::follower::View;
use crate::flow::keys::Keys;
use crate::host::{Cas, Host, SharedWrite};
use crate::observation::{Observation, ScopeSlot, StreamBody};

#[test]
fn that_an_earlier_log_was_heard_says_nothing_of_a_log_that_has_only_begun() {
    let mut pool = Pool::new(2);
    pool.tick_all(3);
    pool.reset(&[1]);
    pool.tick_all(1);
    assert_eq!(pool.credited(1), Some(16));
    // It sleeps through the ring, and finds no page: nothing is left of what it knew.
    pool.host.0.broken.replace(Some(Keys::new(DOMAIN).page(0)));
    for key in 2..=60 {
        pool.delta(vec![stored(&[key])]);
        pool.tick(0);
    }
    assert!(matches!(pool.vms[1].ask(&pool.host, 0).view, View::CatchingUp));
    let before = pool.head().incarnation;
    assert_eq!(pool.host.shared_set(&Keys::new(DOMAIN).head(), b"not a head", Cas(0)), SharedWrite::Stored);
    (0..13).for_each(|_| pool.tick(0));
    assert_ne!(pool.head().incarnation, before);
    // The new log has a part of what the hub says.
    pool.number = 0;
    pool.say(StreamBody::Reset);
    pool.say(StreamBody::Chunk(vec![Observation::Scope { slot: ScopeSlot(1), scope: scope() }]));
    pool.tick_all(2);
    let known = pool.vms[1].ask(&pool.host, 5_000_000);
    assert!(matches!(known.view, View::Index(index) if index.is_empty()), "{known:?}");
    assert_eq!(known.heard_ms, None, "cold: what it has is no whole");
}
