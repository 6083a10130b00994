//! `limits`: how much of everything there may be, so that no client and no engine takes all of the hub's memory.
//!
//! | What the hub keeps | Bound |
//! |---|---|
//! | engine keys of followed replicas, one or more a block | `max_replica_blocks` and `max_blocks`, looked at every 100 ms: see [`capacity`](crate::native::hub) |
//! | what producers report | `reports.max_entries`, `reports.quotas`; 65,536 members and scopes |
//! | the ring of past changes | `resume_buffer_bytes`, and one change |
//! | copies of the full state for resets | two or three, of which the older leave with the ring |
//! | a subscriber | [`MAX_UNACKNOWLEDGED_BYTES`](crate::wire::MAX_UNACKNOWLEDGED_BYTES); 16 messages of 64 KiB where one acknowledges what it has not read, until `acknowledge_timeout_ms` |
//! | a client of `StreamCacheEvents` | its place in the ring, and the events of one change or 4 KiB of them |
//! | connections that nobody uses | `idle_timeout_ms` each |
//! | what a client sends and nobody reads | 256 KiB a stream, so `max_streams` of these |
//! | a message that is being read | `max_message_bytes` a stream; 64 texts and 4 long chains are worked on at a time |
//! | what proves that no event was missed | 4,096 numbers and digests a publisher; replays are asked for one at a time, and applied as they come |
//! | models | those that the configuration names: 128 MiB a tokenizer's file, one copy of what is compiled of each |
//! | CachePolicies | 1,024 files of 1 MiB, 4,096 policies |
//! | addresses of reported replicas | 16,384 names for 30 s |
//! | an engine's metrics | 8 MiB of text at a time, a replica |

use std::time::Duration;

use serde::Deserialize;

use crate::native::hub::problems::Problems;

/// `limits.idle_timeout_ms`: longer than Prometheus' usual intervals, so that its connections stay.
const IDLE_MS: usize = 90_000;

/// How much of everything there may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Connections to the gRPC side, and as many to the HTTP side.
    pub connections: usize,
    /// After so long without a byte in either direction, or without an open call, a connection is closed. Those with HTTP/2 are
    /// asked for a sign of life well before.
    pub idle: Duration,
    /// Calls and streams of one connection at a time. More wait at the client.
    pub streams_per_connection: u32,
    /// Calls and streams at a time.
    pub streams: usize,
    /// Observe streams at a time.
    pub subscribers: usize,
    /// Bytes of a message.
    pub message_bytes: usize,
    /// Bytes of a call's headers.
    pub metadata_bytes: u32,
    /// Blocks of one followed replica.
    pub replica_blocks: usize,
    /// Blocks of all followed replicas: about 200 bytes of memory each.
    pub blocks: usize,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLimits {
    max_connections: Option<u64>,
    idle_timeout_ms: Option<u64>,
    max_streams_per_connection: Option<u64>,
    max_streams: Option<u64>,
    max_subscribers: Option<u64>,
    max_message_bytes: Option<u64>,
    max_metadata_bytes: Option<u64>,
    max_replica_blocks: Option<u64>,
    max_blocks: Option<u64>,
}

pub(super) fn limits(raw: &RawLimits, problems: &mut Problems) -> LimitsConfig {
    let defaults = LimitsConfig::default();
    let mut number = |name: &str, value, default: usize, least, most| {
        let number = problems.number(&format!("limits.{name}"), value, default as u64, least, most);
        usize::try_from(number).unwrap_or(usize::MAX)
    };
    let per_connection = defaults.streams_per_connection as usize;
    let metadata = defaults.metadata_bytes as usize;
    let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let connections = number("max_connections", raw.max_connections, defaults.connections, 1, 1_000_000);
    let idle = number("idle_timeout_ms", raw.idle_timeout_ms, IDLE_MS, 100, 86_400_000);
    let limits = LimitsConfig {
        connections,
        idle: Duration::from_millis(idle as u64),
        streams_per_connection: small(number(
            "max_streams_per_connection",
            raw.max_streams_per_connection,
            per_connection,
            1,
            100_000,
        )),
        streams: number("max_streams", raw.max_streams, defaults.streams, 1, 1_000_000),
        subscribers: number("max_subscribers", raw.max_subscribers, defaults.subscribers, 1, 100_000),
        message_bytes: number("max_message_bytes", raw.max_message_bytes, defaults.message_bytes, 1_024, 1 << 30),
        metadata_bytes: small(number("max_metadata_bytes", raw.max_metadata_bytes, metadata, 1_024, 1 << 20)),
        replica_blocks: number("max_replica_blocks", raw.max_replica_blocks, defaults.replica_blocks, 16, 1 << 32),
        blocks: number("max_blocks", raw.max_blocks, defaults.blocks, 16, 1 << 32),
    };
    if limits.blocks < limits.replica_blocks && raw.max_replica_blocks.is_some() {
        let least = limits.replica_blocks;
        problems.add("limits.max_blocks", limits.blocks, &format!("at least max_replica_blocks, which is {least}"));
    }
    limits
}

// === impl LimitsConfig ===

impl Default for LimitsConfig {
    fn default() -> LimitsConfig {
        LimitsConfig {
            connections: 4_096,
            idle: Duration::from_millis(IDLE_MS as u64),
            streams_per_connection: 256,
            streams: 8_192,
            subscribers: 1_024,
            // As many token ids as there may be take 5 MiB, a text 1 MiB.
            message_bytes: 8 * 1024 * 1024,
            metadata_bytes: 16 * 1024,
            replica_blocks: 1_000_000,
            blocks: 8_000_000,
        }
    }
}
