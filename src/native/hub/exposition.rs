//! An engine's Prometheus text to the few figures the hub uses.
//!
//! In: the text of `/metrics`. Out: [`EngineFigures`]; what is not there is `None`. Series of one name are summed over
//! their labels, since an engine with several ranks reports each. A line that is not understood is left out. Pure.
//!
//! Names: `vllm:` as of vLLM V1, with and without `_total`, and those it had before; `sglang:` for its queue lengths.

/// The figures.
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
    /// When the process started, Unix time in seconds.
    pub process_start: Option<f64>,
}

const RUNNING: [&str; 2] = ["vllm:num_requests_running", "sglang:num_running_reqs"];
const WAITING: [&str; 2] = ["vllm:num_requests_waiting", "sglang:num_queue_reqs"];
const CACHE_HITS: [&str; 4] = [
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_hits",
    "vllm:gpu_prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_hits",
];
const CACHE_QUERIES: [&str; 4] = [
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_queries",
    "vllm:gpu_prefix_cache_queries_total",
    "vllm:gpu_prefix_cache_queries",
];
const PROCESS_START: [&str; 1] = ["process_start_time_seconds"];

// === impl EngineFigures ===

impl EngineFigures {
    /// Reads the figures from a Prometheus text.
    pub fn parse(text: &str) -> EngineFigures {
        EngineFigures {
            running: sum(text, &RUNNING),
            waiting: sum(text, &WAITING),
            cache_hits: sum(text, &CACHE_HITS),
            cache_queries: sum(text, &CACHE_QUERIES),
            process_start: sum(text, &PROCESS_START),
        }
    }

    /// Load, from 0 (idle) to 1 (`ceiling` requests running or waiting); `None` if the engine reports neither.
    pub fn pressure(&self, ceiling: u64) -> Option<f32> {
        if self.running.is_none() && self.waiting.is_none() {
            return None;
        }
        let requests = self.running.unwrap_or(0.0) + self.waiting.unwrap_or(0.0);
        Some((requests / ceiling.max(1) as f64).clamp(0.0, 1.0) as f32)
    }

    /// Share of the tokens looked for since `earlier` that were found; `None` if none were, or counters are missing.
    pub fn hit_rate_since(&self, earlier: &EngineFigures) -> Option<f32> {
        let (queries, hits) = (self.cache_queries?, self.cache_hits?);
        let (mut queries_before, mut hits_before) =
            (earlier.cache_queries.unwrap_or(0.0), earlier.cache_hits.unwrap_or(0.0));
        if queries < queries_before || hits < hits_before {
            // The counters started over.
            (queries_before, hits_before) = (0.0, 0.0);
        }
        let new_queries = queries - queries_before;
        (new_queries > 0.0).then(|| ((hits - hits_before) / new_queries).clamp(0.0, 1.0) as f32)
    }
}

/// The sum of all series of the first of `names` that is there.
fn sum(text: &str, names: &[&str]) -> Option<f64> {
    names.iter().find_map(|name| {
        let values = text.lines().filter_map(|line| value_of(line, name));
        values.reduce(|sum, value| sum + value)
    })
}

/// The value in `name{labels} value timestamp`, if the line is a finite sample of that name.
fn value_of(line: &str, name: &str) -> Option<f64> {
    let rest = line.trim_start().strip_prefix(name)?;
    let rest = match rest.strip_prefix('{') {
        // Label values can contain braces, values and timestamps cannot.
        Some(labels) => labels.rsplit_once('}')?.1,
        None => rest.starts_with([' ', '\t']).then_some(rest)?,
    };
    let value: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VLLM: &str = "# HELP vllm:num_requests_running Number of requests\n\
        # TYPE vllm:num_requests_running gauge\n\
        vllm:num_requests_running{engine=\"0\",model_name=\"m}1\"} 3.0\n\
        vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 4\n\
        vllm:num_requests_waiting{engine=\"0\"} 1.0 1700000000\n\
        vllm:num_requests_waiting_by_reason{reason=\"x\"} 99\n\
        vllm:prefix_cache_queries_total{engine=\"0\"} 200\n\
        vllm:prefix_cache_hits_total{engine=\"0\"} 50\n\
        vllm:prefix_cache_hits_created{engine=\"0\"} 1.7e9\n\
        process_start_time_seconds 1.7e9\n";

    #[test]
    fn series_are_summed_and_longer_names_are_others() {
        let figures = EngineFigures::parse(VLLM);
        assert_eq!((figures.running, figures.waiting), (Some(7.0), Some(1.0)));
        assert_eq!((figures.cache_hits, figures.cache_queries), (Some(50.0), Some(200.0)));
        assert_eq!(figures.process_start, Some(1.7e9));
        assert_eq!(figures.pressure(16), Some(0.5));
        assert_eq!(figures.pressure(4), Some(1.0));
    }

    #[test]
    fn older_names_and_other_engines_are_read() {
        let figures = EngineFigures::parse("vllm:gpu_prefix_cache_hits 1\nvllm:gpu_prefix_cache_queries 4\n");
        assert_eq!(figures.hit_rate_since(&EngineFigures::default()), Some(0.25));
        assert_eq!(figures.pressure(16), None);
        let figures = EngineFigures::parse("sglang:num_running_reqs{} 2\nsglang:num_queue_reqs 2\n");
        assert_eq!(figures.pressure(8), Some(0.5));
    }

    #[test]
    fn the_hit_rate_is_of_the_latest_queries() {
        let at = |hits, queries| EngineFigures {
            cache_hits: Some(hits),
            cache_queries: Some(queries),
            ..EngineFigures::default()
        };
        assert_eq!(at(50.0, 100.0).hit_rate_since(&at(0.0, 50.0)), Some(1.0));
        assert_eq!(at(50.0, 100.0).hit_rate_since(&at(50.0, 100.0)), None);
        assert_eq!(at(5.0, 10.0).hit_rate_since(&at(50.0, 100.0)), Some(0.5));
    }

    #[test]
    fn garbage_is_left_out() {
        let text = "vllm:num_requests_running{ NaN\nvllm:num_requests_running NaN\nvllm:num_requests_running x\n\0";
        assert_eq!(EngineFigures::parse(text), EngineFigures::default());
    }
}
