//! Added tokens: their ids, as the reference counts them, and the tries that find them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::added::{LSTRIP, RSTRIP, SINGLE_WORD, SPECIAL, build_trie};
use super::super::format::{MAX_ADDED_BYTES, MAX_IDS, Section};
use super::super::normalize::{Step, normalized};
use super::Sections;
use super::error::CompileError;
use super::source::{AddedToken, Source};

const FIELD: &str = "added_tokens";

/// The added tokens in the order of their ids.
pub(super) struct Added {
    tokens: Vec<Placed>,
}

struct Placed {
    id: u32,
    token: AddedToken,
    /// What is looked for: the token's text, normalized if the token is.
    pattern: String,
}

// === impl Added ===

impl Added {
    /// Counts ids like the reference, which does not read those in the file: a token of the vocabulary keeps its id
    /// there, any other gets the next one from the size of the vocabulary on, and a repeated one replaces itself.
    pub(super) fn replay(source: &Source, steps: &[Step]) -> Result<Added, CompileError> {
        let vocabulary = &source.model.vocab;
        let mut ids: HashMap<&str, u32> = HashMap::new();
        let mut by_id = BTreeMap::new();
        let mut next = vocabulary.len() as u32;
        for token in source.added_tokens.iter().filter(|token| !token.content.is_empty()) {
            let content = token.content.as_str();
            let id = ids.get(content).or_else(|| vocabulary.get(content)).copied().unwrap_or(next);
            if id == next && !vocabulary.contains_key(content) && !ids.contains_key(content) {
                next += 1;
            }
            ids.insert(content, id);
            by_id.insert(id, token.clone());
        }
        let tokens: Vec<Placed> = by_id.into_iter().map(|(id, token)| placed(id, token, steps)).collect();
        check(&tokens)?;
        Ok(Added { tokens })
    }

    /// Length of the longest token that is matched before normalizing.
    pub(super) fn longest_raw(&self) -> u32 {
        let raw = self.tokens.iter().filter(|placed| !placed.token.normalized);
        raw.map(|placed| placed.pattern.len() as u32).max().unwrap_or(0)
    }

    pub(super) fn write(&self, sections: &mut Sections) {
        let entry = |placed: &Placed| u64::from(placed.id) | (u64::from(flags(&placed.token)) << 32);
        sections.put(Section::Added, self.tokens.iter().flat_map(|placed| entry(placed).to_le_bytes()).collect());
        for (is_normalized, nodes, edges) in
            [(false, Section::RawNodes, Section::RawEdges), (true, Section::NormalizedNodes, Section::NormalizedEdges)]
        {
            let indexed = (0_u32..).zip(&self.tokens).filter(|(_, placed)| placed.token.normalized == is_normalized);
            let patterns: Vec<_> = indexed.map(|(index, placed)| (placed.pattern.as_bytes(), index)).collect();
            let (node_bytes, edge_bytes) = build_trie(&patterns);
            sections.put(nodes, node_bytes);
            sections.put(edges, edge_bytes);
        }
    }
}

fn placed(id: u32, token: AddedToken, steps: &[Step]) -> Placed {
    let pattern = if token.normalized { normalized(steps, &token.content).into_owned() } else { token.content.clone() };
    Placed { id, token, pattern }
}

fn flags(token: &AddedToken) -> u32 {
    let flag = |set: bool, bit: u32| if set { bit } else { 0 };
    flag(token.lstrip, LSTRIP)
        | flag(token.rstrip, RSTRIP)
        | flag(token.single_word, SINGLE_WORD)
        | flag(token.special, SPECIAL)
}

fn check(tokens: &[Placed]) -> Result<(), CompileError> {
    let mut seen = BTreeSet::new();
    for Placed { id, token, pattern } in tokens {
        let content = &token.content;
        if *id >= MAX_IDS {
            return Err(CompileError::invalid(
                FIELD,
                format!("{content:?} has id {id}, allowed are ids below {MAX_IDS}"),
            ));
        }
        if pattern.is_empty() || pattern.len() > MAX_ADDED_BYTES {
            let reason = format!(
                "{content:?} is {} bytes long when normalized, allowed are 1 to {MAX_ADDED_BYTES}",
                pattern.len()
            );
            return Err(CompileError::invalid(FIELD, reason));
        }
        if !seen.insert((token.normalized, pattern)) {
            return Err(CompileError::invalid(FIELD, format!("{content:?} is the same as another when normalized")));
        }
    }
    let nodes: usize = tokens.iter().map(|placed| placed.pattern.len()).sum();
    if nodes >= 1 << 24 {
        return Err(CompileError::invalid(FIELD, "more than 16 MiB of text"));
    }
    Ok(())
}
