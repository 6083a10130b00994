//! Characters whose bytes always merge to their token first, so that a word can begin with one symbol for each.
//!
//! Merging is by rank over the whole word, so starting later is only exact if nothing else could have happened before.
//! Let `R` be the highest rank among the merges that make the character's token of its bytes alone. Until it is made,
//! one of those merges is possible, at a rank of at most `R`. So if
//!
//! - every merge of a part at the character's left edge with something before it that ends in a byte from 0x80 on, and
//! - every merge of a part at its right edge with something after it that begins with such a byte, and
//! - every merge of the token itself
//!
//! has a rank above `R`, then between characters of several bytes, or at an end of the word, the token is made before
//! any of its bytes takes part in anything else, and the token takes part in nothing before that either.

use std::collections::{BTreeSet, HashMap};

use super::super::format::NO_ID;
use super::super::tables::{Tables, word};
use super::model::Merges;

/// The lowest rank of a merge that an id is part of, by its side.
struct LowestRanks {
    /// As the left part, of a right part that begins with a byte from 0x80 on.
    left: HashMap<u32, u32>,
    /// As the right part, of a left part that ends in a byte from 0x80 on.
    right: HashMap<u32, u32>,
    /// On any side, whatever the other.
    any: HashMap<u32, u32>,
}

/// How a character's bytes merge.
struct Making {
    highest: u32,
    left_parts: Vec<u32>,
    right_parts: Vec<u32>,
}

/// Those of the ids that are such characters.
pub(super) fn atoms(tables: &Tables<'_>, merges: &Merges, ids: impl Iterator<Item = u32>) -> BTreeSet<u32> {
    let lowest = LowestRanks::of(tables, merges);
    ids.filter(|id| {
        let bytes = tables.token_bytes(*id);
        let is_character = std::str::from_utf8(bytes).is_ok_and(|text| text.chars().count() == 1 && !text.is_ascii());
        is_character && Making::of(tables, bytes, *id).is_some_and(|making| lowest.allow(*id, &making))
    })
    .collect()
}

// === impl LowestRanks ===

impl LowestRanks {
    fn of(tables: &Tables<'_>, merges: &Merges) -> LowestRanks {
        let mut lowest = LowestRanks { left: HashMap::new(), right: HashMap::new(), any: HashMap::new() };
        let lower = |ranks: &mut HashMap<u32, u32>, id: u32, rank: u32| {
            ranks.entry(id).and_modify(|lowest| *lowest = rank.min(*lowest)).or_insert(rank);
        };
        for (rank, (left, right, _)) in (0_u32..).zip(merges) {
            if tables.token_bytes(*right).first().is_some_and(|byte| !byte.is_ascii()) {
                lower(&mut lowest.left, *left, rank);
            }
            if tables.token_bytes(*left).last().is_some_and(|byte| !byte.is_ascii()) {
                lower(&mut lowest.right, *right, rank);
            }
            lower(&mut lowest.any, *left, rank);
            lower(&mut lowest.any, *right, rank);
        }
        lowest
    }

    fn allow(&self, id: u32, making: &Making) -> bool {
        let above = |ranks: &HashMap<u32, u32>, id: u32| ranks.get(&id).is_none_or(|rank| *rank > making.highest);
        // A part at the left edge merges with what stands before it: there it is the right part.
        making.left_parts.iter().all(|part| above(&self.right, *part))
            && making.right_parts.iter().all(|part| above(&self.left, *part))
            && above(&self.any, id)
    }
}

// === impl Making ===

impl Making {
    /// Merges the bytes of a character; `None` if they do not make the token.
    fn of(tables: &Tables<'_>, bytes: &[u8], id: u32) -> Option<Making> {
        let symbol = |byte: &u8| word(tables.byte_ids, usize::from(*byte)).filter(|id| *id != NO_ID);
        let mut symbols: Vec<u32> = bytes.iter().map(symbol).collect::<Option<_>>()?;
        let mut making = Making { highest: 0, left_parts: Vec::new(), right_parts: Vec::new() };
        while symbols.len() > 1 {
            making.left_parts.extend(symbols.first());
            making.right_parts.extend(symbols.last());
            let pairs = symbols.iter().zip(symbols.iter().skip(1)).map(|(left, right)| tables.rank(*left, *right));
            let (rank, at) = pairs.zip(0..).min()?;
            let merged = tables.merged(rank)?;
            symbols.splice(at..at + 2, [merged]);
            making.highest = making.highest.max(rank);
        }
        (symbols == [id]).then_some(making)
    }
}
