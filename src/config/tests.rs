use super::*;
use crate::routing::policy::{
    AffinityHash, AffinitySeed, ChainOrigin, Denominator, Eviction, Policy, SharedPrefix, Strategy,
};

/// The smallest configuration that is accepted, with `more` fields.
fn config_with(more: &str) -> String {
    format!(r#"{{"hub_cluster":"hub","models":[{{"model_id":"m"}}]{more}}}"#)
}

fn accepted(more: &str) -> FilterConfig {
    FilterConfig::from_json(config_with(more).as_bytes()).unwrap()
}

fn errors(json: &str) -> Vec<String> {
    FilterConfig::from_json(json.as_bytes()).unwrap_err().iter().map(ToString::to_string).collect()
}

/// The only error of the smallest configuration with `more` fields.
fn error(more: &str) -> String {
    let mut errors = errors(&config_with(more));
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.remove(0)
}

#[test]
fn the_smallest_configuration_has_the_defaults() {
    let config = accepted("");
    let model = ModelConfig {
        model_id: "m".to_owned(),
        hash_scheme: "vllm".to_owned(),
        block_size: crate::fingerprint::BlockSize::DEFAULT,
        key_bytes: 8,
    };
    assert_eq!(
        config,
        FilterConfig {
            hubs: Hubs { clusters: vec!["hub".to_owned()], token: None },
            subscribe: Subscribe::default(),
            tenant: TenantSource { from: TenantFrom::Nowhere, default: Some("default".to_owned()) },
            models: BTreeMap::from([("m".to_owned(), model)]),
            aliases: BTreeMap::new(),
            adapters: BTreeMap::new(),
            requests: RequestRules {
                paths: defaults::PATHS.map(PathRule::of).to_vec(),
                max_body_bytes: 1_000_000,
                hold_chunked: false,
                input_headers: crate::request::names::InputHeaders::all(),
            },
            policies: Policies::default(),
            quotas: BTreeMap::new(),
            ranking: Ranking::default(),
            utc_offset_minutes: 0,
            read_usage: true,
            output: Output { max_endpoints: 5, response_headers: false, data_parallel_rank_header: false },
            freshness: Freshness { stale_after_ms: 10_000, when_stale: WhenStale::NoHint },
            limits: Limits {
                tick_ms: 100,
                catch_up_tick_ms: 10,
                max_step_us: 1_000,
                lease_ticks: 10,
                max_request_work_ms: 5,
                max_index_entries: 4_000_000,
                max_index_bytes: 536_870_912,
                lfu_half_life_ms: None,
                pages: 8_192,
                log_segments: 8_192,
                segment_bytes: 6_144,
                max_prompt_bytes: 524_288,
                max_match_tokens: 131_072,
                max_merge_symbols: 60_000,
                max_model_bytes: 67_108_864,
                memo_bytes: 8_388_608,
            },
        }
    );
    assert_eq!(config.policies.for_tenant("anybody"), &Policy::default());
}

#[test]
fn every_field_is_read() {
    let config = FilterConfig::from_json(
        br#"{
            "hub_cluster": "hub",
            "subscribe": {"models": ["m"], "tenants": ["t", "u"]},
            "tenant": {"property": ["metadata", "jwt"], "default": null},
            "models": [
                {"model_id": "m", "hash_scheme": "sglang", "block_size": 64, "key_bytes": 32},
                {"model_id": "n", "adapters": {"sql": "7"}}
            ],
            "paths": ["/generate", "/v1/completions"],
            "max_body_bytes": 2e6,
            "hold_chunked": true,
            "input_headers": ["x-inferencecache-model-id"],
            "policy": {"evictionTTL": "1h30m", "minimumPrefixTokens": 32, "affinityRouting": "Disabled"},
            "policies": {
                "t": {"minimumMatchedTokens": 0, "routingFloorScore": "12.5"},
                "v": {"eviction": "LFU", "evictionTTL": "90s", "minimumPrefixTokens": 1, "minimumMatchedTokens": 2,
                      "routingFloorScore": "0", "lookupTimeoutMs": 5, "affinityRouting": "Disabled",
                      "strategy": {"enableChainMatching": true, "requireChain": true, "enableTenantHot": false}}
            },
            "ranking": {"pressure_weight": 0.5, "slo_tight_ttft_ms": 300, "slo_tight_bias": 2,
                        "tenant_hot_min_hit_rate": 0.25, "tenant_hot_max_age_ms": 0},
            "affinity": {"hash": "rendezvous", "seed": "head", "skip_pressure_above": 0.75},
            "distinguishing": {"denominator": "serving"},
            "shared_prefix": "least_pressure",
            "require_chain": "derived",
            "output": {"max_endpoints": 2, "response_headers": true, "data_parallel_rank_header": true},
            "stale_after_ms": 3000,
            "when_stale": "serve",
            "quotas": {"t": 200000, "w": 0},
            "limits": {"tick_ms": 50, "catch_up_tick_ms": 5, "max_step_us": 500, "lease_ticks": 20,
                       "max_request_work_ms": 2, "max_index_entries": 1000, "max_index_bytes": 16777216,
                       "lfu_half_life": "1h30m", "pages": 8, "log_segments": 16, "segment_bytes": 4096}
        }"#,
    )
    .unwrap();
    assert_eq!(config.subscribe.tenants, ["t", "u"]);
    assert_eq!(config.tenant.property().unwrap(), ["metadata", "jwt"]);
    assert_eq!(config.tenant.default, None);
    assert_eq!((config.models["m"].block_size.tokens(), config.models["m"].key_bytes), (64, 32));
    assert_eq!(config.models["m"].hash_scheme, "sglang");
    assert_eq!(config.requests.paths, ["/generate", "/v1/completions"].map(PathRule::of));
    assert_eq!((config.requests.max_body_bytes, config.requests.hold_chunked), (2_000_000, true));
    assert!(config.requests.input_headers.enabled("x-inferencecache-model-id"));
    assert!(!config.requests.input_headers.enabled("x-inferencecache-prefix-hash"));
    let default = config.policies.for_tenant("u");
    assert_eq!(
        (default.eviction_ttl_ms, default.minimum_prefix_tokens, default.minimum_matched_tokens),
        (5_400_000, 32, 64)
    );
    let own = config.policies.for_tenant("t");
    assert_eq!((own.eviction_ttl_ms, own.minimum_prefix_tokens, own.minimum_matched_tokens), (1_800_000, 0, 0));
    assert_eq!((own.routing_floor_score, default.routing_floor_score), (12.5, 0.1));
    assert_eq!((own.affinity_routing, default.affinity_routing), (true, false));
    assert_eq!(
        config.policies.for_tenant("v"),
        &Policy {
            eviction: Eviction::Lfu,
            eviction_ttl_ms: 90_000,
            minimum_prefix_tokens: 1,
            minimum_matched_tokens: 2,
            routing_floor_score: 0.0,
            lookup_timeout_ms: 5,
            strategy: Strategy { enable_chain_matching: true, require_chain: true, enable_tenant_hot: false },
            affinity_routing: false,
        }
    );
    assert_eq!(
        config.ranking,
        Ranking {
            pressure_weight: 0.5,
            slo_tight_ttft_ms: 300,
            slo_tight_bias: 2.0,
            tenant_hot_min_hit_rate: 0.25,
            tenant_hot_max_age_ms: 0,
            affinity_hash: AffinityHash::Rendezvous,
            affinity_seed: AffinitySeed::Head,
            affinity_skip_pressure_above: Some(0.75),
            distinguishing_denominator: Denominator::Serving,
            shared_prefix: SharedPrefix::LeastPressure,
            require_chain: ChainOrigin::Derived,
        }
    );
    let (base, adapter_id) = config.adapter("sql").unwrap();
    assert_eq!((base.model_id.as_str(), adapter_id), ("n", "7"));
    assert_eq!(config.output, Output { max_endpoints: 2, response_headers: true, data_parallel_rank_header: true });
    assert_eq!(config.freshness, Freshness { stale_after_ms: 3000, when_stale: WhenStale::Serve });
    assert_eq!(config.quotas, BTreeMap::from([("t".to_owned(), 200_000), ("w".to_owned(), 0)]));
    let limits = &config.limits;
    assert_eq!((limits.tick_ms, limits.catch_up_tick_ms, limits.max_step_us), (50, 5, 500));
    assert_eq!((limits.lease_ticks, limits.max_request_work_ms, limits.max_step_ns()), (20, 2, 500_000));
    assert_eq!((limits.max_index_entries, limits.max_index_bytes), (1_000, 16_777_216));
    assert_eq!(limits.lfu_half_life_ms, Some(5_400_000));
    assert_eq!((limits.pages, limits.log_segments, limits.segment_bytes), (8, 16, 4_096));
}

#[test]
fn all_problems_are_reported_at_once() {
    let found = errors(
        r#"{"models": [{"model_id": "m", "block_size": 0}, {"model_id": "m"}, {"modelid": "n"}, 7],
            "max_body_bytes": 0, "hold_chunked": "yes", "when_stale": "panic", "hub": 1}"#,
    );
    assert_eq!(
        found,
        [
            "hub_cluster is absent, allowed: a text that is not empty",
            "models[0].block_size is 0, allowed: a whole number from 1 to 65536",
            r#"models[1].model_id is "m", allowed: an id that is not listed yet"#,
            "models[2].model_id is absent, allowed: a text that is not empty",
            "models[2].modelid is \"n\", allowed: no such field; known are block_size, key_bytes, hash_scheme, model_id, \
             adapters, aliases",
            "models[3] is 7, allowed: an object",
            "models[3].model_id is absent, allowed: a text that is not empty",
            "max_body_bytes is 0, allowed: a whole number from 1 to 268435456",
            r#"hold_chunked is "yes", allowed: true or false"#,
            r#"when_stale is "panic", allowed: "no_hint" or "serve""#,
            "hub is 1, allowed: no such field; known are hub_cluster, hub_clusters, hub_token, subscribe, tenant, \
             models, paths, max_body_bytes, hold_chunked, input_headers, policy, policies, quotas, ranking, affinity, distinguishing, \
             shared_prefix, require_chain, utc_offset_minutes, read_usage, output, stale_after_ms, when_stale, limits",
        ]
    );
}

#[test]
fn what_is_no_object_is_one_problem() {
    let json = errors("{");
    assert!(json[0].starts_with("configuration is not JSON (EOF while parsing an object"), "{json:?}");
    assert_eq!(json.len(), 1);
    assert_eq!(errors("")[0].split(" (").next(), Some("configuration is not JSON"));
    assert_eq!(errors("[]")[0], "configuration is [], allowed: an object");
    assert_eq!(errors(r#"{"hub_cluster":"h","models":[]}"#), ["models is [], allowed: a list of at least one model"]);
    assert_eq!(errors(r#"{"hub_cluster":"h"}"#), ["models is absent, allowed: a list of at least one model"]);
}

#[test]
fn a_cache_policy_is_held_to_its_own_rules() {
    for (spec, field) in [
        (r#"{"evictionTTL": "0s"}"#, "policy.evictionTTL"),
        (r#"{"evictionTTL": "-1m"}"#, "policy.evictionTTL"),
        (r#"{"evictionTTL": "577h"}"#, "policy.evictionTTL"),
        (r#"{"evictionTTL": 1800}"#, "policy.evictionTTL"),
        (r#"{"minimumPrefixTokens": -1}"#, "policy.minimumPrefixTokens"),
        (r#"{"minimumMatchedTokens": 2147483648}"#, "policy.minimumMatchedTokens"),
        (r#"{"minimumMatchedTokens": 1.5}"#, "policy.minimumMatchedTokens"),
        (r#"{"routingFloorScore": 0.1}"#, "policy.routingFloorScore"),
        (r#"{"routingFloorScore": ".1"}"#, "policy.routingFloorScore"),
        (r#"{"routingFloorScore": "01"}"#, "policy.routingFloorScore"),
        (r#"{"routingFloorScore": "1."}"#, "policy.routingFloorScore"),
        (r#"{"routingFloorScore": "1.1234567"}"#, "policy.routingFloorScore"),
        (r#"{"routingFloorScore": "123456789"}"#, "policy.routingFloorScore"),
        (r#"{"routingFloorScore": "1e3"}"#, "policy.routingFloorScore"),
        (r#"{"minimum_prefix_tokens": 1}"#, "policy.minimum_prefix_tokens"),
        (r#"{"eviction": "lru"}"#, "policy.eviction"),
        (r#"{"eviction": 1}"#, "policy.eviction"),
        (r#"{"lookupTimeoutMs": -1}"#, "policy.lookupTimeoutMs"),
        (r#"{"lookupTimeoutMs": "5ms"}"#, "policy.lookupTimeoutMs"),
        (r#"{"affinityRouting": true}"#, "policy.affinityRouting"),
        (r#"{"strategy": []}"#, "policy.strategy"),
        (r#"{"strategy": {"enableChainMatching": 1}}"#, "policy.strategy.enableChainMatching"),
        (r#"{"strategy": {"enableTenantHot": "no"}}"#, "policy.strategy.enableTenantHot"),
        (r#"{"strategy": {"enableChains": true}}"#, "policy.strategy.enableChains"),
        (r#"{"strategy": {"enableChainMatching": false, "requireChain": true}}"#, "policy.strategy.requireChain"),
    ] {
        let error = error(&format!(r#","policy":{spec}"#));
        assert_eq!(error.split(' ').next(), Some(field), "{error}");
    }
    for score in ["0", "0.0", "99999999.999999", "64", "0.000001"] {
        let config = accepted(&format!(r#","policies":{{"t":{{"routingFloorScore":"{score}"}}}}"#));
        assert_eq!(config.policies.for_tenant("t").routing_floor_score, score.parse::<f32>().unwrap());
    }
}

#[test]
fn a_wrong_choice_names_what_may_be_chosen() {
    assert_eq!(
        error(r#","policies":{"t":{"affinityRouting":"On"}}"#),
        r#"policies.t.affinityRouting is "On", allowed: "Enabled" or "Disabled""#
    );
    assert_eq!(
        error(r#","policy":{"strategy":{"enableChainMatching":false,"requireChain":true}}"#),
        "policy.strategy.requireChain is true, allowed: false where enableChainMatching is false"
    );
}

#[test]
fn a_spec_is_read_alone_as_within_the_configuration() {
    let spec = serde_json::json!({"eviction": "LFU", "strategy": {"enableTenantHot": false}});
    let alone = policy_from_json(&spec, "").unwrap();
    assert_eq!(&alone, accepted(&format!(r#","policies":{{"t":{spec}}}"#)).policies.for_tenant("t"));
    let wrong = serde_json::json!({"strategy": {"requireChain": 1}, "ttl": "1m"});
    let paths = |path: &str| policy_from_json(&wrong, path).unwrap_err().into_iter().map(|error| error.field);
    assert_eq!(paths("").collect::<Vec<_>>(), ["strategy.requireChain", "ttl"]);
    assert_eq!(paths("spec").collect::<Vec<_>>(), ["spec.strategy.requireChain", "spec.ttl"]);
    assert_eq!(policy_from_json(&Value::from(3), "spec").unwrap_err()[0].to_string(), "spec is 3, allowed: an object");
}

#[test]
fn the_settings_of_the_ranking_are_checked_and_default_to_the_contract() {
    for (setting, error_begins) in [
        (
            r#""ranking":{"tenant_hot_min_hit_rate":1.5}"#,
            "ranking.tenant_hot_min_hit_rate is 1.5, allowed: a number from 0 to 1",
        ),
        (r#""ranking":{"tenant_hot_max_age_ms":-1}"#, "ranking.tenant_hot_max_age_ms"),
        (r#""ranking":{"hot":1}"#, "ranking.hot"),
        (r#""affinity":{"hash":"ring"}"#, r#"affinity.hash is "ring", allowed: "modulo" or "rendezvous""#),
        (r#""affinity":{"seed":"tail"}"#, r#"affinity.seed is "tail", allowed: "chain" or "head""#),
        (
            r#""affinity":{"skip_pressure_above":-0.1}"#,
            "affinity.skip_pressure_above is -0.1, allowed: a number from 0 to 1",
        ),
        (r#""affinity":{"skip_pressure_above":"none"}"#, "affinity.skip_pressure_above"),
        (r#""affinity":"rendezvous""#, "affinity is \"rendezvous\", allowed: an object"),
        (
            r#""distinguishing":{"denominator":"all"}"#,
            r#"distinguishing.denominator is "all", allowed: "holders" or "serving""#,
        ),
        (r#""shared_prefix":"drop""#, r#"shared_prefix is "drop", allowed: "floor" or "least_pressure""#),
        (r#""require_chain":true"#, r#"require_chain is true, allowed: "wire" or "derived""#),
    ] {
        let error = error(&format!(",{setting}"));
        assert!(error.starts_with(error_begins), "{error}");
    }
    let contract = r#","affinity":{"hash":"modulo","seed":"chain","skip_pressure_above":null},
        "distinguishing":{"denominator":"holders"},"shared_prefix":"floor","require_chain":"wire","ranking":{}"#;
    assert_eq!(accepted(contract).ranking, Ranking::default());
    let settings = serde_json::json!({"affinity": {"hash": "rendezvous"}, "shared_prefix": "none", "routing": {}});
    let errors = ranking_from_json(&settings, "routing").unwrap_err();
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["routing.shared_prefix", "routing.routing"]);
}

#[test]
fn limits_and_quotas_are_checked_against_what_a_vm_can_hold() {
    for (setting, expected) in [
        (r#""limits":{"tick_ms":9}"#, "limits.tick_ms is 9, allowed: a whole number from 10 to 10000"),
        (
            r#""limits":{"tick_ms":20,"catch_up_tick_ms":21}"#,
            "limits.catch_up_tick_ms is 21, allowed: a whole number from 1 to 20",
        ),
        (r#""limits":{"max_step_us":99}"#, "limits.max_step_us is 99, allowed: a whole number from 100 to 20000"),
        (
            r#""limits":{"max_index_entries":16000001}"#,
            "limits.max_index_entries is 16000001, allowed: a whole number from 1 to 16000000",
        ),
        (
            r#""limits":{"max_index_bytes":1048575}"#,
            "limits.max_index_bytes is 1048575, allowed: a whole number from 16777216 to 939524096",
        ),
        (
            r#""limits":{"max_index_bytes":939524097}"#,
            "limits.max_index_bytes is 939524097, allowed: a whole number from 16777216 to 939524096",
        ),
        (r#""limits":{"pages":32769}"#, "limits.pages is 32769, allowed: a whole number from 1 to 32768"),
        (
            r#""limits":{"lfu_half_life":"59s"}"#,
            r#"limits.lfu_half_life is "59s", allowed: a duration such as "30m" or "1h30m", from 60000ms to 576h (24 days)"#,
        ),
        (
            r#""limits":{"lfu_half_life":600}"#,
            r#"limits.lfu_half_life is 600, allowed: a duration such as "30m" or "1h30m", from 60000ms to 576h (24 days)"#,
        ),
        (r#""quotas":{"t":-1}"#, "quotas.t is -1, allowed: a whole number from 0 to 64000000"),
        (r#""quotas":{"t":null}"#, "quotas.t is null, allowed: a whole number from 0 to 64000000"),
        (r#""quotas":[1]"#, "quotas is [1], allowed: an object"),
        (
            r#""quotas":{"inferencecache.io/probe":1}"#,
            "quotas.inferencecache.io/probe is 1, allowed: a tenant of 1 to 256 bytes that is not inferencecache.io/probe",
        ),
        (r#""quotas":{"":1}"#, "quotas. is 1, allowed: a tenant of 1 to 256 bytes that is not inferencecache.io/probe"),
    ] {
        assert_eq!(error(&format!(",{setting}")), expected);
    }
    assert_eq!(accepted(r#","limits":{"lfu_half_life":null},"quotas":null"#), accepted(""));
    assert_eq!(accepted(r#","limits":{"tick_ms":10}"#).limits.catch_up_tick_ms, 10);
}

#[test]
fn a_served_adapter_names_one_base_model() {
    let json = r#"{"hub_cluster":"hub","models":[
        {"model_id":"m","adapters":["sql","chat"]},
        {"model_id":"n","adapters":{"law":"lora-3","tax":"lora-3"}},
        {"model_id":"o","adapters":[]}]}"#;
    let config = FilterConfig::from_json(json.as_bytes()).unwrap();
    let found = |name| config.adapter(name).map(|(model, adapter_id)| (model.model_id.as_str(), adapter_id));
    assert_eq!(found("sql"), Some(("m", "sql")));
    assert_eq!(found("law"), Some(("n", "lora-3")));
    assert_eq!(found("tax"), Some(("n", "lora-3")));
    assert_eq!((found("m"), found("lora-3"), found("")), (None, None, None));
    let found = errors(
        r#"{"hub_cluster":"hub","models":[
            {"model_id":"m","adapters":["a","a","n","",3]},
            {"model_id":"n","adapters":{"a":"x","b":"","c":1}},
            {"model_id":"o","adapters":"a"}]}"#,
    );
    assert_eq!(
        found,
        [
            r#"models[0].adapters[3] is "", allowed: a name and an id that are not empty"#,
            "models[0].adapters[4] is 3, allowed: a name and an id that are not empty",
            r#"models[1].adapters.b is "", allowed: a name and an id that are not empty"#,
            "models[1].adapters.c is 1, allowed: a name and an id that are not empty",
            r#"models[2].adapters is "a", allowed: a list of names, or an object from names to adapter ids"#,
            r#"models[0].adapters[1] is "a", allowed: a name that is neither listed yet nor a model_id"#,
            r#"models[0].adapters[2] is "n", allowed: a name that is neither listed yet nor a model_id"#,
            r#"models[1].adapters.a is "a", allowed: a name that is neither listed yet nor a model_id"#,
        ]
    );
}

#[test]
fn a_model_may_have_further_names_and_each_names_one_thing() {
    let json = r#"{"hub_cluster":"hub","models":[
        {"model_id":"m","aliases":["gpt-4o","org/m"],"adapters":["sql"]},
        {"model_id":"n","aliases":[]}]}"#;
    let config = FilterConfig::from_json(json.as_bytes()).unwrap();
    let found = |name| config.model(name).map(|model| model.model_id.as_str());
    assert_eq!((found("m"), found("gpt-4o"), found("org/m"), found("n")), (Some("m"), Some("m"), Some("m"), Some("n")));
    assert_eq!((found("sql"), found("GPT-4o"), found("")), (None, None, None));
    let found = errors(
        r#"{"hub_cluster":"hub","models":[
            {"model_id":"m","aliases":["a","a","n","",3,"m"],"adapters":["b"]},
            {"model_id":"n","aliases":["b","a"],"adapters":["c"]},
            {"model_id":"o","aliases":"a"},
            {"model_id":"p","aliases":{"c":"d"}}]}"#,
    );
    assert_eq!(
        found,
        [
            r#"models[0].aliases[3] is "", allowed: a name that is not empty"#,
            "models[0].aliases[4] is 3, allowed: a name that is not empty",
            r#"models[2].aliases is "a", allowed: a list of names"#,
            r#"models[3].aliases is {"c":"d"}, allowed: a list of names"#,
            r#"models[0].aliases[1] is "a", allowed: a name that is neither listed yet nor a model_id"#,
            r#"models[0].aliases[2] is "n", allowed: a name that is neither listed yet nor a model_id"#,
            r#"models[0].aliases[5] is "m", allowed: a name that is neither listed yet nor a model_id"#,
            r#"models[1].aliases[0] is "b", allowed: a name that is neither listed yet nor a model_id"#,
            r#"models[1].aliases[1] is "a", allowed: a name that is neither listed yet nor a model_id"#,
        ]
    );
}

#[test]
fn what_a_paths_bodies_are_is_told_by_its_end_or_said() {
    use crate::request::ChatApi::{ChatCompletions, Messages, Responses};
    let apis = |more: &str| -> Vec<(String, BodyApi)> {
        accepted(more).requests.paths.into_iter().map(|rule| (rule.path, rule.api)).collect()
    };
    let named = |path: &str, api| (path.to_owned(), api);
    assert_eq!(
        apis(""),
        [
            named("/v1/completions", BodyApi::Completions),
            named("/v1/chat/completions", BodyApi::Chat(ChatCompletions)),
            named("/v1/responses", BodyApi::Chat(Responses)),
            named("/v1/messages", BodyApi::Chat(Messages)),
            named("/generate", BodyApi::Generate),
            named("/inference/v1/generate", BodyApi::TokensIn),
        ]
    );
    let mixed = r#","paths":["/openai/v1/chat/completions","/x",{"path":"/ask","api":"chat"},{"path":"/anthropic/v1/messages"},
        {"path":"/v1/chat/completions","api":"completions"},{"path":"/r","api":"responses"},{"path":"/m","api":"messages"},
        {"path":"/g","api":"generate"},{"path":"/t","api":"tokens_in"}]"#;
    assert_eq!(
        apis(mixed),
        [
            named("/openai/v1/chat/completions", BodyApi::Chat(ChatCompletions)),
            named("/x", BodyApi::Completions),
            named("/ask", BodyApi::Chat(ChatCompletions)),
            named("/anthropic/v1/messages", BodyApi::Chat(Messages)),
            named("/v1/chat/completions", BodyApi::Completions),
            named("/r", BodyApi::Chat(Responses)),
            named("/m", BodyApi::Chat(Messages)),
            named("/g", BodyApi::Generate),
            named("/t", BodyApi::TokensIn),
        ]
    );
    for (paths, expected) in [
        (
            r#"{"path":"/a","api":"embeddings"}"#,
            "paths[0].api is \"embeddings\", allowed: \"completions\" or \"chat\" or \"responses\" or \"messages\" or \
             \"generate\" or \"tokens_in\"",
        ),
        (r#"{"path":"/a","kind":"chat"}"#, r#"paths[0].kind is "chat", allowed: no such field; known are path, api"#),
        ("7", "paths[0] is 7, allowed: a path, or an object of path and api"),
        (r#"{"path":"a"}"#, r#"paths[0] is {"path":"a"}, allowed: a path from its / on, without ? and #"#),
    ] {
        assert_eq!(error(&format!(r#","paths":[{paths}]"#)), expected);
    }
}

#[test]
fn a_tenant_has_one_source_and_never_the_reserved_name() {
    let header = accepted(r#","tenant":{"header":"x-tenant"}"#).tenant;
    assert_eq!(header.from, TenantFrom::Header("x-tenant".to_owned()));
    assert_eq!(header.default.as_deref(), Some("default"));
    assert_eq!(header.property(), None);
    for tenant in [
        r#"{"header":"x-tenant","property":["a"]}"#,
        r#"{"header":"X-Tenant"}"#,
        r#"{"header":""}"#,
        r#"{"header":":path"}"#,
        r#"{"header":"x-inferencecache-model-id"}"#,
        r#"{"property":[]}"#,
        r#"{"property":["a",1]}"#,
        r#"{"property":"a"}"#,
        r#"{"default":""}"#,
        r#"{"default":"inferencecache.io/probe"}"#,
        r#"{"default":7}"#,
    ] {
        assert!(error(&format!(r#","tenant":{tenant}"#)).starts_with("tenant."), "{tenant}");
    }
    assert!(error(r#","policies":{"inferencecache.io/probe":{}}"#).starts_with("policies.inferencecache.io/probe"));
}

#[test]
fn request_rules_are_checked() {
    for rule in [
        r#""paths":["v1"]"#,
        r#""paths":["/v1?x=1"]"#,
        r#""paths":[""]"#,
        r#""paths":"/v1""#,
        r#""input_headers":["authorization"]"#,
        r#""input_headers":"all""#,
        r#""max_body_bytes":268435457"#,
        r#""max_body_bytes":1.5"#,
        r#""max_body_bytes":"1""#,
    ] {
        error(&format!(",{rule}"));
    }
    assert!(accepted(r#","paths":[]"#).requests.paths.is_empty());
    let none = accepted(r#","input_headers":false"#).requests.input_headers;
    assert!(!names_of(none).any(|_| true));
    assert_eq!(names_of(accepted(r#","input_headers":true"#).requests.input_headers).count(), 10);
}

fn names_of(enabled: crate::request::names::InputHeaders) -> impl Iterator<Item = &'static str> {
    crate::request::names::INPUT.into_iter().filter(move |name| enabled.enabled(name))
}

#[test]
fn a_long_value_is_shortened() {
    let error = error(&format!(r#","hold_chunked":"{}""#, "é".repeat(500)));
    assert_eq!(error, format!("hold_chunked is \"{}…, allowed: true or false", "é".repeat(79)));
}

#[test]
fn the_domain_follows_what_decides_the_contents_and_nothing_else() {
    let domain = accepted("").domain();
    for same in [
        r#","paths":[]"#,
        r#","ranking":{"pressure_weight":0}"#,
        r#","output":{"max_endpoints":1}"#,
        r#","stale_after_ms":500"#,
        r#","policy":{"minimumMatchedTokens":0,"eviction":"LRU","affinityRouting":"Disabled"}"#,
        r#","affinity":{"hash":"rendezvous"}"#,
        r#","limits":{"tick_ms":10,"lease_ticks":30,"max_request_work_ms":1}"#,
        r#","limits":{"catch_up_tick_ms":1,"max_step_us":200,"lfu_half_life":null}"#,
        r#","quotas":{}"#,
    ] {
        assert_eq!(accepted(same).domain(), domain, "{same}");
    }
    let mut domains = vec![domain];
    for different in [
        r#","subscribe":{"models":["m"]}"#,
        r#","subscribe":{"tenants":["m"]}"#,
        r#","policy":{"evictionTTL":"1m"}"#,
        r#","policies":{"t":{"evictionTTL":"1m"}}"#,
        r#","policies":{"u":{"evictionTTL":"1m"}}"#,
        r#","policy":{"eviction":"LFU"}"#,
        r#","policies":{"t":{"eviction":"LFU"}}"#,
        r#","limits":{"max_index_entries":999}"#,
        r#","limits":{"max_index_bytes":16777216}"#,
        r#","limits":{"lfu_half_life":"10m"}"#,
        r#","quotas":{"t":0}"#,
        r#","quotas":{"t":1}"#,
        r#","quotas":{"u":1}"#,
        r#","limits":{"pages":255}"#,
        r#","limits":{"log_segments":256}"#,
        r#","limits":{"segment_bytes":8192}"#,
    ] {
        domains.push(accepted(different).domain());
    }
    let all = domains.len();
    domains.sort();
    domains.dedup();
    assert_eq!(domains.len(), all);
    let ab = accepted(r#","subscribe":{"models":["a","b","a"]}"#).domain();
    assert_eq!(ab, accepted(r#","subscribe":{"models":["b","a"]}"#).domain());
}

#[test]
fn hubs_are_one_or_several_and_never_both() {
    let of = |hubs: &str| format!(r#"{{{hubs},"models":[{{"model_id":"m"}}]}}"#);
    let several = FilterConfig::from_json(of(r#""hub_clusters":["b","a"]"#).as_bytes()).unwrap();
    assert_eq!(several.hubs.clusters, ["b", "a"]);
    let other = FilterConfig::from_json(of(r#""hub_clusters":["a","b"]"#).as_bytes()).unwrap();
    assert_eq!(several.domain(), other.domain(), "the same hubs");
    let one = FilterConfig::from_json(of(r#""hub_clusters":["hub"]"#).as_bytes()).unwrap();
    assert_eq!(one.domain(), accepted("").domain());
    assert_ne!(one.domain(), several.domain());
    let both = errors(&of(r#""hub_cluster":"a","hub_clusters":["b"]"#));
    assert_eq!(both, [r#"hub_clusters is ["b"], allowed: absent where there is a hub_cluster: one of both"#]);
    let names = "allowed: 1 to 16 names, none of them twice";
    assert_eq!(errors(&of(r#""hub_clusters":[]"#)), [format!("hub_clusters is [], {names}")]);
    assert_eq!(errors(&of(r#""hub_clusters":["a","a"]"#)), [format!(r#"hub_clusters is ["a","a"], {names}"#)]);
    assert_eq!(errors(&of(r#""hub_clusters":"a""#)), [r#"hub_clusters is "a", allowed: a list of texts"#]);
    let nothing = [r#"hub_clusters[1] is "", allowed: a text that is not empty"#];
    assert_eq!(errors(&of(r#""hub_clusters":["a",""]"#)), nothing);
}

#[test]
fn a_token_is_never_shown() {
    let config = accepted(r#","hub_token":"abc-123_~+/==""#);
    assert_eq!(config.hubs.token.as_ref().map(HubToken::authorization).as_deref(), Some("Bearer abc-123_~+/=="));
    assert_eq!(config.domain(), accepted("").domain());
    assert!(!format!("{config:?}").contains("abc"));
    let allowed = "1 to 4096 letters, digits and any of -._~+/=";
    for wrong in [r#""two words""#, r#""""#, "7", r#"["abc"]"#, r#""l\nine""#] {
        assert_eq!(error(&format!(r#","hub_token":{wrong}"#)), format!("hub_token is not shown, allowed: {allowed}"));
    }
    let misspelt = error(r#","hub_tokens":"s3cret""#);
    assert!(misspelt.starts_with("hub_tokens is not shown, allowed: no such field"), "{misspelt}");
}
