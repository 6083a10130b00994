//! The shipped `envoy/envoy.yaml` with its addresses, module and plugin configuration replaced for a local stack.
//!
//! Everything else stays as operators get it. A part that is looked for and not found is an error that names it, so
//! that the sample cannot drift away from what is tested.

use std::net::SocketAddr;
use std::path::Path;

use serde_norway::Value;

/// The shipped sample.
pub const SHIPPED: &str = include_str!("../../../envoy/envoy.yaml");
/// The model that the sample configures.
pub const MODEL: &str = "llama-3.1-8b";

/// Name of the filter in the sample.
const FILTER: &str = "warmroute";
/// Name of the sample's listener, and of its cluster of engines.
const LISTENER: &str = "llm";
const ENGINES: &str = "engines";
const HUB: &str = "warmroute_hub";

/// Addresses of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Envoy, with the filter.
    pub envoy: SocketAddr,
    /// Envoy, the same engines without the filter; only with [`add_plain_listener`].
    pub plain: SocketAddr,
    /// Envoy's admin interface.
    pub admin: SocketAddr,
    /// The hub's gRPC port.
    pub hub_grpc: SocketAddr,
    /// The hub's HTTP port: health, metrics, state.
    pub hub_http: SocketAddr,
    /// The engines.
    pub engines: Vec<EngineAddresses>,
}

/// Addresses of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineAddresses {
    /// The OpenAI API.
    pub http: SocketAddr,
    /// The KV events.
    pub kv_events: SocketAddr,
    /// The replay of KV events.
    pub kv_replay: SocketAddr,
}

/// The sample is not what this code knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownSample {
    /// The part that is missing or of another kind.
    pub part: String,
}

/// `envoy/envoy.yaml` with these addresses and this module.
///
/// # Errors
/// When the sample lacks one of the parts that are replaced.
pub fn shipped(addresses: &Addresses, module: &Path) -> Result<Value, UnknownSample> {
    of_sample(SHIPPED, addresses, module)
}

/// A sample with these addresses and this module.
///
/// # Errors
/// When the sample lacks one of the parts that are replaced.
pub fn of_sample(sample: &str, addresses: &Addresses, module: &Path) -> Result<Value, UnknownSample> {
    let mut config: Value = serde_norway::from_str(sample).map_err(|error| UnknownSample::new(error.to_string()))?;
    set_socket_address(at(&mut config, "admin.address")?, addresses.admin)?;
    let listener = named(at(&mut config, "static_resources.listeners")?, LISTENER)?;
    set_socket_address(at(listener, "address")?, addresses.envoy)?;
    let engines: Vec<SocketAddr> = addresses.engines.iter().map(|engine| engine.http).collect();
    set_endpoints(&mut config, ENGINES, &engines)?;
    set_endpoints(&mut config, HUB, &[addresses.hub_grpc])?;
    let file = at(filter(&mut config)?, "typed_config.config.vm_config.code.local.filename")?;
    *file = Value::from(module.display().to_string());
    Ok(config)
}

/// Applies a JSON merge patch (RFC 7396) to the plugin configuration.
///
/// # Errors
/// When the sample has no plugin configuration in a StringValue.
pub fn patch_plugin(config: &mut Value, patch: &serde_json::Value) -> Result<(), UnknownSample> {
    let value = at(filter(config)?, "typed_config.config.configuration.value")?;
    let text = value.as_str().ok_or_else(|| UnknownSample::new("plugin configuration as text"))?;
    let mut plugin = serde_json::from_str(text).map_err(|error| UnknownSample::new(error.to_string()))?;
    merge(&mut plugin, patch);
    *value = Value::from(plugin.to_string());
    Ok(())
}

/// Adds a second listener to the same engines, without the filter: plain round robin.
///
/// # Errors
/// When the sample's listener is not there.
pub fn add_plain_listener(config: &mut Value, address: SocketAddr) -> Result<(), UnknownSample> {
    let mut plain = named(at(config, "static_resources.listeners")?, LISTENER)?.clone();
    *at(&mut plain, "name")? = Value::from("plain");
    set_socket_address(at(&mut plain, "address")?, address)?;
    http_filters(&mut plain)?.retain(|filter| !has_name(filter, FILTER));
    sequence(at(config, "static_resources.listeners")?, "listeners")?.push(plain);
    Ok(())
}

/// The value at a path of mapping keys.
///
/// # Errors
/// When a key is missing.
pub fn at<'a>(value: &'a mut Value, path: &str) -> Result<&'a mut Value, UnknownSample> {
    path.split('.').try_fold(value, |value, key| {
        let found = value.as_mapping_mut().and_then(|mapping| mapping.get_mut(key));
        found.ok_or_else(|| UnknownSample::new(format!("{key} of {path}")))
    })
}

/// The filter `warmroute` in the sample's listener.
///
/// # Errors
/// When there is none.
pub fn filter(config: &mut Value) -> Result<&mut Value, UnknownSample> {
    filter_of(named(at(config, "static_resources.listeners")?, LISTENER)?)
}

/// The filter `warmroute` in a listener.
///
/// # Errors
/// When there is none.
pub fn filter_of(listener: &mut Value) -> Result<&mut Value, UnknownSample> {
    let filters = http_filters(listener)?;
    filters.iter_mut().find(|filter| has_name(filter, FILTER)).ok_or_else(|| UnknownSample::new(FILTER))
}

/// Has the filter's stream go to the hub by way of `address`.
///
/// # Errors
/// When the sample has no such cluster.
pub fn set_hub(config: &mut Value, address: SocketAddr) -> Result<(), UnknownSample> {
    set_endpoints(config, HUB, &[address])
}

/// The connection manager's settings in a listener.
///
/// # Errors
/// When the listener has another shape.
pub fn connection_manager(listener: &mut Value) -> Result<&mut Value, UnknownSample> {
    let chain = first(at(listener, "filter_chains")?, "filter_chains")?;
    at(first(at(chain, "filters")?, "filters")?, "typed_config")
}

/// The list entry of that name.
///
/// # Errors
/// When there is none.
pub fn named<'a>(list: &'a mut Value, name: &str) -> Result<&'a mut Value, UnknownSample> {
    let entries = sequence(list, name)?;
    entries.iter_mut().find(|entry| has_name(entry, name)).ok_or_else(|| UnknownSample::new(name))
}

fn http_filters(listener: &mut Value) -> Result<&mut Vec<Value>, UnknownSample> {
    sequence(at(connection_manager(listener)?, "http_filters")?, "http_filters")
}

/// Sets the endpoints of a cluster, each after the pattern of its first.
///
/// # Errors
/// When there is no such cluster, or it has none.
pub fn set_endpoints(config: &mut Value, cluster: &str, addresses: &[SocketAddr]) -> Result<(), UnknownSample> {
    let cluster = named(at(config, "static_resources.clusters")?, cluster)?;
    let locality = first(at(cluster, "load_assignment.endpoints")?, "endpoints")?;
    let endpoints = at(locality, "lb_endpoints")?;
    let pattern = first(endpoints, "lb_endpoints")?.clone();
    let list = addresses.iter().map(|address| {
        let mut endpoint = pattern.clone();
        set_socket_address(at(&mut endpoint, "endpoint.address")?, *address)?;
        Ok(endpoint)
    });
    *endpoints = Value::Sequence(list.collect::<Result<_, _>>()?);
    Ok(())
}

/// Sets an `address` with a socket address.
///
/// # Errors
/// When it is something else.
pub fn set_socket_address(address: &mut Value, to: SocketAddr) -> Result<(), UnknownSample> {
    *at(address, "socket_address.address")? = Value::from(to.ip().to_string());
    *at(address, "socket_address.port_value")? = Value::from(to.port());
    Ok(())
}

fn sequence<'a>(value: &'a mut Value, what: &str) -> Result<&'a mut Vec<Value>, UnknownSample> {
    value.as_sequence_mut().ok_or_else(|| UnknownSample::new(format!("{what} as a list")))
}

fn first<'a>(value: &'a mut Value, what: &str) -> Result<&'a mut Value, UnknownSample> {
    sequence(value, what)?.first_mut().ok_or_else(|| UnknownSample::new(format!("an entry of {what}")))
}

fn has_name(entry: &Value, name: &str) -> bool {
    entry.get("name").and_then(Value::as_str) == Some(name)
}

fn merge(target: &mut serde_json::Value, patch: &serde_json::Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = serde_json::Value::Object(serde_json::Map::new());
    }
    let Some(fields) = target.as_object_mut() else { return };
    for (field, value) in patch {
        if value.is_null() {
            fields.remove(field);
        } else {
            merge(fields.entry(field).or_insert(serde_json::Value::Null), value);
        }
    }
}

// === impl UnknownSample ===

impl UnknownSample {
    fn new(part: impl Into<String>) -> UnknownSample {
        UnknownSample { part: part.into() }
    }
}

impl std::fmt::Display for UnknownSample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "envoy/envoy.yaml is not as expected: {}", self.part)
    }
}

impl std::error::Error for UnknownSample {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn addresses() -> Addresses {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let engine = |port| EngineAddresses {
            http: address(port),
            kv_events: address(port + 100),
            kv_replay: address(port + 200),
        };
        Addresses {
            envoy: address(1),
            plain: address(2),
            admin: address(3),
            hub_grpc: address(4),
            hub_http: address(5),
            engines: vec![engine(11), engine(12)],
        }
    }

    fn text_of(config: &Value) -> String {
        serde_norway::to_string(config).unwrap()
    }

    #[test]
    fn no_address_of_the_sample_is_left() {
        let config = text_of(&shipped(&addresses(), Path::new("/m.wasm")).unwrap());
        let ports: Vec<&str> = config.lines().filter_map(|line| line.trim().strip_prefix("port_value: ")).collect();
        assert_eq!(ports, ["3", "1", "11", "12", "4"]);
        assert!(!config.contains("0.0.0.0"), "{config}");
        assert!(config.contains("filename: /m.wasm"), "{config}");
    }

    #[test]
    fn the_plugin_is_patched_and_names_the_model() {
        let mut config = shipped(&addresses(), Path::new("/m.wasm")).unwrap();
        patch_plugin(&mut config, &json!({"output": {"response_headers": true}, "policy": null})).unwrap();
        let value = at(filter(&mut config).unwrap(), "typed_config.config.configuration.value").unwrap();
        let plugin: serde_json::Value = serde_json::from_str(value.as_str().unwrap()).unwrap();
        assert_eq!(plugin["models"][0]["model_id"], MODEL);
        assert_eq!(plugin["output"]["response_headers"], true);
        assert_eq!(plugin.get("policy"), None);
    }

    #[test]
    fn the_filter_accepts_the_plugin_configuration() {
        let mut config = shipped(&addresses(), Path::new("/m.wasm")).unwrap();
        let value = at(filter(&mut config).unwrap(), "typed_config.config.configuration.value").unwrap();
        let plugin = crate::config::FilterConfig::from_json(value.as_str().unwrap().as_bytes()).unwrap();
        assert_eq!(plugin.hubs.clusters, [HUB]);
    }

    #[test]
    fn the_plain_listener_has_no_filter_and_its_own_port() {
        let mut config = shipped(&addresses(), Path::new("/m.wasm")).unwrap();
        add_plain_listener(&mut config, addresses().plain).unwrap();
        let plain = named(at(&mut config, "static_resources.listeners").unwrap(), "plain").unwrap();
        let text = text_of(plain);
        assert!(text.contains("port_value: 2") && !text.contains("wasm.v3"), "{text}");
    }

    #[test]
    fn a_part_that_is_missing_is_named() {
        let mut config: Value = serde_norway::from_str("admin: {}").unwrap();
        let error = at(&mut config, "admin.address").unwrap_err();
        assert_eq!(error.to_string(), "envoy/envoy.yaml is not as expected: address of admin.address");
    }
}
