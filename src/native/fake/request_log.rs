//! The last requests that reached the engine, so that a test can see what did.
//!
//! In: every request but those for the log itself, with its body read to the end. Out: as JSON, the last
//! [`CAPACITY`] of them. The body is kept as a length and a hash, never as bytes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::request::Parts;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

/// Requests kept.
pub const CAPACITY: usize = 1_000;

/// The log; clones share it.
#[derive(Clone, Debug, Default)]
pub struct RequestLog(Arc<Mutex<Entries>>);

/// What is in the log.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Entries {
    /// Requests since the start, those no longer kept included.
    pub total: u64,
    /// The last ones, oldest first.
    pub requests: VecDeque<Entry>,
}

/// One request.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Counts requests from 1.
    pub number: u64,
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// `HTTP/1.1`, `HTTP/2.0`.
    pub http_version: String,
    /// HTTP/2's `:authority`, or the authority of an absolute URL; HTTP/1.1 has a `host` header instead.
    pub authority: Option<String>,
    /// Names in lower case and values, in the order of arrival for each name; bytes that are not UTF-8 become U+FFFD.
    pub headers: Vec<(String, String)>,
    /// Bytes of the body that arrived.
    pub body_bytes: usize,
    /// XXH3-64 of them without seed, 16 digits of hex.
    pub body_xxh3: String,
    /// Whether the body arrived to its end.
    pub body_complete: bool,
}

/// XXH3-64 without seed, 16 digits of hex.
pub fn digest(bytes: &[u8]) -> String {
    format!("{:016x}", xxh3_64(bytes))
}

// === impl RequestLog ===

impl RequestLog {
    /// Adds a request.
    pub fn add(&self, parts: &Parts, body: &[u8], body_complete: bool) {
        let header = |(name, value): (&axum::http::HeaderName, &axum::http::HeaderValue)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let mut entries = self.lock();
        entries.total += 1;
        let entry = Entry {
            number: entries.total,
            method: parts.method.to_string(),
            path: parts.uri.path_and_query().map_or_else(|| parts.uri.to_string(), ToString::to_string),
            http_version: format!("{:?}", parts.version),
            authority: parts.uri.authority().map(ToString::to_string),
            headers: parts.headers.iter().map(header).collect(),
            body_bytes: body.len(),
            body_xxh3: digest(body),
            body_complete,
        };
        if entries.requests.len() >= CAPACITY {
            entries.requests.pop_front();
        }
        entries.requests.push_back(entry);
    }

    /// What is in the log now.
    pub fn entries(&self) -> Entries {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
