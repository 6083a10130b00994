//! Time to fingerprint a prompt, at the lengths of short and long ones: content hash and chain, and the chain alone.
//!
//! Throughput is in blocks, so the time of one block is what criterion prints as time divided by its element count.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use warmroute::fingerprint::{BlockSize, ContentHash, PrefixHash, content_hash, prefix_hashes};

/// Last prefix hash of the ids 0 to 15,999 in blocks of 16: `chain_of_1000_blocks` of the golden file.
const LAST_OF_1000_BLOCKS: PrefixHash = PrefixHash(0x9ddc_d83a_25a8_28d3);

fn chains(criterion: &mut Criterion) {
    let token_ids: Vec<u32> = (0..16_000).collect();
    let last = prefix_hashes(&token_ids, BlockSize::DEFAULT, None).last();
    assert_eq!(last, Some(LAST_OF_1000_BLOCKS));

    let mut group = criterion.benchmark_group("fingerprint");
    for blocks in [8_usize, 64, 512, 1_000] {
        let prompt = token_ids.get(..blocks * BlockSize::DEFAULT.tokens()).unwrap_or_default();
        group.throughput(Throughput::Elements(blocks as u64));
        group.bench_with_input(BenchmarkId::new("content_and_chain", blocks), prompt, |bencher, prompt| {
            bencher.iter(|| prefix_hashes(black_box(prompt), BlockSize::DEFAULT, None).last());
        });
        let contents: Vec<ContentHash> = prompt.chunks_exact(BlockSize::DEFAULT.tokens()).map(content_hash).collect();
        group.bench_with_input(BenchmarkId::new("chain_only", blocks), contents.as_slice(), |bencher, contents| {
            bencher.iter(|| {
                black_box(contents).iter().fold(PrefixHash(0), |parent, content| parent.extended_by(*content))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, chains);
criterion_main!(benches);
