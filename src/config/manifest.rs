//! A whole `CachePolicy` manifest, as a cluster has it: its name, its namespace, which is the tenant, and its spec.

use serde_json::Value;

use super::ConfigError;
use super::policy::{POLICY_TENANT, may_have_policy, read_policy};
use super::section::{Problems, Section};
use crate::routing::policy::Policy;

/// `apiVersion` of a manifest.
const API_VERSION: &str = "inferencecache.io/v1alpha1";
/// `kind` of a manifest.
const KIND: &str = "CachePolicy";

/// What a manifest says.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyManifest {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.namespace`: the tenant.
    pub namespace: String,
    /// `spec`.
    pub policy: Policy,
}

// === impl PolicyManifest ===

impl PolicyManifest {
    /// Whether `document` means to be a manifest, rather than a spec alone: no spec has either field.
    pub fn is_meant(document: &Value) -> bool {
        document.get("apiVersion").is_some() || document.get("kind").is_some()
    }

    /// Reads a manifest. What a cluster adds to it, the rest of `metadata` and `status`, is passed over.
    ///
    /// # Errors
    /// All problems found, with their paths.
    pub fn from_json(document: &Value) -> Result<PolicyManifest, Vec<ConfigError>> {
        let mut problems = Problems::default();
        let mut root = Section::root(document, &mut problems);
        root.constant("apiVersion", API_VERSION, &mut problems);
        root.constant("kind", KIND, &mut problems);
        let mut metadata = root.section("metadata", &mut problems);
        let name = metadata.required_text("name", &mut problems);
        let namespace = metadata.required_text("namespace", &mut problems);
        if !namespace.is_empty() && !may_have_policy(&namespace) {
            let value = Value::String(namespace.clone());
            problems.note(metadata.path_of("namespace"), Some(&value), POLICY_TENANT);
        }
        let policy = read_policy(root.section("spec", &mut problems), &mut problems);
        root.take("status");
        root.finish(&mut problems);
        problems.or(PolicyManifest { name, namespace, policy })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::RESERVED_TENANT;

    #[test]
    fn a_manifest_is_its_name_its_tenant_and_its_spec() {
        let document = json!({
            "apiVersion": "inferencecache.io/v1alpha1", "kind": "CachePolicy",
            "metadata": {"name": "p", "namespace": "t", "uid": "1", "labels": {"a": "b"}},
            "spec": {"minimumPrefixTokens": 3}, "status": {"observedGeneration": 1},
        });
        assert!(PolicyManifest::is_meant(&document) && !PolicyManifest::is_meant(&document["spec"]));
        let policy = Policy { minimum_prefix_tokens: 3, ..Policy::default() };
        let expected = PolicyManifest { name: "p".to_owned(), namespace: "t".to_owned(), policy };
        assert_eq!(PolicyManifest::from_json(&document), Ok(expected));
    }

    #[test]
    fn a_manifest_without_spec_has_the_defaults() {
        let document = json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "p", "namespace": "t"}});
        assert_eq!(PolicyManifest::from_json(&document).unwrap().policy, Policy::default());
    }

    #[test]
    fn what_is_wrong_with_a_manifest_is_named() {
        let document = json!({
            "apiVersion": "inferencecache.io/v1", "kind": "CacheTenant", "metadata": {"namespace": RESERVED_TENANT},
            "spec": {"evictionTTL": "0s"}, "data": 1,
        });
        let errors = PolicyManifest::from_json(&document).unwrap_err();
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            errors,
            [
                r#"apiVersion is "inferencecache.io/v1", allowed: "inferencecache.io/v1alpha1""#,
                r#"kind is "CacheTenant", allowed: "CachePolicy""#,
                "metadata.name is absent, allowed: a text that is not empty",
                r#"metadata.namespace is "inferencecache.io/probe", allowed: a tenant of 1 to 256 bytes that is not inferencecache.io/probe"#,
                r#"spec.evictionTTL is "0s", allowed: a duration such as "30m" or "1h30m", from 1ms to 576h (24 days)"#,
                "data is 1, allowed: no such field; known are apiVersion, kind, metadata, spec, status",
            ]
        );
    }
}
