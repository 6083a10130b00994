//! The settings of the ranking and of the named differences from the contract: `ranking`, `affinity`, `distinguishing`,
//! `shared_prefix` and `require_chain`.
//!
//! They stand at the top of the plugin configuration, and together in one object of the hub's, for the lookups that it
//! answers itself.

use serde_json::Value;

use super::section::{Problems, Section};
use super::{ConfigError, defaults};
use crate::routing::policy::{AffinityHash, AffinitySeed, ChainOrigin, Denominator, Ranking, SharedPrefix};

/// Reads the settings from the object `settings`, which stands at `path`.
///
/// # Errors
/// All problems found, with their paths.
pub fn ranking_from_json(settings: &Value, path: &str) -> Result<Ranking, Vec<ConfigError>> {
    let mut problems = Problems::default();
    let mut section = Section::at(path.to_owned(), Some(settings), &mut problems);
    let ranking = read_ranking(&mut section, &mut problems);
    section.finish(&mut problems);
    problems.or(ranking)
}

/// Takes the settings' fields out of `section`.
pub(super) fn read_ranking(section: &mut Section, problems: &mut Problems) -> Ranking {
    let mut ranking = read_constants(section.section("ranking", problems), problems);
    read_affinity(section.section("affinity", problems), &mut ranking, problems);

    let mut distinguishing = section.section("distinguishing", problems);
    let denominators = [("holders", Denominator::Holders), ("serving", Denominator::Serving)];
    ranking.distinguishing_denominator =
        distinguishing.choice("denominator", &denominators, Denominator::default(), problems);
    distinguishing.finish(problems);

    let treatments = [("floor", SharedPrefix::Floor), ("least_pressure", SharedPrefix::LeastPressure)];
    ranking.shared_prefix = section.choice("shared_prefix", &treatments, SharedPrefix::default(), problems);
    let origins = [("wire", ChainOrigin::Wire), ("derived", ChainOrigin::Derived)];
    ranking.require_chain = section.choice("require_chain", &origins, ChainOrigin::default(), problems);
    ranking
}

fn read_constants(mut section: Section, problems: &mut Problems) -> Ranking {
    let default = Ranking::default();
    let mut float = |name, range, default| section.float(name, range, default, problems);
    let pressure_weight = float("pressure_weight", defaults::PRESSURE_WEIGHT_RANGE, default.pressure_weight);
    let slo_tight_bias = float("slo_tight_bias", defaults::SLO_TIGHT_BIAS_RANGE, default.slo_tight_bias);
    let tenant_hot_min_hit_rate =
        float("tenant_hot_min_hit_rate", defaults::TENANT_HOT_MIN_HIT_RATE_RANGE, default.tenant_hot_min_hit_rate);
    let range = defaults::SLO_TIGHT_TTFT_MS_RANGE;
    let slo_tight_ttft_ms = section.integer_u32("slo_tight_ttft_ms", range, default.slo_tight_ttft_ms, problems);
    let range = defaults::TENANT_HOT_MAX_AGE_MS_RANGE;
    let tenant_hot_max_age_ms =
        section.integer("tenant_hot_max_age_ms", range, default.tenant_hot_max_age_ms, problems);
    section.finish(problems);
    Ranking {
        pressure_weight,
        slo_tight_ttft_ms,
        slo_tight_bias,
        tenant_hot_min_hit_rate,
        tenant_hot_max_age_ms,
        ..default
    }
}

fn read_affinity(mut section: Section, ranking: &mut Ranking, problems: &mut Problems) {
    let hashes = [("modulo", AffinityHash::Modulo), ("rendezvous", AffinityHash::Rendezvous)];
    ranking.affinity_hash = section.choice("hash", &hashes, AffinityHash::default(), problems);
    let seeds = [("chain", AffinitySeed::Chain), ("head", AffinitySeed::Head)];
    ranking.affinity_seed = section.choice("seed", &seeds, AffinitySeed::default(), problems);
    let range = defaults::AFFINITY_SKIP_PRESSURE_ABOVE_RANGE;
    ranking.affinity_skip_pressure_above = section.optional_float("skip_pressure_above", range, problems);
    section.finish(problems);
}
