//! What the hub counts of the contract, on `/metrics`.

use warmroute::native::hub::contract::messages::v1alpha1::LookupRouteRequest;

use crate::client::{connect, hub, look_up, plain, report, request_for, update};
use crate::hub_support::get;

#[tokio::test]
async fn calls_entries_evictions_and_drops_are_counted() {
    let hub = hub("reports: {max_entries: 3, quotas: {u: 1}}\nmodels: [{model_id: listed, block_size: 16}]").await;
    hub.set_policies(plain());
    let mut client = connect(&hub).await;
    let mut of_u = update("a", &[b"x", b"y"]);
    of_u.tenant_id = "u".into();
    report(&mut client, vec![update("a", &[b"1", b"2", b"3", b"4", b""]), of_u]).await;
    look_up(&mut client, request_for(b"4")).await;
    look_up(&mut client, LookupRouteRequest { model_id: "listed".into(), ..request_for(b"4") }).await;
    for number in 0..50 {
        look_up(&mut client, LookupRouteRequest { model_id: format!("made up {number}"), ..request_for(b"4") }).await;
    }
    let (_, text) = get(&hub, "/metrics").await;
    for line in [
        "inferencecache_lookup_route_calls_total{model=\"m\",reason_code=\"PREFIX_MATCH\",hint_used=\"true\"} 1",
        "inferencecache_lookup_route_calls_total{model=\"listed\",reason_code=\"UNKNOWN_MODEL\",hint_used=\"false\"} 1",
        "inferencecache_lookup_route_calls_total{model=\"other\",reason_code=\"UNKNOWN_MODEL\",hint_used=\"false\"} 50",
        "inferencecache_lookup_route_latency_seconds_count{model=\"other\"} 50",
        "inferencecache_index_entries{model=\"m\"} 3",
        "inferencecache_index_entries{model=\"listed\"} 0",
        "inferencecache_tenant_evictions_total{tenant_id=\"u\",reason=\"over_entries\"} 1",
        "inferencecache_index_evictions_total{algorithm=\"lru\",reason=\"cap\"} 2",
        "warmroute_hub_reports_dropped_total{reason=\"empty_hash\"} 1",
    ] {
        assert!(text.lines().any(|written| written == line), "{line} is not in\n{text}");
    }
    for begin in
        ["inferencecache_lookup_route_latency_seconds_bucket{le=\"0.0025\",model=\"m\"} ", "warmroute_hub_sequence "]
    {
        assert!(text.lines().any(|written| written.starts_with(begin)), "{begin} begins no line of\n{text}");
    }
    assert!(!text.contains("made up"), "clients make no labels");
    assert!(text.trim_end().ends_with("# EOF") && text.matches("# EOF").count() == 1);
    hub.shutdown().await;
}
