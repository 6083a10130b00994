//! `envoy/kubernetes/` and what goes with it: that manifests are whole, and that names, ports and labels agree from file to file.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use warmroute::native::hub::HubConfig;

const HUB: &str = include_str!("../../envoy/kubernetes/hub.yaml");
const POOL: &str = include_str!("../../envoy/kubernetes/vllm.yaml");
const NAMESPACE: &str = include_str!("../../envoy/kubernetes/namespace.yaml");
const DESTINATION_RULE: &str = include_str!("../../envoy/istio/destination-rule.yaml");
const GATEWAY_DEPLOYMENT: &str = include_str!("../../envoy/istio/gateway-deployment.yaml");
const STATS_TAGS: &str = include_str!("../../envoy/istio/stats-tags.yaml");
const PROXY: &str = include_str!("../../envoy/gateway/proxy.yaml");
const KUSTOMIZATIONS: [&str; 3] =
    ["kubernetes/kustomization.yaml", "istio/kustomization.yaml", "gateway/kustomization.yaml"];
/// What a kustomization does not take in, because it is instead of something, or a patch.
const OPTIONAL: [&str; 6] = [
    "istio/sidecar.yaml",
    "istio/wasmplugin.yaml",
    "istio/headers-only.yaml",
    "istio/gateway-deployment.yaml",
    "gateway/extension-policy.yaml",
    "gateway/headers-only-patch-policy.yaml",
];

fn documents(text: &str) -> Vec<Value> {
    serde_norway::Deserializer::from_str(text).map(|document| Value::deserialize(document).unwrap()).collect()
}

fn of_kind(text: &str, kind: &str) -> Value {
    let mut found: Vec<Value> = documents(text).into_iter().filter(|document| document["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "{kind}");
    found.remove(0)
}

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy")
}

/// The numbers under a field of each entry of a list.
fn numbers(list: &Value, field: &str) -> BTreeSet<u64> {
    list.as_array().unwrap().iter().map(|entry| entry[field].as_u64().unwrap()).collect()
}

/// What is wrong with kustomizations: files that are not there, and files that none of them takes in.
fn gaps(read: &dyn Fn(&str) -> Option<String>, present: &BTreeSet<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut taken: BTreeSet<String> = OPTIONAL.iter().chain(&KUSTOMIZATIONS).map(|&name| name.to_owned()).collect();
    for name in KUSTOMIZATIONS {
        let (base, _) = name.split_once('/').unwrap();
        let kustomization: Value = serde_norway::from_str(&read(name).unwrap()).unwrap();
        assert_eq!(kustomization["kind"], "Kustomization");
        for resource in kustomization["resources"].as_array().unwrap() {
            let resource = resource.as_str().unwrap();
            let file = match resource.strip_prefix("../") {
                Some(other) => format!("{other}/kustomization.yaml"),
                None => format!("{base}/{resource}"),
            };
            if read(&file).is_none() {
                wrong.push(format!("{file} is not there"));
            }
            taken.insert(file);
        }
    }
    wrong.extend(present.difference(&taken).map(|file| format!("{file} is in no kustomization")));
    wrong
}

#[test]
fn kustomizations_take_in_what_is_there() {
    let read = |name: &str| std::fs::read_to_string(folder().join(name)).ok();
    let mut present = BTreeSet::new();
    for base in ["kubernetes", "istio", "gateway"] {
        let names = folder().join(base).read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        present.extend(names.map(|name| format!("{base}/{}", name.into_string().unwrap())));
    }
    assert_eq!(gaps(&read, &present), Vec::<String>::new());
    for name in &OPTIONAL {
        assert!(present.contains(*name), "{name}");
    }
    // It would be told.
    present.insert("istio/new.yaml".to_owned());
    let without_hub = |name: &str| (name != "kubernetes/hub.yaml").then(|| read(name)).flatten();
    let expected = ["kubernetes/hub.yaml is not there", "istio/new.yaml is in no kustomization"];
    assert_eq!(gaps(&without_hub, &present), expected);
}

#[test]
fn every_manifest_has_a_kind_a_name_and_a_namespace() {
    for base in ["kubernetes", "istio", "gateway"] {
        for entry in folder().join(base).read_dir().unwrap() {
            let path = entry.unwrap().path();
            for document in documents(&std::fs::read_to_string(&path).unwrap()) {
                let kind = document["kind"].as_str().unwrap_or_else(|| panic!("{}", path.display()));
                assert!(document["apiVersion"].is_string(), "{}", path.display());
                let of_cluster = ["Namespace", "GatewayClass"].contains(&kind);
                if kind != "Kustomization" {
                    assert!(document["metadata"]["name"].is_string(), "{}", path.display());
                    assert_eq!(document["metadata"]["namespace"].is_string(), !of_cluster, "{}", path.display());
                }
            }
        }
    }
}

#[test]
fn the_hubs_configuration_is_one() {
    let text = of_kind(HUB, "ConfigMap")["data"]["hub.yaml"].as_str().unwrap().to_owned();
    // A hub built without Kubernetes has nothing else to object to.
    let problems = HubConfig::from_yaml(&text).map_or_else(|invalid| invalid.problems, |_| Vec::new());
    let of_the_build = problems.iter().filter(|line| line.contains("without the feature `kubernetes`")).count();
    assert_eq!(
        (problems.len(), of_the_build),
        (of_the_build, usize::from(!cfg!(feature = "kubernetes"))),
        "{problems:?}"
    );
    let wrong = text.replace("label_selector", "label_selectors");
    let invalid = HubConfig::from_yaml(&wrong).unwrap_err();
    assert!(invalid.problems.iter().any(|line| line.contains("label_selectors")), "{:?}", invalid.problems);
}

#[test]
fn hub_pool_and_filters_find_each_other() {
    let hub = of_kind(HUB, "Deployment");
    let pod = &hub["spec"]["template"];
    let container = &pod["spec"]["containers"][0];
    let service = of_kind(HUB, "Service");
    assert_eq!(hub["spec"]["selector"]["matchLabels"]["app"], pod["metadata"]["labels"]["app"]);
    assert_eq!(service["spec"]["selector"]["app"], pod["metadata"]["labels"]["app"]);
    let ports = BTreeSet::from([9090, 8081]);
    assert_eq!(numbers(&container["ports"], "containerPort"), ports);
    assert_eq!(numbers(&service["spec"]["ports"], "port"), ports);
    let config: Value =
        serde_norway::from_str(of_kind(HUB, "ConfigMap")["data"]["hub.yaml"].as_str().unwrap()).unwrap();
    assert_eq!(config["listen"], json!({ "grpc": "0.0.0.0:9090", "http": "0.0.0.0:8081" }));
    assert_eq!(container["args"][1], "/etc/warmroute/hub.yaml");
    assert_eq!(container["volumeMounts"][0]["mountPath"], "/etc/warmroute");
    // Where every filter looks for it, as the other tests of these files have it.
    let host = format!(
        "{}.{}.svc.cluster.local",
        service["metadata"]["name"].as_str().unwrap(),
        service["metadata"]["namespace"].as_str().unwrap(),
    );
    assert_eq!(host, "warmroute-hub.llm.svc.cluster.local");

    let rules = of_kind(HUB, "Role")["rules"].clone();
    assert_eq!(rules, json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"] }]));
    assert_eq!(of_kind(HUB, "RoleBinding")["subjects"][0]["name"], pod["spec"]["serviceAccountName"]);

    let pool = of_kind(POOL, "Deployment")["spec"]["template"].clone();
    let found = &config["discovery"]["kubernetes"][0];
    let (label, value) = found["label_selector"].as_str().unwrap().split_once('=').unwrap();
    assert_eq!(pool["metadata"]["labels"][label], *value);
    assert_eq!(pool["metadata"]["labels"][found["model_label"].as_str().unwrap()], "llama-3.1-8b");
    let engine = &pool["spec"]["containers"][0];
    let replica = &found["replica"];
    let wanted = [&found["port"], &replica["kv_events_port"], &replica["kv_replay_port"]];
    let wanted: BTreeSet<u64> = wanted.map(|port| port.as_u64().unwrap()).into();
    assert_eq!(numbers(&engine["ports"], "containerPort"), wanted);
    assert_eq!(of_kind(POOL, "Service")["spec"]["ports"][0]["port"], found["port"]);
    let arguments: Vec<&str> = engine["args"].as_array().unwrap().iter().map(|value| value.as_str().unwrap()).collect();
    assert!(arguments.contains(&"--enable-prefix-caching") && arguments.contains(&"--served-model-name=llama-3.1-8b"));
    let events = arguments.iter().find_map(|argument| argument.strip_prefix("--kv-events-config=")).unwrap();
    let events: Value = serde_json::from_str(events).unwrap();
    let expected = json!({
        "enable_kv_cache_events": true,
        "publisher": "zmq",
        "endpoint": format!("tcp://*:{}", replica["kv_events_port"]),
        "replay_endpoint": format!("tcp://*:{}", replica["kv_replay_port"]),
    });
    assert_eq!(events, expected);
    assert_eq!(of_kind(DESTINATION_RULE, "DestinationRule")["spec"]["host"], "vllm.llm.svc.cluster.local");
    assert_eq!(documents(NAMESPACE)[0]["metadata"]["name"], "llm");
}

/// The namespaces that a policy lets in at a port.
fn let_in(policy: &Value, port: u64) -> BTreeSet<String> {
    let rules = policy["spec"]["ingress"].as_array().unwrap().iter();
    let rules = rules.filter(|rule| numbers(&rule["ports"], "port").contains(&port));
    let selectors = rules.flat_map(|rule| rule["from"].as_array().unwrap());
    let names = selectors.filter_map(|from| from["namespaceSelector"]["matchExpressions"][0]["values"].as_array());
    names.flatten().map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[test]
fn network_policies_let_the_filters_in_and_nobody_at_the_events() {
    let (hub, pool) = (of_kind(HUB, "NetworkPolicy"), of_kind(POOL, "NetworkPolicy"));
    for namespace in ["istio-ingress", "agents", "envoy-gateway-system"] {
        assert!(let_in(&hub, 9090).contains(namespace) && let_in(&pool, 8000).contains(namespace), "{namespace}");
    }
    assert!(let_in(&pool, 5557).is_empty() && let_in(&pool, 5558).is_empty());
}

/// The labels of the filter's metrics are the same everywhere.
#[test]
fn stats_tags_are_those_of_the_sample() {
    let sample: Value = serde_norway::from_str(warmroute::native::load::envoy_config::SHIPPED).unwrap();
    let expected = &sample["stats_config"]["stats_tags"];
    assert_eq!(expected.as_array().unwrap().len(), 9);
    let map = of_kind(STATS_TAGS, "ConfigMap");
    let bootstrap: Value = serde_json::from_str(map["data"]["custom_bootstrap.json"].as_str().unwrap()).unwrap();
    assert_eq!(bootstrap, json!({ "stats_config": { "stats_tags": expected } }));
    let proxy = of_kind(PROXY, "EnvoyProxy")["spec"]["bootstrap"]["value"].clone();
    let bootstrap: Value = serde_norway::from_str(proxy.as_str().unwrap()).unwrap();
    assert_eq!(bootstrap, json!({ "stats_config": { "stats_tags": expected } }));
}

/// Where the filters expect the module, and what the bootstrap is read from.
#[test]
fn the_module_is_mounted_where_filters_look_for_it() {
    let gateway = of_kind(GATEWAY_DEPLOYMENT, "Deployment")["spec"]["template"]["spec"].clone();
    let proxy = of_kind(PROXY, "EnvoyProxy")["spec"]["provider"]["kubernetes"]["envoyDeployment"].clone();
    let mounts = [
        (&gateway["containers"][0]["volumeMounts"][0], &gateway["volumes"][0]),
        (&proxy["container"]["volumeMounts"][0], &proxy["pod"]["volumes"][0]),
    ];
    for (mount, volume) in mounts {
        assert_eq!((&mount["mountPath"], &mount["name"]), (&json!("/etc/warmroute"), &volume["name"]));
        assert!(volume["image"]["reference"].is_string());
    }
    let map = of_kind(STATS_TAGS, "ConfigMap");
    assert_eq!(gateway["volumes"][1]["configMap"]["name"], map["metadata"]["name"]);
    let file = map["data"].as_object().unwrap().keys().next().unwrap();
    let path = format!("{}/{file}", gateway["containers"][0]["volumeMounts"][1]["mountPath"].as_str().unwrap());
    assert_eq!(gateway["containers"][0]["env"][0]["value"], path);
}

/// Every file in `envoy/` is on one of the two pages about them, and every file that they link to is there.
#[test]
fn the_pages_name_every_file() {
    let docs = folder().join("../docs");
    let pages = ["envoy.md", "kubernetes.md"].map(|name| std::fs::read_to_string(docs.join(name)).unwrap()).concat();
    for base in [".", "ecds", "kubernetes", "istio", "gateway"] {
        for entry in folder().join(base).read_dir().unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            let is_within = ["kustomization.yaml", "namespace.yaml"].contains(&name.as_str()) || base == "kubernetes";
            assert!(is_within || pages.contains(&name), "{base}/{name}");
        }
    }
    for link in pages.split("](").skip(1).map(|rest| rest.split([')', '#']).next().unwrap()) {
        assert!(link.is_empty() || docs.join(link).exists(), "{link}");
    }
}
