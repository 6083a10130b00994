//! Which bodies are held. A held body delays the request and costs memory, and one that outgrows Envoy's buffer limit is
//! answered 413, so anything out of the ordinary goes on at once.

use super::RequestHead;
use crate::config::RequestRules;
use crate::routing::reason::Detail;

/// A body to hold.
pub(super) struct Body {
    /// The announced length in bytes.
    pub content_length: Option<u64>,
}

/// Refuses what has no body of its own.
pub(super) fn check_method(head: &RequestHead) -> Result<(), Detail> {
    let method = head.get(":method");
    if method == Some("CONNECT") || head.contains(":protocol") || is_upgrade(head) {
        return Err(Detail::Upgrade);
    }
    if method == Some("POST") { Ok(()) } else { Err(Detail::NotPost) }
}

/// Refuses bodies that are not held.
pub(super) fn check_body(head: &RequestHead, rules: &RequestRules) -> Result<Body, Detail> {
    let content_type = head.get("content-type").unwrap_or_default();
    if starts_with_ignoring_case(content_type, "application/grpc") {
        return Err(Detail::Grpc);
    }
    if !has_path(head, rules) {
        return Err(Detail::OtherPath);
    }
    if head.contains("expect") {
        return Err(Detail::ExpectContinue);
    }
    if head.contains("content-encoding") && !is_identity(head) {
        return Err(Detail::EncodedBody);
    }
    if !is_json(content_type) {
        return Err(Detail::NotJson);
    }
    check_length(head, rules)
}

fn check_length(head: &RequestHead, rules: &RequestRules) -> Result<Body, Detail> {
    let content_length = match head.single("content-length") {
        Ok(None) if rules.hold_chunked => return Ok(Body { content_length: None }),
        Ok(Some(digits)) => parse_length(digits),
        Ok(None) | Err(_) => None,
    };
    match content_length {
        None => Err(Detail::UnknownLength),
        Some(0) => Err(Detail::EmptyBody),
        Some(length) if length > rules.max_body_bytes => Err(Detail::BodyTooLarge),
        Some(length) => Ok(Body { content_length: Some(length) }),
    }
}

/// Digits only: `str::parse` would take a sign.
fn parse_length(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// The path without its query is one of the configured ones, byte for byte.
fn has_path(head: &RequestHead, rules: &RequestRules) -> bool {
    let path = head.get(":path").unwrap_or_default();
    let path = path.split(['?', '#']).next().unwrap_or_default();
    rules.paths.iter().any(|configured| configured == path)
}

fn is_upgrade(head: &RequestHead) -> bool {
    let named = |value: &str| value.split(',').any(|option| option.trim().eq_ignore_ascii_case("upgrade"));
    head.contains("upgrade") || head.get("connection").is_some_and(named)
}

fn is_identity(head: &RequestHead) -> bool {
    matches!(head.single("content-encoding"), Ok(coding) if coding.is_none_or(|it| it.eq_ignore_ascii_case("identity")))
}

/// `application/json` or a type with the `+json` suffix, whatever its parameters.
fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let Some((kind, subtype)) = essence.split_once('/') else { return false };
    let suffix = subtype.len().checked_sub("+json".len()).and_then(|start| subtype.get(start..));
    !kind.is_empty()
        && (essence.eq_ignore_ascii_case("application/json")
            || suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case("+json")))
}

fn starts_with_ignoring_case(text: &str, start: &str) -> bool {
    text.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start))
}
