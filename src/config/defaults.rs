//! Every default of the plugin configuration, named once, and the bounds that go with it.
//!
//! The defaults of a `CachePolicy` and of the ranking are those of [`Policy`](crate::routing::policy::Policy) and
//! [`Ranking`](crate::routing::policy::Ranking).

use std::ops::RangeInclusive;

/// `tenant.default`: the tenant of a request that names none.
pub const TENANT: &str = "default";

/// `models[].hash_scheme`: the tag under which token ids are fingerprinted.
pub const HASH_SCHEME: &str = "vllm";
/// `models[].block_size` in tokens; vLLM's default.
pub const BLOCK_SIZE_TOKENS: u64 = 16;
/// `models[].key_bytes`: the width of an explicit key; a fingerprint has 8.
pub const KEY_BYTES: u64 = 8;
/// Allowed `models[].key_bytes`: up to a SHA-512.
pub const KEY_BYTES_RANGE: RangeInclusive<u64> = 1..=64;

/// `paths`: where vLLM and SGLang take prompts.
pub const PATHS: [&str; 6] =
    ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/generate", "/inference/v1/generate"];
/// `max_body_bytes`: a larger body is never held. Below Envoy's default buffer limit of 1 MiB, where a held body would be
/// answered 413.
pub const MAX_BODY_BYTES: u64 = 1_000_000;
/// Allowed `max_body_bytes`, in bytes: up to 256 MiB, a quarter of a VM's memory.
pub const MAX_BODY_BYTES_RANGE: RangeInclusive<u64> = 1..=256 * 1024 * 1024;
/// `hold_chunked`: whether a body of unknown length is held.
pub const HOLD_CHUNKED: bool = false;

/// Allowed `policy.evictionTTL` in ms: up to 24 days, so that an age fits into 31 bits.
pub const EVICTION_TTL_MS_RANGE: RangeInclusive<u64> = 1..=24 * 24 * 60 * 60 * 1000;
/// Allowed counts of a `CachePolicy`, which are int32 there.
pub const POLICY_COUNT_RANGE: RangeInclusive<u64> = 0..=i32::MAX as u64;

/// Allowed `ranking.pressure_weight`.
pub const PRESSURE_WEIGHT_RANGE: RangeInclusive<f64> = 0.0..=1000.0;
/// Allowed `ranking.slo_tight_ttft_ms`; 0 means that no request is tight.
pub const SLO_TIGHT_TTFT_MS_RANGE: RangeInclusive<u64> = 0..=600_000;
/// Allowed `ranking.slo_tight_bias`.
pub const SLO_TIGHT_BIAS_RANGE: RangeInclusive<f64> = 0.0..=1000.0;
/// Allowed `ranking.tenant_hot_min_hit_rate`.
pub const TENANT_HOT_MIN_HIT_RATE_RANGE: RangeInclusive<f64> = 0.0..=1.0;
/// Allowed `ranking.tenant_hot_max_age_ms`; 0 means that no replica is ever warm.
pub const TENANT_HOT_MAX_AGE_MS_RANGE: RangeInclusive<u64> = 0..=24 * 60 * 60 * 1000;
/// Allowed `affinity.skip_pressure_above`.
pub const AFFINITY_SKIP_PRESSURE_ABOVE_RANGE: RangeInclusive<f64> = 0.0..=1.0;

/// `output.max_endpoints`: how many replicas the destination header names, best first.
pub const MAX_ENDPOINTS: u64 = 5;
/// Allowed `output.max_endpoints`.
pub const MAX_ENDPOINTS_RANGE: RangeInclusive<u64> = 1..=64;
/// `output.response_headers`: whether the decision is also written on the response.
pub const RESPONSE_HEADERS: bool = false;
/// `output.data_parallel_rank_header`: whether a request to an engine with several ranks names the best of them.
pub const DATA_PARALLEL_RANK_HEADER: bool = false;

/// `stale_after_ms`: without a heartbeat for this long, the index is stale.
pub const STALE_AFTER_MS: u64 = 10_000;
/// Allowed `stale_after_ms`.
pub const STALE_AFTER_MS_RANGE: RangeInclusive<u64> = 100..=24 * 60 * 60 * 1000;

/// `limits.tick_ms`: how often background work runs.
pub const TICK_MS: u64 = 100;
/// Allowed `limits.tick_ms`.
pub const TICK_MS_RANGE: RangeInclusive<u64> = 10..=10_000;
/// `limits.catch_up_tick_ms`: how often background work runs while a VM has not yet applied all that the log has, or not
/// swept what is due, at most `limits.tick_ms`. With steps of 1 ms that is a tenth of a worker, and 3 s of work within the
/// 30 s in which a late VM is to have read 4 M pairs.
pub const CATCH_UP_TICK_MS: u64 = 10;
/// `limits.max_step_us`: the time that one step of background work (a tick, a message from the hub) may take from the VM.
pub const MAX_STEP_US: u64 = 1_000;
/// Allowed `limits.max_step_us`: below, a page is the step's only work; above, a worker's requests wait noticeably.
pub const MAX_STEP_US_RANGE: RangeInclusive<u64> = 100..=20_000;
/// `limits.lease_ticks`: after this many ticks without a sign of the leader, another VM takes over.
pub const LEASE_TICKS: u64 = 10;
/// Allowed `limits.lease_ticks`; with fewer than 3, one late tick would cost the lead.
pub const LEASE_TICKS_RANGE: RangeInclusive<u64> = 3..=1_000;
/// `limits.max_request_work_ms`: the time that one request may take from the VM.
pub const MAX_REQUEST_WORK_MS: u64 = 5;
/// Allowed `limits.max_request_work_ms`.
pub const MAX_REQUEST_WORK_MS_RANGE: RangeInclusive<u64> = 1..=1_000;
/// `limits.max_index_entries`: (block, replica) pairs in the index. Room for an ordinary pool of 64 replicas with 60,000
/// blocks each. The contract's cap of 1,000,000 is for reported entries: the hub keeps it (`reports.max_entries`), here
/// it would refuse most of what such a pool's engines hold.
pub const MAX_INDEX_ENTRIES: u64 = 4_000_000;
/// Allowed `limits.max_index_entries`: more than 16 M do not fit into a VM.
pub const MAX_INDEX_ENTRIES_RANGE: RangeInclusive<u64> = 1..=16_000_000;
/// `limits.max_index_bytes`: bytes of each VM's memory that the index may take before it evicts or refuses to grow: half
/// of a VM's 1 GiB, which leaves room for held bodies.
pub const MAX_INDEX_BYTES: u64 = 512 * 1024 * 1024;
/// Allowed `limits.max_index_bytes`: up to a VM's 1 GiB without 128 MiB for everything else.
pub const MAX_INDEX_BYTES_RANGE: RangeInclusive<u64> = 16 * 1024 * 1024..=896 * 1024 * 1024;
/// Allowed `limits.lfu_half_life` in ms; absent, the counters of an LFU policy never age, as in the contract.
pub const LFU_HALF_LIFE_MS_RANGE: RangeInclusive<u64> = 60_000..=24 * 24 * 60 * 60 * 1000;
/// Allowed `quotas.<tenant>`, in distinct blocks; 0 admits nothing.
pub const QUOTA_RANGE: RangeInclusive<u64> = 0..=64_000_000;
/// `limits.pages`: parts in which the index is kept in shared data: about 500 pairs in each at the default cap, so that one is
/// written or read in a quarter of a step.
pub const PAGES: u64 = 8_192;
/// Allowed `limits.pages`.
pub const PAGES_RANGE: RangeInclusive<u64> = 1..=32_768;
/// `limits.log_segments`: slots in the log's ring.
pub const LOG_SEGMENTS: u64 = 8_192;
/// Allowed `limits.log_segments`.
pub const LOG_SEGMENTS_RANGE: RangeInclusive<u64> = 4..=65_536;
/// `limits.segment_bytes`: the most that one log segment may take: what is committed, and read, in about 100 us.
pub const SEGMENT_BYTES: u64 = 6 * 1024;
/// Allowed `limits.segment_bytes`.
pub const SEGMENT_BYTES_RANGE: RangeInclusive<u64> = 4096..=1024 * 1024;
/// `limits.max_prompt_bytes`: bytes of a prompt's text that are tokenized. Of a longer one the exact leading part is, if a
/// special token ends one.
pub const MAX_PROMPT_BYTES: u64 = 512 * 1024;
/// Allowed `limits.max_prompt_bytes`; 0 tokenizes nothing.
pub const MAX_PROMPT_BYTES_RANGE: RangeInclusive<u64> = 0..=1024 * 1024;
/// `limits.max_match_tokens`: tokens of a prompt that are looked up, from its beginning.
pub const MAX_MATCH_TOKENS: u64 = 131_072;
/// Allowed `limits.max_match_tokens`: up to the contract's cap.
pub const MAX_MATCH_TOKENS_RANGE: RangeInclusive<u64> = 1..=1024 * 1024;
/// `limits.max_merge_symbols`: symbols of a text's words that are merged, which bounds the time that a hostile text takes:
/// 100 KB of prose, code or Chinese have fewer, and letters without a blank one a byte. So many take at most some 13 ms in
/// V8; without a bound, 1 MB of random letters takes 0.7 to 0.9 s.
pub const MAX_MERGE_SYMBOLS: u64 = 60_000;
/// Allowed `limits.max_merge_symbols`.
pub const MAX_MERGE_SYMBOLS_RANGE: RangeInclusive<u64> = 1_000..=1024 * 1024;
/// `limits.max_model_bytes`: bytes of each VM's memory that the models' tokenizers and templates may take: half a dozen of
/// them, or two of the largest.
pub const MAX_MODEL_BYTES: u64 = 64 * 1024 * 1024;
/// Allowed `limits.max_model_bytes`; 0 loads none.
pub const MAX_MODEL_BYTES_RANGE: RangeInclusive<u64> = 0..=256 * 1024 * 1024;
/// `limits.memo_bytes`: bytes of each VM's memory that chat turns seen before may take: their token ids, and in
/// a quarter of it their messages.
pub const MEMO_BYTES: u64 = 8 * 1024 * 1024;
/// Allowed `limits.memo_bytes`; 0 remembers none.
pub const MEMO_BYTES_RANGE: RangeInclusive<u64> = 0..=128 * 1024 * 1024;
/// `utc_offset_minutes`: what the engines' time zone adds to UTC.
pub const UTC_OFFSET_MINUTES: i32 = 0;
/// Allowed `utc_offset_minutes`.
pub const UTC_OFFSET_MINUTES_RANGE: RangeInclusive<i32> = -1_440..=1_440;
/// `read_usage`: whether responses are read for what the engine found in its cache.
pub const READ_USAGE: bool = true;
