//! CachePolicy specs, as the plugin's configuration and the hub's files have them: the field names, defaults and rules of
//! the public `CachePolicy` resource.

use serde_json::Value;

use super::section::{Problems, Section};
use super::{ConfigError, RESERVED_TENANT, defaults};
use crate::routing::policy::{Eviction, Policies, Policy, Strategy};

/// `routingFloorScore` as the CachePolicy describes it.
const SCORE_PATTERN: &str = r#"a text such as "0.1" that matches ^(0|[1-9][0-9]{0,7})(\.[0-9]{1,6})?$"#;

/// The longest tenant with a policy, in bytes.
const MAX_TENANT_BYTES: usize = 256;
/// The tenants that may have a policy.
pub const POLICY_TENANT: &str = "a tenant of 1 to 256 bytes that is not inferencecache.io/probe";

/// Reads the CachePolicy spec `spec`, which stands at `path`; empty for a spec that stands alone.
///
/// # Errors
/// All problems found, with their paths.
pub fn policy_from_json(spec: &Value, path: &str) -> Result<Policy, Vec<ConfigError>> {
    let mut problems = Problems::default();
    let policy = read_policy(Section::at(path.to_owned(), Some(spec), &mut problems), &mut problems);
    problems.or(policy)
}

/// Whether a policy may be set for this tenant; [`POLICY_TENANT`] says it in words.
pub fn may_have_policy(tenant_id: &str) -> bool {
    (1..=MAX_TENANT_BYTES).contains(&tenant_id.len()) && tenant_id != RESERVED_TENANT
}

/// `policy` and `policies`.
pub(super) fn read_policies(root: &mut Section, problems: &mut Problems) -> Policies {
    let default = read_policy(root.section("policy", problems), problems);
    let specs = root.section("policies", problems);
    let mut policies = Policies { default, by_tenant: Default::default() };
    for (tenant_id, spec) in specs.entries() {
        let path = format!("policies.{tenant_id}");
        if !may_have_policy(tenant_id) {
            problems.note(path.clone(), Some(spec), POLICY_TENANT);
        }
        let policy = read_policy(Section::at(path, Some(spec), problems), problems);
        policies.by_tenant.insert(tenant_id.clone(), policy);
    }
    policies
}

pub(super) fn read_policy(mut spec: Section, problems: &mut Problems) -> Policy {
    let default = Policy::default();
    let evictions = [("LRU", Eviction::Lru), ("LFU", Eviction::Lfu)];
    let switch = [("Enabled", true), ("Disabled", false)];
    let policy = Policy {
        eviction: spec.choice("eviction", &evictions, default.eviction, problems),
        eviction_ttl_ms: spec
            .duration_ms("evictionTTL", defaults::EVICTION_TTL_MS_RANGE, problems)
            .unwrap_or(default.eviction_ttl_ms),
        minimum_prefix_tokens: read_count(&mut spec, "minimumPrefixTokens", default.minimum_prefix_tokens, problems),
        minimum_matched_tokens: read_count(&mut spec, "minimumMatchedTokens", default.minimum_matched_tokens, problems),
        routing_floor_score: read_score(&mut spec, problems).unwrap_or(default.routing_floor_score),
        lookup_timeout_ms: read_count(&mut spec, "lookupTimeoutMs", default.lookup_timeout_ms, problems),
        strategy: read_strategy(spec.section("strategy", problems), problems),
        affinity_routing: spec.choice("affinityRouting", &switch, default.affinity_routing, problems),
    };
    spec.finish(problems);
    policy
}

fn read_count(spec: &mut Section, name: &'static str, default: u32, problems: &mut Problems) -> u32 {
    spec.integer_u32(name, defaults::POLICY_COUNT_RANGE, default, problems)
}

fn read_score(spec: &mut Section, problems: &mut Problems) -> Option<f32> {
    let value = spec.take("routingFloorScore")?;
    let score = value.as_str().filter(|text| is_score(text)).and_then(|text| text.parse().ok());
    if score.is_none() {
        problems.note(spec.path_of("routingFloorScore"), Some(value), SCORE_PATTERN);
    }
    score
}

/// Whether `text` matches `^(0|[1-9][0-9]{0,7})(\.[0-9]{1,6})?$`.
fn is_score(text: &str) -> bool {
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = text.split_once('.').map_or((text, None), |(whole, fraction)| (whole, Some(fraction)));
    let whole_matches = whole == "0" || ((1..=8).contains(&whole.len()) && digits(whole) && !whole.starts_with('0'));
    whole_matches && fraction.is_none_or(|fraction| (1..=6).contains(&fraction.len()) && digits(fraction))
}

fn read_strategy(mut section: Section, problems: &mut Problems) -> Strategy {
    let default = Strategy::default();
    let strategy = Strategy {
        enable_chain_matching: section.boolean("enableChainMatching", default.enable_chain_matching, problems),
        require_chain: section.boolean("requireChain", default.require_chain, problems),
        enable_tenant_hot: section.boolean("enableTenantHot", default.enable_tenant_hot, problems),
    };
    if strategy.require_chain && !strategy.enable_chain_matching {
        let allowed = "false where enableChainMatching is false";
        problems.note(section.path_of("requireChain"), Some(&Value::Bool(true)), allowed);
    }
    section.finish(problems);
    strategy
}
