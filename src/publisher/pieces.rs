//! One report as several, so that whoever guards a publisher with a lock can let others in between.
//!
//! Reported one after the other, the pieces leave and drop what the whole does, as long as nothing has to make room in
//! between: the quota and the cap are kept after each piece, so that a block of an early one can make room for a later one,
//! which is an eviction and not a drop, and one that had to go can come back without its hits.

use super::message::{CacheStateUpdate, PrefixEntry};

// === impl CacheStateUpdate ===

impl CacheStateUpdate {
    /// The report in pieces of at most `max_blocks` blocks each, at least 1; chains are split, and the statistics are in the
    /// last piece. What means nothing at the end of a chain comes whole: it is counted only. A prefix with its
    /// chain's last piece may be one block more.
    pub fn into_pieces(mut self, max_blocks: usize) -> Vec<CacheStateUpdate> {
        let max_blocks = max_blocks.max(1);
        let entries = std::mem::take(&mut self.prefixes).into_iter();
        let mut groups: Vec<Vec<PrefixEntry>> = Vec::new();
        let mut left = 0;
        for entry in entries.flat_map(|entry| entry.into_pieces(max_blocks)) {
            let count = usize::try_from(entry.count()).unwrap_or(usize::MAX);
            match groups.last_mut().filter(|_| count <= left) {
                Some(group) => group.push(entry),
                None => {
                    groups.push(vec![entry]);
                    left = max_blocks;
                }
            }
            left = left.saturating_sub(count);
        }
        let stats = self.stats.take();
        let mut pieces: Vec<CacheStateUpdate> =
            groups.into_iter().map(|prefixes| CacheStateUpdate { prefixes, ..self.clone() }).collect();
        match pieces.last_mut() {
            Some(last) => last.stats = stats,
            None => pieces.push(CacheStateUpdate { stats, ..self }),
        }
        pieces
    }
}

// === impl PrefixEntry ===

impl PrefixEntry {
    fn into_pieces(mut self, max_blocks: usize) -> Vec<PrefixEntry> {
        let mut ends = Vec::new();
        // What ends the chain is counted with its last piece.
        let _ = self.chain(&mut ends);
        if ends.len() <= max_blocks || self.block_hashes.len() != self.block_token_counts.len() {
            return vec![self];
        }
        let mut pieces = Vec::with_capacity(ends.len().div_ceil(max_blocks));
        let mut hashes = std::mem::take(&mut self.block_hashes).into_iter();
        let mut counts = std::mem::take(&mut self.block_token_counts).into_iter();
        // The last piece is what is left.
        let cuts = (max_blocks..ends.len()).step_by(max_blocks);
        for end in cuts.filter_map(|cut| ends.get(cut - 1)) {
            pieces.push(PrefixEntry {
                prefix_hash: Vec::new(),
                token_count: 0,
                block_hashes: hashes.by_ref().take(max_blocks).collect(),
                block_token_counts: counts.by_ref().take(max_blocks).collect(),
                before: self.before.replace(end.clone()),
                tier: self.tier,
                adapter_id: self.adapter_id.clone(),
            });
        }
        pieces.push(PrefixEntry { block_hashes: hashes.collect(), block_token_counts: counts.collect(), ..self });
        pieces
    }
}
