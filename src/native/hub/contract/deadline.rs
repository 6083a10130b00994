//! Until when a lookup may take.
//!
//! In: when the request arrived, the caller's `grpc-timeout`, the policy's `lookupTimeoutMs`, and whether text is to be
//! tokenized. Out: the [`Deadline`]. A lookup that misses it is answered with `TIMEOUT`, a little before the caller's own
//! deadline: after it nobody listens any more. A large message took its time to come, of which the caller's clock has
//! counted what this one has not; more is left for it. Time is asked for only by [`Deadline::has_passed`].

use std::time::Duration;

use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

/// The bound where text is to be tokenized and nobody set another.
const TEXT_LIMIT: Duration = Duration::from_secs(5);
/// The most of the caller's time that is left for the answer's way back.
const MAX_WAY_BACK: Duration = Duration::from_millis(10);
/// As much of a message as adds a millisecond to what is left.
const BYTES_PER_MS: usize = 100_000;
/// The longest bound; a longer one is none.
const MAX_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// When a request's headers came. Its message can come later, and the caller's time runs.
#[derive(Clone, Copy, Debug)]
pub struct Arrived(pub Instant);

/// Until when a lookup may take; `None`: as long as it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(pub Option<Instant>);

// === impl Arrived ===

impl Arrived {
    /// Now.
    pub fn now() -> Arrived {
        Arrived(Instant::now())
    }

    /// Notes that a request's headers are here.
    ///
    /// # Errors
    /// Never.
    #[allow(clippy::result_large_err, reason = "the type that an interceptor has")]
    pub fn note(mut request: Request<()>) -> Result<Request<()>, Status> {
        request.extensions_mut().insert(Arrived::now());
        Ok(request)
    }
}

// === impl Deadline ===

impl Deadline {
    /// The tightest bound there is for a message of about `message_bytes`.
    pub fn new(
        arrived: Instant,
        caller: Option<Duration>,
        message_bytes: usize,
        policy_timeout_ms: u32,
        needs_text: bool,
    ) -> Deadline {
        let caller = caller.filter(|limit| *limit <= MAX_LIMIT);
        let caller = caller.map(|limit| limit.saturating_sub(way_back(limit, message_bytes)));
        let policy = (policy_timeout_ms > 0).then(|| Duration::from_millis(policy_timeout_ms.into()));
        let limit = caller.into_iter().chain(policy).min();
        Deadline(limit.or(needs_text.then_some(TEXT_LIMIT)).map(|limit| arrived + limit))
    }

    /// Whether it is over.
    pub fn has_passed(self) -> bool {
        self.0.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// What is left of the caller's time, at most a quarter.
fn way_back(limit: Duration, message_bytes: usize) -> Duration {
    let for_size = Duration::from_millis(u64::try_from(message_bytes / BYTES_PER_MS).unwrap_or(u64::MAX));
    (limit / 8).min(MAX_WAY_BACK) + (limit / 8).min(for_size)
}

/// The caller's `grpc-timeout`: at most 8 digits and a unit. What is malformed is none, as in the server beneath.
pub fn caller_timeout(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3_600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout(text: &'static str) -> Option<Duration> {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", text.parse().unwrap());
        caller_timeout(&metadata)
    }

    #[test]
    fn every_unit_is_read_and_anything_else_is_no_timeout() {
        assert_eq!(timeout("2H"), Some(Duration::from_secs(7_200)));
        assert_eq!(timeout("1M"), Some(Duration::from_secs(60)));
        assert_eq!(timeout("3S"), Some(Duration::from_secs(3)));
        assert_eq!(timeout("40m"), Some(Duration::from_millis(40)));
        assert_eq!(timeout("5u"), Some(Duration::from_micros(5)));
        assert_eq!(timeout("0n"), Some(Duration::ZERO));
        for malformed in ["", "m", "-1m", "+1m", "1", "1x", "123456789m", "1.5S"] {
            assert_eq!(timeout(malformed), None, "{malformed}");
        }
        assert_eq!(caller_timeout(&MetadataMap::new()), None);
    }

    #[test]
    fn the_tighter_bound_counts_and_text_alone_has_five_seconds() {
        let now = Instant::now();
        let limit = |caller: Option<u64>, policy, needs_text| {
            let caller = caller.map(Duration::from_millis);
            Deadline::new(now, caller, 0, policy, needs_text).0.map(|deadline| (deadline - now).as_millis())
        };
        assert_eq!(limit(None, 0, false), None);
        assert_eq!(limit(None, 0, true), Some(5_000));
        assert_eq!(limit(None, 30, true), Some(30));
        assert_eq!(limit(Some(1_000), 0, true), Some(990));
        assert_eq!(limit(Some(40), 0, false), Some(35));
        assert_eq!(limit(Some(40), 20, false), Some(20));
        assert_eq!(limit(Some(0), 20, false), Some(0));
        assert_eq!(limit(Some(u64::MAX), 0, false), None);
    }

    #[test]
    fn more_is_left_for_a_large_message_but_no_more_than_a_quarter() {
        let left = |limit, message_bytes| way_back(Duration::from_millis(limit), message_bytes).as_millis();
        assert_eq!(left(1_000, 99_999), 10);
        assert_eq!(left(1_000, 8_000_000), 90);
        assert_eq!(left(200, 8_000_000), 35);
        assert_eq!(left(40, 8_000_000), 10);
        assert_eq!(left(0, usize::MAX), 0);
    }
}
