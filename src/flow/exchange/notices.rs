//! What an operator is told in the log, by one root context: seldom, and with what is needed to find the cause.

mod drift;

use crate::flow::metrics;
use crate::host::{HttpHost, Level};
use crate::index::Index;
use crate::observation::Scope;
use crate::request::names;
use crate::routing::reason::ReasonCode;
use drift::Drift;

/// Hints in a row that Envoy did not follow, after which the operator is told.
const UNFOLLOWED_HINTS: u32 = 20;
/// The pause between two warnings of one `UNKNOWN_*` code, in ms.
const UNKNOWN_PAUSE_MS: u64 = 60_000;
/// How many known values a warning names.
const VALUES_NAMED: usize = 8;
/// How much of a value a warning repeats, in bytes.
const VALUE_BYTES: usize = 64;

/// What the operator has been told.
#[derive(Debug, Default)]
pub struct Notices {
    followed: Followed,
    unknown: Unknown,
    /// What comes of predictions.
    pub(super) drift: Drift,
}

/// Whether Envoy follows the hints.
#[derive(Debug, Default)]
struct Followed {
    unfollowed: u32,
    any: bool,
    warned: bool,
}

/// When each code's last warning was, Unix time in ms.
#[derive(Debug, Default)]
struct Unknown {
    tenant_ms: Option<u64>,
    model_ms: Option<u64>,
    hash_scheme_ms: Option<u64>,
}

// === impl Notices ===

impl Notices {
    /// A request that was sent with a list of addresses was answered: by which of them, if by one.
    pub(super) fn answered(&mut self, host: &impl HttpHost, addresses: &[String]) -> Option<usize> {
        self.followed.note(host, addresses)
    }

    /// A request came to `reason`. If that says that nothing is known of a key of its scope, the log names the key and
    /// the values that are known, once a minute at most.
    pub(super) fn decided(&mut self, host: &impl HttpHost, reason: ReasonCode, scope: &Scope, index: &Index) {
        let now_ms = host.now_ms();
        let Some(last_ms) = self.unknown.last_ms(reason) else { return };
        // A clock that was set back must not silence the log.
        if last_ms.is_some_and(|last_ms| now_ms.checked_sub(last_ms).is_some_and(|passed| passed < UNKNOWN_PAUSE_MS)) {
            return;
        }
        *last_ms = Some(now_ms);
        let text = match reason {
            ReasonCode::UnknownTenant => unknown_tenant(scope, index),
            ReasonCode::UnknownModel => unknown_model(scope, index),
            _ => unknown_hash_scheme(scope, index),
        };
        host.log(Level::Warn, &format!("{}: {text}", reason.as_str()));
    }
}

// === impl Unknown ===

impl Unknown {
    fn last_ms(&mut self, reason: ReasonCode) -> Option<&mut Option<u64>> {
        match reason {
            ReasonCode::UnknownTenant => Some(&mut self.tenant_ms),
            ReasonCode::UnknownModel => Some(&mut self.model_ms),
            ReasonCode::UnknownHashScheme => Some(&mut self.hash_scheme_ms),
            _ => None,
        }
    }
}

fn unknown_tenant(scope: &Scope, index: &Index) -> String {
    format!(
        "nothing is known of tenant {}; known tenants: {}; unless its engines hold nothing yet, the hub's \
         replicas[].tenant must equal what the filter's tenant setting makes of requests",
        quoted(&scope.tenant_id),
        listed(index.known_tenants()),
    )
}

fn unknown_model(scope: &Scope, index: &Index) -> String {
    format!(
        "nothing is known of model {} for tenant {}; known models: {}; unless its engines hold nothing yet, the hub's \
         replicas[].model must equal the filter's models[].model_id",
        quoted(&scope.model_id),
        quoted(&scope.tenant_id),
        listed(index.known_models(&scope.tenant_id)),
    )
}

fn unknown_hash_scheme(scope: &Scope, index: &Index) -> String {
    format!(
        "nothing is known under hash scheme {} of model {} for tenant {}; known hash schemes: {}; the hub's \
         replicas[].hash_scheme must equal the filter's models[].hash_scheme, or what requests name instead",
        quoted(&scope.hash_scheme),
        quoted(&scope.model_id),
        quoted(&scope.tenant_id),
        listed(index.known_schemes(&scope.tenant_id, &scope.model_id)),
    )
}

/// The first of `values` by their order, quoted.
fn listed<'a>(values: impl Iterator<Item = &'a str>) -> String {
    let mut values: Vec<&str> = values.collect();
    values.sort_unstable();
    values.dedup();
    let named: Vec<String> = values.iter().take(VALUES_NAMED).map(|value| quoted(value)).collect();
    let more = values.len().saturating_sub(VALUES_NAMED);
    if more == 0 { named.join(", ") } else { format!("{} and {more} more", named.join(", ")) }
}

/// A value that cannot break out of its line, and not all of a long one.
fn quoted(value: &str) -> String {
    let (shown, rest) = value.split_at(value.floor_char_boundary(VALUE_BYTES));
    if rest.is_empty() { format!("{shown:?}") } else { format!("{shown:?}…") }
}

// === impl Followed ===

impl Followed {
    fn note(&mut self, host: &impl HttpHost, addresses: &[String]) -> Option<usize> {
        let upstream = host.property(&["upstream", "address"]).and_then(|address| String::from_utf8(address).ok());
        let place = upstream.as_ref().and_then(|upstream| addresses.iter().position(|address| address == upstream));
        let label = match place {
            Some(0) => "first",
            Some(_) => "other",
            None => "none",
        };
        host.count(&metrics::hint_followed(label), 1);
        self.any |= place.is_some();
        // A local reply has no upstream, which says nothing about the addresses.
        if place.is_none() && upstream.is_some() {
            self.unfollowed = self.unfollowed.saturating_add(1);
        }
        if !self.any && !self.warned && self.unfollowed >= UNFOLLOWED_HINTS {
            self.warned = true;
            host.log(
                Level::Warn,
                &format!(
                    "no hint was ever followed: the hub names replicas by addresses such as {}, Envoy by addresses such as \
                     {}; both must be the same ip:port, and the cluster must use the override_host policy with the {} header",
                    addresses.first().map_or("", String::as_str),
                    upstream.as_deref().unwrap_or(""),
                    names::DESTINATION_ENDPOINT
                ),
            );
        }
        place
    }
}
