//! The sections `reports` and `models`: what other producers may report, and the block sizes of prompts that come over
//! the contract's LookupRoute.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use serde::Deserialize;

use crate::config::{Adapter, RESERVED_TENANT};
use crate::fingerprint::BlockSize;
use crate::native::hub::problems::{Problems, is_host_and_port};

/// `reports.max_entries`; the contract's number.
pub const MAX_ENTRIES: u64 = 1_000_000;
/// `reports.future_tolerance_ms`.
pub const FUTURE_TOLERANCE_MS: u64 = 60_000;

/// The most that `reports.max_entries` can be.
const MOST_ENTRIES: u64 = 64_000_000;
/// The most entries in a map or list.
const MAX_ITEMS: usize = 4_096;
/// What a template's places are filled with to see whether it can be an address.
const EXAMPLE: &str = "example";

/// What other producers may report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportsConfig {
    /// The most reported (replica, prefix) entries in all; 0 is no limit.
    pub max_entries: u64,
    /// The most distinct prefixes, by tenant.
    pub quotas: BTreeMap<String, u64>,
    /// How far in the future a report's time may be.
    pub future_tolerance: Duration,
    /// Where Envoy reaches replicas, `host:port` by id.
    pub addresses: BTreeMap<String, String>,
    /// The `host:port` of any other replica, with `{replica_id}` and `{tenant_id}`.
    pub address_template: Option<String>,
}

/// The block size of a model's prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelBlocks {
    /// The model.
    pub model_id: String,
    /// The hash scheme; `None`: any that has no entry of its own.
    pub hash_scheme: Option<String>,
    /// Tokens in a full block.
    pub block_size: BlockSize,
}

/// `reports` as written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawReports {
    max_entries: Option<u64>,
    #[serde(default)]
    quotas: BTreeMap<String, u64>,
    future_tolerance_ms: Option<u64>,
    #[serde(default)]
    addresses: BTreeMap<String, String>,
    address_template: Option<String>,
}

/// An entry of `models` as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawModelBlocks {
    model_id: String,
    hash_scheme: Option<String>,
    block_size: u64,
    adapters: Option<RawAdapters>,
}

/// Names, each also the adapter's id, or a map from names to ids.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum RawAdapters {
    Names(Vec<String>),
    Ids(BTreeMap<String, String>),
}

// === impl RawAdapters ===

impl RawAdapters {
    /// Served names with the adapters' ids.
    fn into_pairs(self) -> Vec<(String, String)> {
        match self {
            RawAdapters::Names(names) => names.into_iter().map(|name| (name.clone(), name)).collect(),
            RawAdapters::Ids(ids) => ids.into_iter().collect(),
        }
    }
}

// === impl ReportsConfig ===

impl Default for ReportsConfig {
    fn default() -> ReportsConfig {
        ReportsConfig {
            max_entries: MAX_ENTRIES,
            quotas: BTreeMap::new(),
            future_tolerance: Duration::from_millis(FUTURE_TOLERANCE_MS),
            addresses: BTreeMap::new(),
            address_template: None,
        }
    }
}

/// A template with its places filled.
pub fn filled(template: &str, tenant_id: &str, replica_id: &str) -> String {
    // In one pass: what an id contains is no place.
    let mut out = String::with_capacity(template.len() + tenant_id.len() + replica_id.len());
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let (before, at) = rest.split_at(open);
        out.push_str(before);
        if let Some(after) = at.strip_prefix("{replica_id}") {
            out.push_str(replica_id);
            rest = after;
        } else if let Some(after) = at.strip_prefix("{tenant_id}") {
            out.push_str(tenant_id);
            rest = after;
        } else {
            out.push('{');
            rest = at.get(1..).unwrap_or_default();
        }
    }
    out.push_str(rest);
    out
}

/// Checks `reports`.
pub fn reports(raw: RawReports, problems: &mut Problems) -> ReportsConfig {
    let max_entries = problems.number("reports.max_entries", raw.max_entries, MAX_ENTRIES, 0, MOST_ENTRIES);
    let hour_ms = 60 * 60 * 1_000;
    let tolerance = raw.future_tolerance_ms;
    let future_tolerance = problems.millis("reports.future_tolerance_ms", tolerance, FUTURE_TOLERANCE_MS, 0, hour_ms);
    few("reports.quotas", raw.quotas.len(), problems);
    for tenant_id in raw.quotas.keys() {
        if tenant_id.is_empty() || tenant_id == RESERVED_TENANT {
            let allowed = format!("a tenant that is not empty and not {RESERVED_TENANT}");
            problems.add("reports.quotas", tenant_id, &allowed);
        }
    }
    few("reports.addresses", raw.addresses.len(), problems);
    let host_and_port = "host:port with a port of 1 to 65535, IPv6 in brackets";
    for (replica_id, address) in &raw.addresses {
        problems.name("reports.addresses", replica_id);
        if !is_host_and_port(address) {
            problems.add(&format!("reports.addresses[{replica_id}]"), address, host_and_port);
        }
    }
    if let Some(template) = &raw.address_template
        && !is_host_and_port(&filled(template, EXAMPLE, EXAMPLE))
    {
        let allowed = format!("{host_and_port}, with {{replica_id}} and {{tenant_id}} to be filled in");
        problems.add("reports.address_template", template, &allowed);
    }
    ReportsConfig {
        max_entries,
        quotas: raw.quotas,
        future_tolerance,
        addresses: raw.addresses,
        address_template: raw.address_template,
    }
}

/// Checks `models`: the block sizes, and the adapters of all models by served name.
pub fn models(raw: Vec<RawModelBlocks>, problems: &mut Problems) -> (Vec<ModelBlocks>, BTreeMap<String, Adapter>) {
    few("models", raw.len(), problems);
    let mut seen = HashSet::new();
    let mut models = Vec::with_capacity(raw.len());
    let mut listed = Vec::new();
    for (at, mut raw) in raw.into_iter().enumerate() {
        let field = |name: &str| format!("models[{at}].{name}");
        let adapters = raw.adapters.take().map_or_else(Vec::new, RawAdapters::into_pairs);
        few(&field("adapters"), adapters.len(), problems);
        listed.extend(adapters.into_iter().map(|(name, adapter_id)| {
            (field("adapters"), name, Adapter { model_id: raw.model_id.clone(), adapter_id })
        }));
        problems.name(&field("model_id"), &raw.model_id);
        if let Some(hash_scheme) = &raw.hash_scheme {
            problems.name(&field("hash_scheme"), hash_scheme);
        }
        if !seen.insert((raw.model_id.clone(), raw.hash_scheme.clone())) {
            problems.add(&field("model_id"), &raw.model_id, "a model and hash_scheme that no other entry has");
        }
        match BlockSize::try_new(raw.block_size) {
            Ok(block_size) => {
                models.push(ModelBlocks { model_id: raw.model_id, hash_scheme: raw.hash_scheme, block_size });
            }
            Err(_) => {
                problems.add(&field("block_size"), raw.block_size, &format!("1 to {} tokens", BlockSize::MAX));
            }
        }
    }
    let adapters = adapters_by_name(listed, &models, problems);
    (models, adapters)
}

/// A request's `model_id` must name one thing: each served name is listed once, and is no model's id.
fn adapters_by_name(
    listed: Vec<(String, String, Adapter)>,
    models: &[ModelBlocks],
    problems: &mut Problems,
) -> BTreeMap<String, Adapter> {
    let model_ids: HashSet<&str> = models.iter().map(|model| model.model_id.as_str()).collect();
    let mut adapters = BTreeMap::new();
    for (field, name, adapter) in listed {
        problems.name(&field, &name);
        problems.name(&field, &adapter.adapter_id);
        if model_ids.contains(name.as_str()) || adapters.contains_key(&name) {
            problems.add(&field, &name, "a name that is neither listed yet nor a model_id");
        } else {
            adapters.insert(name, adapter);
        }
    }
    adapters
}

fn few(field: &str, count: usize, problems: &mut Problems) {
    if count > MAX_ITEMS {
        problems.add(field, format!("{count} entries"), &format!("at most {MAX_ITEMS}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems_of(yaml: &str) -> Vec<String> {
        let mut problems = Problems::default();
        reports(serde_norway::from_str(yaml).unwrap(), &mut problems);
        problems.into_lines()
    }

    #[test]
    fn nothing_written_is_the_default() {
        let mut problems = Problems::default();
        assert_eq!(reports(RawReports::default(), &mut problems), ReportsConfig::default());
        assert!(problems.is_empty());
    }

    #[test]
    fn each_wrong_value_is_one_line() {
        let yaml = "{max_entries: 99999999, quotas: {inferencecache.io/probe: 1}, future_tolerance_ms: 99999999, \
                    addresses: {a: nowhere}, address_template: '{replica_id}'}";
        let expected = [
            "reports.max_entries is `99999999`, allowed is 0 to 64000000",
            "reports.future_tolerance_ms is `99999999`, allowed is 0 to 3600000",
            "reports.quotas is `inferencecache.io/probe`, allowed is a tenant that is not empty and not \
             inferencecache.io/probe",
            "reports.addresses[a] is `nowhere`, allowed is host:port with a port of 1 to 65535, IPv6 in brackets",
            "reports.address_template is `{replica_id}`, allowed is host:port with a port of 1 to 65535, IPv6 in \
             brackets, with {replica_id} and {tenant_id} to be filled in",
        ];
        assert_eq!(problems_of(yaml), expected);
        assert_eq!(problems_of("{address_template: '{replica_id}.{tenant_id}.svc:8000'}"), [""; 0]);
    }

    #[test]
    fn block_sizes_are_checked() {
        let mut problems = Problems::default();
        let yaml = "[{model_id: m, block_size: 16}, {model_id: m, hash_scheme: s, block_size: 0}, \
                    {model_id: m, block_size: 32}]";
        models(serde_norway::from_str(yaml).unwrap(), &mut problems);
        let expected = [
            "models[1].block_size is `0`, allowed is 1 to 65536 tokens",
            "models[2].model_id is `m`, allowed is a model and hash_scheme that no other entry has",
        ];
        assert_eq!(problems.into_lines(), expected);
    }

    #[test]
    fn adapters_are_a_list_or_a_map_and_name_one_thing_each() {
        let mut problems = Problems::default();
        let yaml = "[{model_id: m, block_size: 16, adapters: [a, b]}, {model_id: n, block_size: 16, adapters: {c: x}}]";
        let (_, adapters) = models(serde_norway::from_str(yaml).unwrap(), &mut problems);
        let pairs: Vec<_> = adapters
            .iter()
            .map(|(name, adapter)| (name.as_str(), adapter.model_id.as_str(), adapter.adapter_id.as_str()))
            .collect();
        assert_eq!(pairs, [("a", "m", "a"), ("b", "m", "b"), ("c", "n", "x")]);
        let yaml = "[{model_id: m, block_size: 16, adapters: [a, a, m, '']}]";
        models(serde_norway::from_str(yaml).unwrap(), &mut problems);
        let expected = [
            "models[0].adapters is `a`, allowed is a name that is neither listed yet nor a model_id",
            "models[0].adapters is `m`, allowed is a name that is neither listed yet nor a model_id",
            "models[0].adapters is ``, allowed is 1 to 256 bytes",
            "models[0].adapters is ``, allowed is 1 to 256 bytes",
        ];
        assert_eq!(problems.into_lines(), expected);
    }

    #[test]
    fn what_an_id_contains_is_not_filled_in_again() {
        assert_eq!(filled("{replica_id}.{tenant_id}:80{x}", "t", "{tenant_id}"), "{tenant_id}.t:80{x}");
    }
}
