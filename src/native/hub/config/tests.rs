use super::*;
use crate::routing::policy::AffinityHash;

const REPLICA: &str = "{id: a, address: 'localhost:8000', kv_events: 'tcp://localhost:5557', model: m}";

#[test]
fn a_minimal_configuration_has_every_default() {
    let config = HubConfig::from_yaml(&format!("replicas: [{REPLICA}]")).unwrap();
    let replica = &config.replicas[0];
    assert_eq!(replica.metrics, "http://localhost:8000/metrics");
    assert_eq!((replica.tenant.as_str(), replica.hash_scheme.as_str()), ("default", "vllm"));
    assert_eq!(config.grpc.to_string(), defaults::GRPC);
    assert_eq!(config.heartbeat, Duration::from_secs(1));
    assert_eq!(config.events.reconnect_max, Duration::from_secs(1));
    assert_eq!((config.policies, config.routing), (None, Ranking::default()));
}

#[test]
fn re_assertions_are_on_unless_turned_off() {
    let read = |more: &str| HubConfig::from_yaml(&format!("replicas: [{REPLICA}]\n{more}"));
    let reassert = |more: &str| read(more).unwrap().reassert;
    let every = Duration::from_millis(defaults::REASSERT_EVERY_MS);
    assert_eq!(reassert(""), ReassertConfig { enabled: true, every });
    assert_eq!(reassert("reassert: {enabled: false}"), ReassertConfig { enabled: false, every });
    let every = Duration::from_millis(100);
    assert_eq!(reassert("reassert: {every_ms: 100}"), ReassertConfig { enabled: true, every });
    for out_of_range in [99, 600_001] {
        let problems = read(&format!("reassert: {{every_ms: {out_of_range}}}")).unwrap_err().problems;
        assert_eq!(problems, [format!("reassert.every_ms is `{out_of_range}`, allowed is 100 to 600000")]);
    }
    for (more, parts) in [
        ("reassert: {enabled: maybe}", ["reassert.enabled", "maybe", "boolean"]),
        ("reassert: {every: 30s}", ["reassert", "`every`", "`every_ms`"]),
    ] {
        let problems = read(more).unwrap_err().problems;
        assert!(parts.iter().all(|part| problems[0].contains(part)), "{problems:?}");
    }
}

#[test]
fn policies_and_routing_are_read() {
    let read = |more: &str| HubConfig::from_yaml(&format!("replicas: [{REPLICA}]\n{more}"));
    let config = read("policies: {directory: /etc/policies}\nrouting: {affinity: {hash: rendezvous}}").unwrap();
    let poll = Duration::from_millis(defaults::POLICY_POLL_MS);
    assert_eq!(config.policies, Some(PoliciesConfig { directory: PathBuf::from("/etc/policies"), poll }));
    assert_eq!(config.routing, Ranking { affinity_hash: AffinityHash::Rendezvous, ..Ranking::default() });
    let config = read("policies: {directory: p, poll_ms: 50}\nrouting:").unwrap();
    assert_eq!(config.policies.map(|policies| policies.poll), Some(Duration::from_millis(50)));
    let problems = read(
        "policies: {directory: '', poll_ms: 1}\n\
         routing: {affinity: {hash: ring}, ranking: {pressure_weight: -1}, affinty: {}}",
    );
    assert_eq!(
        problems.unwrap_err().problems,
        [
            "policies.directory is ``, allowed is a path",
            "policies.poll_ms is `1`, allowed is 50 to 60000",
            "routing.ranking.pressure_weight is -1, allowed: a number from 0 to 1000",
            r#"routing.affinity.hash is "ring", allowed: "modulo" or "rendezvous""#,
            "routing.affinty is {}, allowed: no such field; known are ranking, affinity, distinguishing, \
             shared_prefix, require_chain",
        ]
    );
    let problems = read("routing: {affinity: {skip_pressure_above: .nan}}").unwrap_err().problems;
    assert_eq!(problems, ["routing.affinity.skip_pressure_above is .nan, allowed: a finite number"]);
    assert!(read("policies: {}").unwrap_err().problems[0].contains("directory"));
    assert!(read("routing: 3").unwrap_err().problems[0].starts_with("routing is 3, allowed: an object"));
}

#[test]
fn each_wrong_value_is_one_line_with_field_value_and_what_is_allowed() {
    let yaml = format!(
        "listen: {{grpc: nowhere}}\nheartbeat_ms: 0\nevents: {{reconnect_min_ms: 500, reconnect_max_ms: 100}}\n\
         replicas: [{REPLICA}, {{id: a, address: '::1:80000', kv_events: 'ipc://x', model: '', block_size: 0, \
         metrics: 'ftp://x/'}}]"
    );
    let problems = HubConfig::from_yaml(&yaml).unwrap_err().problems;
    let expected = [
        "listen.grpc is `nowhere`, allowed is ip:port, IPv6 in brackets",
        "heartbeat_ms is `0`, allowed is 50 to 60000",
        "events.reconnect_max_ms is `100`, allowed is at least reconnect_min_ms, which is 500",
        "replicas[1].id is `a`, allowed is an id that no other replica has",
        "replicas[1].model is ``, allowed is 1 to 256 bytes",
        "replicas[1].address is `::1:80000`, allowed is host:port with a port of 1 to 65535, IPv6 in brackets",
        "replicas[1].kv_events is `ipc://x`, allowed is tcp://host:port with a port of 1 to 65535",
        "replicas[1].metrics is `ftp://x/`, allowed is an http:// or https:// URL",
        "replicas[1].block_size is `0`, allowed is 1 to 65536 tokens",
    ];
    assert_eq!(problems, expected);
}

#[test]
fn ranks_have_ids_and_ports_of_their_own() {
    let read = |more: &str| HubConfig::from_yaml(&format!("replicas: [{{id: a, address: 'h:1', model: m, {more}}}]"));
    let several = "kv_events: 'tcp://[::1]:5557', kv_replay: 'tcp://h:6000', data_parallel_size: 3";
    let replica = read(several).unwrap().replicas.remove(0);
    assert_eq!(replica.ranks().collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
    assert_eq!(replica.member_id(Some(2)), "a/dp2");
    assert_eq!(replica.endpoint(&replica.kv_events, Some(2)), "tcp://[::1]:5559");
    let replica = read("kv_events: 'tcp://h:5557', data_parallel_size: 1").unwrap().replicas.remove(0);
    assert_eq!((replica.ranks().collect::<Vec<_>>(), replica.member_id(None)), (vec![None], "a".to_owned()));
    assert_eq!(replica.endpoint(&replica.kv_events, None), "tcp://h:5557");
    for (more, problem) in [
        (
            "kv_events: 'tcp://h:65534', data_parallel_size: 3",
            "replicas[0].kv_events is `tcp://h:65534`, allowed is a port with 2 more ports after it",
        ),
        (
            "kv_events: 'ipc:///tmp/events', data_parallel_size: 2",
            "replicas[0].kv_events is `ipc:///tmp/events`, allowed is tcp://host:port with a port of 1 to 65535",
        ),
        (
            "kv_events: 'tcp://h:1', data_parallel_size: 0",
            "replicas[0].data_parallel_size is `0`, allowed is 1 to 1024",
        ),
    ] {
        assert_eq!(read(more).unwrap_err().problems, [problem]);
    }
}

#[test]
fn a_stream_of_events_needs_no_replay_socket() {
    let read = |more: &str| HubConfig::from_yaml(&format!("replicas: [{{id: a, address: 'h:1', model: m, {more}}}]"));
    let replica =
        read("kv_events: 'grpc://h:50051', engine: sglang, data_parallel_size: 2").unwrap().replicas.remove(0);
    assert_eq!((replica.event_stream(), replica.engine), (Some("h:50051"), EngineKind::Sglang));
    for (more, problem) in [
        (
            "kv_events: 'grpc://h'",
            "replicas[0].kv_events is `grpc://h`, allowed is grpc://host:port with a port of 1 to 65535",
        ),
        (
            "kv_events: 'grpc://h:1', kv_replay: 'tcp://h:2'",
            "replicas[0].kv_replay is `tcp://h:2`, allowed is nothing beside kv_events of grpc://, which replays itself",
        ),
    ] {
        assert_eq!(read(more).unwrap_err().problems, [problem]);
    }
}

#[test]
fn unknown_fields_are_refused_by_name() {
    let problems = HubConfig::from_yaml(&format!("replicas: [{REPLICA}]\nheartbeats: 1")).unwrap_err().problems;
    assert_eq!(problems.len(), 1);
    assert!(problems[0].contains("heartbeats"), "{problems:?}");
    assert!(HubConfig::from_yaml("replicas: []").is_err());
    assert!(HubConfig::from_yaml("reports: {}").is_ok());
    assert!(HubConfig::from_yaml("").is_err());
}

#[test]
fn ranks_need_ports_and_ids_of_their_own() {
    let of = |id: &str, replay: u16| {
        format!(
            "{{id: {id}, address: 'h:1', kv_events: 'tcp://h:5557', kv_replay: 'tcp://h:{replay}', model: m, \
             data_parallel_size: 2}}"
        )
    };
    let read = |replicas: &[String]| HubConfig::from_yaml(&format!("replicas: [{}]", replicas.join(", ")));
    assert!(read(&[of("a", 5559)]).is_ok());
    let problems = read(&[of("a", 5558)]).unwrap_err().problems;
    assert_eq!(
        problems,
        ["replicas[0].kv_replay is `tcp://h:5558`, allowed is a port at least 2 from that of kv_events"]
    );
    let problems = read(&[of("a", 6557), of("a/dp1", 6557)]).unwrap_err().problems;
    assert_eq!(problems, ["replicas[].id is `a/dp1`, allowed is an id that no rank of `a` has"]);
}

#[test]
fn two_replicas_with_one_publisher_are_refused_by_both_names() {
    let problems = |entries: &[&str]| {
        let entries: Vec<String> = entries.iter().map(|entry| format!("{{address: 'h:80', {entry}}}")).collect();
        let config = HubConfig::from_yaml(&format!("replicas: [{}]", entries.join(", ")));
        config.err().map(|invalid| invalid.problems).unwrap_or_default()
    };
    let first = "id: a, kv_events: 'tcp://h:5557', model: m, data_parallel_size: 2";
    assert_eq!(
        problems(&[first, "id: b, kv_events: 'tcp://H:5558', model: m"]),
        [
            "replicas[1].kv_events is `tcp://H:5558 of b`, allowed is an endpoint that no other replica of this model and tenant \
             has: `a` has it"
        ]
    );
    for other in [
        "id: b, kv_events: 'tcp://h:5559', model: m",
        "id: b, kv_events: 'tcp://h:5557', model: another",
        "id: b, kv_events: 'tcp://h:5557', model: m, tenant: t",
        "id: b, kv_events: 'grpc://h:5557', model: m, data_parallel_size: 2",
    ] {
        assert_eq!(problems(&[first, other]), [""; 0], "{other}");
    }
    let stream = "kv_events: 'grpc://h:50051', model: m, data_parallel_size: 2";
    assert_eq!(problems(&[&format!("id: a, {stream}"), &format!("id: b, {stream}")]).len(), 1);
}
