//! The plugin's configuration: JSON as Envoy hands it over, to a [`FilterConfig`] that needs no further checks.
//!
//! Every problem is reported, not only the first, each with the field's path, the value found and what is allowed. A
//! field that is not known is a problem too, so that a misspelt setting cannot be silently ignored. A `null` is the
//! same as an absent field, except for `tenant.default`, where it means "no default". A number may be written as a
//! whole float (`1e6`), which is how a protobuf `Struct` can come out as JSON.
//!
//! Field names are snake_case; inside `policy` and `policies` they are those of the public `CachePolicy` spec, so
//! that a spec can be pasted in. [`defaults`] has every default and its unit.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub mod defaults;
mod domain;
mod duration;
mod error;
mod hubs;
mod limits;
mod manifest;
mod model;
mod policy;
mod ranking;
mod request_rules;
mod section;
mod tenant;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::routing::policy::{Policies, Ranking};

pub use error::ConfigError;
pub use hubs::{HubToken, Hubs};
pub use limits::{Freshness, Limits, Output, WhenStale};
pub use manifest::PolicyManifest;
pub use model::{Adapter, ModelConfig};
pub use policy::{POLICY_TENANT, may_have_policy, policy_from_json};
pub use ranking::ranking_from_json;
pub use request_rules::{BodyApi, PathRule, RequestRules};
pub use tenant::{RESERVED_TENANT, TenantFrom, TenantSource};

use section::{Problems, Section};

/// The whole configuration of one root context, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct FilterConfig {
    /// Where the Observe stream goes.
    pub hubs: Hubs,
    /// What to ask the hub for.
    pub subscribe: Subscribe,
    /// Where a request's tenant comes from.
    pub tenant: TenantSource,
    /// The models that are routed, by the id that requests name; at least one.
    pub models: BTreeMap<String, ModelConfig>,
    /// The ids of models, by the further names that they are served under.
    pub aliases: BTreeMap<String, String>,
    /// The LoRA adapters that requests may name instead of a model, by the name that they are served under.
    pub adapters: BTreeMap<String, Adapter>,
    /// Which requests are read, and how much of them.
    pub requests: RequestRules,
    /// The CachePolicy of every tenant.
    pub policies: Policies,
    /// The most distinct blocks that each of these tenants may hold in the index; others have no limit of their own.
    pub quotas: BTreeMap<String, u64>,
    /// Constants of the score, and the named differences from the contract.
    pub ranking: Ranking,
    /// What the engines' time zone adds to UTC, in minutes, for templates that write the date.
    pub utc_offset_minutes: i32,
    /// Whether responses are read for what the engine found in its cache, to compare it with what was matched.
    pub read_usage: bool,
    /// What is written.
    pub output: Output,
    /// When the index counts as stale, and what happens then.
    pub freshness: Freshness,
    /// Bounds of time and memory.
    pub limits: Limits,
}

/// What the filter asks the hub for; an empty list asks for everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscribe {
    /// Only these models.
    pub models: Vec<String>,
    /// Only these tenants.
    pub tenants: Vec<String>,
}

// === impl FilterConfig ===

impl FilterConfig {
    /// Reads and validates the plugin configuration.
    ///
    /// # Errors
    /// All problems found, in the order of the fields above. Text that is not a JSON object is a single problem.
    pub fn from_json(json: &[u8]) -> Result<FilterConfig, Vec<ConfigError>> {
        let value: Value = serde_json::from_slice(json).map_err(|error| vec![ConfigError::not_json(&error)])?;
        let mut problems = Problems::default();
        let mut root = Section::root(&value, &mut problems);
        let hubs = Hubs::read(&mut root, &mut problems);
        let subscribe = Subscribe::read(root.section("subscribe", &mut problems), &mut problems);
        let tenant = TenantSource::read(root.section("tenant", &mut problems), &mut problems);
        let model::Served { models, aliases, adapters } = model::read_models(&mut root, &mut problems);
        let config = FilterConfig {
            hubs,
            subscribe,
            tenant,
            models,
            aliases,
            adapters,
            requests: RequestRules::read(&mut root, &mut problems),
            policies: policy::read_policies(&mut root, &mut problems),
            quotas: limits::read_quotas(&mut root, &mut problems),
            ranking: ranking::read_ranking(&mut root, &mut problems),
            utc_offset_minutes: root.integer_i32(
                "utc_offset_minutes",
                defaults::UTC_OFFSET_MINUTES_RANGE,
                defaults::UTC_OFFSET_MINUTES,
                &mut problems,
            ),
            read_usage: root.boolean("read_usage", defaults::READ_USAGE, &mut problems),
            output: Output::read(root.section("output", &mut problems), &mut problems),
            freshness: Freshness::read(&mut root, &mut problems),
            limits: Limits::read(root.section("limits", &mut problems), &mut problems),
        };
        root.finish(&mut problems);
        problems.or(config)
    }

    /// The model that is served under this name: its id, or one of its aliases.
    pub fn model(&self, name: &str) -> Option<&ModelConfig> {
        self.models.get(name).or_else(|| self.models.get(self.aliases.get(name)?))
    }

    /// The base model and the adapter id behind a served LoRA name; `None` if no model lists that name.
    pub fn adapter(&self, name: &str) -> Option<(&ModelConfig, &str)> {
        let adapter = self.adapters.get(name)?;
        Some((self.models.get(&adapter.model_id)?, &adapter.adapter_id))
    }

    /// The name of the index that this configuration asks for: 16 hex digits.
    ///
    /// Root contexts of one VM whose configurations agree on what decides the index's contents share one index, leader
    /// and stream; any difference there gives another domain. Settings of requests, ranking and output do not count.
    pub fn domain(&self) -> String {
        domain::digest(self)
    }
}

// === impl Subscribe ===

impl Subscribe {
    fn read(mut section: Section, problems: &mut Problems) -> Subscribe {
        let subscribe = Subscribe {
            models: section.texts("models", problems).unwrap_or_default(),
            tenants: section.texts("tenants", problems).unwrap_or_default(),
        };
        section.finish(problems);
        subscribe
    }
}

#[cfg(test)]
mod tests;
