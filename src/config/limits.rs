//! What is written, when the index is stale, and the bounds of time and memory.

use std::collections::BTreeMap;

use super::section::{Problems, Section};
use super::{POLICY_TENANT, defaults, may_have_policy};

/// What the filter writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// How many replicas the destination header names at most, best first.
    pub max_endpoints: usize,
    /// Whether the decision is also written on the response.
    pub response_headers: bool,
    /// Whether the engine is told the rank of data parallelism that is best.
    pub data_parallel_rank_header: bool,
}

/// When the index is stale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// Without a heartbeat for this long, in ms.
    pub stale_after_ms: u64,
    /// What happens then.
    pub when_stale: WhenStale,
}

/// What a stale index answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenStale {
    /// `no_hint`: nothing.
    #[default]
    NoHint,
    /// `serve`: what it knows, until each entry's TTL.
    Serve,
}

/// Bounds of time and memory. [`defaults`] says what each bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time between two steps of background work, in ms.
    pub tick_ms: u64,
    /// The same while a VM is catching up, in ms; at most `tick_ms`.
    pub catch_up_tick_ms: u64,
    /// Time that one step of background work may take, in us.
    pub max_step_us: u64,
    /// Ticks without a sign of the leader after which another VM takes over.
    pub lease_ticks: u32,
    /// Time that one request may take, in ms.
    pub max_request_work_ms: u64,
    /// (block, replica) pairs in the index.
    pub max_index_entries: usize,
    /// Bytes of a VM's memory that the index may take.
    pub max_index_bytes: usize,
    /// Time in which LFU counters halve, in ms; `None`: they never do, as in the contract.
    pub lfu_half_life_ms: Option<u64>,
    /// Pages in shared data.
    pub pages: u32,
    /// Segments in the log's ring.
    pub log_segments: u32,
    /// Bytes of one log segment.
    pub segment_bytes: usize,
    /// Bytes of a prompt's text that are tokenized.
    pub max_prompt_bytes: usize,
    /// Tokens of a prompt that are looked up.
    pub max_match_tokens: usize,
    /// Symbols of a text's words that are merged.
    pub max_merge_symbols: usize,
    /// Bytes of a VM's memory that the models' packages may take.
    pub max_model_bytes: usize,
    /// Bytes of a VM's memory that texts seen before may take.
    pub memo_bytes: usize,
}

// === impl Output ===

impl Output {
    pub(super) fn read(mut section: Section, problems: &mut Problems) -> Output {
        let (range, default) = (defaults::MAX_ENDPOINTS_RANGE, defaults::MAX_ENDPOINTS);
        let output = Output {
            max_endpoints: size(section.integer("max_endpoints", range, default, problems)),
            response_headers: section.boolean("response_headers", defaults::RESPONSE_HEADERS, problems),
            data_parallel_rank_header: section.boolean(
                "data_parallel_rank_header",
                defaults::DATA_PARALLEL_RANK_HEADER,
                problems,
            ),
        };
        section.finish(problems);
        output
    }
}

// === impl Freshness ===

impl Freshness {
    pub(super) fn read(root: &mut Section, problems: &mut Problems) -> Freshness {
        let (range, default) = (defaults::STALE_AFTER_MS_RANGE, defaults::STALE_AFTER_MS);
        let stale_after_ms = root.integer("stale_after_ms", range, default, problems);
        let choices = [("no_hint", WhenStale::NoHint), ("serve", WhenStale::Serve)];
        let when_stale = root.choice("when_stale", &choices, WhenStale::default(), problems);
        Freshness { stale_after_ms, when_stale }
    }
}

// === impl Limits ===

impl Limits {
    pub(super) fn read(mut section: Section, problems: &mut Problems) -> Limits {
        let lfu_half_life_ms = section.duration_ms("lfu_half_life", defaults::LFU_HALF_LIFE_MS_RANGE, problems);
        let mut integer = |name, range, default| section.integer(name, range, default, problems);
        let tick_ms = integer("tick_ms", defaults::TICK_MS_RANGE, defaults::TICK_MS);
        let limits = Limits {
            tick_ms,
            catch_up_tick_ms: integer("catch_up_tick_ms", 1..=tick_ms, defaults::CATCH_UP_TICK_MS),
            max_step_us: integer("max_step_us", defaults::MAX_STEP_US_RANGE, defaults::MAX_STEP_US),
            lease_ticks: count(integer("lease_ticks", defaults::LEASE_TICKS_RANGE, defaults::LEASE_TICKS)),
            max_request_work_ms: integer(
                "max_request_work_ms",
                defaults::MAX_REQUEST_WORK_MS_RANGE,
                defaults::MAX_REQUEST_WORK_MS,
            ),
            max_index_entries: size(integer(
                "max_index_entries",
                defaults::MAX_INDEX_ENTRIES_RANGE,
                defaults::MAX_INDEX_ENTRIES,
            )),
            max_index_bytes: size(integer(
                "max_index_bytes",
                defaults::MAX_INDEX_BYTES_RANGE,
                defaults::MAX_INDEX_BYTES,
            )),
            lfu_half_life_ms,
            pages: count(integer("pages", defaults::PAGES_RANGE, defaults::PAGES)),
            log_segments: count(integer("log_segments", defaults::LOG_SEGMENTS_RANGE, defaults::LOG_SEGMENTS)),
            segment_bytes: size(integer("segment_bytes", defaults::SEGMENT_BYTES_RANGE, defaults::SEGMENT_BYTES)),
            max_prompt_bytes: size(integer(
                "max_prompt_bytes",
                defaults::MAX_PROMPT_BYTES_RANGE,
                defaults::MAX_PROMPT_BYTES,
            )),
            max_match_tokens: size(integer(
                "max_match_tokens",
                defaults::MAX_MATCH_TOKENS_RANGE,
                defaults::MAX_MATCH_TOKENS,
            )),
            max_merge_symbols: size(integer(
                "max_merge_symbols",
                defaults::MAX_MERGE_SYMBOLS_RANGE,
                defaults::MAX_MERGE_SYMBOLS,
            )),
            max_model_bytes: size(integer(
                "max_model_bytes",
                defaults::MAX_MODEL_BYTES_RANGE,
                defaults::MAX_MODEL_BYTES,
            )),
            memo_bytes: size(integer("memo_bytes", defaults::MEMO_BYTES_RANGE, defaults::MEMO_BYTES)),
        };
        section.finish(problems);
        limits
    }

    /// The time that one step of background work may take, in ns.
    pub fn max_step_ns(&self) -> u64 {
        self.max_step_us.saturating_mul(1_000)
    }
}

/// `quotas`: the most distinct blocks of each tenant that has one.
pub(super) fn read_quotas(root: &mut Section, problems: &mut Problems) -> BTreeMap<String, u64> {
    let section = root.section("quotas", problems);
    let mut quotas = BTreeMap::new();
    for (tenant_id, value) in section.entries() {
        if !may_have_policy(tenant_id) {
            problems.note(section.path_of(tenant_id), Some(value), POLICY_TENANT);
        }
        if let Some(quota) = section.whole_number(tenant_id, value, defaults::QUOTA_RANGE, problems) {
            quotas.insert(tenant_id.clone(), quota);
        }
    }
    quotas
}

/// Ranges end far below `u32::MAX`, so nothing is cut.
fn count(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Ranges end far below `usize::MAX` even on wasm32, so nothing is cut.
fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
