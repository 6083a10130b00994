//! What is written, when the index is stale, and the bounds of time and memory.

use super::defaults;
use super::section::{Problems, Section};

/// What the filter writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// How many replicas the destination header names at most, best first.
    pub max_endpoints: usize,
    /// Whether the decision is also written on the response.
    pub response_headers: bool,
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
    /// Ticks without a sign of the leader after which another VM takes over.
    pub lease_ticks: u32,
    /// Time that one request may take, in ms.
    pub max_request_work_ms: u64,
    /// (block, replica) pairs in the index.
    pub max_index_entries: usize,
    /// Pages in shared data.
    pub pages: u32,
    /// Segments in the log's ring.
    pub log_segments: u32,
    /// Bytes of one log segment.
    pub segment_bytes: usize,
}

// === impl Output ===

impl Output {
    pub(super) fn read(mut section: Section, problems: &mut Problems) -> Output {
        let (range, default) = (defaults::MAX_ENDPOINTS_RANGE, defaults::MAX_ENDPOINTS);
        let output = Output {
            max_endpoints: size(section.integer("max_endpoints", range, default, problems)),
            response_headers: section.boolean("response_headers", defaults::RESPONSE_HEADERS, problems),
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
        let mut integer = |name, range, default| section.integer(name, range, default, problems);
        let limits = Limits {
            tick_ms: integer("tick_ms", defaults::TICK_MS_RANGE, defaults::TICK_MS),
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
            pages: count(integer("pages", defaults::PAGES_RANGE, defaults::PAGES)),
            log_segments: count(integer("log_segments", defaults::LOG_SEGMENTS_RANGE, defaults::LOG_SEGMENTS)),
            segment_bytes: size(integer("segment_bytes", defaults::SEGMENT_BYTES_RANGE, defaults::SEGMENT_BYTES)),
        };
        section.finish(problems);
        limits
    }
}

/// Ranges end far below `u32::MAX`, so nothing is cut.
fn count(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Ranges end far below `usize::MAX` even on wasm32, so nothing is cut.
fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
