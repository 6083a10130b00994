//! Keys of different widths.
//!
//! Where keys are written one after another their width is written once. In: an observation with any keys. Out: the same
//! as observations whose keys can be written like that.

use super::{BlockKey, Counted, MAX_KEY_BYTES, Observation, ReplicaCounts, Stored, StoredBlock};

// === impl Observation ===

impl Observation {
    /// Whether its keys, apart from a parent, all have one width, which is one that the key of a held block can have.
    pub fn is_uniform(&self) -> bool {
        match self {
            Observation::Stored(stored) => are_uniform(stored.blocks.iter().map(|block| &block.key)),
            Observation::Removed { keys, .. } => are_uniform(keys.iter()),
            Observation::Counted(counted) => are_uniform(counted.keys.iter()),
            _ => true,
        }
    }

    /// The same as observations that are [uniform](Observation::is_uniform): blocks that are stored stay in order, each
    /// piece with the block before it. Keys without bytes and those longer than [`MAX_KEY_BYTES`], which are held by
    /// nobody, are left out.
    pub fn into_uniform(self) -> Vec<Observation> {
        if self.is_uniform() {
            return vec![self];
        }
        match self {
            Observation::Stored(stored) => stored.into_uniform(),
            Observation::Removed { replica, scope, mut keys } => {
                keys.sort_by_key(BlockKey::width);
                let pieces = keys.chunk_by(alike).filter(|keys| are_uniform(keys.iter()));
                pieces.map(|keys| Observation::Removed { replica, scope, keys: keys.to_vec() }).collect()
            }
            Observation::Counted(counted) => counted.into_uniform(),
            other => vec![other],
        }
    }
}

// === impl Stored ===

impl Stored {
    /// Keys of several widths are no prefix hashes, whatever is said of them: the pieces are not chained.
    fn into_uniform(mut self) -> Vec<Observation> {
        let blocks = std::mem::take(&mut self.blocks);
        let mut before = self.parent.take();
        let mut pieces = Vec::new();
        for piece in blocks.chunk_by(|one, next| alike(&one.key, &next.key)) {
            let parent = before.take();
            before = piece.last().map(|block| block.key.clone());
            if are_uniform(piece.iter().map(|block: &StoredBlock| &block.key)) {
                let piece = Stored { parent, chained: false, blocks: piece.to_vec(), ..self.clone() };
                pieces.push(Observation::Stored(piece));
            }
        }
        pieces
    }
}

// === impl Counted ===

impl Counted {
    fn into_uniform(self) -> Vec<Observation> {
        let mut from = 0_usize;
        let mut pieces = Vec::new();
        for keys in self.keys.chunk_by(alike) {
            let its_counts = from..from.saturating_add(keys.len());
            from = its_counts.end;
            if !are_uniform(keys.iter()) {
                continue;
            }
            let replicas = self.replicas.iter().filter_map(|at| {
                let until = its_counts.end.min(at.counts.len());
                let counts = at.counts.get(its_counts.start..until).filter(|counts| !counts.is_empty())?;
                Some(ReplicaCounts { replica: at.replica, counts: counts.to_vec() })
            });
            let replicas: Vec<_> = replicas.collect();
            if !replicas.is_empty() {
                pieces.push(Observation::Counted(Counted { scope: self.scope, keys: keys.to_vec(), replicas }));
            }
        }
        pieces
    }
}

fn alike(one: &BlockKey, next: &BlockKey) -> bool {
    one.width() == next.width()
}

fn are_uniform<'a>(mut keys: impl Iterator<Item = &'a BlockKey>) -> bool {
    let Some(width) = keys.next().map(BlockKey::width) else { return true };
    (1..=MAX_KEY_BYTES).contains(&width) && keys.all(|key| key.width() == width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{ReplicaSlot, ScopeSlot};

    const REPLICA: ReplicaSlot = ReplicaSlot(3);
    const SCOPE: ScopeSlot = ScopeSlot(2);

    fn key(bytes: &str) -> BlockKey {
        BlockKey::of_request(bytes.as_bytes())
    }

    fn keys(keys: &[&str]) -> Vec<BlockKey> {
        keys.iter().map(|bytes| key(bytes)).collect()
    }

    fn stored(parent: &str, blocks: &[(&str, u32)], chained: bool) -> Observation {
        let blocks =
            blocks.iter().map(|(bytes, token_count)| StoredBlock { key: key(bytes), token_count: *token_count });
        Observation::Stored(Stored {
            replica: REPLICA,
            scope: SCOPE,
            last_seen_ms: 7,
            parent: Some(key(parent)),
            chained,
            page: 4,
            access_count: Some(5),
            blocks: blocks.collect(),
            ..Stored::default()
        })
    }

    #[test]
    fn what_has_one_width_stays_as_it_is() {
        let whole = stored("before", &[("12345678", 16), ("abcdefgh", 32)], true);
        assert_eq!(whole.clone().into_uniform(), [whole]);
        let nothing = Observation::Removed { replica: REPLICA, scope: SCOPE, keys: Vec::new() };
        assert_eq!(nothing.clone().into_uniform(), [nothing]);
    }

    #[test]
    fn blocks_stay_in_order_and_say_what_they_come_after() {
        let whole = stored("before", &[("a", 1), ("b", 2), ("12345678", 3), ("123456789", 4), ("c", 5)], true);
        let pieces = [
            stored("before", &[("a", 1), ("b", 2)], false),
            stored("b", &[("12345678", 3)], false),
            stored("12345678", &[("123456789", 4)], false),
            stored("123456789", &[("c", 5)], false),
        ];
        assert_eq!(whole.into_uniform(), pieces);
    }

    #[test]
    fn a_key_that_nobody_can_hold_is_left_out() {
        let longest = "x".repeat(MAX_KEY_BYTES);
        let too_long = "x".repeat(MAX_KEY_BYTES + 1);
        let whole = stored("p", &[("", 1), (&longest, 2), (&too_long, 3), ("a", 4)], false);
        let pieces = [stored("", &[(&longest, 2)], false), stored(&too_long, &[("a", 4)], false)];
        assert_eq!(whole.into_uniform(), pieces);
        let removed = Observation::Removed { replica: REPLICA, scope: SCOPE, keys: keys(&[""]) };
        assert_eq!(removed.into_uniform(), []);
    }

    #[test]
    fn keys_that_are_removed_come_by_width() {
        let removed = |removed: &[&str]| Observation::Removed { replica: REPLICA, scope: SCOPE, keys: keys(removed) };
        let pieces = [removed(&["a", "b"]), removed(&["cd", "ef"]), removed(&["12345678"])];
        assert_eq!(removed(&["a", "cd", "12345678", "b", "ef"]).into_uniform(), pieces);
    }

    #[test]
    fn counts_stay_with_their_keys() {
        let counted = |of: &[&str], counts: &[(u32, &[u32])]| {
            let counts = counts
                .iter()
                .map(|(number, counts)| ReplicaCounts { replica: ReplicaSlot(*number), counts: counts.to_vec() });
            Observation::Counted(Counted { scope: SCOPE, keys: keys(of), replicas: counts.collect() })
        };
        let whole = counted(&["a", "b", "cd", "", "e"], &[(1, &[1, 2, 3, 4, 5]), (2, &[6]), (3, &[7, 8, 9])]);
        let pieces = [
            counted(&["a", "b"], &[(1, &[1, 2]), (2, &[6]), (3, &[7, 8])]),
            counted(&["cd"], &[(1, &[3]), (3, &[9])]),
            counted(&["e"], &[(1, &[5])]),
        ];
        assert_eq!(whole.into_uniform(), pieces);
    }
}
