//! Reads `fingerprints.json` and compares it with the library; shared by the native and the wasm32 test.
//!
//! The file comes from `generate.py`, which shares no code with the library.

use serde::Deserialize;
use warmroute::fingerprint::{BlockSize, PrefixHash, content_hash, prefix_hashes};

#[derive(Deserialize)]
struct File {
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    name: String,
    token_ids: TokenIds,
    block_size: u64,
    parent: Option<String>,
    blocks: usize,
    content_hashes: Option<Vec<String>>,
    prefix_hashes: Option<Vec<String>>,
    last_prefix_hash: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TokenIds {
    Listed(Vec<u32>),
    Counting { first: u32, count: u32 },
}

/// Compares every vector of the file; panics with the name of the first that differs.
pub fn compare_all() {
    let file: File = serde_json::from_str(include_str!("fingerprints.json")).unwrap();
    assert!(file.vectors.len() > 20, "the file holds {} vectors", file.vectors.len());
    for vector in &file.vectors {
        vector.compare();
    }
}

// === impl Vector ===

impl Vector {
    fn compare(&self) {
        let name = &self.name;
        let token_ids = self.token_ids.to_vec();
        let block_size = BlockSize::try_new(self.block_size).unwrap();
        let parent = self.parent.as_deref().map(|hex| PrefixHash(u64::from_str_radix(hex, 16).unwrap()));

        let prefixes: Vec<String> = prefix_hashes(&token_ids, block_size, parent).map(wire_hex).collect();
        assert_eq!(prefixes.len(), self.blocks, "{name}: blocks");
        assert_eq!(prefixes.last(), self.last_prefix_hash.as_ref(), "{name}: last prefix hash");
        if let Some(expected) = &self.prefix_hashes {
            assert_eq!(&prefixes, expected, "{name}: prefix hashes");
        }
        if let Some(expected) = &self.content_hashes {
            let contents: Vec<String> = token_ids
                .chunks_exact(block_size.tokens())
                .map(|block| format!("{:016x}", content_hash(block).0))
                .collect();
            assert_eq!(&contents, expected, "{name}: content hashes");
        }
    }
}

// === impl TokenIds ===

impl TokenIds {
    fn to_vec(&self) -> Vec<u32> {
        match self {
            TokenIds::Listed(ids) => ids.clone(),
            TokenIds::Counting { first, count } => (*first..first + count).collect(),
        }
    }
}

/// The wire form in hexadecimal, which pins the byte order too.
fn wire_hex(prefix: PrefixHash) -> String {
    prefix.to_wire().iter().map(|byte| format!("{byte:02x}")).collect()
}
