//! Engines' messages.

use warmroute::native::engine::{Dialect, KvEvent, decode};
use warmroute::native::hub::config::EngineKind;
use warmroute::native::hub::replica_cache::{ReplicaCache, Tally};
use warmroute::observation::ScopeSlot;

/// No more is credited than the message can name.
pub fn engine_events(payload: &[u8]) {
    let Ok(batch) = decode(payload, &Dialect::of(EngineKind::Auto)) else { return };
    let (mut cache, mut tally, mut changes) = (ReplicaCache::new(None), Tally::default(), Vec::new());
    let mut stored = 0;
    for event in &batch.events {
        cache.apply(event, 1, &mut |name: &str| Some(ScopeSlot(name.len() as u32)), &mut changes, &mut tally);
        if let KvEvent::BlockStored(event) = event {
            stored += event.block_hashes.len();
        }
        assert!(cache.len() <= stored);
    }
    assert!(stored <= payload.len());
}
