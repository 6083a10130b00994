//! Vectors of the two hashes that others compute too: the fingerprint of token ids, and the affinity pick.

use serde::Deserialize;
use warmroute::fingerprint::{BlockSize, PrefixHash, content_hash, prefix_hashes};

use super::check::{Difference, Differences};
use super::format::{Case, Config, ExpectedAnswer, Step};
use super::messages::{Bytes, Lookup, Prefix, Request, TokenIds, Update, unhex};

/// Token ids and what they hash to; hashes in hex as on the wire.
#[derive(Clone, Debug, Deserialize)]
pub struct FingerprintVector {
    pub tokens: TokenIds,
    /// Below 1 there are no hashes.
    pub block_size: i64,
    pub parent_prefix_hex: Option<String>,
    pub block_count: Option<usize>,
    pub content_hashes_hex: Option<Vec<String>>,
    pub prefix_hashes_hex: Option<Vec<String>>,
    pub prefix_hashes_dec: Option<Vec<String>>,
    pub first_prefix_hash_hex: Option<String>,
    pub last_prefix_hash_hex: Option<String>,
}

/// A prompt's seed and the replica it picks.
#[derive(Clone, Debug, Deserialize)]
pub struct AffinityVector {
    pub seed_kind: SeedKind,
    pub seed_hex: String,
    pub sorted_replicas: Vec<String>,
    pub pick: String,
}

/// What a seed is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeedKind {
    /// The bytes of a prefix hash.
    #[serde(alias = "exact")]
    Prefix,
    /// Block hashes, each after its length as u32 big-endian.
    Chain,
}

// === impl FingerprintVector ===

impl FingerprintVector {
    /// How the library differs from the vector.
    pub fn differences(&self) -> Vec<Difference> {
        let parent = self.parent_prefix_hex.as_deref().and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let TokenIds(ids) = &self.tokens;
        let (mut prefixes, mut contents) = (Vec::new(), Vec::new());
        if let Some(block_size) = u64::try_from(self.block_size).ok().and_then(|size| BlockSize::try_new(size).ok()) {
            prefixes.extend(prefix_hashes(ids, block_size, parent.map(PrefixHash)));
            contents.extend(
                ids.chunks_exact(block_size.tokens()).map(|block| wire_hex(content_hash(block).0.to_be_bytes())),
            );
        }
        let hex: Vec<String> = prefixes.iter().map(|hash| wire_hex(hash.to_wire())).collect();
        let decimal: Vec<String> = prefixes.iter().map(|hash| hash.0.to_string()).collect();
        let mut found = Differences::default();
        found.equal("block_count", self.block_count.as_ref(), &hex.len());
        found.equal("content_hashes_hex", self.content_hashes_hex.as_ref(), &contents);
        found.equal("prefix_hashes_hex", self.prefix_hashes_hex.as_ref(), &hex);
        found.equal("prefix_hashes_dec", self.prefix_hashes_dec.as_ref(), &decimal);
        let (first, last) = (hex.first().cloned(), hex.last().cloned());
        found.equal("first_prefix_hash_hex", self.first_prefix_hash_hex.as_ref(), &first.unwrap_or_default());
        found.equal("last_prefix_hash_hex", self.last_prefix_hash_hex.as_ref(), &last.unwrap_or_default());
        found.0
    }
}

fn wire_hex(bytes: [u8; 8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// === impl AffinityVector ===

impl AffinityVector {
    /// The vector as a case: replicas that hold something else, and a request with this seed. `None` if the seed is not
    /// what its kind says.
    pub fn to_case(&self) -> Option<Case> {
        let seed = unhex(&self.seed_hex)?;
        let mut request = Request { hash_scheme: "vllm".into(), ..request_for("t", "m") };
        match self.seed_kind {
            SeedKind::Prefix => request.prefix_hash = Bytes(seed),
            SeedKind::Chain => request.block_hashes = chain_of(&seed)?,
        }
        request.block_token_counts = vec![16; request.block_hashes.len()];
        // From the last to the first, so that the order of arrival is not the order of the ids.
        let ingests = self.sorted_replicas.iter().rev().map(|id| Step::Ingest(holding_something_else(id)));
        let expect = ExpectedAnswer {
            reason_code: Some("AFFINITY_HINT".into()),
            ranked_replicas: Some(vec![self.pick.clone()]),
            ..ExpectedAnswer::default()
        };
        let lookup = Lookup { request, caller_deadline_ms: None };
        let ask = Step::Lookup { lookup, repeat: None, expect: Box::new(expect) };
        Some(Case { name: String::new(), config: Config::default(), steps: ingests.chain([ask]).collect() })
    }
}

fn request_for(tenant_id: &str, model_id: &str) -> Request {
    Request { tenant_id: tenant_id.into(), model_id: model_id.into(), ..Request::default() }
}

fn holding_something_else(replica_id: &str) -> Update {
    let key = Bytes(format!("held by {replica_id} alone").into_bytes());
    Update {
        replica_id: replica_id.into(),
        model_id: "m".into(),
        tenant_id: "t".into(),
        hash_scheme: "vllm".into(),
        prefixes: vec![Prefix { prefix_hash: key, token_count: 64, ..Prefix::default() }],
        ..Update::default()
    }
}

/// The block hashes of a chain's seed.
fn chain_of(mut seed: &[u8]) -> Option<Vec<Bytes>> {
    let mut hashes = Vec::new();
    while !seed.is_empty() {
        let (length, rest) = seed.split_first_chunk::<4>()?;
        let (hash, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        hashes.push(Bytes(hash.to_vec()));
        seed = rest;
    }
    Some(hashes)
}
