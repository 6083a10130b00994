//! The general crate behind the exports that `benches/vm/text.mjs` calls. Empty on other targets.
#![cfg(target_arch = "wasm32")]

use std::cell::RefCell;

use tokenizers::pipeline::{EncodeOptions, PipelineToken, PipelineTokenizer};
use tokenizers::{canonicalize_str, from_json};
use xxhash_rust::xxh3::xxh3_64;

#[derive(Default)]
struct Bench {
    text: Vec<u8>,
    tokenizer: Option<PipelineTokenizer>,
    ids: Vec<PipelineToken>,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::default();
}

/// Room for so many bytes, which the host fills.
#[unsafe(no_mangle)]
extern "C" fn reserve(bytes: u32) -> *mut u8 {
    BENCH.with_borrow_mut(|bench| {
        bench.text.clear();
        bench.text.resize(bytes as usize, 0);
        bench.text.as_mut_ptr()
    })
}

/// Loads a `tokenizer.json`; 1 if that worked.
#[unsafe(no_mangle)]
extern "C" fn load() -> u32 {
    BENCH.with_borrow_mut(|bench| {
        let json = String::from_utf8(std::mem::take(&mut bench.text)).unwrap_or_default();
        let canonical = canonicalize_str(&json).unwrap_or_default();
        drop(json);
        bench.tokenizer = from_json(&canonical).ok();
        u32::from(bench.tokenizer.is_some())
    })
}

/// Encodes the text and returns how many ids it has.
#[unsafe(no_mangle)]
extern "C" fn encode() -> u32 {
    BENCH.with_borrow_mut(|bench| {
        let Bench { text, tokenizer, ids } = bench;
        ids.clear();
        let (Some(tokenizer), Ok(text)) = (tokenizer, std::str::from_utf8(text)) else { return 0 };
        let encoded = tokenizer.encode_into(text, &EncodeOptions::no_specials(), ids);
        encoded.map_or(0, |()| ids.len() as u32)
    })
}

/// The XXH3-64 of the ids.
#[unsafe(no_mangle)]
extern "C" fn ids_hash() -> u64 {
    BENCH.with_borrow(|bench| {
        let bytes: Vec<u8> = bench.ids.iter().flat_map(|id| id.id().to_le_bytes()).collect();
        xxh3_64(&bytes)
    })
}

/// A module without imports has no entropy: the same seeds each time.
#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v03_custom(bytes: *mut u8, count: usize) -> Result<(), u32> {
    unsafe { std::ptr::write_bytes(bytes, 0x5a, count) };
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v04_custom(bytes: *mut u8, count: usize) -> Result<(), u32> {
    unsafe { std::ptr::write_bytes(bytes, 0x5a, count) };
    Ok(())
}
