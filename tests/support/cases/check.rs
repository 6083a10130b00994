//! What a step came to against what it must come to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use super::format::{ExpectedAnswer, ExpectedCounts, ExpectedReplica, ExpectedState};
use super::messages::{CacheState, Counts, Float, ReplicaScore, ReplicaState, Response};

/// Floats may differ by this much of the expected one.
const TOLERANCE: f64 = 1e-4;
/// And by this much at all, so that 0 can be expected of a float32.
const LEAST: f64 = 1e-6;

/// A difference: what, and the two values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub field: String,
    pub expected: String,
    pub got: String,
}

/// Collects differences.
#[derive(Debug, Default)]
pub struct Differences(pub Vec<Difference>);

// === impl Differences ===

impl Differences {
    /// Compares an answer.
    pub fn answer(&mut self, expected: &ExpectedAnswer, got: &Response) {
        self.equal("reason_code", expected.reason_code.as_ref(), &got.reason_code);
        let ids: Vec<String> = got.replica_scores.iter().map(|score| score.replica_id.clone()).collect();
        self.equal("ranked_replicas", expected.ranked_replicas.as_ref(), &ids);
        self.equal("replica_count", expected.replica_count.as_ref(), &ids.len());
        if let Some(one_of) = &expected.one_of
            && !ids.first().is_some_and(|first| one_of.contains(first))
        {
            self.add("one_of", one_of, &ids);
        }
        self.equal("adapter_id", expected.adapter_id.as_ref(), &got.adapter_id);
        self.equal("echoed_token_count", expected.echoed_token_count.as_ref(), &got.token_ids.len());
        let scores = &got.replica_scores;
        self.floats("score", &expected.scores, scores, |score| score.score);
        self.floats("hit_prob", &expected.hit_prob, scores, |score| score.estimated_cache_hit_prob);
        self.numbers("matched_tokens", &expected.matched_tokens, scores, |score| score.matched_tokens);
        self.numbers("tier", &expected.tiers, scores, |score| score.tier);
    }

    /// Compares totals.
    pub fn counts(&mut self, expected: &ExpectedCounts, got: &Counts) {
        self.equal("prefix_keys", expected.prefix_keys.as_ref(), &got.prefix_keys);
        self.equal("replica_entries", expected.replica_entries.as_ref(), &got.replica_entries);
        self.equal("total", expected.total.as_ref(), &got.total);
        let totals = [
            ("by_tenant", &expected.by_tenant, &got.by_tenant),
            ("by_model", &expected.by_model, &got.by_model),
            ("tenant_evictions", &expected.tenant_evictions, &got.tenant_evictions),
            ("index_evictions", &expected.index_evictions, &got.index_evictions),
        ];
        for (field, expected, got) in totals {
            for (name, expected) in expected {
                let got = got.get(name).copied().unwrap_or(0);
                self.equal(&format!("{field}[{name}]"), Some(expected), &got);
            }
        }
    }

    /// Compares a cache state.
    pub fn cache_state(&mut self, expected: &ExpectedState, got: &CacheState) {
        self.equal("total_prefixes", expected.total_prefixes.as_ref(), &got.total_prefixes);
        self.equal("hot_prefixes", expected.hot_prefixes.as_ref(), &got.hot_prefixes);
        let Some(replicas) = &expected.replicas else { return };
        let expected_ids: BTreeSet<&str> = replicas.iter().map(|replica| replica.replica_id.as_str()).collect();
        let got_ids: BTreeSet<&str> = got.replicas.iter().map(|replica| replica.replica_id.as_str()).collect();
        if expected_ids != got_ids || replicas.len() != got.replicas.len() {
            self.add("replicas", &expected_ids, &got_ids);
            return;
        }
        for expected in replicas {
            let got = got.replicas.iter().find(|replica| replica.replica_id == expected.replica_id);
            got.into_iter().for_each(|got| self.replica(expected, got));
        }
    }

    /// An access count.
    pub fn access_count(&mut self, expected: i64, got: i64) {
        self.equal("count", Some(&expected), &got);
    }

    fn replica(&mut self, expected: &ExpectedReplica, got: &ReplicaState) {
        let name = |field: &str| format!("{field}[{}]", expected.replica_id);
        self.equal(&name("cache_memory_bytes"), expected.cache_memory_bytes.as_ref(), &got.cache_memory_bytes);
        self.equal(&name("client_version"), expected.client_version.as_ref(), &got.client_version);
        self.equal(&name("t2_hit_tokens"), expected.t2_hit_tokens.as_ref(), &got.t2_hit_tokens);
        self.equal(&name("t2_query_tokens"), expected.t2_query_tokens.as_ref(), &got.t2_query_tokens);
        self.float(&name("hit_rate"), expected.hit_rate, got.hit_rate);
        self.float(&name("pressure"), expected.pressure, got.pressure);
    }

    fn floats(
        &mut self,
        field: &str,
        expected: &BTreeMap<String, Float>,
        got: &[ReplicaScore],
        of: fn(&ReplicaScore) -> f32,
    ) {
        for (id, expected) in expected {
            let field = format!("{field}[{id}]");
            match got.iter().find(|score| score.replica_id == *id) {
                Some(score) => self.float(&field, Some(*expected), of(score)),
                None => self.add(&field, &expected.0, &"no such replica"),
            }
        }
    }

    fn numbers(
        &mut self,
        field: &str,
        expected: &BTreeMap<String, i64>,
        got: &[ReplicaScore],
        of: fn(&ReplicaScore) -> i32,
    ) {
        for (id, expected) in expected {
            let field = format!("{field}[{id}]");
            match got.iter().find(|score| score.replica_id == *id) {
                Some(score) => self.equal(&field, Some(expected), &i64::from(of(score))),
                None => self.add(&field, expected, &"no such replica"),
            }
        }
    }

    fn float(&mut self, field: &str, expected: Option<Float>, got: f32) {
        let Some(Float(expected)) = expected else { return };
        let got = f64::from(got);
        let near = (got - expected).abs() <= (expected.abs() * TOLERANCE).max(LEAST);
        if !(near || got == expected || (got.is_nan() && expected.is_nan())) {
            self.add(field, &expected, &got);
        }
    }

    /// Compares a value, if one is expected.
    pub fn equal<T: PartialEq + Debug>(&mut self, field: &str, expected: Option<&T>, got: &T) {
        if let Some(expected) = expected
            && expected != got
        {
            self.add(field, expected, got);
        }
    }

    fn add(&mut self, field: &str, expected: &dyn Debug, got: &dyn Debug) {
        self.0.push(Difference { field: field.to_owned(), expected: format!("{expected:?}"), got: format!("{got:?}") });
    }
}
