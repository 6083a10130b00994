//! One request, from its headers to its response.
//!
//! At the headers, a client's routing headers are removed and the request is either sent on or held with its body; once
//! all that decides is there, the decision is written into headers and filter state, and the request goes on. Whatever is
//! missing or wrong, it goes on without a hint.
//!
//! A request's time, which the policy's `lookupTimeoutMs` limits, runs from the end of its input: from its headers where
//! they have all of it, else from the end of its body. Reading the input counts, and so do catching up with the shared
//! log and looking up.
//!
//! A response passes untouched. Where its request was decided by its prompt, what the engine says of the prompt is read as
//! it passes, and compared (`compare.rs`) with what was decided.

mod answer;
mod compare;
mod first_byte;
mod notices;
mod sent;
pub mod usage;

use super::follower::View;
use super::metrics;
use super::node::{Knowledge, Node};
use crate::config::FilterConfig;
use crate::host::HttpHost;
use crate::request::{
    HeadVerdict, HeaderInputs, KnownAdapters, LookupRequest, RequestHead, names, read_body, read_head,
};
use crate::routing::decision::Decision;
use crate::routing::policy::Policy;
use crate::routing::reason::{Detail, ReasonCode};
use answer::{Asked, Outcome};
use compare::{Foretold, Reading};
use first_byte::FirstByte;
use sent::Sent;

pub use notices::Notices;

/// The metric label of a model that the configuration does not name.
const OTHER_MODEL: &str = "other";
const NS_PER_MS: u64 = 1_000_000;

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
    /// What the root context has told the operator.
    pub notices: &'a mut Notices,
}

/// One request.
#[derive(Debug, Default)]
pub struct Exchange {
    state: State,
    /// The response's first byte, where its request was looked up.
    first_byte: Option<FirstByte>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    New,
    /// Headers and body are held until the body is complete.
    Holding { inputs: Box<HeaderInputs>, received_bytes: usize },
    /// Sent on.
    Sent(Sent),
    /// Answered, with a response that is read.
    Reading(Box<Reading>),
    /// Answered, with nothing more to do.
    Answered,
}

/// A request whose input is complete, and what it is decided with.
struct Step<'a, H> {
    host: &'a H,
    config: &'a FilterConfig,
    notices: &'a mut Notices,
    index: IndexAsker<'a, H>,
    /// The end of the input, Unix time in ns.
    input_ended_ns: u64,
}

/// Asks the VM's node, within the time that one request may take from it.
struct IndexAsker<'a, H> {
    host: &'a H,
    node: &'a mut Node,
    left_ns: u64,
}

/// A decision, with the label that its request is counted under, which is of a model that the configuration names, or other.
struct Decided<'a> {
    decision: Decision,
    model: &'a str,
    foretold: Option<Foretold>,
    /// When the input of a request ended that was looked up.
    input_ended_ns: Option<u64>,
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
        let Some(router) = router else {
            return self.send(host, Decided::other(Detail::NotConfigured));
        };
        if router.config.output.data_parallel_rank_header {
            host.remove_request_header(names::DATA_PARALLEL_RANK);
        }
        let Some(headers) = headers else {
            return self.send(host, Decided::other(Detail::Unreadable));
        };
        let mut step = Step::new(host, router);
        let tenant = step.config.tenant.property().and_then(|path| tenant_property(host, path));
        let head = RequestHead { headers: &headers };
        let (inputs, verdict) = read_head(&head, tenant.as_deref(), step.config, &mut step.index);
        match verdict {
            HeadVerdict::Ready(request) => self.send(host, step.decide(&request)),
            HeadVerdict::Hold { .. } if end_of_stream => {
                self.send_without_hint(host, step.config, inputs.model_id(), Detail::EmptyBody)
            }
            HeadVerdict::Hold { .. } => {
                self.state = State::Holding { inputs: Box::new(inputs), received_bytes: 0 };
                Next::Hold
            }
            HeadVerdict::Release(detail) => self.send_without_hint(host, step.config, inputs.model_id(), detail),
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
        let (State::Holding { inputs, received_bytes }, Some(router)) = (&mut self.state, router) else {
            return self.let_go(host);
        };
        *received_bytes = buffered_bytes;
        // An announced length may be wrong, and a chunked body announces none.
        if buffered_bytes as u64 > router.config.requests.max_body_bytes {
            let model = inputs.model_id().map(str::to_owned);
            return self.send_without_hint(host, router.config, model.as_deref(), Detail::BodyTooLarge);
        }
        if !end_of_stream {
            return Next::Hold;
        }
        let inputs = std::mem::take(inputs);
        self.read_body(host, router, &inputs, buffered_bytes)
    }

    /// The request's trailers are here: the body is complete.
    pub fn on_request_trailers(&mut self, host: &impl HttpHost, router: Option<Router<'_>>) -> Next {
        let (State::Holding { inputs, received_bytes }, Some(router)) = (&mut self.state, router) else {
            return self.let_go(host);
        };
        let inputs = std::mem::take(inputs);
        let received_bytes = *received_bytes;
        self.read_body(host, router, &inputs, received_bytes)
    }

    /// The response's headers are here: was the hint followed, and is there a body to read?
    pub fn on_response_headers(
        &mut self,
        host: &impl HttpHost,
        config: &FilterConfig,
        notices: &mut Notices,
        end_of_stream: bool,
    ) {
        let State::Sent(sent) = &mut self.state else { return };
        let place = if sent.addresses.is_empty() { None } else { notices.answered(host, &sent.addresses) };
        if config.output.response_headers {
            sent.write_response(host);
        }
        let foretold = sent.foretold.take().filter(|_| !end_of_stream);
        self.first_byte = self.first_byte.take().filter(|_| !end_of_stream && FirstByte::is_of(host));
        let reading = foretold.and_then(|foretold| foretold.read(host, place));
        self.state = reading.map_or(State::Answered, |reading| State::Reading(Box::new(reading)));
    }

    /// Whether the response's body is read, or its first byte awaited.
    pub fn reads_response(&self) -> bool {
        matches!(self.state, State::Reading(_)) || self.first_byte.is_some()
    }

    /// The next `size` bytes of the response's body pass.
    pub fn on_response_body(&mut self, host: &impl HttpHost, notices: &mut Notices, size: usize, end_of_stream: bool) {
        if size > 0
            && let Some(first_byte) = self.first_byte.take()
        {
            first_byte.came(host);
        }
        let State::Reading(reading) = &mut self.state else { return };
        if !reading.read(host, size) {
            self.state = State::Answered;
        } else if end_of_stream {
            self.end_response(host, notices, true);
        }
    }

    /// The response has ended: with trailers, as a whole, or broken off, as what has passed of it.
    pub fn end_response(&mut self, host: &impl HttpHost, notices: &mut Notices, is_whole: bool) {
        self.first_byte = None;
        let State::Reading(_) = &self.state else { return };
        if let State::Reading(reading) = std::mem::replace(&mut self.state, State::Answered) {
            reading.end(host, notices, is_whole);
        }
    }

    fn read_body(&mut self, host: &impl HttpHost, router: Router<'_>, inputs: &HeaderInputs, size: usize) -> Next {
        let mut step = Step::new(host, router);
        if size == 0 {
            return self.send_without_hint(host, step.config, inputs.model_id(), Detail::EmptyBody);
        }
        let Some(body) = host.request_body(size) else {
            return self.send_without_hint(host, step.config, inputs.model_id(), Detail::Unreadable);
        };
        match read_body(body, inputs, step.config, &mut step.index) {
            Ok(request) => self.send(host, step.decide(&request)),
            Err(refusal) => self.send_without_hint(host, step.config, refusal.model.as_deref(), refusal.detail),
        }
    }

    fn send_without_hint(
        &mut self,
        host: &impl HttpHost,
        config: &FilterConfig,
        model: Option<&str>,
        detail: Detail,
    ) -> Next {
        self.send(host, Decided { model: label(config, model), ..Decided::other(detail) })
    }

    /// Writes the decision into the request and lets it go.
    fn send(
        &mut self,
        host: &impl HttpHost,
        Decided { decision, model, foretold, input_ended_ns }: Decided<'_>,
    ) -> Next {
        let sent = Sent::new(decision, foretold);
        self.first_byte = input_ended_ns.map(|input_ended_ns| {
            FirstByte::awaited(metrics::time_to_first_byte(model, sent.reason.as_str()), input_ended_ns)
        });
        sent.write_request(host);
        host.count(&metrics::lookup_calls(model, sent.reason.as_str(), !sent.addresses.is_empty()), 1);
        match sent.reason {
            ReasonCode::NoHint => host.count(&metrics::no_hint(sent.detail.as_str()), 1),
            ReasonCode::AffinityHint => host.count(&metrics::affinity_hint(sent.detail.as_str()), 1),
            _ => {}
        }
        self.state = State::Sent(sent);
        Next::Continue
    }

    /// A part of a request that is not held, or can no longer be decided on, goes on.
    fn let_go(&mut self, host: &impl HttpHost) -> Next {
        match self.state {
            State::Sent(_) | State::Reading(_) | State::Answered => Next::Continue,
            State::New | State::Holding { .. } => self.send(host, Decided::other(Detail::NotConfigured)),
        }
    }
}

// === impl Step ===

impl<'a, H: HttpHost> Step<'a, H> {
    /// The request's input ends now.
    fn new(host: &'a H, Router { config, node, notices }: Router<'a>) -> Step<'a, H> {
        let left_ns = config.limits.max_request_work_ms.saturating_mul(NS_PER_MS);
        let index = IndexAsker { host, node, left_ns };
        Step { host, config, notices, index, input_ended_ns: host.now_ns() }
    }

    fn decide<'r>(&mut self, request: &'r LookupRequest) -> Decided<'r> {
        let known = self.index.ask();
        let (host, input_ended_ns) = (self.host, self.input_ended_ns);
        let asked = Asked { known: &known, config: self.config, request, now_ms: host.now_ms() };
        let policy = asked.policy();
        let Outcome { decision, hit, foretold } = asked.decide(policy, &|| has_passed(host, input_ended_ns, policy));
        if let View::Index(index) = known.view {
            self.notices.decided(host, decision.reason, &request.scope, index);
        }
        if let Some(hit) = hit {
            self.index.node.delivered(hit);
        }
        let model = request.scope.model_id.as_str();
        host.record(&metrics::lookup_latency(model), host.now_ns().saturating_sub(input_ended_ns) / 1_000);
        Decided { decision, model, foretold, input_ended_ns: Some(input_ended_ns) }
    }
}

// === impl Decided ===

impl Decided<'_> {
    /// No hint, to a request that names no model of the configuration.
    fn other(detail: Detail) -> Decided<'static> {
        Decided { decision: Decision::no_hint(detail), model: OTHER_MODEL, foretold: None, input_ended_ns: None }
    }
}

/// Whether the policy's time limit has passed since `start_ns`.
fn has_passed(host: &impl HttpHost, start_ns: u64, policy: &Policy) -> bool {
    let limit_ns = u64::from(policy.lookup_timeout_ms).saturating_mul(NS_PER_MS);
    limit_ns > 0 && host.now_ns().saturating_sub(start_ns) > limit_ns
}

// === impl IndexAsker ===

impl<H: HttpHost> IndexAsker<'_, H> {
    fn ask(&mut self) -> Knowledge<'_> {
        let started_ns = self.host.now_ns();
        let known = self.node.ask(self.host, self.left_ns);
        self.left_ns = self.left_ns.saturating_sub(self.host.now_ns().saturating_sub(started_ns));
        known
    }
}

impl<H: HttpHost> KnownAdapters for IndexAsker<'_, H> {
    fn models_of(&mut self, tenant_id: &str, adapter_id: &str) -> Vec<String> {
        match self.ask().view {
            View::Index(index) => {
                index.dictionary().models_of_adapter(tenant_id, adapter_id).map(str::to_owned).collect()
            }
            View::CatchingUp => Vec::new(),
        }
    }
}

/// The metric label of what a request names as its model: one that the configuration names, or one for all others.
fn label<'a>(config: &'a FilterConfig, name: Option<&str>) -> &'a str {
    let model = name.and_then(|name| config.model(name).or_else(|| config.adapter(name).map(|(model, _)| model)));
    model.map_or(OTHER_MODEL, |model| &model.model_id)
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

#[cfg(test)]
mod tests;
