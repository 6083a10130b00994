//! `/metrics` in Prometheus text format 0.0.4, with the names and labels of vLLM's V1 engine.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use super::scheduler::Load;

/// The content type.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The page for an engine that serves `model` with a rank for each load.
pub fn render(loads: &[Load], model: &str, started: SystemTime) -> String {
    let started = started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64();
    let model = model.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
    type Read = fn(&Load) -> f64;
    let metrics: [(&str, &str, &str, Read); 5] = [
        ("vllm:num_requests_running", "gauge", "Requests that run.", |load| load.running as f64),
        ("vllm:num_requests_waiting", "gauge", "Requests that wait.", |load| load.waiting as f64),
        ("vllm:kv_cache_usage_perc", "gauge", "Share of blocks in use, 0 to 1.", |load| load.cache_usage),
        ("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.", |load| {
            load.queried_tokens as f64
        }),
        ("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.", |load| {
            load.hit_tokens as f64
        }),
    ];
    let mut page = String::new();
    for (name, kind, help, read) in metrics {
        // Writing to a String cannot fail.
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (rank, load) in loads.iter().enumerate() {
            let _ = writeln!(page, "{name}{{engine=\"{rank}\",model_name=\"{model}\"}} {:?}", read(load));
        }
    }
    let name = "process_start_time_seconds";
    let _ = writeln!(page, "# HELP {name} Unix time of the start in seconds.\n# TYPE {name} gauge\n{name} {started:?}");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_labels_and_values() {
        let load = Load { running: 2, waiting: 1, queried_tokens: 100, hit_tokens: 64, cache_usage: 0.25 };
        let page = render(&[load, Load::default()], "a\"b", SystemTime::UNIX_EPOCH + Duration::from_millis(1_500));
        for line in [
            r#"vllm:num_requests_running{engine="0",model_name="a\"b"} 2.0"#,
            r#"vllm:num_requests_waiting{engine="0",model_name="a\"b"} 1.0"#,
            r#"vllm:kv_cache_usage_perc{engine="0",model_name="a\"b"} 0.25"#,
            r#"vllm:prefix_cache_queries_total{engine="0",model_name="a\"b"} 100.0"#,
            r#"vllm:prefix_cache_hits_total{engine="0",model_name="a\"b"} 64.0"#,
            r#"vllm:num_requests_running{engine="1",model_name="a\"b"} 0.0"#,
            "process_start_time_seconds 1.5",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} not in\n{page}");
        }
    }
}
