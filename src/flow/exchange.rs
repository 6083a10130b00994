//! One request, from its headers to its response.
//!
//! At the headers, a client's routing headers are removed and the request is either sent on or held with its body; once
//! all that decides is there, the decision is written into headers and filter state, and the request goes on. Whatever is
//! missing or wrong, it goes on without a hint.

use super::follower::View;
use super::metrics;
use super::node::{Knowledge, Node};
use crate::config::{FilterConfig, WhenStale};
use crate::host::{HttpHost, Level};
use crate::request::{HeadVerdict, HeaderInputs, LookupRequest, NoTokenizer, RequestHead, names, read_body, read_head};
use crate::routing::decision::{Decision, RankedReplica};
use crate::routing::lookup::{Lookup, lookup_route};
use crate::routing::reason::{Detail, ReasonCode};

/// Hints in a row that Envoy did not follow, after which the operator is told.
const UNFOLLOWED_HINTS: u32 = 20;
/// The metric label of a model that the configuration does not name.
const OTHER_MODEL: &str = "other";

/// Whether the request goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It goes on.
    Continue,
    /// It waits for the rest of its body.
    Hold,
}

/// What a configured filter decides with.
#[derive(Debug)]
pub struct Router<'a> {
    /// The configuration.
    pub config: &'a FilterConfig,
    /// The VM's node.
    pub node: &'a mut Node,
}

/// One request.
#[derive(Debug, Default)]
pub struct Exchange {
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    New,
    /// Headers and body are held until the body is complete.
    Holding { inputs: Box<HeaderInputs>, received_bytes: usize },
    /// Sent on.
    Sent(Sent),
}

/// What was written into the request.
#[derive(Debug)]
struct Sent {
    reason: ReasonCode,
    detail: Detail,
    replica_id: String,
    matched_tokens: u32,
    /// The addresses in the destination header, best first.
    addresses: Vec<String>,
}

/// Whether Envoy follows the hints of one root context.
#[derive(Debug, Default)]
pub struct Followed {
    unfollowed: u32,
    any: bool,
    warned: bool,
}

// === impl Exchange ===

impl Exchange {
    /// The request's headers are here.
    pub fn on_request_headers(
        &mut self,
        host: &impl HttpHost,
        router: Option<Router<'_>>,
        end_of_stream: bool,
    ) -> Next {
        let headers = host.request_headers();
        remove_routing_headers(host, headers.as_deref());
        let Some(Router { config, node }) = router else {
            return self.send(host, OTHER_MODEL, Decision::no_hint(Detail::NotConfigured));
        };
        let Some(headers) = headers else {
            return self.send(host, OTHER_MODEL, Decision::no_hint(Detail::Unreadable));
        };
        let tenant = config.tenant.property().and_then(|path| tenant_property(host, path));
        let (inputs, verdict) = read_head(&RequestHead { headers: &headers }, tenant.as_deref(), config);
        match verdict {
            HeadVerdict::Ready(request) => self.decide(host, config, node, &request),
            HeadVerdict::Hold { .. } if end_of_stream => {
                self.send_without_hint(host, config, inputs.model_id(), Detail::EmptyBody)
            }
            HeadVerdict::Hold { .. } => {
                self.state = State::Holding { inputs: Box::new(inputs), received_bytes: 0 };
                Next::Hold
            }
            HeadVerdict::Release(detail) => self.send_without_hint(host, config, inputs.model_id(), detail),
        }
    }

    /// `buffered_bytes` of the body are buffered.
    pub fn on_request_body(
        &mut self,
        host: &impl HttpHost,
        router: Option<Router<'_>>,
        buffered_bytes: usize,
        end_of_stream: bool,
    ) -> Next {
        let (State::Holding { inputs, received_bytes }, Some(Router { config, node })) = (&mut self.state, router)
        else {
            return self.let_go(host);
        };
        *received_bytes = buffered_bytes;
        // An announced length may be wrong, and a chunked body announces none.
        if buffered_bytes as u64 > config.requests.max_body_bytes {
            let model = inputs.model_id().map(str::to_owned);
            return self.send_without_hint(host, config, model.as_deref(), Detail::BodyTooLarge);
        }
        if !end_of_stream {
            return Next::Hold;
        }
        let inputs = std::mem::take(inputs);
        self.read_body(host, config, node, &inputs, buffered_bytes)
    }

    /// The request's trailers are here: the body is complete.
    pub fn on_request_trailers(&mut self, host: &impl HttpHost, router: Option<Router<'_>>) -> Next {
        let (State::Holding { inputs, received_bytes }, Some(Router { config, node })) = (&mut self.state, router)
        else {
            return self.let_go(host);
        };
        let inputs = std::mem::take(inputs);
        let received_bytes = *received_bytes;
        self.read_body(host, config, node, &inputs, received_bytes)
    }

    /// The response's headers are here: was the hint followed?
    pub fn on_response_headers(&self, host: &impl HttpHost, config: &FilterConfig, followed: &mut Followed) {
        let State::Sent(sent) = &self.state else { return };
        if !sent.addresses.is_empty() {
            followed.note(host, &sent.addresses);
        }
        if config.output.response_headers {
            sent.write(|name, value| host.set_response_header(name, value));
        }
    }

    fn read_body(
        &mut self,
        host: &impl HttpHost,
        config: &FilterConfig,
        node: &mut Node,
        inputs: &HeaderInputs,
        size: usize,
    ) -> Next {
        if size == 0 {
            return self.send_without_hint(host, config, inputs.model_id(), Detail::EmptyBody);
        }
        let Some(body) = host.request_body(size) else {
            return self.send_without_hint(host, config, inputs.model_id(), Detail::Unreadable);
        };
        match read_body(&body, inputs, config) {
            Ok(request) => self.decide(host, config, node, &request),
            Err(refusal) => self.send_without_hint(host, config, refusal.model.as_deref(), refusal.detail),
        }
    }

    fn decide(
        &mut self,
        host: &impl HttpHost,
        config: &FilterConfig,
        node: &mut Node,
        request: &LookupRequest,
    ) -> Next {
        let started_ns = host.now_ns();
        let budget_ns = config.limits.max_request_work_ms.saturating_mul(1_000_000);
        let known = node.ask(host, budget_ns);
        let decision = decision(&known, config, request, host.now_ms());
        let elapsed_us = host.now_ns().saturating_sub(started_ns) / 1_000;
        host.record(&metrics::lookup_latency(&request.scope.model_id), elapsed_us);
        self.send(host, &request.scope.model_id, decision)
    }

    fn send_without_hint(
        &mut self,
        host: &impl HttpHost,
        config: &FilterConfig,
        model: Option<&str>,
        detail: Detail,
    ) -> Next {
        let model = model.filter(|model| config.models.contains_key(*model)).unwrap_or(OTHER_MODEL);
        self.send(host, model, Decision::no_hint(detail))
    }

    /// Writes the decision into the request and lets it go. `model` must be one that the configuration names.
    fn send(&mut self, host: &impl HttpHost, model: &str, decision: Decision) -> Next {
        let sent = Sent::new(decision);
        sent.write(|name, value| host.set_request_header(name, value));
        sent.write_filter_state(host);
        host.count(&metrics::lookup_calls(model, sent.reason.as_str(), !sent.addresses.is_empty()), 1);
        if sent.reason == ReasonCode::NoHint {
            host.count(&metrics::no_hint(sent.detail.as_str()), 1);
        }
        if !sent.addresses.is_empty() {
            host.set_request_header(names::DESTINATION_ENDPOINT, &sent.addresses.join(","));
        }
        self.state = State::Sent(sent);
        Next::Continue
    }

    /// A part of a request that is not held, or can no longer be decided on, goes on.
    fn let_go(&mut self, host: &impl HttpHost) -> Next {
        match self.state {
            State::Sent(_) => Next::Continue,
            _ => self.send(host, OTHER_MODEL, Decision::no_hint(Detail::NotConfigured)),
        }
    }
}

/// What is known, weighed against how fresh it is.
fn decision(known: &Knowledge<'_>, config: &FilterConfig, request: &LookupRequest, now_ms: u64) -> Decision {
    if known.heard_ms.is_none() {
        return Decision::no_hint(Detail::Cold);
    }
    let View::Index(index) = known.view else { return Decision::no_hint(Detail::CatchingUp) };
    let stale = known.is_stale(config.freshness.stale_after_ms, now_ms);
    if stale && config.freshness.when_stale == WhenStale::NoHint {
        return Decision::no_hint(Detail::Stale);
    }
    let policy = config.policies.for_tenant(&request.scope.tenant_id);
    let lookup =
        Lookup { index, policy, ranking: &config.ranking, tokenizer: &NoTokenizer, now_ms, is_late: &|| false };
    let mut decision = lookup_route(&lookup, request).decision;
    if !decision.ranked.is_empty() {
        decision.ranked.retain(|replica| is_address(&replica.address));
        if decision.ranked.is_empty() {
            return Decision::no_hint(Detail::NoAddress);
        }
        decision.ranked.truncate(config.output.max_endpoints);
    }
    decision
}

// === impl Sent ===

impl Sent {
    fn new(decision: Decision) -> Sent {
        let best = decision.ranked.first();
        Sent {
            reason: decision.reason,
            detail: decision.detail,
            replica_id: best.map(|best| best.replica_id.to_string()).unwrap_or_default(),
            matched_tokens: best.map_or(0, |best| best.matched_tokens),
            addresses: decision.ranked.iter().map(|RankedReplica { address, .. }| address.to_string()).collect(),
        }
    }

    fn write(&self, mut set: impl FnMut(&str, &str)) {
        set(names::REASON_CODE, self.reason.as_str());
        set(names::MATCHED_TOKENS, &self.matched_tokens.to_string());
        if self.detail != Detail::None {
            set(names::DETAIL, self.detail.as_str());
        }
        if !self.replica_id.is_empty() && is_header_value(&self.replica_id) {
            set(names::REPLICA_ID, &self.replica_id);
        }
    }

    fn write_filter_state(&self, host: &impl HttpHost) {
        host.set_filter_state("inferencecache_reason_code", self.reason.as_str());
        host.set_filter_state("inferencecache_matched_tokens", &self.matched_tokens.to_string());
        if self.detail != Detail::None {
            host.set_filter_state("inferencecache_detail", self.detail.as_str());
        }
        if !self.replica_id.is_empty() {
            host.set_filter_state("inferencecache_replica_id", &self.replica_id);
        }
    }
}

// === impl Followed ===

impl Followed {
    fn note(&mut self, host: &impl HttpHost, addresses: &[String]) {
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
    }
}

/// Each name once: removing a header removes all of that name. Headers that cannot be read are removed by name.
fn remove_routing_headers(host: &impl HttpHost, headers: Option<&[(String, Vec<u8>)]>) {
    let Some(headers) = headers else {
        return names::OUTPUT.iter().chain(&names::INPUT).for_each(|name| host.remove_request_header(name));
    };
    let mut removed: Vec<&str> = Vec::new();
    for (name, _) in headers {
        if names::is_routing_header(name) && !removed.contains(&name.as_str()) {
            removed.push(name);
            host.remove_request_header(name);
        }
    }
}

fn tenant_property(host: &impl HttpHost, path: &[String]) -> Option<String> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    host.property(&path).and_then(|value| String::from_utf8(value).ok())
}

/// Only what an `ip:port` is made of may get into the destination header.
fn is_address(address: &str) -> bool {
    !address.is_empty()
        && address.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'.' | b':' | b'[' | b']'))
}

fn is_header_value(value: &str) -> bool {
    value.bytes().all(|byte| matches!(byte, 0x20..=0x7E))
}

#[cfg(test)]
mod tests;
