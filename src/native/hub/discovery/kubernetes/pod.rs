//! What a pod says of the replica in it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Pod;

use crate::fingerprint::BlockSize;
use crate::native::hub::config::{
    EngineKind, KubernetesDiscovery, PodNamespace, ReplicaConfig, ReplicaTemplate, is_path,
};

/// What annotations begin with.
const PREFIX: &str = "warmroute.io/";

/// What follows in those that are read.
pub const ANNOTATIONS: [&str; 12] = [
    "port",
    "kv-events-port",
    "kv-replay-port",
    "metrics-port",
    "metrics-path",
    "model",
    "tenant",
    "hash-scheme",
    "topic",
    "block-size",
    "engine",
    "data-parallel-size",
];

/// The longest name, in bytes.
const MAX_NAME_BYTES: usize = 256;
/// The most ranks.
const MAX_RANKS: u32 = 1_024;

/// Which pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodKey {
    namespace: String,
    name: String,
}

pub(super) fn key(pod: &Pod) -> PodKey {
    let (namespace, name) = (pod.metadata.namespace.clone(), pod.metadata.name.clone());
    PodKey { namespace: namespace.unwrap_or_default(), name: name.unwrap_or_default() }
}

/// The replica of a pod; `None` while it is not ready, has no address, or is on its way out.
///
/// # Errors
/// When a label or an annotation is not what it must be, in words.
pub(super) fn replica(pod: &Pod, config: &KubernetesDiscovery) -> Result<Option<ReplicaConfig>, String> {
    if !is_ready(pod) {
        return Ok(None);
    }
    let Some(ip) = address(pod) else { return Ok(None) };
    let PodKey { namespace, name } = key(pod);
    // Names differ within a namespace only.
    let id = if config.namespace == PodNamespace::All { format!("{namespace}/{name}") } else { name };
    let mut template = config.template.clone();
    let labelled = config.model_label.as_ref().and_then(|label| pod.metadata.labels.as_ref()?.get(label));
    template.model = labelled.cloned().unwrap_or(template.model);
    if config.tenant_from_namespace {
        template.tenant = namespace;
    }
    let mut port = config.port;
    for (annotation, value) in pod.metadata.annotations.iter().flatten() {
        if let Some(field) = annotation.strip_prefix(PREFIX) {
            let allowed = overridden(field, value, &mut template, &mut port);
            allowed.map_err(|allowed| format!("{annotation} is `{value}`, allowed is {allowed}"))?;
        }
    }
    if template.model.is_empty() {
        let label = config.model_label.as_deref().unwrap_or_default();
        return Err(format!("it has no label {label}, which is the model"));
    }
    Ok(Some(template.replica(id, SocketAddr::new(ip, port))))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let is_ready =
        |condition: &k8s_openapi::api::core::v1::PodCondition| condition.type_ == "Ready" && condition.status == "True";
    pod.metadata.deletion_timestamp.is_none() && conditions.is_some_and(|conditions| conditions.iter().any(is_ready))
}

fn address(pod: &Pod) -> Option<IpAddr> {
    pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

/// Sets what an annotation says. Of those that are not ours some other version may know.
///
/// # Errors
/// What is allowed, if its value is not.
fn overridden(field: &str, value: &str, template: &mut ReplicaTemplate, port: &mut u16) -> Result<(), String> {
    match field {
        "port" => *port = port_of(value)?,
        "kv-events-port" => template.kv_events_port = port_of(value)?,
        "kv-replay-port" => template.kv_replay_port = Some(port_of(value)?),
        "metrics-port" => template.metrics_port = Some(port_of(value)?),
        "metrics-path" if is_path(value) => template.metrics_path = Some(value.to_owned()),
        "metrics-path" => return Err("a path that begins with /".to_owned()),
        "model" => template.model = name_of(value)?,
        "tenant" => template.tenant = name_of(value)?,
        "hash-scheme" => template.hash_scheme = name_of(value)?,
        "topic" => template.topic = value.to_owned(),
        "block-size" => {
            let size = value.parse().ok().and_then(|tokens: u64| BlockSize::try_new(tokens).ok());
            template.block_size = Some(size.ok_or_else(|| format!("1 to {} tokens", BlockSize::MAX))?);
        }
        "engine" => {
            template.engine = EngineKind::ALL
                .into_iter()
                .find(|engine| engine.as_str() == value)
                .ok_or_else(|| EngineKind::ALL.map(EngineKind::as_str).join(", "))?;
        }
        "data-parallel-size" => {
            let ranks = value.parse().ok().filter(|ranks| (1..=MAX_RANKS).contains(ranks));
            template.data_parallel_size = ranks.ok_or_else(|| format!("1 to {MAX_RANKS}"))?;
        }
        _ => return Err(format!("no such annotation; known are {}", ANNOTATIONS.join(", "))),
    }
    Ok(())
}

fn port_of(value: &str) -> Result<u16, String> {
    value.parse().ok().filter(|port| *port != 0).ok_or_else(|| "1 to 65535".to_owned())
}

fn name_of(value: &str) -> Result<String, String> {
    let is_name = !value.is_empty() && value.len() <= MAX_NAME_BYTES;
    is_name.then(|| value.to_owned()).ok_or_else(|| format!("1 to {MAX_NAME_BYTES} bytes"))
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::hub::config::HubConfig;

    fn config(more: &str) -> KubernetesDiscovery {
        let yaml = format!("discovery: {{kubernetes: [{{label_selector: app=vllm, port: 8000{more}}}]}}");
        HubConfig::from_yaml(&yaml).unwrap().discovery.kubernetes.remove(0)
    }

    fn pod(yaml: &str) -> Pod {
        serde_norway::from_str(yaml).unwrap()
    }

    const READY: &str = "metadata: {name: p-0, namespace: llm, labels: {model: m}, annotations: {A}}\n\
        status: {podIP: 10.0.0.7, conditions: [{type: Initialized, status: 'True'}, {type: Ready, status: 'True'}]}";

    #[test]
    fn a_ready_pod_is_a_replica() {
        let ready = pod(&READY.replace("{A}", "{other.io/x: y}"));
        let found = replica(&ready, &config(", model_label: model, tenant_from_namespace: true")).unwrap().unwrap();
        assert_eq!((found.id.as_str(), found.address.as_str()), ("p-0", "10.0.0.7:8000"));
        assert_eq!((found.model.as_str(), found.tenant.as_str()), ("m", "llm"));
        assert_eq!((found.kv_events.as_str(), found.kv_replay), ("tcp://10.0.0.7:5557", None));
        let fixed = replica(&ready, &config(", replica: {model: n, kv_replay_port: 5558}")).unwrap().unwrap();
        assert_eq!((fixed.model.as_str(), fixed.tenant.as_str()), ("n", "default"));
        assert_eq!(fixed.kv_replay.as_deref(), Some("tcp://10.0.0.7:5558"));
    }

    #[test]
    fn pods_of_all_namespaces_have_the_namespace_in_their_ids() {
        let id = |namespace: &str, config: &KubernetesDiscovery| {
            let text = READY.replace("{A}", "{}").replace("namespace: llm", &format!("namespace: {namespace}"));
            replica(&pod(&text), config).unwrap().unwrap().id
        };
        let all = config(", namespace: '*', replica: {model: n}");
        assert_eq!((id("llm", &all), id("other", &all)), ("llm/p-0".to_owned(), "other/p-0".to_owned()));
        for one in [config(", replica: {model: n}"), config(", namespace: llm, replica: {model: n}")] {
            assert_eq!(id("llm", &one), "p-0");
        }
    }

    #[test]
    fn a_pod_that_is_not_ready_or_not_there_is_none() {
        let config = config(", replica: {model: n}");
        let ready = READY.replace("{A}", "{}");
        for other in [
            ready.replace("type: Ready, status: 'True'", "type: Ready, status: 'False'"),
            ready.replace("podIP: 10.0.0.7, ", ""),
            ready.replace("10.0.0.7", "''"),
            ready.replace("{name: p-0", "{deletionTimestamp: '2026-01-01T00:00:00Z', name: p-0"),
            "metadata: {name: p-0}".to_owned(),
        ] {
            assert_eq!(replica(&pod(&other), &config), Ok(None), "{other}");
        }
        assert!(replica(&pod(&ready), &config).unwrap().is_some());
    }

    #[test]
    fn annotations_override_and_what_is_wrong_is_named() {
        let config = config(", replica: {model: n}");
        let with = |annotations: &str| replica(&pod(&READY.replace("{A}", annotations)), &config);
        let all = "{warmroute.io/port: '80', warmroute.io/kv-events-port: '81', warmroute.io/kv-replay-port: '82', \
             warmroute.io/metrics-port: '83', warmroute.io/metrics-path: /m, warmroute.io/model: x, \
             warmroute.io/tenant: t, warmroute.io/hash-scheme: h, warmroute.io/topic: k, warmroute.io/block-size: '64', \
             warmroute.io/engine: sglang, warmroute.io/data-parallel-size: '2'}";
        assert_eq!(all.matches(PREFIX).count(), ANNOTATIONS.len());
        let found = with(all).unwrap().unwrap();
        assert_eq!(
            (found.address.as_str(), found.kv_events.as_str(), found.kv_replay.as_deref(), found.metrics.to_string()),
            ("10.0.0.7:80", "tcp://10.0.0.7:81", Some("tcp://10.0.0.7:82"), "http://10.0.0.7:83/m".to_owned())
        );
        assert_eq!((found.model.as_str(), found.tenant.as_str(), found.hash_scheme.as_str()), ("x", "t", "h"));
        assert_eq!((found.engine, found.data_parallel_size, found.topic.as_str()), (EngineKind::Sglang, 2, "k"));
        for (annotation, value, allowed) in [
            ("port", "0", "1 to 65535"),
            ("kv-events-port", "x", "1 to 65535"),
            ("metrics-path", "m", "a path that begins with /"),
            ("model", "", "1 to 256 bytes"),
            ("block-size", "0", "1 to 65536 tokens"),
            ("engine", "tgi", "auto, vllm, sglang, tensorrt_llm"),
            ("data-parallel-size", "-1", "1 to 1024"),
            ("prot", "1", "no such annotation"),
        ] {
            let problem = with(&format!("{{warmroute.io/{annotation}: '{value}'}}")).unwrap_err();
            let expected = format!("warmroute.io/{annotation} is `{value}`, allowed is {allowed}");
            assert!(problem.starts_with(&expected), "{problem}");
        }
    }

    #[test]
    fn a_pod_without_the_label_that_is_its_model_is_left_out() {
        let problem = replica(&pod(&READY.replace("{A}", "{}")), &config(", model_label: l")).unwrap_err();
        assert_eq!(problem, "it has no label l, which is the model");
    }
}
