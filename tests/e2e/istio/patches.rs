//! What an EnvoyFilter does to a proxy's configuration, by the rules of Istio's control plane.
//!
//! Configurations are protobuf in JSON, with the fields' own names (`snake_case`). A patch that says something which is not
//! understood here is refused. What Istio does and is not needed is left out: matches by proxy version, route patches, removal,
//! replacement, transport sockets, and that setting one field of a `oneof` clears the others.

use std::cell::Cell;

use serde::Deserialize;
use serde_json::Value;

/// Fields that are maps in protobuf: MERGE replaces their entries.
const MAPS: [&str; 4] =
    ["typed_extension_protocol_options", "typed_per_filter_config", "filter_metadata", "typed_filter_metadata"];
const CONNECTION_MANAGER: &str = "envoy.filters.network.http_connection_manager";

/// One EnvoyFilter.
#[derive(Deserialize)]
pub struct EnvoyFilter {
    pub spec: Spec,
}

/// Its `spec`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    #[serde(rename = "workloadSelector")]
    _workload_selector: Option<Value>,
    pub config_patches: Vec<ConfigPatch>,
}

/// A patch, and where it goes.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfigPatch {
    apply_to: ApplyTo,
    #[serde(default, rename = "match")]
    place: Place,
    patch: Patch,
    /// How often it had an effect.
    #[serde(skip)]
    pub applied: Cell<usize>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum ApplyTo {
    Listener,
    NetworkFilter,
    HttpFilter,
    Cluster,
    ExtensionConfig,
}

/// Which part of a proxy a configuration is for.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Context {
    #[default]
    Any,
    Gateway,
    SidecarInbound,
    SidecarOutbound,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Place {
    context: Context,
    listener: Option<ListenerMatch>,
    cluster: Option<ClusterMatch>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ListenerMatch {
    name: String,
    port_number: u64,
    filter_chain: Option<ChainMatch>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ChainMatch {
    name: String,
    filter: Option<FilterMatch>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FilterMatch {
    name: String,
    sub_filter: Option<SubFilterMatch>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubFilterMatch {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ClusterMatch {
    name: String,
    service: String,
    subset: String,
    port_number: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    operation: Operation,
    value: Value,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Operation {
    Merge,
    Add,
    InsertFirst,
    InsertBefore,
    InsertAfter,
}

/// What the control plane has made for one context of a proxy.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Configuration {
    pub listeners: Vec<Value>,
    pub clusters: Vec<Value>,
    #[serde(skip)]
    pub extensions: Vec<Value>,
}

// === impl EnvoyFilter ===

impl EnvoyFilter {
    /// From YAML.
    pub fn parse(text: &str) -> EnvoyFilter {
        let document: Value = serde_norway::from_str(text).unwrap();
        assert_eq!(document["kind"], "EnvoyFilter");
        serde_json::from_value(document).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Patches what is for one context: listeners from the outside in, then clusters and extensions.
    pub fn apply(&self, context: Context, to: &mut Configuration) {
        let patches: Vec<&ConfigPatch> =
            self.spec.config_patches.iter().filter(|patch| patch.is_for(context)).collect();
        let of = |kind: ApplyTo| patches.iter().copied().filter(move |patch| patch.apply_to == kind);
        for listener in &mut to.listeners {
            for patch in of(ApplyTo::Listener).filter(|patch| patch.merges()) {
                if patch.matches_listener(listener) {
                    patch.count();
                    merge(listener, &patch.patch.value);
                }
            }
            patch_chains(&patches, listener);
        }
        add(of(ApplyTo::Listener), context, &mut to.listeners);
        for cluster in &mut to.clusters {
            for patch in of(ApplyTo::Cluster).filter(|patch| patch.merges()) {
                if patch.matches_cluster(cluster) {
                    patch.count();
                    merge(cluster, &patch.patch.value);
                }
            }
        }
        add(of(ApplyTo::Cluster), context, &mut to.clusters);
        add(of(ApplyTo::ExtensionConfig), context, &mut to.extensions);
    }
}

// === impl ConfigPatch ===

impl ConfigPatch {
    fn is_for(&self, context: Context) -> bool {
        [context, Context::Any].contains(&self.place.context)
    }

    fn merges(&self) -> bool {
        self.patch.operation == Operation::Merge
    }

    fn count(&self) {
        self.applied.set(self.applied.get() + 1);
    }

    /// The two listeners that all traffic comes through have ports in their filter chains; what is below them is matched by those.
    fn matches_listener(&self, listener: &Value) -> bool {
        let Some(wanted) = &self.place.listener else { return true };
        let port = &listener["address"]["socket_address"]["port_value"];
        let by_chain = self.apply_to != ApplyTo::Listener && is_virtual(listener);
        (wanted.name.is_empty() || listener["name"] == *wanted.name)
            && (wanted.port_number == 0 || by_chain || *port == wanted.port_number)
    }

    fn matches_chain(&self, listener: &Value, chain: &Value) -> bool {
        let Some(wanted) = &self.place.listener else { return true };
        let port = &chain["filter_chain_match"]["destination_port"];
        let name = wanted.filter_chain.as_ref().map_or("", |chain| &chain.name);
        (wanted.port_number == 0 || !is_virtual(listener) || *port == wanted.port_number)
            && (name.is_empty() || chain["name"] == *name)
    }

    fn filter(&self) -> Option<&FilterMatch> {
        self.place.listener.as_ref()?.filter_chain.as_ref()?.filter.as_ref()
    }

    fn matches_filter(&self, filter: &Value) -> bool {
        self.filter().is_none_or(|wanted| filter["name"] == *wanted.name)
    }

    /// The name of the HTTP filter beside which something is inserted.
    fn sub_filter(&self) -> Option<&str> {
        Some(&self.filter()?.sub_filter.as_ref()?.name)
    }

    /// A cluster's name is `direction|port|subset|host`.
    fn matches_cluster(&self, cluster: &Value) -> bool {
        let Some(wanted) = &self.place.cluster else { return true };
        let name = cluster["name"].as_str().unwrap();
        if !wanted.name.is_empty() {
            return name == wanted.name;
        }
        let parts: Vec<&str> = name.split('|').collect();
        let part = |place: usize| parts.get(place).copied().unwrap_or_default();
        (wanted.service.is_empty() || part(3) == wanted.service)
            && (wanted.subset.is_empty() || part(2) == wanted.subset)
            && (wanted.port_number == 0 || part(1) == wanted.port_number.to_string())
    }
}

fn is_virtual(listener: &Value) -> bool {
    ["virtualInbound", "virtualOutbound"].map(Value::from).contains(&listener["name"])
}

/// Adds whole listeners, clusters or extensions. Without a context, what is added is for outbound traffic and gateways.
fn add<'a>(patches: impl Iterator<Item = &'a ConfigPatch>, context: Context, list: &mut Vec<Value>) {
    for patch in patches.filter(|patch| patch.patch.operation == Operation::Add) {
        if patch.place.context == Context::Any && context == Context::SidecarInbound {
            continue;
        }
        patch.count();
        list.push(patch.patch.value.clone());
    }
}

/// Network filters of every chain, and the HTTP filters of its connection managers.
fn patch_chains(patches: &[&ConfigPatch], listener: &mut Value) {
    let seen = listener.clone();
    let Some(listener) = listener.as_object_mut() else { return };
    let mut chains: Vec<&mut Value> = Vec::new();
    for (field, value) in listener.iter_mut() {
        match field.as_str() {
            "filter_chains" => chains.extend(value.as_array_mut().unwrap()),
            "default_filter_chain" => chains.push(value),
            _ => {}
        }
    }
    for chain in chains {
        let is_here = |kind, patch: &&&ConfigPatch| {
            patch.apply_to == kind && patch.matches_listener(&seen) && patch.matches_chain(&seen, chain)
        };
        let network: Vec<_> = patches.iter().filter(|patch| is_here(ApplyTo::NetworkFilter, patch)).collect();
        let http: Vec<_> = patches.iter().filter(|patch| is_here(ApplyTo::HttpFilter, patch)).collect();
        let filters = chain["filters"].as_array_mut().unwrap();
        for patch in &network {
            let beside = patch.filter().map(|filter| filter.name.as_str());
            insert(patch, beside, filters);
        }
        for filter in filters {
            for patch in network.iter().filter(|patch| patch.merges()) {
                if patch.matches_filter(filter) {
                    patch.count();
                    merge_filter(filter, &patch.patch.value);
                }
            }
            if filter["name"] == CONNECTION_MANAGER {
                patch_http_filters(&http, filter);
            }
        }
    }
}

fn patch_http_filters(patches: &[&&ConfigPatch], manager: &mut Value) {
    let patches: Vec<_> = patches.iter().filter(|patch| patch.matches_filter(manager)).collect();
    let filters = manager["typed_config"]["http_filters"].as_array_mut().unwrap();
    for patch in &patches {
        insert(patch, patch.sub_filter(), filters);
    }
    for filter in filters {
        for patch in patches.iter().filter(|patch| patch.merges()) {
            if patch.sub_filter().is_none_or(|name| filter["name"] == *name) {
                patch.count();
                merge_filter(filter, &patch.patch.value);
            }
        }
    }
}

/// Puts a filter into its chain. Beside none in particular, before is the front and after the end; beside one that is not
/// there, nothing happens.
fn insert(patch: &ConfigPatch, beside: Option<&str>, filters: &mut Vec<Value>) {
    let found = beside.map(|name| filters.iter().position(|filter| filter["name"] == *name));
    let at = match (patch.patch.operation, found) {
        (Operation::Merge, _) => return,
        (Operation::Add, _) | (Operation::InsertAfter, None) => Some(filters.len()),
        (Operation::InsertFirst, _) | (Operation::InsertBefore, None) => Some(0),
        (Operation::InsertBefore, Some(place)) => place,
        (Operation::InsertAfter, Some(place)) => place.map(|place| place + 1),
    };
    if let Some(at) = at {
        patch.count();
        filters.insert(at, patch.patch.value.clone());
    }
}

/// Merges a named filter: its configuration is looked into, whatever type the patch says it is of.
fn merge_filter(filter: &mut Value, patch: &Value) {
    if let Some(name) = patch.get("name") {
        filter["name"] = name.clone();
    }
    let (Some(config), Some(Value::Object(changes))) = (filter.get_mut("typed_config"), patch.get("typed_config"))
    else {
        return;
    };
    let mut changes = changes.clone();
    changes.remove("@type");
    merge(config, &Value::Object(changes));
}

/// Merges messages as protobuf does: scalars are replaced, messages merged, lists appended to, entries of maps replaced; and an
/// `Any`, whose content is bytes, is replaced as a whole.
pub fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) if !patch.contains_key("@type") => {
            for (field, value) in patch {
                match target.get_mut(field) {
                    Some(Value::Object(map)) if MAPS.contains(&field.as_str()) => {
                        map.extend(value.as_object().unwrap().clone());
                    }
                    Some(target) => merge(target, value),
                    None => {
                        target.insert(field.clone(), value.clone());
                    }
                }
            }
        }
        (Value::Array(target), Value::Array(patch)) => target.extend(patch.iter().cloned()),
        (target, patch) => *target = patch.clone(),
    }
}
