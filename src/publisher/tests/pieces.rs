use super::*;
use crate::index::Holder;

const LONG: usize = 2_500;

fn long_chain(bad_at: Option<usize>) -> PrefixEntry {
    let mut entry = PrefixEntry {
        prefix_hash: b"whole".to_vec(),
        token_count: 7,
        block_hashes: (0..LONG as u64).map(|at| at.to_be_bytes().to_vec()).collect(),
        block_token_counts: vec![16; LONG],
        ..PrefixEntry::default()
    };
    if let Some(at) = bad_at {
        entry.block_token_counts[at] = 0;
    }
    entry
}

fn facts(publisher: &Publisher) -> Vec<(ScopeSlot, BlockKey, Holder)> {
    publisher.index.held()
}

#[test]
fn pieces_say_what_the_whole_says() {
    let stats = Some(ReportedStats { pressure: 0.5, ..ReportedStats::default() });
    let uneven = PrefixEntry { block_token_counts: vec![16; 3], ..long_chain(None) };
    let nameless = PrefixEntry { prefix_hash: Vec::new(), adapter_id: "lora".into(), ..long_chain(None) };
    for (entries, hash_scheme) in [
        (vec![], "vllm"),
        (vec![entry("a", 16), entry("", 16), long_chain(None), entry("b", 16)], "vllm"),
        (vec![long_chain(Some(0)), nameless.clone()], "vllm"),
        (vec![long_chain(Some(1_024)), uneven.clone()], "vllm"),
        (vec![long_chain(Some(1_030))], "vllm"),
        (vec![long_chain(Some(LONG - 1)), entry("a", 0)], "vllm"),
        (vec![nameless, uneven], ""),
    ] {
        let report = CacheStateUpdate { stats, hash_scheme: hash_scheme.into(), ..update("r", entries) };
        let (mut whole, mut split) = (publisher(), publisher());
        let dropped = whole.report(&report, NOW_MS);
        let pieces = report.clone().into_pieces(1_024);
        assert_eq!(pieces.iter().map(CacheStateUpdate::offered).sum::<u64>(), report.offered().max(1));
        for piece in &pieces {
            split.report(piece, NOW_MS);
        }
        assert_eq!((split.dropped(), facts(&split)), (&dropped, facts(&whole)));
        assert_eq!(split.cache_state("t", "m"), whole.cache_state("t", "m"));
    }
}

#[test]
fn a_piece_is_short() {
    let mut publisher = publisher();
    let pieces = update("r", vec![entry("a", 16), long_chain(None)]).into_pieces(1_024);
    let held = pieces.iter().map(|piece| {
        let before = publisher.counts().total;
        publisher.report(piece, NOW_MS);
        publisher.counts().total - before
    });
    assert_eq!(held.collect::<Vec<_>>(), [1, 1_024, 1_024, 453]);
    assert_eq!(update("r", vec![entry("a", 16); 5]).into_pieces(2).len(), 3, "short entries go together");
}
