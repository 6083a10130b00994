//! What has been seen, against what there is to see.

use std::collections::BTreeSet;

use hyper::http::request::Builder;
use warmroute::native::load::stack::Stack;
use warmroute::routing::reason::{Detail, ReasonCode};

use crate::pool::*;

/// Details that a request cannot be brought to here.
const NOT_REACHED: [(Detail, &str); 1] =
    [(Detail::Unreadable, "Envoy hands out headers and body of every request that it passes to a filter")];

/// What has been seen, in an answer's headers and in Envoy's metrics both.
#[derive(Debug, Default)]
pub struct Seen {
    codes: BTreeSet<String>,
    details: BTreeSet<String>,
}

/// A request, and what it must come to: reason code and detail.
pub struct Case {
    what: &'static str,
    head: Builder,
    path: &'static str,
    body: Vec<u8>,
    expected: (&'static str, &'static str),
}

// === impl Seen ===

impl Seen {
    /// Sends each request, compares, and notes what Envoy's metrics count in the end.
    pub async fn expect(&mut self, stack: &Stack, cases: Vec<Case>) {
        for Case { what, head, path, body, expected } in cases {
            let before = counted(stack, expected).await;
            let decided = decided(&send(stack, head, path, body).await);
            assert_eq!((decided.reason.as_str(), decided.detail.as_str()), expected, "{what}");
            assert_eq!(counted(stack, expected).await, before.map(|count| count + 1.0), "{what} is counted once");
            self.note(stack, &decided.reason, &decided.detail).await;
        }
    }

    /// Notes a code and its detail, which Envoy must count.
    pub async fn note(&mut self, stack: &Stack, reason: &str, detail: &str) {
        let metrics = stack.metrics().await.unwrap();
        let calls = metrics.sum("inferencecache_lookup_route_calls_total", &[("reason_code", reason)]);
        assert!(calls >= 1.0, "no call is counted as {reason}");
        self.codes.insert(reason.to_owned());
        let counter = match reason {
            "NO_HINT" => "warmroute_no_hint_total",
            "AFFINITY_HINT" => "warmroute_affinity_hint_total",
            _ => {
                let of_several = detail == Detail::FirstOfSeveral.as_str();
                assert!(detail.is_empty() || of_several, "{reason} says it all, not {detail}");
                self.details.insert(detail.to_owned());
                return;
            }
        };
        assert!(metrics.sum(counter, &[("detail", detail)]) >= 1.0, "{counter} lacks {detail}");
        self.details.insert(detail.to_owned());
    }

    /// Fails unless everything that there is was seen.
    pub fn is_everything(&self) {
        for code in ReasonCode::ALL {
            assert!(self.codes.contains(code.as_str()), "{code:?} was never seen: {:?}", self.codes);
        }
        for detail in Detail::ALL {
            let excused = NOT_REACHED.iter().any(|(not_reached, _)| *not_reached == detail);
            let seen = self.details.contains(detail.as_str());
            assert_ne!(seen, excused, "{detail:?}: seen {seen}, named as one that is not reached {excused}");
        }
    }
}

/// Calls counted under a code, with a hint or without as it says, and what is counted under the detail.
async fn counted(stack: &Stack, (reason, detail): (&str, &str)) -> [f64; 2] {
    let metrics = stack.metrics().await.unwrap();
    let hint_used = if ["PREFIX_MATCH", "TENANT_HOT", "AFFINITY_HINT"].contains(&reason) { "true" } else { "false" };
    let labels = [("reason_code", reason), ("hint_used", hint_used)];
    let calls = metrics.sum("inferencecache_lookup_route_calls_total", &labels);
    let of_detail = match reason {
        "NO_HINT" => metrics.sum("warmroute_no_hint_total", &[("detail", detail)]),
        "AFFINITY_HINT" => metrics.sum("warmroute_affinity_hint_total", &[("detail", detail)]),
        _ => calls,
    };
    [calls, of_detail]
}

// === impl Case ===

impl Case {
    pub fn new(
        what: &'static str,
        head: Builder,
        body: impl Into<Vec<u8>>,
        expected: (&'static str, &'static str),
    ) -> Case {
        Case { what, head, path: "/v1/completions", body: body.into(), expected }
    }

    pub fn at(self, path: &'static str) -> Case {
        Case { path, ..self }
    }
}
