//! The plugin's configuration, and the parts of it that stand elsewhere too.

use warmroute::config::{FilterConfig, PolicyManifest, policy_from_json, ranking_from_json};

/// A configuration that is taken names an index and a model; one that is not says why.
pub fn config(bytes: &[u8]) {
    match FilterConfig::from_json(bytes) {
        Ok(config) => {
            assert!(!config.models.is_empty());
            assert!(config.domain().len() == 16 && config.domain().bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            errors.iter().for_each(|error| assert!(!error.to_string().is_empty()));
        }
    }
    if let Ok(value) = serde_json::from_slice(bytes) {
        if let Ok(policy) = policy_from_json(&value, "") {
            assert!(policy.eviction_ttl_ms > 0 && policy.routing_floor_score >= 0.0);
        }
        let _ = (ranking_from_json(&value, ""), PolicyManifest::from_json(&value));
    }
}
