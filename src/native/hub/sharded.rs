//! A map in [`SHARDS`] maps of its own, so that all of it can be gone through a part at a time.
//!
//! Whoever holds a lock over a map of a million entries while it looks at each keeps everybody else waiting; here the lock
//! can be let go between the parts. A part grows by itself, too: none of the others is moved with it. In: keys that say which
//! part they belong to. An empty map takes no memory.

use std::collections::HashMap;
use std::hash::Hash;

/// The parts of a map.
pub const SHARDS: usize = 32;

/// A key that is spread over the parts.
pub trait ShardKey: Hash + Eq {
    /// Any number, as evenly spread as may be; the same for equal keys.
    fn spread(&self) -> u64;
}

/// The map.
#[derive(Debug)]
pub struct Sharded<K, V> {
    shards: Vec<HashMap<K, V>>,
    len: usize,
}

fn place(spread: u64) -> usize {
    // The upper half too: engines number blocks in their own ways.
    (spread ^ (spread >> 32)) as usize % SHARDS
}

// === impl Sharded ===

impl<K, V> Default for Sharded<K, V> {
    fn default() -> Sharded<K, V> {
        Sharded { shards: Vec::new(), len: 0 }
    }
}

impl<K: ShardKey, V> Sharded<K, V> {
    /// Entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.shards.get(place(key.spread()))?.get(key)
    }

    /// The value of a key, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.shards.get_mut(place(key.spread()))?.get_mut(key)
    }

    /// Whether there is such a key.
    pub fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: K, value: V) {
        if self.shards.is_empty() {
            self.shards.resize_with(SHARDS, HashMap::new);
        }
        if let Some(shard) = self.shards.get_mut(place(key.spread()))
            && shard.insert(key, value).is_none()
        {
            self.len += 1;
        }
    }

    /// Takes a key out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let removed = self.shards.get_mut(place(key.spread()))?.remove(key);
        self.len -= usize::from(removed.is_some());
        removed
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.shards.iter().flatten()
    }

    /// The entries of one part, in no order.
    pub fn part(&self, part: usize) -> impl Iterator<Item = (&K, &V)> {
        self.shards.get(part).into_iter().flatten()
    }

    /// Takes those out of one part that `goes` says; what they were.
    pub fn take_from(&mut self, part: usize, mut goes: impl FnMut(&V) -> bool) -> Vec<V> {
        let Some(shard) = self.shards.get_mut(part) else { return Vec::new() };
        let taken: Vec<V> = shard.extract_if(|_, value| goes(value)).map(|(_, value)| value).collect();
        self.len -= taken.len();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ShardKey for u64 {
        fn spread(&self) -> u64 {
            *self
        }
    }

    #[test]
    fn it_is_a_map_and_its_parts_are_all_of_it() {
        let (mut map, mut model) = (Sharded::default(), HashMap::new());
        let mut state = 7_u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = (state >> 40) % 3_000;
            match state >> 62 {
                0 => assert_eq!(map.remove(&key), model.remove(&key)),
                _ => {
                    map.insert(key, state);
                    model.insert(key, state);
                }
            }
            assert_eq!((map.get(&key), map.len()), (model.get(&key), model.len()));
        }
        assert_eq!(map.iter().map(|(key, value)| (*key, *value)).collect::<HashMap<_, _>>(), model);
        let parts: Vec<usize> = (0..SHARDS).map(|part| map.part(part).count()).collect();
        assert_eq!(parts.iter().sum::<usize>(), model.len());
        assert!(parts.iter().all(|part| *part < model.len() / SHARDS * 2), "{parts:?}");
        let taken: usize = (0..SHARDS).map(|part| map.take_from(part, |value| value % 2 == 0).len()).sum();
        model.retain(|_, value| *value % 2 == 1);
        assert!(taken > 0);
        assert_eq!(map.len(), model.len());
        assert_eq!(map.iter().map(|(key, value)| (*key, *value)).collect::<HashMap<_, _>>(), model);
    }

    #[test]
    fn nothing_is_in_an_empty_one() {
        let mut map: Sharded<u64, u64> = Sharded::default();
        assert_eq!((map.len(), map.get(&1), map.iter().count()), (0, None, 0));
        assert_eq!(map.remove(&1), None);
        assert!(map.take_from(3, |_| true).is_empty() && map.part(3).next().is_none());
    }
}
