//! The section `discovery`: where replicas are found beside those that `replicas` lists.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::template::{RawTemplate, ReplicaTemplate, port, template};
use crate::native::hub::problems::Problems;

/// `discovery.initial_timeout_ms`.
pub const INITIAL_TIMEOUT_MS: u64 = 10_000;
/// `discovery.files[].poll_ms`.
pub const FILE_POLL_MS: u64 = 1_000;
/// `discovery.dns[].min_ttl_ms`.
pub const MIN_TTL_MS: u64 = 1_000;
/// `discovery.dns[].max_ttl_ms`.
pub const MAX_TTL_MS: u64 = 30_000;
/// `discovery.dns[].keep_ms`.
pub const KEEP_MS: u64 = 60_000;

/// The most sources of one kind.
const MAX_SOURCES: usize = 64;
/// The longest domain name, in bytes.
const MAX_DOMAIN_BYTES: usize = 253;
/// Where name servers are asked unless a port is named.
const DOMAIN_PORT: u16 = 53;

/// Where replicas are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryConfig {
    /// How long after the start the hub counts as not ready while one of these has not answered.
    pub initial_timeout: Duration,
    /// Files of replicas.
    pub files: Vec<FileDiscovery>,
    /// Domain names.
    pub dns: Vec<DnsDiscovery>,
    /// Pods.
    pub kubernetes: Vec<KubernetesDiscovery>,
}

/// A file with a list of replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDiscovery {
    /// The file, YAML or JSON.
    pub path: PathBuf,
    /// How often it is read.
    pub poll: Duration,
}

/// A domain name that has a record for each replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsDiscovery {
    /// The name.
    pub name: String,
    /// What its records are.
    pub records: DnsRecords,
    /// The least and the most time until it is asked for again, whatever its records say.
    pub ttl: (Duration, Duration),
    /// How long what is known stays when it is answered no more.
    pub keep: Duration,
    /// Who is asked; empty: whom the system asks.
    pub name_servers: Vec<SocketAddr>,
    /// What the replicas are beside their addresses.
    pub template: ReplicaTemplate,
}

/// The kind of record that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsRecords {
    /// IPv4 addresses, with the replicas' port.
    A(u16),
    /// IPv6 addresses, with the replicas' port.
    Aaaa(u16),
    /// Names and ports.
    Srv,
}

/// Pods with some labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesDiscovery {
    /// Their namespace.
    pub namespace: PodNamespace,
    /// Which labels they have, as `kubectl get -l` takes it.
    pub label_selector: String,
    /// The replicas' port.
    pub port: u16,
    /// The label whose value is the model; `None`: the template has it.
    pub model_label: Option<String>,
    /// Whether a pod's namespace is its tenant, rather than the template's.
    pub tenant_from_namespace: bool,
    /// How the API is reached; `None`: from inside a pod, or as `kubectl` would.
    pub kubeconfig: Option<PathBuf>,
    /// What the replicas are beside their addresses.
    pub template: ReplicaTemplate,
}

/// Where pods are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodNamespace {
    /// In the namespace of the hub itself.
    Own,
    /// In all of them.
    All,
    /// In this one.
    Named(String),
}

/// `discovery` as written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawDiscovery {
    initial_timeout_ms: Option<u64>,
    #[serde(default)]
    files: Vec<RawFile>,
    #[serde(default)]
    dns: Vec<RawDns>,
    #[serde(default)]
    kubernetes: Vec<RawKubernetes>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    path: PathBuf,
    poll_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
enum RawRecords {
    #[default]
    A,
    #[serde(rename = "AAAA")]
    Aaaa,
    #[serde(rename = "SRV")]
    Srv,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDns {
    name: String,
    #[serde(default, rename = "type")]
    records: RawRecords,
    port: Option<u64>,
    min_ttl_ms: Option<u64>,
    max_ttl_ms: Option<u64>,
    keep_ms: Option<u64>,
    #[serde(default)]
    name_servers: Vec<String>,
    replica: RawTemplate,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKubernetes {
    namespace: Option<String>,
    label_selector: String,
    port: u64,
    model_label: Option<String>,
    #[serde(default)]
    tenant_from_namespace: bool,
    kubeconfig: Option<PathBuf>,
    #[serde(default)]
    replica: RawTemplate,
}

// === impl DiscoveryConfig ===

impl Default for DiscoveryConfig {
    fn default() -> DiscoveryConfig {
        DiscoveryConfig {
            initial_timeout: Duration::from_millis(INITIAL_TIMEOUT_MS),
            files: Vec::new(),
            dns: Vec::new(),
            kubernetes: Vec::new(),
        }
    }
}

impl DiscoveryConfig {
    /// Whether there is nothing to be discovered.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.dns.is_empty() && self.kubernetes.is_empty()
    }

    /// The models that it names.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        let of_names = self.dns.iter().map(|dns| dns.template.model.as_str());
        of_names.chain(self.kubernetes.iter().map(|pods| pods.template.model.as_str()))
    }
}

/// Checks `discovery`.
pub fn discovery(raw: RawDiscovery, problems: &mut Problems) -> DiscoveryConfig {
    let counts = [("files", raw.files.len()), ("dns", raw.dns.len()), ("kubernetes", raw.kubernetes.len())];
    for (kind, count) in counts.into_iter().filter(|(_, count)| *count > MAX_SOURCES) {
        problems.add(&format!("discovery.{kind}"), format!("{count} entries"), &format!("0 to {MAX_SOURCES}"));
    }
    if !raw.kubernetes.is_empty() && !cfg!(feature = "kubernetes") {
        let allowed = "none: this hub was built without the feature `kubernetes`";
        problems.add("discovery.kubernetes", format!("{} entries", raw.kubernetes.len()), allowed);
    }
    let timeout = raw.initial_timeout_ms;
    let initial_timeout = problems.millis("discovery.initial_timeout_ms", timeout, INITIAL_TIMEOUT_MS, 0, 600_000);
    let at = |kind: &str, at: usize| format!("discovery.{kind}[{at}]");
    let files = raw.files.into_iter().enumerate().map(|(n, raw)| file(&at("files", n), raw, problems)).collect();
    let dns = raw.dns.into_iter().enumerate().map(|(n, raw)| dns(&at("dns", n), raw, problems)).collect();
    let kubernetes = raw.kubernetes.into_iter().enumerate();
    let kubernetes = kubernetes.map(|(n, raw)| kubernetes_pods(&at("kubernetes", n), raw, problems)).collect();
    DiscoveryConfig { initial_timeout, files, dns, kubernetes }
}

fn file(at: &str, raw: RawFile, problems: &mut Problems) -> FileDiscovery {
    if raw.path.as_os_str().is_empty() {
        problems.add(&format!("{at}.path"), "", "a path");
    }
    let poll = problems.millis(&format!("{at}.poll_ms"), raw.poll_ms, FILE_POLL_MS, 50, 600_000);
    FileDiscovery { path: raw.path, poll }
}

fn dns(at: &str, raw: RawDns, problems: &mut Problems) -> DnsDiscovery {
    if !is_domain(&raw.name) {
        problems.add(&format!("{at}.name"), &raw.name, "a domain name");
    }
    let records = match (raw.records, raw.port) {
        (RawRecords::A, value) => DnsRecords::A(required_port(at, value, problems)),
        (RawRecords::Aaaa, value) => DnsRecords::Aaaa(required_port(at, value, problems)),
        (RawRecords::Srv, value) => {
            if let Some(value) = value {
                problems.add(&format!("{at}.port"), value, "none with `type: SRV`, whose records have it");
            }
            DnsRecords::Srv
        }
    };
    let hour = 3_600_000;
    let min = problems.millis(&format!("{at}.min_ttl_ms"), raw.min_ttl_ms, MIN_TTL_MS, 50, hour);
    let max = problems.millis(&format!("{at}.max_ttl_ms"), raw.max_ttl_ms, MAX_TTL_MS.max(min_ms(&min)), 50, hour);
    if max < min {
        let allowed = format!("at least min_ttl_ms, which is {}", min.as_millis());
        problems.add(&format!("{at}.max_ttl_ms"), max.as_millis(), &allowed);
    }
    let keep = problems.millis(&format!("{at}.keep_ms"), raw.keep_ms, KEEP_MS, 0, 24 * hour);
    let name_servers = raw.name_servers.iter().filter_map(|server| {
        let address = server.parse().ok();
        let address = address.or_else(|| Some(SocketAddr::new(server.parse::<IpAddr>().ok()?, DOMAIN_PORT)));
        if address.is_none() {
            problems.add(&format!("{at}.name_servers"), server, "ip or ip:port, IPv6 in brackets");
        }
        address
    });
    let name_servers = name_servers.collect();
    let template = template(&format!("{at}.replica"), raw.replica, true, problems);
    DnsDiscovery { name: raw.name, records, ttl: (min, max), keep, name_servers, template }
}

fn min_ms(time: &Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn required_port(at: &str, value: Option<u64>, problems: &mut Problems) -> u16 {
    let field = format!("{at}.port");
    if value.is_none() {
        problems.add(&field, "", "the replicas' port, 1 to 65535");
    }
    port(&field, value, 1, problems)
}

fn kubernetes_pods(at: &str, raw: RawKubernetes, problems: &mut Problems) -> KubernetesDiscovery {
    let namespace = match raw.namespace.as_deref() {
        None => PodNamespace::Own,
        Some("*") => PodNamespace::All,
        Some(name) => {
            if !is_label(name) {
                problems.add(&format!("{at}.namespace"), name, "a namespace, or `*` for all");
            }
            PodNamespace::Named(name.to_owned())
        }
    };
    problems.name(&format!("{at}.label_selector"), &raw.label_selector);
    if let Some(label) = &raw.model_label {
        problems.name(&format!("{at}.model_label"), label);
    }
    let port = port(&format!("{at}.port"), Some(raw.port), 1, problems);
    let needs_model = raw.model_label.is_none();
    KubernetesDiscovery {
        namespace,
        label_selector: raw.label_selector,
        port,
        model_label: raw.model_label,
        tenant_from_namespace: raw.tenant_from_namespace,
        kubeconfig: raw.kubeconfig,
        template: template(&format!("{at}.replica"), raw.replica, needs_model, problems),
    }
}

/// Whether `name` is a domain name; underscores are usual in those of services.
fn is_domain(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_part = |part: &str| {
        (1..=63).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    name.len() <= MAX_DOMAIN_BYTES && name.split('.').all(is_part)
}

/// Whether `name` is what Kubernetes calls an RFC 1123 label.
fn is_label(name: &str) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    let ends_are_words = bytes.first().is_some_and(is_word) && bytes.last().is_some_and(is_word);
    bytes.len() <= 63 && ends_are_words && bytes.iter().all(|byte| is_word(byte) || *byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::hub::config::{EngineKind, HubConfig};

    fn read(yaml: &str) -> Result<DiscoveryConfig, Vec<String>> {
        let config = HubConfig::from_yaml(&format!("discovery:\n  {yaml}"));
        config.map(|config| config.discovery).map_err(|invalid| invalid.problems)
    }

    #[test]
    fn each_kind_is_read_with_its_defaults() {
        let found = read(
            "{files: [{path: /etc/replicas.yaml}], dns: [{name: vllm.llm.svc, port: 8000, replica: {model: m}}, \
             {name: _http._tcp.vllm.llm.svc., type: SRV, min_ttl_ms: 60000, name_servers: [10.0.0.10, '[::1]:5353'], \
             replica: {model: n, engine: sglang, kv_events_port: 6000, kv_replay_port: 6001}}]}",
        )
        .unwrap();
        assert_eq!(found.initial_timeout, Duration::from_secs(10));
        assert_eq!(found.files, [FileDiscovery { path: "/etc/replicas.yaml".into(), poll: Duration::from_secs(1) }]);
        let [a, srv] = &found.dns[..] else { panic!("{:?}", found.dns) };
        assert_eq!(
            (a.records, a.ttl.0.as_secs(), a.ttl.1.as_secs(), a.keep.as_secs()),
            (DnsRecords::A(8_000), 1, 30, 60)
        );
        let replica = a.template.replica("a".into(), "10.0.0.7:8000".parse().unwrap());
        assert_eq!((replica.kv_events.as_str(), replica.kv_replay), ("tcp://10.0.0.7:5557", None));
        assert_eq!(
            (replica.metrics.to_string().as_str(), replica.tenant.as_str()),
            ("http://10.0.0.7:8000/metrics", "default")
        );
        assert_eq!((srv.records, srv.ttl.1.as_secs(), srv.template.engine), (DnsRecords::Srv, 60, EngineKind::Sglang));
        assert_eq!(srv.name_servers, ["10.0.0.10:53".parse().unwrap(), "[::1]:5353".parse().unwrap()]);
        let replica = srv.template.replica("a".into(), "[::1]:80".parse().unwrap());
        assert_eq!(
            (replica.kv_events.as_str(), replica.kv_replay.as_deref()),
            ("tcp://[::1]:6000", Some("tcp://[::1]:6001"))
        );
    }

    #[test]
    fn each_wrong_value_is_one_line_with_field_value_and_what_is_allowed() {
        let found = read(
            "{initial_timeout_ms: 600001, files: [{path: '', poll_ms: 1}], dns: [{name: 'a b', min_ttl_ms: 500, \
             max_ttl_ms: 100, name_servers: [ns1], replica: {metrics_path: x, kv_events_port: 0, block_size: 0}}, \
             {name: x, type: SRV, port: 1, replica: {model: m, data_parallel_size: 0}}]}",
        );
        let expected = [
            "discovery.initial_timeout_ms is `600001`, allowed is 0 to 600000",
            "discovery.files[0].path is ``, allowed is a path",
            "discovery.files[0].poll_ms is `1`, allowed is 50 to 600000",
            "discovery.dns[0].name is `a b`, allowed is a domain name",
            "discovery.dns[0].port is ``, allowed is the replicas' port, 1 to 65535",
            "discovery.dns[0].max_ttl_ms is `100`, allowed is at least min_ttl_ms, which is 500",
            "discovery.dns[0].name_servers is `ns1`, allowed is ip or ip:port, IPv6 in brackets",
            "discovery.dns[0].replica.model is ``, allowed is 1 to 256 bytes",
            "discovery.dns[0].replica.block_size is `0`, allowed is 1 to 65536 tokens",
            "discovery.dns[0].replica.metrics_path is `x`, allowed is a path that begins with /",
            "discovery.dns[0].replica.kv_events_port is `0`, allowed is 1 to 65535",
            "discovery.dns[1].port is `1`, allowed is none with `type: SRV`, whose records have it",
            "discovery.dns[1].replica.data_parallel_size is `0`, allowed is 1 to 1024",
        ];
        assert_eq!(found.unwrap_err(), expected);
        assert!(read("{dns: [{name: x, type: MX, port: 1, replica: {model: m}}]}").unwrap_err()[0].contains("MX"));
        assert!(read("{consul: []}").unwrap_err()[0].contains("consul"));
        assert!(read("{}").unwrap_err()[0].starts_with("replicas is `0 entries`"), "nothing is followed");
    }

    #[test]
    fn pods_are_found_where_the_hub_was_built_for_it() {
        let yaml = "{kubernetes: [{label_selector: app=vllm, port: 8000, namespace: '*', model_label: model, \
                    tenant_from_namespace: true}, {namespace: UP, label_selector: '', port: 0}]}";
        let built = cfg!(feature = "kubernetes");
        let problems = read(yaml).unwrap_err();
        let without = "discovery.kubernetes is `2 entries`, allowed is none: this hub was built without the feature \
                       `kubernetes`";
        assert_eq!(problems.iter().any(|problem| problem == without), !built);
        for problem in [
            "discovery.kubernetes[1].namespace is `UP`, allowed is a namespace, or `*` for all",
            "discovery.kubernetes[1].label_selector is ``, allowed is 1 to 256 bytes",
            "discovery.kubernetes[1].port is `0`, allowed is 1 to 65535",
            "discovery.kubernetes[1].replica.model is ``, allowed is 1 to 256 bytes",
        ] {
            assert!(problems.iter().any(|found| found == problem), "{problem} is not in {problems:?}");
        }
        assert!(!problems.iter().any(|problem| problem.contains("kubernetes[0]")), "{problems:?}");
    }

    #[test]
    fn the_pages_examples_are_taken() {
        let page = include_str!("../../../../docs/discovery.md");
        let examples: Vec<&str> = page.split("```yaml\n").skip(1).filter_map(|part| part.split("```").next()).collect();
        assert_eq!(examples.len(), 2);
        for example in examples {
            let problems = HubConfig::from_yaml(example).err().map(|invalid| invalid.problems).unwrap_or_default();
            let unexpected = problems.iter().find(|problem| !problem.contains("without the feature"));
            assert_eq!(unexpected, None);
        }
    }
}
