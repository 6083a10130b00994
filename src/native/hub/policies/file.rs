//! One file of the directory.
//!
//! In: its name and contents. Out: its policies, or a line for everything that is wrong. A file is taken as a whole or not
//! at all.
//!
//! The file is either one bare CachePolicy `spec`, whose tenant is the file's stem (`default` stands for tenants without
//! one), or any number of whole `CachePolicy` manifests, whose namespaces are the tenants.

use std::path::Path;

use serde_json::Value;

use crate::config::{ConfigError, POLICY_TENANT, PolicyManifest, may_have_policy, policy_from_json};
use crate::native::hub::yaml;
use crate::routing::policy::Policy;

/// The stem of the file that is for tenants without a policy of their own.
const DEFAULT_STEM: &str = "default";

/// A policy and what it is called.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedPolicy {
    /// The tenant; none for those without a policy of their own.
    pub tenant_id: Option<String>,
    /// The manifest's name; of a bare spec, the file's stem.
    pub name: String,
    /// The policy.
    pub policy: Policy,
}

/// Whether a file of this name is one of policies. Hidden ones are not: a mounted ConfigMap keeps its versions there,
/// editors their drafts.
pub fn is_policy_file(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    !name.starts_with('.') && matches!(extension, Some("yaml" | "yml" | "json"))
}

/// The policies of the file `name`.
///
/// # Errors
/// A line for each thing that is wrong, without the file's name.
pub fn read_file(name: &str, contents: &[u8]) -> Result<Vec<NamedPolicy>, Vec<String>> {
    let documents = documents(name, contents).map_err(|problem| vec![problem])?;
    if let [spec] = documents.as_slice()
        && !PolicyManifest::is_meant(spec)
    {
        return bare(name, spec).map(|policy| vec![policy]);
    }
    let mut policies = Vec::with_capacity(documents.len());
    let mut problems = Vec::new();
    for (at, document) in documents.iter().enumerate() {
        match PolicyManifest::from_json(document) {
            Ok(PolicyManifest { name, namespace, policy }) => {
                policies.push(NamedPolicy { tenant_id: Some(namespace), name, policy });
            }
            Err(errors) if documents.len() == 1 => problems.extend(lines(&errors)),
            Err(errors) => problems.extend(lines(&errors).map(|line| format!("document {}: {line}", at + 1))),
        }
    }
    if problems.is_empty() { Ok(policies) } else { Err(problems) }
}

fn documents(name: &str, contents: &[u8]) -> Result<Vec<Value>, String> {
    let text = std::str::from_utf8(contents).map_err(|error| format!("not UTF-8: {error}"))?;
    let documents = if name.ends_with(".json") {
        let value: Value = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
        Some(value).filter(|value| !value.is_null()).into_iter().collect()
    } else {
        yaml::documents(text)?
    };
    if documents.is_empty() {
        return Err("the file is empty, allowed: a CachePolicy spec ({} for all defaults) or manifests".to_owned());
    }
    Ok(documents)
}

fn bare(file: &str, spec: &Value) -> Result<NamedPolicy, Vec<String>> {
    let stem = Path::new(file).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if !may_have_policy(stem) {
        return Err(vec![format!("the file's stem is {stem}, allowed: {POLICY_TENANT}")]);
    }
    if !spec.is_object() {
        return Err(vec!["the file has no object, allowed: a CachePolicy spec or manifests".to_owned()]);
    }
    let policy = policy_from_json(spec, "").map_err(|errors| lines(&errors).collect::<Vec<_>>())?;
    let tenant_id = Some(stem.to_owned()).filter(|tenant_id| tenant_id != DEFAULT_STEM);
    Ok(NamedPolicy { tenant_id, name: stem.to_owned(), policy })
}

fn lines(errors: &[ConfigError]) -> impl Iterator<Item = String> {
    errors.iter().map(ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(name: &str, text: &str) -> Vec<String> {
        read_file(name, text.as_bytes()).unwrap_err()
    }

    fn manifest(name: &str, namespace: &str, spec: &str) -> String {
        format!(
            "apiVersion: inferencecache.io/v1alpha1\nkind: CachePolicy\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {spec}\n"
        )
    }

    #[test]
    fn only_visible_yaml_and_json_files_count() {
        let names =
            ["a.yaml", "a.yml", "a.json", "a.b.yaml", "a.yaml~", "README.md", ".a.yaml.swp", "..data", ".x.yaml"];
        assert_eq!(names.map(is_policy_file), [true, true, true, true, false, false, false, false, false]);
    }

    #[test]
    fn a_bare_specs_tenant_is_the_files_stem() {
        let policy = Policy { minimum_prefix_tokens: 7, ..Policy::default() };
        let expected = |tenant_id: Option<&str>, name: &str| {
            Ok(vec![NamedPolicy {
                tenant_id: tenant_id.map(str::to_owned),
                name: name.to_owned(),
                policy: policy.clone(),
            }])
        };
        assert_eq!(read_file("a.b.yaml", b"minimumPrefixTokens: 7\n"), expected(Some("a.b"), "a.b"));
        assert_eq!(read_file("t.json", br#"{"minimumPrefixTokens": 7}"#), expected(Some("t"), "t"));
        assert_eq!(read_file("default.yml", b"---\nminimumPrefixTokens: 7\n---\n"), expected(None, "default"));
    }

    #[test]
    fn manifests_name_their_tenants_themselves() {
        let text = format!("{}---\n{}", manifest("p", "a", "{minimumPrefixTokens: 1}"), manifest("q", "default", "{}"));
        let policies = read_file("default.yaml", text.as_bytes()).unwrap();
        let named: Vec<_> = policies.iter().map(|it| (it.tenant_id.as_deref(), it.name.as_str())).collect();
        assert_eq!(named, [(Some("a"), "p"), (Some("default"), "q")]);
        assert_eq!(policies[0].policy.minimum_prefix_tokens, 1);
        assert_eq!(policies[1].policy, Policy::default());
    }

    #[test]
    fn what_is_wrong_is_named_by_field_and_document() {
        assert_eq!(
            problems("t.yaml", "minimumPrefixTokens: -1\nstrategy: {requireChain: 1}"),
            [
                "minimumPrefixTokens is -1, allowed: a whole number from 0 to 2147483647",
                "strategy.requireChain is 1, allowed: true or false",
            ]
        );
        let text = format!("{}---\n{}", manifest("p", "a", "{}"), manifest("''", "b", "{eviction: FIFO}"));
        assert_eq!(
            problems("all.yaml", &text),
            [
                r#"document 2: metadata.name is "", allowed: a text that is not empty"#,
                r#"document 2: spec.eviction is "FIFO", allowed: "LRU" or "LFU""#,
            ]
        );
        assert_eq!(
            problems("t.yaml", "minimumPrefixTokens: .nan"),
            ["minimumPrefixTokens is .nan, allowed: a finite number"]
        );
        let two_specs = problems("t.yaml", "minimumPrefixTokens: 1\n---\nminimumPrefixTokens: 2\n");
        assert!(two_specs[0].starts_with("document 1: apiVersion is absent"), "{two_specs:?}");
        for (name, text, begins) in [
            ("t.yaml", "", "the file is empty"),
            ("t.json", "null", "the file is empty"),
            ("t.json", "", "not JSON: "),
            ("t.yaml", "a: [", "not YAML: "),
            ("t.yaml", "- 1", "the file has no object"),
            ("t.yaml", "kind: CachePolicy", "apiVersion is absent"),
        ] {
            let problems = problems(name, text);
            assert!(problems[0].starts_with(begins), "{text}: {problems:?}");
        }
        assert!(read_file("t.yaml", b"\xff\xfe").unwrap_err()[0].starts_with("not UTF-8"));
    }

    #[test]
    fn the_documented_example_is_taken() {
        let page = include_str!("../../../../docs/hub.md");
        let (_, example) = page.split_once("# policies/search.yaml\n").unwrap();
        let (example, _) = example.split_once("```").unwrap();
        let policies = read_file("search.yaml", example.as_bytes()).unwrap();
        assert_eq!(policies[0].tenant_id.as_deref(), Some("search"));
        assert_eq!(policies[0].policy.eviction_ttl_ms, 600_000);
        assert!(!policies[0].policy.strategy.enable_tenant_hot);
    }
}
