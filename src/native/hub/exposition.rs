//! An engine's Prometheus text to the few figures the hub uses.
//!
//! In: the text of `/metrics`. Out: an [`EngineReport`]; what is not there is `None`, never 0. Series of one name are taken
//! together over their labels, since an engine with several ranks reports each: counts are summed, shares averaged. A line
//! that is not understood is left out, and so is a series of one `priority`, which another one includes. Pure; one pass.
//!
//! | Figure | vLLM, newest name first | SGLang | TensorRT-LLM |
//! |---|---|---|---|
//! | running | `num_requests_running` | `num_running_reqs` | `num_requests_running` |
//! | waiting | `num_requests_waiting` | `num_queue_reqs` | `num_requests_waiting` |
//! | cache usage | `kv_cache_usage_perc`, `gpu_cache_usage_perc`, `cpu_cache_usage_perc` | `token_usage` | `kv_cache_utilization` |
//! | hits, queries | `prefix_cache_hits`, `gpu_prefix_cache_hits`; `…queries` | | |
//! | hit rate | `gpu_prefix_cache_hit_rate`, `cpu_…` (before V1) | `cache_hit_rate` | `kv_cache_hit_rate` |
//! | external hits, queries | `external_prefix_cache_hits`, `…queries` | | |
//!
//! The names begin with `vllm:`, `sglang:` and `trtllm_`; a counter's may end with `_total`. A rank is named by the label
//! `engine` (vLLM) or `dp_rank` (SGLang). TensorRT-LLM serves this text at `/prometheus/metrics`.

mod series;

use std::collections::BTreeMap;

use memchr::memchr3;
use series::Series;

/// The most ranks that are told apart.
const MAX_RANKS: usize = 1_024;

/// The figures of an engine, or of one of its ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineFigures {
    /// Requests being served.
    pub running: Option<f64>,
    /// Requests that wait to be served.
    pub waiting: Option<f64>,
    /// Tokens found in the prefix cache, since the engine started.
    pub cache_hits: Option<f64>,
    /// Tokens looked for in the prefix cache, since the engine started.
    pub cache_queries: Option<f64>,
    /// Share of tokens found in the prefix cache, 0 to 1, as the engine itself has it.
    pub hit_rate: Option<f64>,
    /// Share of the cache that is in use, 0 to 1.
    pub cache_usage: Option<f64>,
    /// Tokens found in a cache behind the engine's own, since the engine started.
    pub external_hits: Option<f64>,
    /// Tokens looked for there, since the engine started.
    pub external_queries: Option<f64>,
    /// When the process started, Unix time in seconds.
    pub process_start: Option<f64>,
}

/// What an engine's text says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineReport {
    /// The engine as a whole.
    pub whole: EngineFigures,
    /// The ranks that have series of their own.
    ranks: BTreeMap<u32, EngineFigures>,
}

/// One of the fields of [`EngineFigures`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Figure {
    Running,
    Waiting,
    CacheHits,
    CacheQueries,
    HitRate,
    CacheUsage,
    ExternalHits,
    ExternalQueries,
    ProcessStart,
}

/// The series of one figure so far.
#[derive(Debug, Default)]
struct Collected {
    /// The name they have, as its place among the names of the figure.
    preference: u8,
    whole: Total,
    ranks: BTreeMap<u32, Total>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Total {
    sum: f64,
    series: u32,
}

// === impl EngineReport ===

impl EngineReport {
    /// Reads the figures from a Prometheus text.
    pub fn parse(text: &str) -> EngineReport {
        let mut collected: BTreeMap<Figure, Collected> = BTreeMap::new();
        for line in text.lines() {
            let Some((figure, preference, rest)) = named(line) else { continue };
            let Some(series) = Series::parse(rest).filter(|series| !series.is_of_one_priority) else { continue };
            // What the engine does not know it may write as -1.
            if series.value < 0.0 {
                continue;
            }
            let of_figure = collected.entry(figure).or_insert_with(|| Collected { preference, ..Collected::default() });
            of_figure.add(preference, &series);
        }
        let mut report = EngineReport::default();
        for (figure, of_figure) in &collected {
            report.whole.set(*figure, of_figure.whole.value(*figure));
            for (rank, total) in &of_figure.ranks {
                report.ranks.entry(*rank).or_default().set(*figure, total.value(*figure));
            }
        }
        report
    }

    /// The figures of one of `ranks` ranks. What has no series of its own is the whole's: shares as they are, counts
    /// divided, since requests are spread evenly and the whole's load at every rank would have each of them look as busy
    /// as all.
    pub fn of_rank(&self, rank: u32, ranks: u32) -> EngineFigures {
        let own = self.ranks.get(&rank).copied().unwrap_or_default();
        let whole = self.whole;
        let shared = |count: Option<f64>| count.map(|count| count / f64::from(ranks.max(1)));
        EngineFigures {
            running: own.running.or(shared(whole.running)),
            waiting: own.waiting.or(shared(whole.waiting)),
            // Both or neither, as they are one measurement.
            cache_hits: own.cache_queries.and(own.cache_hits).or(shared(whole.cache_hits)),
            cache_queries: own.cache_hits.and(own.cache_queries).or(shared(whole.cache_queries)),
            hit_rate: own.hit_rate.or(whole.hit_rate),
            cache_usage: own.cache_usage.or(whole.cache_usage),
            external_hits: own.external_queries.and(own.external_hits).or(shared(whole.external_hits)),
            external_queries: own.external_hits.and(own.external_queries).or(shared(whole.external_queries)),
            process_start: own.process_start.or(whole.process_start),
        }
    }
}

// === impl EngineFigures ===

impl EngineFigures {
    /// Load, from 0 (idle) to 1 (`ceiling` requests running or waiting); `None` unless the engine reports both.
    pub fn pressure(&self, ceiling: u64) -> Option<f32> {
        let requests = self.running? + self.waiting?;
        Some((requests / ceiling.max(1) as f64).clamp(0.0, 1.0) as f32)
    }

    /// What the load is to be computed from and is not there.
    pub fn missing_load(&self) -> Option<&'static str> {
        match (self.running, self.waiting) {
            (None, None) => Some("neither running nor waiting requests"),
            (None, Some(_)) => Some("no running requests"),
            (Some(_), None) => Some("no waiting requests"),
            (Some(_), Some(_)) => None,
        }
    }

    /// Whether the engine says anything of which a hit rate can be made.
    pub fn has_hit_rate(&self) -> bool {
        self.hit_rate.is_some() || (self.cache_hits.is_some() && self.cache_queries.is_some())
    }

    /// Share of the tokens looked for since `earlier` that were found: 0 if the counters started over, `None` if none were
    /// looked for or there is nothing to compare with. An engine that has no counters says its own.
    pub fn hit_rate_since(&self, earlier: &EngineFigures) -> Option<f32> {
        let (Some(queries), Some(hits)) = (self.cache_queries, self.cache_hits) else {
            return self.hit_rate.map(|rate| rate.clamp(0.0, 1.0) as f32);
        };
        let (queries_before, hits_before) = (earlier.cache_queries?, earlier.cache_hits?);
        if queries < queries_before || hits < hits_before {
            return Some(0.0);
        }
        let new_queries = queries - queries_before;
        (new_queries > 0.0).then(|| ((hits - hits_before) / new_queries).clamp(0.0, 1.0) as f32)
    }

    fn set(&mut self, figure: Figure, value: f64) {
        let field = match figure {
            Figure::Running => &mut self.running,
            Figure::Waiting => &mut self.waiting,
            Figure::CacheHits => &mut self.cache_hits,
            Figure::CacheQueries => &mut self.cache_queries,
            Figure::HitRate => &mut self.hit_rate,
            Figure::CacheUsage => &mut self.cache_usage,
            Figure::ExternalHits => &mut self.external_hits,
            Figure::ExternalQueries => &mut self.external_queries,
            Figure::ProcessStart => &mut self.process_start,
        };
        *field = Some(value);
    }
}

// === impl Collected ===

impl Collected {
    fn add(&mut self, preference: u8, series: &Series) {
        if preference > self.preference {
            return;
        }
        if preference < self.preference {
            *self = Collected { preference, ..Collected::default() };
        }
        self.whole.add(series.value);
        if let Some(rank) = series.rank
            && (self.ranks.len() < MAX_RANKS || self.ranks.contains_key(&rank))
        {
            self.ranks.entry(rank).or_default().add(series.value);
        }
    }
}

// === impl Total ===

impl Total {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.series += 1;
    }

    fn value(&self, figure: Figure) -> f64 {
        match figure {
            Figure::HitRate | Figure::CacheUsage => self.sum / f64::from(self.series.max(1)),
            _ => self.sum,
        }
    }
}

/// The figure whose name a line begins with, how far down its list of names that is, and what follows it.
fn named(line: &str) -> Option<(Figure, u8, &str)> {
    let line = line.trim_start();
    // Most lines are of histograms and of comments.
    if !line.starts_with(['v', 's', 't', 'p']) {
        return None;
    }
    let (name, rest) = line.split_at_checked(memchr3(b'{', b' ', b'\t', line.as_bytes())?)?;
    let (figure, preference) = match name {
        "vllm:num_requests_running" | "sglang:num_running_reqs" | "trtllm_num_requests_running" => (Figure::Running, 0),
        "vllm:num_requests_waiting" | "sglang:num_queue_reqs" | "trtllm_num_requests_waiting" => (Figure::Waiting, 0),
        "vllm:prefix_cache_hits_total" => (Figure::CacheHits, 0),
        "vllm:prefix_cache_hits" => (Figure::CacheHits, 1),
        "vllm:gpu_prefix_cache_hits_total" => (Figure::CacheHits, 2),
        "vllm:gpu_prefix_cache_hits" => (Figure::CacheHits, 3),
        "vllm:prefix_cache_queries_total" => (Figure::CacheQueries, 0),
        "vllm:prefix_cache_queries" => (Figure::CacheQueries, 1),
        "vllm:gpu_prefix_cache_queries_total" => (Figure::CacheQueries, 2),
        "vllm:gpu_prefix_cache_queries" => (Figure::CacheQueries, 3),
        "sglang:cache_hit_rate" | "trtllm_kv_cache_hit_rate" | "vllm:gpu_prefix_cache_hit_rate" => (Figure::HitRate, 0),
        "vllm:cpu_prefix_cache_hit_rate" => (Figure::HitRate, 1),
        "vllm:kv_cache_usage_perc" | "sglang:token_usage" | "trtllm_kv_cache_utilization" => (Figure::CacheUsage, 0),
        "vllm:gpu_cache_usage_perc" => (Figure::CacheUsage, 1),
        "vllm:cpu_cache_usage_perc" => (Figure::CacheUsage, 2),
        "vllm:external_prefix_cache_hits_total" => (Figure::ExternalHits, 0),
        "vllm:external_prefix_cache_hits" => (Figure::ExternalHits, 1),
        "vllm:external_prefix_cache_queries_total" => (Figure::ExternalQueries, 0),
        "vllm:external_prefix_cache_queries" => (Figure::ExternalQueries, 1),
        "process_start_time_seconds" => (Figure::ProcessStart, 0),
        _ => return None,
    };
    Some((figure, preference, rest))
}

#[cfg(test)]
mod tests;
