//! CachePolicy specs and the constants of the ranking.

use serde_json::Value;

use super::section::{Problems, Section};
use super::{RESERVED_TENANT, defaults, duration};
use crate::routing::policy::{Policies, Policy, Ranking};

/// Fields of the CachePolicy spec that this version does not act on. They are refused: an operator who sets one
/// expects it to work.
const NOT_SUPPORTED: [&str; 3] = ["eviction", "lookupTimeoutMs", "strategy"];

/// `routingFloorScore` as the CachePolicy describes it.
const SCORE_PATTERN: &str = r#"a text such as "0.1" that matches ^(0|[1-9][0-9]{0,7})(\.[0-9]{1,6})?$"#;

/// `policy` and `policies`.
pub(super) fn read_policies(root: &mut Section, problems: &mut Problems) -> Policies {
    let default = read_policy(root.section("policy", problems), problems);
    let specs = root.section("policies", problems);
    let mut policies = Policies { default, by_tenant: Default::default() };
    for (tenant_id, spec) in specs.entries() {
        let path = format!("policies.{tenant_id}");
        if tenant_id.is_empty() || tenant_id == RESERVED_TENANT {
            problems.note(path.clone(), Some(spec), format!("a tenant that is not empty and not {RESERVED_TENANT}"));
        }
        let policy = read_policy(Section::at(path, Some(spec), problems), problems);
        policies.by_tenant.insert(tenant_id.clone(), policy);
    }
    policies
}

fn read_policy(mut spec: Section, problems: &mut Problems) -> Policy {
    let default = Policy::default();
    let counts = defaults::POLICY_COUNT_RANGE;
    let policy = Policy {
        eviction_ttl_ms: read_ttl(&mut spec, problems).unwrap_or(default.eviction_ttl_ms),
        minimum_prefix_tokens: spec.integer_u32(
            "minimumPrefixTokens",
            counts.clone(),
            default.minimum_prefix_tokens,
            problems,
        ),
        minimum_matched_tokens: spec.integer_u32(
            "minimumMatchedTokens",
            counts,
            default.minimum_matched_tokens,
            problems,
        ),
        routing_floor_score: read_score(&mut spec, problems).unwrap_or(default.routing_floor_score),
        affinity_routing: false,
        ..default
    };
    refuse_unsupported(&mut spec, problems);
    spec.finish(problems);
    policy
}

fn read_ttl(spec: &mut Section, problems: &mut Problems) -> Option<u64> {
    let value = spec.take("evictionTTL")?;
    let range = defaults::EVICTION_TTL_MS_RANGE;
    let ttl = value.as_str().and_then(duration::go_duration_ms).filter(|ttl| range.contains(ttl));
    if ttl.is_none() {
        let days = range.end() / duration::DAY_MS;
        let allowed = format!("a duration such as \"30m\" or \"1h30m\", from 1ms to {}h ({days} days)", days * 24);
        problems.note(spec.path_of("evictionTTL"), Some(value), allowed);
    }
    ttl
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

fn refuse_unsupported(spec: &mut Section, problems: &mut Problems) {
    for name in NOT_SUPPORTED {
        if let Some(value) = spec.take(name) {
            problems.note(spec.path_of(name), Some(value), "absent: this version does not support it");
        }
    }
    match spec.take("affinityRouting") {
        None => {}
        Some(Value::String(mode)) if mode == "Disabled" => {}
        Some(value) => {
            let allowed = "\"Disabled\" or absent: this version does not support affinity routing";
            problems.note(spec.path_of("affinityRouting"), Some(value), allowed);
        }
    }
}

/// `ranking`.
pub(super) fn read_ranking(mut section: Section, problems: &mut Problems) -> Ranking {
    let default = Ranking::default();
    let ranking = Ranking {
        pressure_weight: section.float(
            "pressure_weight",
            defaults::PRESSURE_WEIGHT_RANGE,
            default.pressure_weight,
            problems,
        ),
        slo_tight_ttft_ms: section.integer_u32(
            "slo_tight_ttft_ms",
            defaults::SLO_TIGHT_TTFT_MS_RANGE,
            default.slo_tight_ttft_ms,
            problems,
        ),
        slo_tight_bias: section.float(
            "slo_tight_bias",
            defaults::SLO_TIGHT_BIAS_RANGE,
            default.slo_tight_bias,
            problems,
        ),
        ..default
    };
    section.finish(problems);
    ranking
}
