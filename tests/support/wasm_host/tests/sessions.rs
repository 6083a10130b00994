//! Sessions of random callbacks, faults and garbage over the release module: it never traps, never keeps a request whose end
//! it has seen, and never lets a client's or a stream's bytes into a header as they are.
//!
//! `WARMROUTE_SESSIONS` is the number of sessions (40 unless told otherwise), `WARMROUTE_SEED` the first one's seed; a failure
//! names its seed. Ten million callbacks are about 4,500 sessions.

#![allow(clippy::unwrap_used, reason = "a failing test says so by panicking")]

mod hub;
#[allow(dead_code, reason = "it has more than is of use here")]
#[path = "../../random.rs"]
mod random;

use hub::{BLOCKS, CONFIGURATION, Pool, START_MS, body, json_headers};
use random::Random;
use serde_json::json;
use wasm_host::{Action, Headers, Process, RootId, Trapped, Vm, module_path, status};

/// Steps of a session.
const STEPS: u64 = 1_500;
const STATUSES: [u32; 6] =
    [status::NOT_FOUND, status::BAD_ARGUMENT, status::EMPTY, status::CAS_MISMATCH, status::INTERNAL_FAILURE, 99];
const CONFIGURATIONS: [&str; 8] = [
    CONFIGURATION,
    r#"{"hub_cluster":"hub","models":[{"model_id":"m","block_size":1}],"limits":{"pages":1,"log_segments":16}}"#,
    r#"{"hub_cluster":"other","models":[{"model_id":"m"}],"policy":{"eviction":"LFU"},"limits":{"max_index_entries":100}}"#,
    r#"{"hub_cluster":"hub","models":[{"model_id":"m"}],"when_stale":"serve","output":{"response_headers":true}}"#,
    r#"{"hub_cluster":"hub","models":[{"model_id":"m"}],"tenant":{"header":"x-tenant","default":null},"hold_chunked":true}"#,
    r#"{"hub_cluster":"hub","models":[]}"#,
    "{",
    "",
];

/// A request that has not ended.
struct Request {
    vm: usize,
    context: u32,
    body: Vec<u8>,
    /// Bytes of the body that came.
    came: usize,
    /// What was said to be the request's end was seen.
    ended: bool,
    answered: bool,
}

struct Session<'p> {
    process: &'p Process,
    random: Random,
    pool: Pool<'p>,
    requests: Vec<Request>,
    /// Root contexts that a configuration update left beside the new ones.
    old_roots: Vec<(usize, RootId)>,
    has_faults: bool,
}

// === impl Random ===

impl Random {
    fn up_to(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.up_to(count) == 0
    }

    fn choice<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.up_to(all.len())]
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.up_to(most);
        (0..length).map(|_| self.next() as u8).collect()
    }

    /// The same bytes with some of them changed, left out or doubled.
    fn spoilt(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        for _ in 0..=self.up_to(4) {
            if bytes.is_empty() {
                return self.bytes(20);
            }
            let at = self.up_to(bytes.len());
            match self.up_to(5) {
                0 => bytes[at] ^= 1 << self.up_to(8),
                1 => bytes.truncate(at),
                2 => drop(bytes.remove(at)),
                3 => bytes.insert(at, self.next() as u8),
                _ => {
                    let end = (at + self.up_to(9)).min(bytes.len());
                    let part = bytes[at..end].to_vec();
                    bytes.splice(at..at, part);
                }
            }
        }
        bytes
    }

    fn body(&mut self) -> Vec<u8> {
        let whole = match self.up_to(9) {
            0..3 => body(1 + self.up_to(2 * BLOCKS as usize) as u32),
            3 => br#"{"model":"m","prompt":"text with \ud83d\ude00 and \u0000"}"#.to_vec(),
            4 => self.chat(),
            5 => {
                br#"{"model":"zz","prompt":[1,2,3],"inference_cache":{"block_hashes":["00"],"block_size":16}}"#.to_vec()
            }
            6 => [b"[".repeat(self.up_to(3_000)), b"{\"a\":".repeat(self.up_to(3_000))].concat(),
            7 => self.bytes(2_000),
            _ => br#"{"model":"m","prompt":[[1,2],[3]],"cache_salt":"\ud800","model":4}"#.to_vec(),
        };
        if self.one_in(3) { self.spoilt(whole) } else { whole }
    }

    /// A conversation: turns of words, some of them with parts, tools and pictures.
    fn chat(&mut self) -> Vec<u8> {
        let mut messages = Vec::new();
        for turn in 0..=self.up_to(5) {
            let words = ["the", "cache", "<|im_end|>", "\u{1F600}", "  ", "1234567", "{{ x }}", "é", "\0", "\n\n"];
            let text: String = (0..self.up_to(80)).map(|_| format!("{} ", self.choice(&words))).collect();
            let content = match self.up_to(5) {
                0 => json!([{ "type": "text", "text": text }]),
                1 => json!([{ "type": "text", "text": text }, { "type": "image_url", "image_url": { "url": "x" } }]),
                2 => json!(null),
                _ => json!(text),
            };
            let role = if turn % 2 == 0 { "user" } else { *self.choice(&["assistant", "tool", "system", "x", ""]) };
            messages.push(json!({ "role": role, "content": content, "tool_calls": [] }));
        }
        let mut body = json!({ "model": "m", "messages": messages });
        if self.one_in(3) {
            body["tools"] =
                json!([{ "type": "function", "function": { "name": "f", "parameters": { "a": [1, 2.5] } } }]);
        }
        body.to_string().into_bytes()
    }

    fn headers(&mut self, length: usize) -> Headers {
        let mut headers = json_headers(length);
        let names = [
            "x-inferencecache-block-hashes",
            "x-inferencecache-block-size",
            "x-inferencecache-block-token-counts",
            "x-inferencecache-prefix-hash",
            "x-inferencecache-prefix-token-count",
            "x-inferencecache-model-id",
            "x-inferencecache-hash-scheme",
            "x-inferencecache-adapter-id",
            "x-inferencecache-slo-ttft-ms",
            "x-inferencecache-reason-code",
            "x-tenant",
            "expect",
            "content-encoding",
            "content-length",
            ":path",
            ":method",
        ];
        let paths = ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/generate"];
        headers.retain(|(name, _)| name != ":path");
        headers.push((":path".into(), self.choice(&paths).as_bytes().to_vec()));
        let values =
            ["16", "-1", "m", "0011223344556677", "99999999999999999999", "POST", "/generate", "a\r\nb: c", "", "gzip"];
        for _ in 0..self.up_to(4) {
            let name = (*self.choice(&names)).to_owned();
            let value = if self.one_in(4) { self.bytes(300) } else { self.choice(&values).as_bytes().to_vec() };
            headers.retain(|(header, _)| *header != name || self.0 & 1 == 0);
            headers.push((name, value));
        }
        headers
    }
}

// === impl Session ===

impl<'p> Session<'p> {
    fn new(process: &'p Process, seed: u64) -> Result<Session<'p>, Trapped> {
        let mut random = Random(seed);
        let configuration = *random.choice(&CONFIGURATIONS);
        let has_faults = random.one_in(2);
        if has_faults {
            let per_mille = 1 + random.up_to(150) as u64;
            process.faults(|faults| faults.at_random(seed | 1, per_mille, &STATUSES));
        }
        let mut pool = Pool::new(process, 1 + random.up_to(3), configuration)?;
        // Each VM takes as long to load it as for a hundred other callbacks.
        pool.has_model = random.one_in(4);
        Ok(Session { process, random, pool, requests: Vec::new(), old_roots: Vec::new(), has_faults })
    }

    fn step(&mut self) -> Result<(), Trapped> {
        match self.random.up_to(24) {
            0..6 => self.pool.settle(1)?,
            6 => {
                let now_ns = self.process.now_ns();
                let by = self.random.next() % 40_000_000_000;
                let back = self.random.one_in(4);
                self.process.set_clock(if back { now_ns.saturating_sub(by) } else { now_ns + by });
            }
            7..11 => self.begin()?,
            11..17 => self.go_on()?,
            17 => {
                let (prompt, blocks) = (self.random.up_to(50) as u32, 1 + self.random.up_to(300) as u32);
                self.pool.tell_of_prompt(prompt, blocks)?;
            }
            18 => self.garbage_from_the_hub()?,
            19 => {
                let status = self.random.up_to(20) as u32;
                self.pool.lose_stream(status)?;
            }
            20 => self.garbage_in_shared_data(),
            21 => self.configure()?,
            22 if self.random.one_in(2) => self.queues()?,
            22 => self.unknown_contexts()?,
            _ => self.replace_a_vm()?,
        }
        Ok(())
    }

    fn vm(&mut self, at: usize) -> &mut Vm {
        &mut self.pool.vms[at].1
    }

    fn begin(&mut self) -> Result<(), Trapped> {
        let at = self.random.up_to(self.pool.vms.len());
        let body = self.random.body();
        let headers = self.random.headers(body.len());
        let (root, vm) = self.pool.worker(at);
        let context = vm.request(root)?;
        let ended = self.random.one_in(8);
        let action = self.vm(at).request_headers(context, headers, ended)?;
        self.check(at, context, action, ended);
        let mut request = Request { vm: at, context, body, came: 0, ended, answered: false };
        // One that is let go at its headers is seen no more.
        request.ended |= action == Action::Continue && self.random.one_in(2);
        self.requests.push(request);
        Ok(())
    }

    fn go_on(&mut self) -> Result<(), Trapped> {
        if self.requests.is_empty() {
            return Ok(());
        }
        let which = self.random.up_to(self.requests.len());
        let mut request = self.requests.swap_remove(which);
        let (at, context) = (request.vm, request.context);
        if self.random.one_in(6) {
            return self.vm(at).end_request(context);
        }
        if !request.ended && self.random.one_in(9) {
            let action = self.vm(at).request_trailers(context, vec![("x".into(), b"y".to_vec())])?;
            self.check(at, context, action, true);
            request.ended = true;
        } else if !request.ended {
            request.came = (request.came + self.random.up_to(request.body.len() + 2)).min(request.body.len());
            request.ended = request.came == request.body.len() || self.random.one_in(8);
            let (body, end) = (request.body[..request.came].to_vec(), request.ended);
            let action = self.vm(at).request_body(context, body, end)?;
            self.check(at, context, action, end);
        } else if !request.answered {
            let kind = *self.random.choice(&["application/json", "text/event-stream", ""]);
            let headers = vec![(":status".into(), b"200".to_vec()), ("content-type".into(), kind.as_bytes().to_vec())];
            let end = self.random.one_in(6);
            assert_eq!(self.vm(at).response_headers(context, headers, end)?, Action::Continue);
            request.answered = true;
        } else {
            let whole = br#"data: {"usage":{"prompt_tokens":320,"prompt_tokens_details":{"cached_tokens":5}}}

"#;
            let body = if self.random.one_in(2) { whole.to_vec() } else { self.random.spoilt(whole.to_vec()) };
            let end = self.random.one_in(3);
            assert_eq!(self.vm(at).response_body(context, body, end)?, Action::Continue);
            if end {
                return self.vm(at).end_request(context);
            }
        }
        self.requests.push(request);
        Ok(())
    }

    /// A request whose end was seen goes on, and what was written on it can be written on it.
    fn check(&mut self, at: usize, context: u32, action: Action, ended: bool) {
        assert!(!ended || action == Action::Continue, "a request is held beyond its end");
        if action == Action::Pause || self.has_faults {
            return;
        }
        for (name, value) in self.vm(at).headers_of(context) {
            let is_ours = name == "x-gateway-destination-endpoint"
                || ["reason-code", "detail", "replica-id", "matched-tokens"]
                    .iter()
                    .any(|end| name == format!("x-inferencecache-{end}"));
            let is_plain = value.iter().all(|byte| (0x20..0x7f).contains(byte));
            assert!(!is_ours || is_plain, "{name}: {}", String::from_utf8_lossy(&value));
            assert!(!is_ours || value != b"10.9.9.9:1", "a client's own destination was let through");
        }
    }

    fn garbage_from_the_hub(&mut self) -> Result<(), Trapped> {
        let spoilt = self.random.one_in(2);
        let length = self.random.up_to(60);
        let random = &mut self.random;
        self.pool.send_raw(|message| if spoilt { random.spoilt(message) } else { random.bytes(length) })?;
        let (at, token) = (self.random.up_to(self.pool.vms.len()), self.random.up_to(30) as u32);
        if self.random.one_in(4) {
            let (root, vm) = self.pool.worker(at);
            vm.grpc_close(root.0, token, 14)?;
        }
        Ok(())
    }

    fn garbage_in_shared_data(&mut self) {
        let keys = self.process.shared_keys();
        if keys.is_empty() {
            return;
        }
        let key = self.random.choice(&keys).clone();
        let value = self.process.shared_value(&key).unwrap();
        let value = match self.random.up_to(4) {
            0 => Vec::new(),
            1 => self.random.bytes(200),
            // Another key's value: well-formed, and in the wrong place.
            2 => self.process.shared_value(self.random.choice::<Vec<u8>>(&keys)).unwrap(),
            _ => self.random.spoilt(value),
        };
        self.process.overwrite(&key, value);
    }

    /// A configuration update: another root context beside the old one, which ends later.
    fn configure(&mut self) -> Result<(), Trapped> {
        let at = self.random.up_to(self.pool.vms.len());
        let mut configuration = self.random.choice(&CONFIGURATIONS).as_bytes().to_vec();
        if self.random.one_in(3) {
            configuration = self.random.spoilt(configuration);
        }
        let (root, vm) = self.pool.worker(at);
        if self.random.one_in(2) {
            assert!(vm.configure(root, &configuration)?);
            return Ok(());
        }
        let new = vm.root("warmroute", &configuration)?;
        self.old_roots.push((at, std::mem::replace(&mut self.pool.vms[at].0, new)));
        if self.old_roots.len() > 2 {
            let (at, old) = self.old_roots.remove(0);
            self.pool.forget(at, old);
            self.vm(at).end_root(old)?;
        }
        for (at, old) in self.old_roots.clone() {
            self.vm(at).tick(old)?;
        }
        Ok(())
    }

    fn queues(&mut self) -> Result<(), Trapped> {
        for (vm, context, queue) in self.process.take_queue_notices() {
            // Envoy tells whoever registered last, if it is still there.
            let owner = self.pool.vms.iter_mut().find(|(root, each)| each.number() == vm && root.0 == context);
            if let Some((_, vm)) = owner {
                vm.queue_ready(context, queue)?;
            }
        }
        Ok(())
    }

    /// Callbacks with numbers that no context has, or one of another kind.
    fn unknown_contexts(&mut self) -> Result<(), Trapped> {
        let at = self.random.up_to(self.pool.vms.len());
        let context = self.random.up_to(60) as u32;
        let (number, bytes) = (self.random.up_to(9) as u32, self.random.bytes(40));
        match self.random.up_to(5) {
            0 => self.vm(at).queue_ready(context, number),
            1 => self.vm(at).grpc_message(context, number, bytes),
            2 => self.vm(at).grpc_close(context, number, number),
            3 => self.vm(at).response_headers(context, Vec::new(), false).map(drop),
            _ => self.vm(at).request_trailers(context, Vec::new()).map(drop),
        }
    }

    /// A VM ends without a word, as with the thread that it was on; another takes its place.
    fn replace_a_vm(&mut self) -> Result<(), Trapped> {
        if !self.random.one_in(4) {
            return Ok(());
        }
        let at = self.random.up_to(self.pool.vms.len());
        self.requests.retain(|request| request.vm != at);
        self.old_roots.retain(|(vm, _)| *vm != at);
        let configuration = *self.random.choice(&CONFIGURATIONS);
        self.pool.replace(at, configuration)
    }
}

fn run(process: &Process, seed: u64) -> Result<u64, Trapped> {
    process.set_clock(START_MS * 1_000_000);
    let mut session = Session::new(process, seed)?;
    for _ in 0..STEPS {
        session.step()?;
    }
    Ok(session.pool.callbacks())
}

#[test]
fn random_sessions_never_trap() {
    let variable = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let (sessions, first) = (variable("WARMROUTE_SESSIONS").unwrap_or(40), variable("WARMROUTE_SEED").unwrap_or(1));
    let process = Process::new(&module_path());
    let mut callbacks = 0;
    for seed in first..first + sessions {
        let process = process.restarted();
        callbacks += run(&process, seed).unwrap_or_else(|trapped| panic!("seed {seed}: {trapped}"));
    }
    println!("{sessions} sessions, {callbacks} callbacks");
    assert!(callbacks > sessions * STEPS / 2, "{callbacks}");
}
