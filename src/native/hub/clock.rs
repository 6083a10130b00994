//! The wall clock, read here and nowhere else in the hub.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Unix time in ms.
pub fn unix_ms() -> u64 {
    u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX)
}

/// Unix time in ns.
pub fn unix_ns() -> u64 {
    u64::try_from(since_1970().as_nanos()).unwrap_or(u64::MAX)
}

/// A clock set before 1970 counts as 1970.
fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
