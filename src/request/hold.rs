//! Which bodies are held. A held body delays the request and costs memory, and one that outgrows Envoy's buffer limit is
//! answered 413, so anything out of the ordinary goes on at once.

use super::RequestHead;
use crate::config::{BodyApi, RequestRules};
use crate::routing::reason::Detail;

/// A body to hold.
pub(super) struct Body {
    /// The announced length in bytes.
    pub content_length: Option<u64>,
    /// What its fields mean.
    pub api: BodyApi,
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
    let api = api(head, rules).ok_or(Detail::OtherPath)?;
    if head.contains("expect") {
        return Err(Detail::ExpectContinue);
    }
    if head.contains("content-encoding") && !is_identity(head) {
        return Err(Detail::EncodedBody);
    }
    if !is_json(content_type) {
        return Err(Detail::NotJson);
    }
    Ok(Body { content_length: check_length(head, rules)?, api })
}

/// The announced length in bytes, if it must be announced.
fn check_length(head: &RequestHead, rules: &RequestRules) -> Result<Option<u64>, Detail> {
    let content_length = match head.single("content-length") {
        Ok(None) if rules.hold_chunked => return Ok(None),
        Ok(Some(digits)) => parse_length(digits),
        Ok(None) | Err(_) => None,
    };
    match content_length {
        None => Err(Detail::UnknownLength),
        Some(0) => Err(Detail::EmptyBody),
        Some(length) if length > rules.max_body_bytes => Err(Detail::BodyTooLarge),
        Some(length) => Ok(Some(length)),
    }
}

/// Digits only: `str::parse` would take a sign.
fn parse_length(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// What bodies are on the request's path: without its query it must be a configured one, byte for byte.
fn api(head: &RequestHead, rules: &RequestRules) -> Option<BodyApi> {
    let path = head.get(":path").unwrap_or_default();
    let path = path.split(['?', '#']).next().unwrap_or_default();
    rules.paths.iter().find(|rule| rule.path == path).map(|rule| rule.api)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PathRule;

    const PLAIN: [(&str, &str); 4] = [
        (":method", "POST"),
        (":path", "/v1/completions"),
        ("content-type", "application/json"),
        ("content-length", "100"),
    ];

    fn rules() -> RequestRules {
        RequestRules {
            paths: ["/v1/completions", "/generate"].map(PathRule::of).to_vec(),
            max_body_bytes: 1000,
            hold_chunked: false,
            input_headers: crate::request::names::InputHeaders::all(),
        }
    }

    /// A plain request with these headers in place of its own; an empty value leaves the header out.
    fn held_by(rules: &RequestRules, own: &[(&str, &str)]) -> Result<Option<u64>, Detail> {
        let plain = PLAIN.iter().filter(|(name, _)| !own.iter().any(|(other, _)| other == name));
        let headers = plain.chain(own.iter().filter(|(_, value)| !value.is_empty()));
        let headers: Vec<_> = headers.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
        let head = RequestHead { headers: &headers };
        check_method(&head)?;
        check_body(&head, rules).map(|body| body.content_length)
    }

    fn held(own: &[(&str, &str)]) -> Result<Option<u64>, Detail> {
        held_by(&rules(), own)
    }

    #[test]
    fn a_plain_request_is_held() {
        assert_eq!(held(&[]), Ok(Some(100)));
    }

    #[test]
    fn connect_and_upgrades_go_on() {
        for own in [
            [(":method", "CONNECT")],
            [(":protocol", "websocket")],
            [("upgrade", "h2c")],
            [("connection", "upgrade")],
            [("connection", "keep-alive, Upgrade")],
        ] {
            assert_eq!(held(&own), Err(Detail::Upgrade), "{own:?}");
        }
        assert_eq!(held(&[("connection", "keep-alive, upgraded")]), Ok(Some(100)));
    }

    #[test]
    fn other_methods_go_on() {
        for method in ["GET", "PUT", "HEAD", "post", ""] {
            assert_eq!(held(&[(":method", method)]), Err(Detail::NotPost), "{method}");
        }
    }

    #[test]
    fn grpc_goes_on_even_as_json() {
        for kind in ["application/grpc", "application/grpc+json", "Application/gRPC-Web", "application/grpc;a=b"] {
            assert_eq!(held(&[("content-type", kind)]), Err(Detail::Grpc), "{kind}");
        }
    }

    #[test]
    fn only_configured_paths_are_held() {
        for path in ["/generate", "/v1/completions?a=/b", "/v1/completions?", "/v1/completions#a"] {
            assert_eq!(held(&[(":path", path)]), Ok(Some(100)), "{path}");
        }
        for path in ["/v1/completions/", "/V1/completions", "/v1%2fcompletions", "/", "*", "", "?/generate"] {
            assert_eq!(held(&[(":path", path)]), Err(Detail::OtherPath), "{path}");
        }
    }

    #[test]
    fn whatever_still_carries_expect_goes_on() {
        for value in ["100-continue", "anything"] {
            assert_eq!(held(&[("expect", value)]), Err(Detail::ExpectContinue));
        }
    }

    #[test]
    fn encoded_bodies_go_on() {
        for coding in ["gzip", "br", "identity, gzip", "zstd"] {
            assert_eq!(held(&[("content-encoding", coding)]), Err(Detail::EncodedBody), "{coding}");
        }
        let twice = [("content-encoding", "identity"), ("content-encoding", "gzip")];
        assert_eq!(held(&twice), Err(Detail::EncodedBody));
        assert_eq!(held(&[("content-encoding", "IDENTITY")]), Ok(Some(100)));
    }

    #[test]
    fn only_json_is_held() {
        for kind in [
            "application/json",
            "APPLICATION/JSON",
            "application/json;charset=utf-8",
            "application/json ; charset=\"utf-8\"",
            "application/problem+json",
            "application/vnd.api+JSON; a=b",
        ] {
            assert_eq!(held(&[("content-type", kind)]), Ok(Some(100)), "{kind}");
        }
        for kind in
            ["text/json", "application/jsonl", "application/x-ndjson", "json", "/x+json", "multipart/form-data", ""]
        {
            assert_eq!(held(&[("content-type", kind)]), Err(Detail::NotJson), "{kind}");
        }
    }

    #[test]
    fn the_announced_length_decides() {
        for (length, verdict) in [
            ("1", Ok(Some(1))),
            ("1000", Ok(Some(1000))),
            (" 7 ", Ok(Some(7))),
            ("1001", Err(Detail::BodyTooLarge)),
            ("18446744073709551615", Err(Detail::BodyTooLarge)),
            ("0", Err(Detail::EmptyBody)),
            ("18446744073709551616", Err(Detail::UnknownLength)),
            ("-1", Err(Detail::UnknownLength)),
            ("+1", Err(Detail::UnknownLength)),
            ("1, 1", Err(Detail::UnknownLength)),
            ("0x10", Err(Detail::UnknownLength)),
        ] {
            assert_eq!(held(&[("content-length", length)]), verdict, "{length}");
            let chunked = RequestRules { hold_chunked: true, ..rules() };
            assert_eq!(held_by(&chunked, &[("content-length", length)]), verdict, "{length}, held if chunked");
        }
        assert_eq!(held(&[("content-length", "1"), ("content-length", "1")]), Err(Detail::UnknownLength));
    }

    #[test]
    fn an_unknown_length_is_held_only_where_that_is_set() {
        assert_eq!(held(&[("content-length", "")]), Err(Detail::UnknownLength));
        let chunked = RequestRules { hold_chunked: true, ..rules() };
        assert_eq!(held_by(&chunked, &[("content-length", "")]), Ok(None));
    }

    #[test]
    fn the_first_cause_is_named() {
        let all = [
            (":method", "GET"),
            ("content-type", "application/grpc"),
            (":path", "/other"),
            ("expect", "100-continue"),
            ("content-encoding", "gzip"),
            ("content-type", "text/plain"),
            ("content-length", "9999"),
        ];
        let causes = [
            Detail::NotPost,
            Detail::Grpc,
            Detail::OtherPath,
            Detail::ExpectContinue,
            Detail::EncodedBody,
            Detail::NotJson,
            Detail::BodyTooLarge,
        ];
        for (start, cause) in causes.into_iter().enumerate() {
            assert_eq!(held(&all[start..]), Err(cause));
        }
    }
}
