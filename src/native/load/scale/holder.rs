//! One replica's cache as its events tell it: conversations come as new ones are asked, and go oldest first.
//!
//! Out: the events of one step, as an engine publishes them in one batch. A conversation goes from its last block to its
//! first, and comes in pieces that each continue the one before. Pure.

use std::collections::VecDeque;

use super::content::{BLOCK_TOKENS, Conversation, SYSTEM_PROMPTS, engine_keys, stored, system_ids};
use crate::native::fake::engine_key::EngineKey;
use crate::native::fake::events::KvEvent;

/// The cache of one replica.
#[derive(Debug)]
pub struct Holder {
    replica: usize,
    root: EngineKey,
    /// The keys at which the system prompts end.
    system_ends: Vec<EngineKey>,
    /// Conversations held whole: the oldest, and the one after the latest.
    oldest: u64,
    next: u64,
    /// What is left of the conversation that goes.
    going: Vec<EngineKey>,
    /// What is still to be stored of the conversation that comes.
    coming: Option<Coming>,
    blocks: usize,
}

#[derive(Debug)]
struct Coming {
    parent: EngineKey,
    ids: VecDeque<u32>,
}

// === impl Holder ===

impl Holder {
    /// A replica that holds nothing.
    pub fn new(replica: usize) -> Holder {
        Holder {
            replica,
            root: EngineKey::random_root(),
            system_ends: Vec::new(),
            oldest: 0,
            next: 0,
            going: Vec::new(),
            coming: None,
            blocks: 0,
        }
    }

    /// Blocks held.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// The conversations that are held whole: the first, and the one after the last.
    pub fn whole(&self) -> (u64, u64) {
        (self.oldest, self.next)
    }

    /// Whether all of this conversation is held.
    pub fn holds_whole(&self, number: u64) -> bool {
        (self.oldest..self.next).contains(&number)
    }

    /// Stores the system prompts, once.
    pub fn store_system_prompts(&mut self) -> Vec<KvEvent> {
        if !self.system_ends.is_empty() {
            return Vec::new();
        }
        let mut events = Vec::new();
        for number in 0..SYSTEM_PROMPTS {
            let ids = system_ids(number);
            let keys = engine_keys(self.root, &ids);
            self.blocks += keys.len();
            self.system_ends.extend(keys.last());
            events.push(stored(keys, None, ids));
        }
        events
    }

    /// Stores one conversation, or what is missing of the one that comes.
    pub fn store_conversation(&mut self) -> KvEvent {
        self.store(usize::MAX)
    }

    /// Lets `removed` blocks go and `stored` come; the latter in one or two pieces.
    pub fn change(&mut self, removed: usize, stored: usize) -> Vec<KvEvent> {
        let mut events: Vec<KvEvent> = (0..removed).map_while(|_| self.remove()).collect();
        let wanted = self.blocks + stored;
        while self.blocks < wanted {
            let event = self.store(wanted - self.blocks);
            events.push(event);
        }
        events
    }

    /// Lets a whole conversation go, the oldest.
    pub fn drop_conversation(&mut self) -> Vec<KvEvent> {
        let first = self.remove();
        let rest = self.going.len();
        first.into_iter().chain((0..rest).map_while(|_| self.remove())).collect()
    }

    fn remove(&mut self) -> Option<KvEvent> {
        if self.going.is_empty() && self.oldest < self.next {
            let parent = self.system_end(self.oldest);
            self.going = engine_keys(parent, &self.conversation(self.oldest).own_ids());
            self.oldest += 1;
        }
        let key = self.going.pop()?;
        self.blocks -= 1;
        Some(KvEvent::BlockRemoved { key })
    }

    /// Stores at most `most` blocks of the conversation that comes.
    fn store(&mut self, most: usize) -> KvEvent {
        let (number, parent) = (self.next, self.system_end(self.next));
        let conversation = self.conversation(number);
        let coming = self.coming.get_or_insert_with(|| Coming { parent, ids: conversation.own_ids().into() });
        let tokens = coming.ids.len().min(most.saturating_mul(BLOCK_TOKENS));
        let ids: Vec<u32> = coming.ids.drain(..tokens).collect();
        let keys = engine_keys(coming.parent, &ids);
        let before = std::mem::replace(&mut coming.parent, keys.last().copied().unwrap_or(parent));
        if coming.ids.is_empty() {
            self.coming = None;
            self.next += 1;
        }
        self.blocks += keys.len();
        stored(keys, Some(before), ids)
    }

    fn conversation(&self, number: u64) -> Conversation {
        Conversation { replica: self.replica, number }
    }

    fn system_end(&self, number: u64) -> EngineKey {
        self.system_ends.get((number % SYSTEM_PROMPTS) as usize).copied().unwrap_or(self.root)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;
    use crate::native::load::scale::content::SYSTEM_BLOCKS;

    /// Applies events as a follower would: a parent must be held, a removed block too.
    fn apply(held: &mut HashMap<EngineKey, Option<EngineKey>>, events: Vec<KvEvent>) {
        for event in events {
            match event {
                KvEvent::BlockStored { keys, mut parent, token_ids, .. } => {
                    assert_eq!(keys.len() * BLOCK_TOKENS, token_ids.len());
                    for key in keys {
                        assert!(parent.is_none_or(|parent| held.contains_key(&parent)));
                        assert!(held.insert(key, parent).is_none(), "stored twice");
                        parent = Some(key);
                    }
                }
                KvEvent::BlockRemoved { key } => assert!(held.remove(&key).is_some(), "removed and not held"),
                KvEvent::AllBlocksCleared => held.clear(),
            }
        }
    }

    #[test]
    fn changes_keep_the_size_and_every_block_has_its_parent() {
        let mut holder = Holder::new(3);
        let mut held = HashMap::new();
        apply(&mut held, holder.store_system_prompts());
        for _ in 0..20 {
            let event = holder.store_conversation();
            apply(&mut held, vec![event]);
        }
        let size = holder.blocks();
        for step in 0..200 {
            let events = holder.change(39, 39);
            apply(&mut held, events);
            assert_eq!((holder.blocks(), held.len()), (size, size), "step {step}");
        }
        let parents: HashSet<EngineKey> = held.values().flatten().copied().collect();
        assert!(parents.iter().all(|parent| held.contains_key(parent)), "a block without the one before it");
        let (oldest, next) = holder.whole();
        assert!(oldest > 20 && next > oldest + 10);
    }

    #[test]
    fn a_conversation_is_whole_from_its_last_block_to_the_first_that_goes() {
        let mut holder = Holder::new(1);
        holder.store_system_prompts();
        let blocks = Conversation { replica: 1, number: 0 }.own_blocks();
        holder.change(0, blocks - 1);
        assert!(!holder.holds_whole(0));
        holder.change(0, 1);
        assert!(holder.holds_whole(0) && !holder.holds_whole(1));
        holder.change(1, 0);
        assert!(!holder.holds_whole(0));
    }

    #[test]
    fn whole_conversations_go() {
        let mut holder = Holder::new(0);
        let mut held = HashMap::new();
        apply(&mut held, holder.store_system_prompts());
        for _ in 0..3 {
            let event = holder.store_conversation();
            apply(&mut held, vec![event]);
        }
        for _ in 0..3 {
            apply(&mut held, holder.drop_conversation());
        }
        assert_eq!(held.len(), SYSTEM_PROMPTS as usize * SYSTEM_BLOCKS);
        assert!(holder.drop_conversation().is_empty());
    }
}
