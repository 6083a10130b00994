//! Envoy's listeners in a file that it watches, so that one can be added while it runs.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;
use serde_norway::{Mapping, Value};

use super::envoy_config::{UnknownSample, at, filter_of, named, set_socket_address};

/// What Envoy calls a listener among dynamic resources.
const LISTENER_TYPE: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
const STRING_VALUE: &str = "type.googleapis.com/google.protobuf.StringValue";
/// The sample's listener.
const LISTENER: &str = "llm";

/// The file. Dropped, it is removed.
#[derive(Debug)]
pub struct ListenerFile(PathBuf);

// === impl ListenerFile ===

impl Default for ListenerFile {
    /// A path that nothing has.
    fn default() -> ListenerFile {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("warmroute-listeners-{}-{number}.yaml", std::process::id());
        ListenerFile(std::env::temp_dir().join(name))
    }
}

impl ListenerFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Adds the sample's listener once more at another address, in VMs of its own: its `vm_config.configuration` is the
    /// name, which makes other VMs of the same module; the shared data of their `vm_id` they have in common.
    ///
    /// # Errors
    /// When the file has no such listener, or cannot be read or written.
    pub fn add_listener_with_own_vms(&self, name: &str, address: SocketAddr) -> io::Result<()> {
        let mut file: Value = serde_norway::from_str(&std::fs::read_to_string(&self.0)?).map_err(io::Error::other)?;
        let listeners = at(&mut file, "resources").map_err(io::Error::other)?;
        let added = renamed(listeners, name, address).map_err(io::Error::other)?;
        if let Some(listeners) = listeners.as_sequence_mut() {
            listeners.push(added);
        }
        replace(&self.0, &file)
    }

    /// Changes the listeners; `change` gets a configuration that has them and nothing else.
    ///
    /// # Errors
    /// When the file has no listeners, or cannot be read or written.
    pub fn update(&self, change: impl FnOnce(&mut Value)) -> io::Result<()> {
        let mut file: Value = serde_norway::from_str(&std::fs::read_to_string(&self.0)?).map_err(io::Error::other)?;
        let listeners = at(&mut file, "resources").map_err(io::Error::other)?;
        let statics = Mapping::from_iter([("listeners".into(), std::mem::take(listeners))]);
        let mut config = Value::Mapping(Mapping::from_iter([("static_resources".into(), Value::Mapping(statics))]));
        change(&mut config);
        *listeners = std::mem::take(at(&mut config, "static_resources.listeners").map_err(io::Error::other)?);
        replace(&self.0, &file)
    }
}

impl Drop for ListenerFile {
    fn drop(&mut self) {
        // It may never have been written.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Moves the listeners of a configuration into the file at `path`, where Envoy finds them.
///
/// # Errors
/// When there are none, or the file cannot be written.
pub fn serve_from(config: &mut Value, path: &Path) -> io::Result<()> {
    let mut listeners = std::mem::take(at(config, "static_resources.listeners").map_err(io::Error::other)?);
    for listener in listeners.as_sequence_mut().into_iter().flatten() {
        if let Some(listener) = listener.as_mapping_mut() {
            listener.insert("@type".into(), LISTENER_TYPE.into());
        }
    }
    replace(path, &Value::Mapping(Mapping::from_iter([("resources".into(), listeners)])))?;
    let lds = json!({ "lds_config": { "path_config_source": { "path": path.display().to_string() } } });
    let node = json!({ "id": "warmroute", "cluster": "warmroute" });
    for (name, value) in [("dynamic_resources", lds), ("node", node)] {
        let value = serde_norway::to_value(value).map_err(io::Error::other)?;
        if let Some(config) = config.as_mapping_mut() {
            config.insert(name.into(), value);
        }
    }
    let statics = at(config, "static_resources").map_err(io::Error::other)?;
    if let Some(statics) = statics.as_mapping_mut() {
        statics.remove("listeners");
    }
    Ok(())
}

fn renamed(listeners: &mut Value, name: &str, address: SocketAddr) -> Result<Value, UnknownSample> {
    let mut listener = named(listeners, LISTENER)?.clone();
    *at(&mut listener, "name")? = name.into();
    set_socket_address(at(&mut listener, "address")?, address)?;
    let vm = at(filter_of(&mut listener)?, "typed_config.config.vm_config")?;
    if let Some(vm) = vm.as_mapping_mut() {
        let configuration = [("@type".into(), STRING_VALUE.into()), ("value".into(), name.into())];
        vm.insert("configuration".into(), Value::Mapping(Mapping::from_iter(configuration)));
    }
    Ok(listener)
}

/// Envoy reads the file again when another one is moved into its place.
fn replace(path: &Path, value: &Value) -> io::Result<()> {
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, serde_norway::to_string(value).map_err(io::Error::other)?)?;
    std::fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::load::envoy_config::SHIPPED;

    #[test]
    fn the_added_listener_differs_in_name_port_and_vm_configuration() {
        let file = ListenerFile::default();
        let mut config: Value = serde_norway::from_str(SHIPPED).unwrap();
        serve_from(&mut config, file.path()).unwrap();
        assert!(config["static_resources"].get("listeners").is_none());
        assert!(config["dynamic_resources"]["lds_config"].is_mapping());
        file.add_listener_with_own_vms("late", SocketAddr::from(([127, 0, 0, 1], 77))).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let written: Value = serde_norway::from_str(&text).unwrap();
        let listeners = written["resources"].as_sequence().unwrap();
        assert_eq!((listeners.len(), listeners[1]["name"].as_str()), (2, Some("late")));
        assert_eq!(listeners[1]["address"]["socket_address"]["port_value"].as_u64(), Some(77));
        let configurations = text.matches("value: late").count();
        assert_eq!((configurations, text.matches("vm_id: warmroute-1").count()), (1, 2));
    }
}
