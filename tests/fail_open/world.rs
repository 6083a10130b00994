//! Two tenants with two engines each, and what has to be the same after a fault as before.

use std::time::Duration;

use hyper::http::request::Builder;
use serde_json::json;
use warmroute::native::load::prometheus::Scrape;
use warmroute::native::load::stack::{Stack, StackOptions, eventually};

use crate::load::{BOUND, Tally};
use crate::pool::*;

/// A path whose bodies the filter reads and no engine does.
pub const UNSERVED: &str = "/probe/completions";
/// Tokens of the prompt that one engine of each tenant holds.
pub const HELD_TOKENS: usize = 160;
/// Without a word from the hub for this long, the index is stale.
pub const STALE_AFTER: Duration = Duration::from_millis(1_500);
/// How long hints may take to come back: the longest pause between two streams is 3 s, and the machine may be busy.
pub const COMES_BACK: Duration = Duration::from_secs(20);
/// What Envoy's memory may grow by under a fault, in MiB: 16 for the index of each of four VMs, which is what they are allowed
/// here, and 64 for what else requests and V8 come to need the first time.
pub const GROWTH_MIB: u64 = 128;
/// What every fault may show: the rest is the fault's own.
const ORDINARY: [&str; 3] = ["PREFIX_MATCH", "NO_HINT/miss", "NO_HINT/malformed_json"];

/// A tenant.
#[derive(Debug)]
pub struct Tenant {
    pub id: &'static str,
    /// The engine that holds its prompt, and the one that does not.
    pub holder: &'static str,
    pub engines: [usize; 2],
    seed: u32,
}

pub const TENANTS: [Tenant; 2] = [
    Tenant { id: "red", holder: "engine-0", engines: [0, 1], seed: 1 },
    Tenant { id: "blue", holder: "engine-2", engines: [2, 3], seed: 2 },
];

/// The stack, and what it was like before the fault.
pub struct World {
    pub stack: Stack,
    before: Vitals,
}

/// What Envoy is like.
#[derive(Clone, Debug)]
pub struct Vitals {
    metrics: Scrape,
    resident_mib: u64,
}

// === impl Tenant ===

impl Tenant {
    /// The prompt that the holder holds.
    pub fn held(&self) -> Vec<u32> {
        tokens(self.seed, HELD_TOKENS)
    }
}

// === impl World ===

impl World {
    /// Everything runs, and every worker knows who holds what.
    pub async fn start(change: impl FnOnce(&mut StackOptions)) -> World {
        let stack = warmed(change).await;
        for tenant in &TENANTS {
            known(&stack, tenant).await;
        }
        World::of(stack).await
    }

    /// Without a hub: the engines hold what they hold, and nobody knows.
    pub async fn without_hub(change: impl FnOnce(&mut StackOptions)) -> World {
        let stack = warmed(|options| {
            options.with_hub = false;
            change(options);
        })
        .await;
        World::of(stack).await
    }

    async fn of(stack: Stack) -> World {
        let before = Vitals::of(&stack).await;
        World { stack, before }
    }

    /// All requests were answered by engines, once, as they were sent, on time and only where they may go; what they came to
    /// is ordinary or one of `besides` (of which those without a `?` must be seen), and is counted as that; and Envoy is as
    /// before.
    pub async fn is_unharmed(&self, tally: &Tally, besides: &[&str]) {
        self.is_unharmed_but_for(tally, besides, BOUND).await;
    }

    /// The same where the fault itself holds a worker up.
    pub async fn is_unharmed_but_for(&self, tally: &Tally, besides: &[&str], bound: Duration) {
        self.is_answered(tally, besides, bound, 0).await;
        self.envoy_is_as_before(GROWTH_MIB).await;
    }

    /// The same where so many other requests may have gone to engines.
    pub async fn is_unharmed_besides(&self, tally: &Tally, others: u64) {
        self.is_answered(tally, &[], BOUND, others).await;
        self.envoy_is_as_before(GROWTH_MIB).await;
    }

    /// The same where Envoy has to make VMs for what is new.
    pub async fn is_unharmed_but_for_new_vms(&self, tally: &Tally, besides: &[&str]) {
        self.is_answered(tally, besides, BOUND, 0).await;
        has_no_trap(&self.stack);
        Vitals::of(&self.stack).await.has_grown_little(&self.before, GROWTH_MIB);
    }

    async fn is_answered(&self, tally: &Tally, besides: &[&str], bound: Duration, others: u64) {
        eprintln!("{} requests, the slowest {:?}: {:?}", tally.sent, tally.slowest, tally.decisions);
        assert_eq!((tally.sent, &tally.faults), (tally.answered, &Vec::new()));
        assert!(tally.slowest < bound, "{:?}", tally.slowest);
        let may_be = |decision: &str| {
            ORDINARY.contains(&decision) || besides.iter().any(|besides| besides.trim_end_matches('?') == decision)
        };
        let strange: Vec<_> = tally.decisions.keys().filter(|decision| !may_be(decision)).collect();
        assert_eq!(strange, Vec::<&String>::new(), "{:?}", tally.decisions);
        for besides in besides.iter().filter(|besides| !besides.ends_with('?')) {
            assert!(tally.count(besides) > 0, "{besides} was expected: {:?}", tally.decisions);
        }
        let now = Vitals::of(&self.stack).await;
        self.is_counted(tally, &now, others);
        self.goes_only_where_it_may().await;
    }

    /// Envoy is as before, but for so many MiB.
    pub async fn envoy_is_as_before(&self, growth_mib: u64) {
        Vitals::of(&self.stack).await.is_as(&self.before, &self.stack, growth_mib);
    }

    fn is_counted(&self, tally: &Tally, now: &Vitals, others: u64) {
        let since = |name: &str, labels: &[(&str, &str)]| {
            (now.metrics.sum(name, labels) - self.before.metrics.sum(name, labels)) as u64
        };
        let to_engines = [("envoy_cluster_name", "engines")];
        let sent_on = since("envoy_cluster_upstream_rq_total", &to_engines);
        let expected = tally.sent..=tally.sent + others;
        assert!(expected.contains(&sent_on), "each goes out once: {sent_on} of {expected:?}");
        for (decision, count) in &tally.decisions {
            let counted = match decision.split_once('/') {
                Some((_, detail)) => since("warmroute_no_hint_total", &[("detail", detail)]),
                None => since("inferencecache_lookup_route_calls_total", &[("reason_code", decision)]),
            };
            assert_eq!(counted, *count, "{decision}");
        }
    }

    /// What the engines were sent by a hint is the tenant's, as far back as they remember.
    async fn goes_only_where_it_may(&self) {
        let mut hinted = 0;
        for place in 0..self.stack.engines.len() {
            let url = format!("{}/debug/requests", self.stack.engine_url(place));
            let log: serde_json::Value =
                serde_json::from_slice(&self.stack.client.get(&url).await.unwrap().body).unwrap();
            for entry in log["requests"].as_array().unwrap() {
                let tenant = header_values(entry, "x-tenant");
                for destinations in header_values(entry, "x-gateway-destination-endpoint") {
                    hinted += 1;
                    let tenant = TENANTS.iter().find(|known| [known.id] == tenant[..]).unwrap();
                    let own = tenant.engines.map(|place| self.stack.addresses.engines[place].http.to_string());
                    assert!(destinations.split(',').all(|address| own.iter().any(|own| own == address)), "{entry}");
                    assert!(tenant.engines.contains(&place), "{entry}");
                }
            }
        }
        eprintln!("{hinted} requests with a destination were remembered");
    }
}

/// The stack of the tests: the engines hold their tenants' prompts.
async fn warmed(change: impl FnOnce(&mut StackOptions)) -> Stack {
    let stack = stack(|options| {
        options.engines = 4;
        options.engine.blocks = 65_536;
        options.plugin = plugin();
        options.edit_hub = Some(Box::new(|config, _| {
            for tenant in &TENANTS {
                for place in tenant.engines {
                    config["replicas"][place]["tenant"] = tenant.id.into();
                }
            }
        }));
        change(options);
    })
    .await;
    for tenant in &TENANTS {
        warm(&stack, place_of(tenant.holder), &tenant.held()).await;
    }
    stack
}

/// The plugin's configuration here.
pub fn plugin() -> serde_json::Value {
    json!({
        "output": { "response_headers": true },
        "tenant": { "header": "x-tenant" },
        "stale_after_ms": STALE_AFTER.as_millis() as u64,
        "paths": ["/v1/completions", UNSERVED],
        // Small, so that what is too much shows soon.
        "limits": { "max_index_entries": 20_000, "max_index_bytes": 16 * 1024 * 1024, "log_segments": 256, "pages": 64 },
    })
}

/// Asks by hashes what a tenant's prompt comes to; no engine computes it.
pub fn ask_for(tenant: &str, prompt: &[u32]) -> Builder {
    probe_head(prompt).header("x-tenant", tenant)
}

/// Waits until every worker knows that the tenant's engine holds its prompt.
async fn known(stack: &Stack, tenant: &Tenant) {
    let mut in_a_row = 0;
    let mut last = None;
    let known = eventually(COMES_BACK, async || {
        let decided = decided(&send(stack, ask_for(tenant.id, &tenant.held()), "/probe", "").await);
        in_a_row = if decided.replica == tenant.holder { in_a_row + 1 } else { 0 };
        last = Some(decided);
        in_a_row > 10
    });
    assert!(known.await, "{last:?}");
}

// === impl Vitals ===

impl Vitals {
    pub async fn of(stack: &Stack) -> Vitals {
        let status = std::fs::read_to_string(format!("/proc/{}/status", stack.envoy.pid().unwrap())).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
        Vitals { metrics: stack.metrics().await.unwrap(), resident_mib: kib / 1024 }
    }

    /// VMs that run, and VMs made so far.
    pub fn vms(&self) -> [f64; 2] {
        ["active", "created"].map(|what| self.metrics.sum(&format!("envoy_wasm_envoy_wasm_runtime_v8_{what}"), &[]))
    }

    /// No VM was lost or made anew, and memory has not grown by more than so many MiB.
    pub fn is_as(&self, before: &Vitals, stack: &Stack, growth_mib: u64) {
        assert!(before.vms()[0] > 0.0);
        assert_eq!(self.vms(), before.vms(), "VMs were lost or made\n{}", stack.envoy.log_tail());
        has_no_trap(stack);
        self.has_grown_little(before, growth_mib);
    }

    fn has_grown_little(&self, before: &Vitals, growth_mib: u64) {
        let (before, now) = (before.resident_mib, self.resident_mib);
        eprintln!("Envoy: {before} MiB before, {now} MiB after");
        assert!(now <= before + growth_mib, "{before} MiB before, {now} MiB after");
    }
}

/// Envoy has told of no trap.
pub fn has_no_trap(stack: &Stack) {
    assert_eq!(traps(stack), Vec::<String>::new());
}

/// What Envoy has told of traps.
pub fn traps(stack: &Stack) -> Vec<String> {
    let log = stack.envoy.log_text();
    let is_trap =
        |line: &&str| line.contains("[wasm]") && (line.contains("failed: ") || line.contains("Plugin VM failed"));
    log.lines().filter(is_trap).map(str::to_owned).collect()
}
