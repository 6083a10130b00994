//! Reads `domains.json` and compares it with the library; shared by the native and the wasm32 test.
//!
//! All VMs of a proxy, and every build of the module, must agree on the domain, or they would not share an index.

use serde::Deserialize;
use serde_json::Value;
use warmroute::config::FilterConfig;

#[derive(Deserialize)]
struct File {
    domains: Vec<Domain>,
}

#[derive(Deserialize)]
struct Domain {
    domain: String,
    plugin: Value,
}

/// Compares every domain of the file; panics with the first configuration that differs.
pub fn compare_all() {
    let file: File = serde_json::from_str(include_str!("domains.json")).unwrap();
    assert!(file.domains.len() > 4, "the file holds {} domains", file.domains.len());
    for Domain { domain, plugin } in &file.domains {
        let config = FilterConfig::from_json(plugin.to_string().as_bytes()).unwrap();
        assert_eq!(&config.domain(), domain, "{plugin}");
    }
}
