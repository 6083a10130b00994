mod bodies;
mod codes;
mod first_byte;
mod hits;
mod ranks;
mod texts;
mod usage;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use prost::Message;

use super::*;
use crate::flow::sim::{START_NS, SimHost, scope};
use crate::host::{Cas, Host, Level, QueueToken, SharedValue, SharedWrite, StreamToken};
use crate::observation::{
    BlockKey, Member, Observation, ReplicaSlot, ScopeSlot, Stored, StoredBlock, StreamBody, StreamMessage, Tier,
};
use crate::wire;

/// Of a field that is given again after these, the second one counts.
const BASE: &str = r#""hub_cluster": "hub", "models": [{"model_id": "m"}], "stale_after_ms": 2000,
    "policy": {"affinityRouting": "Disabled"}"#;

/// A request in a simulated proxy.
#[derive(Default)]
struct Request {
    proxy: SimHost,
    headers: RefCell<Vec<(String, String)>>,
    unreadable: bool,
    body: Vec<u8>,
    response: RefCell<BTreeMap<String, String>>,
    /// The part of the response's body that passes.
    response_body: RefCell<Vec<u8>>,
    /// Bytes of it that were asked for.
    response_read: Cell<usize>,
    properties: BTreeMap<String, String>,
    filter_state: RefCell<BTreeMap<String, String>>,
}

/// A VM with its configuration.
struct Vm {
    proxy: SimHost,
    config: FilterConfig,
    node: Node,
    notices: Notices,
}

// === impl Request ===

impl Host for Request {
    fn now_ns(&self) -> u64 {
        self.proxy.now_ns()
    }
    fn shared_get(&self, key: &str) -> SharedValue {
        self.proxy.shared_get(key)
    }
    fn shared_set(&self, key: &str, value: &[u8], cas: Cas) -> SharedWrite {
        self.proxy.shared_set(key, value, cas)
    }
    fn register_queue(&self, name: &str) -> Option<QueueToken> {
        panic!("a request touches no queue: {name}")
    }
    fn find_queue(&self, _name: &str) -> Option<QueueToken> {
        panic!("a request touches no queue")
    }
    fn enqueue(&self, _queue: QueueToken, _message: &[u8]) -> bool {
        panic!("a request touches no queue")
    }
    fn dequeue(&self, _queue: QueueToken) -> Option<Vec<u8>> {
        panic!("a request touches no queue")
    }
    fn open_stream(
        &self,
        cluster: &str,
        service: &str,
        method: &str,
        metadata: &[(&str, &str)],
    ) -> Option<StreamToken> {
        self.proxy.open_stream(cluster, service, method, metadata)
    }
    fn send(&self, stream: StreamToken, message: &[u8]) -> bool {
        self.proxy.send(stream, message)
    }
    fn cancel(&self, stream: StreamToken) {
        self.proxy.cancel(stream);
    }
    fn count(&self, metric: &str, by: u64) {
        self.proxy.count(metric, by);
    }
    fn gauge(&self, metric: &str, value: u64) {
        self.proxy.gauge(metric, value);
    }
    fn record(&self, metric: &str, value: u64) {
        self.proxy.record(metric, value);
    }
    fn log(&self, level: Level, message: &str) {
        self.proxy.log(level, message);
    }
}

impl HttpHost for Request {
    fn request_headers(&self) -> Option<Vec<(String, Vec<u8>)>> {
        let headers = self.headers.borrow();
        (!self.unreadable)
            .then(|| headers.iter().map(|(name, value)| (name.clone(), value.clone().into_bytes())).collect())
    }
    fn set_request_header(&self, name: &str, value: &str) {
        self.remove_request_header(name);
        self.headers.borrow_mut().push((name.to_owned(), value.to_owned()));
    }
    fn remove_request_header(&self, name: &str) {
        self.headers.borrow_mut().retain(|(other, _)| other != name);
    }
    fn response_header(&self, name: &str) -> Option<Vec<u8>> {
        self.response.borrow().get(name).map(|value| value.clone().into_bytes())
    }
    fn set_response_header(&self, name: &str, value: &str) {
        self.response.borrow_mut().insert(name.to_owned(), value.to_owned());
    }
    fn request_body(&self, size: usize) -> Option<Vec<u8>> {
        self.body.get(..size).map(<[u8]>::to_vec)
    }
    fn response_body(&self, start: usize, size: usize) -> Option<Vec<u8>> {
        self.response_read.set(self.response_read.get() + size);
        let body = self.response_body.borrow();
        let rest = body.get(start..)?;
        Some(rest[..size.min(rest.len())].to_vec())
    }
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        self.properties.get(&path.join(".")).map(|value| value.clone().into_bytes())
    }
    fn set_filter_state(&self, name: &str, value: &str) {
        self.filter_state.borrow_mut().insert(name.to_owned(), value.to_owned());
    }
}

impl Request {
    fn header(&self, name: &str) -> Option<String> {
        let headers = self.headers.borrow();
        let mut values = headers.iter().filter(|(other, _)| other == name).map(|(_, value)| value.clone());
        let value = values.next();
        assert_eq!(values.next(), None, "{name} is there once");
        value
    }

    fn detail(&self) -> Option<String> {
        self.header(names::DETAIL)
    }

    fn counted(&self, metric: &str) -> u64 {
        self.proxy.0.counts.borrow().get(metric).copied().unwrap_or(0)
    }
}

// === impl Vm ===

impl Vm {
    fn new(more: &str) -> Vm {
        let config = FilterConfig::from_json(format!("{{{BASE}{more}}}").as_bytes()).unwrap();
        Vm { proxy: SimHost::default(), config, node: Node::new("exchange"), notices: Notices::default() }
    }

    /// A VM that knows of these replicas, each with as many blocks of the chain 1, 2, 3, …
    fn knowing(more: &str, held: &[(&str, &str, u64)]) -> Vm {
        Vm::told(more, holding(held))
    }

    /// A VM that was told this, and that it is all.
    fn told(more: &str, facts: Vec<Observation>) -> Vm {
        let mut vm = Vm::new(more);
        (0..3).for_each(|_| vm.tick());
        vm.say(1, StreamBody::Reset);
        vm.say(2, StreamBody::Chunk(facts));
        vm.say(3, StreamBody::ResetComplete);
        vm.tick();
        vm
    }

    fn tick(&mut self) {
        let elapsed_ns = &self.proxy.0.elapsed_ns;
        elapsed_ns.set(elapsed_ns.get() + 100_000_000);
        self.node.tick(&self.proxy, 1, &self.config);
    }

    fn say(&mut self, number: u64, body: StreamBody) {
        let token = *self.proxy.0.streams.borrow().keys().next().unwrap();
        let message = StreamMessage { number, epoch: 7, sequence: 0, body };
        let bytes = wire::stream_message_to_proto(&message).encode_to_vec();
        self.node.on_stream_message(&self.proxy, StreamToken(token), &bytes, &self.config);
    }

    fn request(&self, headers: &[(&str, &str)]) -> Request {
        let plain = [(":method", "POST"), (":path", "/v1/completions"), (":authority", "llm")];
        let headers = plain.iter().chain(headers).map(|(name, value)| (String::from(*name), String::from(*value)));
        Request { proxy: self.proxy.clone(), headers: RefCell::new(headers.collect()), ..Request::default() }
    }

    /// A request with explicit keys for the blocks 1 to `blocks` in its headers.
    fn explicit(&self, blocks: u64) -> Request {
        let keys: String = (1..=blocks).map(|key| format!("{key:016x}")).collect();
        self.request(&[(names::BLOCK_HASHES, &keys), (names::BLOCK_SIZE, "16"), (names::MODEL_ID, "m")])
    }

    /// A request with a JSON body.
    fn posted(&self, body: &str) -> Request {
        let length = body.len().to_string();
        let mut request = self.request(&[("content-type", "application/json"), ("content-length", &length)]);
        request.body = body.as_bytes().to_vec();
        request
    }

    fn router(&mut self) -> Option<Router<'_>> {
        Some(Router { config: &self.config, node: &mut self.node, notices: &mut self.notices })
    }

    /// The request goes on at its headers.
    fn send(&mut self, request: &Request) -> Exchange {
        let mut exchange = Exchange::default();
        assert_eq!(exchange.on_request_headers(request, self.router(), true), Next::Continue);
        exchange
    }

    fn hold(&mut self, request: &Request) -> Exchange {
        let mut exchange = Exchange::default();
        assert_eq!(exchange.on_request_headers(request, self.router(), false), Next::Hold);
        exchange
    }
}

/// A request that is answered with a JSON body.
pub(super) fn answering(proxy: &SimHost, body: &str) -> impl HttpHost {
    let head = [(":status", "200"), ("content-type", "application/json")];
    Request {
        proxy: proxy.clone(),
        response: RefCell::new(head.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
        response_body: RefCell::new(body.as_bytes().to_vec()),
        ..Request::default()
    }
}

/// What a hub says of these replicas, each with as many blocks of the chain 1, 2, 3, …
fn holding(held: &[(&str, &str, u64)]) -> Vec<Observation> {
    let mut facts = vec![Observation::Scope { slot: ScopeSlot(1), scope: scope() }];
    for (at, (replica_id, address, blocks)) in held.iter().enumerate() {
        let replica = ReplicaSlot(at as u32 + 1);
        let (member, address) = (Member::new("default", "m", *replica_id), String::from(*address));
        facts.push(Observation::ReplicaUp { replica, member, address, data_parallel_rank: None });
        facts.push(Observation::Stored(Stored {
            replica,
            scope: ScopeSlot(1),
            tier: Tier::T1,
            last_seen_ms: START_NS / 1_000_000,
            blocks: (1..=*blocks)
                .map(|key| StoredBlock { key: BlockKey::Hash64(key), token_count: key as u32 * 16 })
                .collect(),
            ..Stored::default()
        }));
        facts.push(Observation::ReplicaComplete { replica });
    }
    facts
}

const THREE: [(&str, &str, u64); 3] = [("a", "10.0.0.1:80", 8), ("b", "10.0.0.2:80", 6), ("c", "10.0.0.3:80", 1)];

#[test]
fn a_match_is_written_everywhere() {
    let mut vm = Vm::knowing("", &THREE);
    let request = vm.explicit(8);
    let mut exchange = vm.send(&request);
    assert_eq!(request.header(names::DESTINATION_ENDPOINT).as_deref(), Some("10.0.0.1:80,10.0.0.2:80"));
    assert_eq!(request.header(names::REASON_CODE).as_deref(), Some("PREFIX_MATCH"));
    assert_eq!(request.header(names::REPLICA_ID).as_deref(), Some("a"));
    assert_eq!(request.header(names::MATCHED_TOKENS).as_deref(), Some("128"));
    assert_eq!(request.detail(), None);
    assert!(names::INPUT.iter().all(|name| request.header(name).is_none()), "{:?}", request.headers);
    assert_eq!(request.header(":authority").as_deref(), Some("llm"));
    let state = [
        ("inferencecache_matched_tokens", "128"),
        ("inferencecache_reason_code", "PREFIX_MATCH"),
        ("inferencecache_replica_id", "a"),
    ];
    let state: BTreeMap<_, _> = state.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    assert_eq!(*request.filter_state.borrow(), state);
    let calls = "inferencecache_lookup_route_calls_total.model.=m.;.reason_code.=PREFIX_MATCH.;.hint_used.=true.;";
    assert_eq!(request.counted(calls), 1);
    let recorded = vm.proxy.0.recorded.borrow();
    assert_eq!(
        recorded.get("inferencecache_lookup_route_latency_us.model.=m.;").map(Vec::len),
        Some(1),
        "{recorded:?}"
    );
    exchange.on_response_headers(&request, &vm.config, &mut Notices::default(), false);
    assert!(request.response.borrow().is_empty(), "not unless it is configured");
}

#[test]
fn a_replicas_name_stays_in_its_line() {
    let mut vm = Vm::knowing("", &[("a\r\nb\u{e9}", "10.0.0.1:80", 8), ("b", "10.0.0.2:80", 1)]);
    let request = vm.explicit(8);
    vm.send(&request);
    assert_eq!(request.header(names::REPLICA_ID).as_deref(), Some(r"a\r\nb\u{e9}"));
    assert_eq!(request.filter_state.borrow()["inferencecache_replica_id"], r"a\r\nb\u{e9}");
}

#[test]
fn no_hint_names_its_detail_and_no_destination() {
    let mut vm = Vm::knowing("", &THREE);
    let request =
        vm.request(&[(names::BLOCK_HASHES, "00000000000000ff"), (names::BLOCK_SIZE, "64"), (names::MODEL_ID, "m")]);
    vm.send(&request);
    assert_eq!(request.header(names::DESTINATION_ENDPOINT), None);
    assert_eq!(request.header(names::REASON_CODE).as_deref(), Some("NO_HINT"));
    assert_eq!(request.header(names::MATCHED_TOKENS).as_deref(), Some("0"));
    assert_eq!((request.detail().as_deref(), request.header(names::REPLICA_ID)), (Some("miss"), None));
    assert_eq!(request.filter_state.borrow()["inferencecache_detail"], "miss");
    assert_eq!(request.counted("warmroute_no_hint_total.detail.=miss.;"), 1);
    let calls = "inferencecache_lookup_route_calls_total.model.=m.;.reason_code.=NO_HINT.;.hint_used.=false.;";
    assert_eq!(request.counted(calls), 1);
}

#[test]
fn what_a_client_claims_is_removed_on_every_path() {
    let forged: Vec<(&str, &str)> = names::OUTPUT.iter().chain(&names::INPUT).map(|name| (*name, "forged")).collect();
    let mut vm = Vm::knowing("", &THREE);
    let other_path = vm.request(&forged);
    other_path.set_request_header(":path", "/metrics");
    let unreadable = Request { unreadable: true, ..vm.request(&forged) };
    let held = vm.posted(r#"{"model": "m"}"#);
    held.headers.borrow_mut().extend(names::OUTPUT.map(|name| (name.to_owned(), "forged".to_owned())));
    let unconfigured = vm.request(&forged);
    vm.send(&other_path);
    vm.send(&unreadable);
    vm.hold(&held);
    assert_eq!(Exchange::default().on_request_headers(&unconfigured, None, true), Next::Continue);
    for request in [&other_path, &unreadable, &held, &unconfigured] {
        assert!(request.headers.borrow().iter().all(|(_, value)| value != "forged"), "{:?}", request.headers);
    }
    assert_eq!(unreadable.detail().as_deref(), Some("unreadable"));
    assert_eq!(unconfigured.detail().as_deref(), Some("not_configured"));
    assert_eq!(held.detail(), None, "nothing is decided yet");
}

#[test]
fn what_is_not_held_goes_on_at_its_headers() {
    let json = ("content-type", "application/json");
    for (headers, detail) in [
        (vec![(":method", "GET")], "not_post"),
        (vec![(":method", "CONNECT")], "upgrade"),
        (vec![("upgrade", "websocket")], "upgrade"),
        (vec![("content-type", "application/grpc")], "grpc"),
        (vec![(":path", "/v1/models"), json], "other_path"),
        (vec![json, ("content-length", "9"), ("expect", "100-continue")], "expect_continue"),
        (vec![json, ("content-length", "9"), ("content-encoding", "gzip")], "encoded_body"),
        (vec![("content-type", "text/plain"), ("content-length", "9")], "not_json"),
        (vec![json], "unknown_length"),
        (vec![json, ("content-length", "0")], "empty_body"),
        (vec![json, ("content-length", "1000001")], "body_too_large"),
        (vec![json, ("content-length", "9"), (names::MODEL_ID, "unknown")], "model_not_configured"),
    ] {
        let mut vm = Vm::new("");
        let request = vm.request(&[]);
        headers.iter().for_each(|(name, value)| request.set_request_header(name, value));
        let mut exchange = Exchange::default();
        assert_eq!(exchange.on_request_headers(&request, vm.router(), false), Next::Continue, "{detail}");
        assert_eq!(request.detail().as_deref(), Some(detail));
        assert_eq!(request.counted(&format!("warmroute_no_hint_total.detail.={detail}.;")), 1);
        // Its body goes through untouched, however long, and is not decided on again.
        assert_eq!(exchange.on_request_body(&request, vm.router(), 2_000_000, false), Next::Continue);
        assert_eq!(exchange.on_request_trailers(&request, vm.router()), Next::Continue);
        assert_eq!(vm.proxy.0.counts.borrow().values().sum::<u64>(), 2, "{:?}", vm.proxy.0.counts);
    }
}

#[test]
fn a_body_is_held_to_its_end() {
    let mut vm = Vm::knowing("", &THREE);
    let body = r#"{"model": "m", "inference_cache": {"block_hashes": ["0000000000000001"], "block_size": 64}}"#;
    for trailers in [false, true] {
        let request = vm.posted(body);
        let mut exchange = vm.hold(&request);
        assert_eq!(exchange.on_request_body(&request, vm.router(), 10, false), Next::Hold);
        let whole = body.len();
        if trailers {
            assert_eq!(exchange.on_request_body(&request, vm.router(), whole, false), Next::Hold);
            assert_eq!(request.detail(), None);
            assert_eq!(exchange.on_request_trailers(&request, vm.router()), Next::Continue);
        } else {
            assert_eq!(exchange.on_request_body(&request, vm.router(), whole, true), Next::Continue);
        }
        let decided = (request.header(names::REASON_CODE), request.detail());
        assert_eq!(decided, (Some("NO_HINT".into()), Some("below_routing_floor".into())), "all three hold the block");
    }
}

#[test]
fn a_body_that_does_not_come_or_comes_malformed_is_no_hint() {
    let mut vm = Vm::knowing("", &THREE);
    let request = vm.posted("{}");
    let mut exchange = Exchange::default();
    assert_eq!(exchange.on_request_headers(&request, vm.router(), true), Next::Continue);
    assert_eq!(request.detail().as_deref(), Some("empty_body"));
    for (body, shown, detail) in [
        ("{}", 2, "no_model"),
        ("{\"model\": \"m\"", 13, "malformed_json"),
        ("{\"model\": \"other\"}", 18, "model_not_configured"),
        ("{\"model\": \"m\"}", 0, "empty_body"),
        ("{\"model\": \"m\"}", 99, "unreadable"),
    ] {
        let request = vm.posted(body);
        let mut exchange = vm.hold(&request);
        assert_eq!(exchange.on_request_body(&request, vm.router(), shown, true), Next::Continue);
        assert_eq!(request.detail().as_deref(), Some(detail), "{body}");
    }
    let of_others = "inferencecache_lookup_route_calls_total.model.=other.;.reason_code.=NO_HINT.;.hint_used.=false.;";
    assert!(vm.proxy.0.counts.borrow().contains_key(of_others), "an unknown model is no label of its own");
}

#[test]
fn a_body_that_outgrows_the_limit_goes_on() {
    let mut vm = Vm::knowing(r#", "max_body_bytes": 100, "hold_chunked": true"#, &THREE);
    let request = vm.request(&[("content-type", "application/json")]);
    let mut exchange = vm.hold(&request);
    assert_eq!(exchange.on_request_body(&request, vm.router(), 100, false), Next::Hold);
    assert_eq!(exchange.on_request_body(&request, vm.router(), 101, false), Next::Continue);
    assert_eq!(request.detail().as_deref(), Some("body_too_large"));
    assert_eq!(exchange.on_request_body(&request, vm.router(), 50, true), Next::Continue);
    assert_eq!(request.detail().as_deref(), Some("body_too_large"), "decided once");
}

#[test]
fn a_vm_that_loses_its_node_while_it_holds_lets_go() {
    let mut vm = Vm::knowing("", &THREE);
    let request = vm.posted("{}");
    let mut exchange = vm.hold(&request);
    assert_eq!(exchange.on_request_body(&request, None, 1, false), Next::Continue);
    assert_eq!(request.detail().as_deref(), Some("not_configured"));
    assert_eq!(exchange.on_request_trailers(&request, None), Next::Continue);
}

#[test]
fn nothing_known_is_cold_and_nothing_read_yet_is_catching_up() {
    let mut cold = Vm::new("");
    let request = cold.explicit(8);
    cold.send(&request);
    assert_eq!(request.detail().as_deref(), Some("cold"));

    let leader = Vm::knowing("", &THREE);
    let mut late = Vm {
        proxy: leader.proxy.clone(),
        config: leader.config.clone(),
        node: Node::new("exchange"),
        notices: Notices::default(),
    };
    // Every look at the clock takes longer than a request may.
    late.proxy.0.look_ns.set(20_000_000);
    let request = late.explicit(8);
    late.send(&request);
    assert_eq!(request.detail().as_deref(), Some("catching_up"));
    late.proxy.0.look_ns.set(0);
    let request = late.explicit(8);
    late.send(&request);
    assert_eq!(request.header(names::REASON_CODE).as_deref(), Some("PREFIX_MATCH"));
}

#[test]
fn a_silent_hub_makes_the_index_stale() {
    for (when_stale, reason, detail) in [("no_hint", "NO_HINT", Some("stale")), ("serve", "PREFIX_MATCH", None)] {
        let mut vm = Vm::knowing(&format!(r#", "when_stale": "{when_stale}""#), &THREE);
        vm.proxy.0.elapsed_ns.set(vm.proxy.0.elapsed_ns.get() + 2_200_000_000);
        let request = vm.explicit(8);
        vm.send(&request);
        assert_eq!(request.header(names::REASON_CODE).as_deref(), Some(reason));
        assert_eq!(request.detail().as_deref(), detail);
    }
}

#[test]
fn only_so_many_addresses_are_written_and_only_real_ones() {
    let held =
        [("a", "10.0.0.1:80", 8), ("b", "evil, host:80", 7), ("c", "[2001:db8::1]:80", 6), ("d", "10.0.0.4:80", 1)];
    let mut vm = Vm::knowing("", &held);
    let request = vm.explicit(8);
    vm.send(&request);
    assert_eq!(request.header(names::DESTINATION_ENDPOINT).as_deref(), Some("10.0.0.1:80,[2001:db8::1]:80"));
    let mut vm = Vm::knowing(r#", "output": {"max_endpoints": 1}"#, &held);
    let request = vm.explicit(8);
    vm.send(&request);
    assert_eq!(request.header(names::DESTINATION_ENDPOINT).as_deref(), Some("10.0.0.1:80"));
    let mut vm = Vm::knowing("", &[("a", "", 8), ("b", "10.0.0.2:80", 1)]);
    let request = vm.explicit(8);
    vm.send(&request);
    assert_eq!(request.detail().as_deref(), Some("no_address"));
}

#[test]
fn the_response_tells_whether_the_hint_was_followed() {
    let mut vm = Vm::knowing(r#", "output": {"response_headers": true}"#, &THREE);
    let mut notices = Notices::default();
    for (upstream, label) in
        [(Some("10.0.0.1:80"), "first"), (Some("10.0.0.2:80"), "other"), (Some("10.9.9.9:80"), "none"), (None, "none")]
    {
        let mut request = vm.explicit(8);
        request.properties.extend(upstream.map(|upstream| ("upstream.address".to_owned(), upstream.to_owned())));
        let before = request.counted(&metrics::hint_followed(label));
        vm.send(&request).on_response_headers(&request, &vm.config, &mut notices, false);
        assert_eq!(request.counted(&metrics::hint_followed(label)), before + 1, "{upstream:?}");
        assert_eq!(request.response.borrow()[names::REASON_CODE], "PREFIX_MATCH");
        assert_eq!(request.response.borrow()[names::REPLICA_ID], "a");
        assert!(!request.response.borrow().contains_key(names::DESTINATION_ENDPOINT));
    }
    let request = vm.explicit(1);
    vm.send(&request).on_response_headers(&request, &vm.config, &mut notices, false);
    assert_eq!(request.response.borrow()[names::DETAIL], "below_matched_tokens");
    let total: u64 =
        ["first", "other", "none"].map(|label| request.counted(&metrics::hint_followed(label))).iter().sum();
    assert_eq!(total, 4, "no hint, nothing to follow");
}

#[test]
fn hints_that_are_never_followed_are_told_once() {
    let mut vm = Vm::knowing("", &THREE);
    let mut notices = Notices::default();
    let mut answer = |upstream: Option<&str>, notices: &mut Notices| {
        let mut request = vm.explicit(8);
        request.properties.extend(upstream.map(|upstream| ("upstream.address".to_owned(), upstream.to_owned())));
        vm.send(&request).on_response_headers(&request, &vm.config, notices, false);
        let logged = vm.proxy.0.logged.borrow();
        logged.iter().filter(|line| line.contains("no hint was ever followed")).count()
    };
    for _ in 0..30 {
        assert_eq!(answer(None, &mut notices), 0, "a local reply says nothing");
    }
    let warnings: Vec<usize> = (0..30).map(|_| answer(Some("10.9.9.9:80"), &mut notices)).collect();
    assert_eq!((warnings[18], warnings[19], warnings[29]), (0, 1, 1));
    let mut works = Notices::default();
    answer(Some("10.0.0.1:80"), &mut works);
    let warnings: Vec<usize> = (0..30).map(|_| answer(Some("10.9.9.9:80"), &mut works)).collect();
    assert_eq!(warnings.last(), Some(&1), "the one from before: hints have been followed here");
}
