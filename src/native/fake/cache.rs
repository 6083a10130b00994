//! A block cache of fixed capacity, as vLLM keeps one.
//!
//! In: sequences of tokens that are admitted, computed, extended and released. Out: which prompt tokens were already
//! there, and the [`KvEvent`]s of every change, in order. Rules, all vLLM's:
//!
//! - only full blocks are cached; a key covers its block and everything before it;
//! - at least a prompt's last token is computed, so a prompt never comes wholly from the cache;
//! - a block is stored once its last token has been computed, generated tokens included;
//! - blocks of running sequences stay; of the others the one that has been idle longest is evicted first, and a
//!   sequence lets go of its last block first, so a chain is evicted from its end.
//!
//! Two deviations, neither of which makes the cache hold more than it reports. A block computed by two sequences at
//! once is stored and reported once. Blocks for all tokens that a request may generate are set aside when it is
//! admitted, so a running sequence is never preempted.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;

use super::engine_key::EngineKey;
use super::events::KvEvent;
use crate::fingerprint::BlockSize;

/// The cache.
#[derive(Debug)]
pub struct BlockCache {
    capacity: usize,
    block_size: usize,
    root: EngineKey,
    /// Every stored block.
    stored: HashMap<EngineKey, Stored>,
    /// The stored blocks that no sequence uses, by [`Stored::idle_since`].
    idle: BTreeMap<u64, EngineKey>,
    /// Blocks that sequences fill but that are not stored yet.
    unstored: usize,
    /// Blocks set aside for tokens to come.
    reserved: usize,
    /// Counts releases, so that no two blocks are idle since the same moment.
    clock: u64,
}

#[derive(Debug)]
struct Stored {
    /// Sequences that use the block.
    users: usize,
    /// When the last of them let go of it; without meaning while it has users.
    idle_since: u64,
}

/// What a sequence's keys depend on besides its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Namespace<'a> {
    /// The LoRA adapter that computes it, if one does.
    pub lora: Option<&'a str>,
    /// The salt that keeps it apart from others' sequences, if there is one.
    pub salt: Option<&'a str>,
}

/// The blocks of a running request. Give it back with [`BlockCache::release`], or its blocks stay in use.
#[derive(Debug)]
#[must_use]
pub struct Sequence {
    lora: Option<Arc<str>>,
    salt: Option<Arc<str>>,
    /// The root of its keys, which has both.
    root: EngineKey,
    /// The tokens computed so far, once [`BlockCache::store`] was called.
    token_ids: Vec<u32>,
    /// Keys of its leading blocks that are stored.
    keys: Vec<EngineKey>,
    /// Its blocks that are not.
    unstored: usize,
    /// Blocks set aside for it.
    reserved: usize,
    cached_tokens: usize,
}

/// The cache has too few blocks that no sequence uses. Another try helps once one has been released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// The cache was not cleared: this many blocks are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlocksInUse(pub usize);

// === impl BlockCache ===

impl BlockCache {
    /// An empty cache of `capacity` blocks whose keys start from `root`.
    pub fn new(capacity: NonZeroUsize, block_size: BlockSize, root: EngineKey) -> BlockCache {
        BlockCache {
            capacity: capacity.get(),
            block_size: block_size.tokens(),
            root,
            stored: HashMap::new(),
            idle: BTreeMap::new(),
            unstored: 0,
            reserved: 0,
            clock: 0,
        }
    }

    /// The longest sequence that fits, in tokens.
    pub fn capacity_tokens(&self) -> usize {
        self.capacity.saturating_mul(self.block_size)
    }

    /// Blocks that running sequences use.
    pub fn blocks_in_use(&self) -> usize {
        self.stored.len() - self.idle.len() + self.unstored
    }

    /// Share of blocks that running sequences use, 0 to 1.
    pub fn usage(&self) -> f64 {
        self.blocks_in_use() as f64 / self.capacity as f64
    }

    /// Takes in a sequence: reuses the leading blocks of `prompt` that are stored, takes the blocks for the rest, and
    /// sets blocks aside for `more_tokens` beyond it.
    ///
    /// # Errors
    /// [`NoRoom`] when other sequences use too many blocks; nothing has changed then.
    pub fn admit(
        &mut self,
        namespace: Namespace<'_>,
        prompt: &[u32],
        more_tokens: usize,
        events: &mut Vec<KvEvent>,
    ) -> Result<Sequence, NoRoom> {
        let Namespace { lora, salt } = namespace;
        let root = lora.map_or(self.root, |name| self.root.of_adapter(name));
        let root = salt.map_or(root, |salt| root.of_salt(salt));
        let keys = self.leading_run(root, prompt);
        let now = prompt.len().div_ceil(self.block_size) - keys.len();
        let in_all = prompt.len().saturating_add(more_tokens).div_ceil(self.block_size) - keys.len();
        let idle_hits = keys.iter().filter(|key| self.is_idle(key)).count();
        let available = self.capacity.saturating_sub(self.blocks_in_use() + idle_hits + self.reserved);
        if in_all > available {
            return Err(NoRoom);
        }

        for key in &keys {
            self.use_stored(key);
        }
        for _ in 0..now {
            self.take_block(events);
        }
        self.reserved += in_all - now;
        let cached_tokens = keys.len() * self.block_size;
        let (lora, salt, token_ids) = (lora.map(Arc::from), salt.map(Arc::from), prompt.to_vec());
        Ok(Sequence { lora, salt, root, token_ids, keys, unstored: now, reserved: in_all - now, cached_tokens })
    }

    /// Stores every full block of the sequence that is not stored yet: its tokens have been computed.
    pub fn store(&mut self, sequence: &mut Sequence, events: &mut Vec<KvEvent>) {
        let Sequence { lora, salt, root, token_ids, keys, unstored, .. } = sequence;
        let mut run = Run::default();
        let (lora, salt) = (lora.as_ref(), salt.as_ref());
        for block in token_ids.chunks_exact(self.block_size).skip(keys.len()) {
            let parent = keys.last().copied();
            let key = parent.unwrap_or(*root).child(block);
            *unstored = unstored.saturating_sub(1);
            self.unstored = self.unstored.saturating_sub(1);
            if self.use_stored(&key) {
                run.finish(self.block_size, lora, salt, events);
            } else {
                self.stored.insert(key, Stored { users: 1, idle_since: 0 });
                run.push(parent, key, block);
            }
            keys.push(key);
        }
        run.finish(self.block_size, lora, salt, events);
    }

    /// Adds a generated token that has been computed, and stores the block that it completes. A token beyond those
    /// that the sequence was admitted for is not kept.
    pub fn extend(&mut self, sequence: &mut Sequence, token_id: u32, events: &mut Vec<KvEvent>) {
        if sequence.token_ids.len().is_multiple_of(self.block_size) {
            let Some(reserved) = sequence.reserved.checked_sub(1) else { return };
            sequence.reserved = reserved;
            self.reserved = self.reserved.saturating_sub(1);
            self.take_block(events);
            sequence.unstored += 1;
        }
        sequence.token_ids.push(token_id);
        if sequence.token_ids.len().is_multiple_of(self.block_size) {
            self.store(sequence, events);
        }
    }

    /// Lets go of a sequence's blocks, the last one first. Stored blocks stay until they are evicted.
    pub fn release(&mut self, sequence: Sequence) {
        self.unstored = self.unstored.saturating_sub(sequence.unstored);
        self.reserved = self.reserved.saturating_sub(sequence.reserved);
        for key in sequence.keys.into_iter().rev() {
            let Some(stored) = self.stored.get_mut(&key) else { continue };
            stored.users = stored.users.saturating_sub(1);
            if stored.users == 0 {
                self.clock += 1;
                stored.idle_since = self.clock;
                self.idle.insert(self.clock, key);
            }
        }
    }

    /// Forgets every stored block.
    ///
    /// # Errors
    /// When sequences use blocks; nothing has changed then, as in vLLM.
    pub fn clear(&mut self, events: &mut Vec<KvEvent>) -> Result<(), BlocksInUse> {
        let in_use = self.blocks_in_use();
        if in_use > 0 {
            return Err(BlocksInUse(in_use));
        }
        self.stored.clear();
        self.idle.clear();
        events.push(KvEvent::AllBlocksCleared);
        Ok(())
    }

    /// Keys of the leading blocks of `prompt` that are stored, leaving at least one token to compute.
    fn leading_run(&self, root: EngineKey, prompt: &[u32]) -> Vec<EngineKey> {
        let reusable = prompt.len().saturating_sub(1) / self.block_size;
        let keys = prompt.chunks_exact(self.block_size).take(reusable).scan(root, |parent, block| {
            *parent = parent.child(block);
            Some(*parent)
        });
        keys.take_while(|key| self.stored.contains_key(key)).collect()
    }

    fn is_idle(&self, key: &EngineKey) -> bool {
        self.stored.get(key).is_some_and(|stored| stored.users == 0)
    }

    /// One more sequence uses the block, if it is stored.
    fn use_stored(&mut self, key: &EngineKey) -> bool {
        let Some(stored) = self.stored.get_mut(key) else { return false };
        if stored.users == 0 {
            self.idle.remove(&stored.idle_since);
        }
        stored.users += 1;
        true
    }

    /// Takes a block for a sequence: an empty one, else the one that has been idle longest.
    fn take_block(&mut self, events: &mut Vec<KvEvent>) {
        if self.stored.len() + self.unstored >= self.capacity
            && let Some((_, key)) = self.idle.pop_first()
        {
            self.stored.remove(&key);
            events.push(KvEvent::BlockRemoved { key });
        }
        self.unstored += 1;
    }
}

// === impl Sequence ===

impl Sequence {
    /// Tokens of the prompt that came from the cache.
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }
}

/// Consecutive blocks that are stored together.
#[derive(Default)]
struct Run {
    parent: Option<EngineKey>,
    keys: Vec<EngineKey>,
    token_ids: Vec<u32>,
}

// === impl Run ===

impl Run {
    fn push(&mut self, parent: Option<EngineKey>, key: EngineKey, block: &[u32]) {
        if self.keys.is_empty() {
            self.parent = parent;
        }
        self.keys.push(key);
        self.token_ids.extend_from_slice(block);
    }

    fn finish(
        &mut self,
        block_size: usize,
        lora: Option<&Arc<str>>,
        salt: Option<&Arc<str>>,
        events: &mut Vec<KvEvent>,
    ) {
        let Run { parent, keys, token_ids } = std::mem::take(self);
        if !keys.is_empty() {
            let (lora, salt) = (lora.cloned(), salt.cloned());
            events.push(KvEvent::BlockStored { keys, parent, token_ids, block_size, lora, salt });
        }
    }
}

#[cfg(test)]
mod tests;
