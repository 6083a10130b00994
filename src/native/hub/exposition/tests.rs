use proptest::prelude::*;

use super::*;

const VLLM: &str = "# HELP vllm:num_requests_running Number of requests\n\
    # TYPE vllm:num_requests_running gauge\n\
    vllm:num_requests_running{engine=\"0\",model_name=\"m}1\"} 3.0\n\
    vllm:num_requests_running{engine=\"1\",model_name=\"a\\\"} 9\"} 4\n\
    vllm:num_requests_waiting{engine=\"0\"} 1.0 1700000000\n\
    vllm:num_requests_waiting_by_reason{reason=\"x\"} 99\n\
    vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n\
    vllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n\
    vllm:prefix_cache_queries_total{engine=\"0\"} 200\n\
    vllm:prefix_cache_hits_total{engine=\"0\"} 50 # {trace=\"x\"} 1\n\
    vllm:prefix_cache_hits_created{engine=\"0\"} 1.7e9\n\
    vllm:external_prefix_cache_queries_total 20\n\
    vllm:external_prefix_cache_hits_total 5\n\
    process_start_time_seconds 1.7e9\n";

fn figures(text: &str) -> EngineFigures {
    EngineReport::parse(text).whole
}

#[test]
fn series_are_taken_together_and_longer_names_are_others() {
    let figures = figures(VLLM);
    assert_eq!((figures.running, figures.waiting), (Some(7.0), Some(1.0)));
    assert_eq!((figures.cache_hits, figures.cache_queries), (Some(50.0), Some(200.0)));
    assert_eq!((figures.external_hits, figures.external_queries), (Some(5.0), Some(20.0)));
    assert_eq!((figures.cache_usage, figures.process_start), (Some(0.5), Some(1.7e9)));
    assert_eq!((figures.pressure(16), figures.pressure(4)), (Some(0.5), Some(1.0)));
}

#[test]
fn older_names_count_where_there_are_no_newer_ones() {
    let old = figures("vllm:gpu_prefix_cache_hits 1\nvllm:gpu_prefix_cache_queries 4\nvllm:cpu_cache_usage_perc 0.5\n");
    assert_eq!((old.cache_hits, old.cache_queries, old.cache_usage), (Some(1.0), Some(4.0), Some(0.5)));
    for text in [
        "vllm:gpu_cache_usage_perc 0.9\nvllm:cpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.1\n",
        "vllm:kv_cache_usage_perc 0.1\nvllm:gpu_cache_usage_perc 0.9\nvllm:cpu_cache_usage_perc 0.5\n",
    ] {
        assert_eq!(figures(text).cache_usage, Some(0.1));
    }
    assert_eq!(figures("vllm:gpu_prefix_cache_hit_rate 0.5").hit_rate_since(&EngineFigures::default()), Some(0.5));
    assert_eq!(figures("vllm:gpu_prefix_cache_hit_rate -1.0").hit_rate, None, "not known");
}

#[test]
fn sglang_and_tensorrt_llm_are_read() {
    let sglang = "sglang:num_running_reqs{tp_rank=\"0\",dp_rank=\"0\",priority=\"\"} 2.0\n\
        sglang:num_running_reqs{tp_rank=\"0\",dp_rank=\"0\",priority=\"1\"} 2.0\n\
        sglang:num_running_reqs{tp_rank=\"1\",dp_rank=\"1\",priority=\"\"} 4.0\n\
        sglang:num_queue_reqs{dp_rank=\"0\"} 2\n\
        sglang:token_usage{dp_rank=\"0\"} 0.5\n\
        sglang:cache_hit_rate{dp_rank=\"0\"} 0.25\n\
        sglang:cache_hit_rate{dp_rank=\"1\"} 0.75\n";
    let sglang = EngineReport::parse(sglang);
    assert_eq!(sglang.whole.pressure(16), Some(0.5));
    assert_eq!(sglang.whole.hit_rate_since(&EngineFigures::default()), Some(0.5));
    assert_eq!(sglang.of_rank(1, 2).hit_rate, Some(0.75));
    let trtllm = figures(
        "trtllm_num_requests_running{model_name=\"m\"} 1\ntrtllm_num_requests_waiting 1\n\
         trtllm_kv_cache_hit_rate 0.125\ntrtllm_kv_cache_utilization 0.5\n",
    );
    assert_eq!((trtllm.pressure(4), trtllm.cache_usage, trtllm.hit_rate), (Some(0.5), Some(0.5), Some(0.125)));
}

#[test]
fn a_rank_has_its_own_figures_and_else_its_share_of_the_whole() {
    let report = EngineReport::parse(VLLM);
    assert_eq!((report.of_rank(0, 2).running, report.of_rank(1, 2).running), (Some(3.0), Some(4.0)));
    assert_eq!((report.of_rank(0, 2).waiting, report.of_rank(1, 2).waiting), (Some(1.0), Some(0.5)));
    assert_eq!((report.of_rank(0, 2).cache_usage, report.of_rank(1, 2).cache_usage), (Some(0.25), Some(0.75)));
    let other = report.of_rank(5, 2);
    assert_eq!((other.running, other.cache_usage, other.process_start), (Some(3.5), Some(0.5), Some(1.7e9)));
    assert_eq!(report.of_rank(0, 0).external_hits, Some(5.0));
}

#[test]
fn what_is_missing_is_no_zero() {
    assert_eq!(figures("vllm:num_requests_running 1").pressure(16), None);
    assert_eq!(figures("vllm:num_requests_running 1").missing_load(), Some("no waiting requests"));
    assert_eq!(figures("vllm:num_requests_waiting 1").missing_load(), Some("no running requests"));
    assert_eq!(figures("").missing_load(), Some("neither running nor waiting requests"));
    assert!(figures(VLLM).missing_load().is_none() && figures(VLLM).has_hit_rate());
    assert!(!figures("vllm:prefix_cache_queries 1").has_hit_rate());
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
    assert_eq!(at(5.0, 10.0).hit_rate_since(&at(50.0, 100.0)), Some(0.0), "they started over");
    assert_eq!(at(50.0, 100.0).hit_rate_since(&EngineFigures::default()), None, "the first");
}

#[test]
fn garbage_is_left_out() {
    let text = "vllm:num_requests_running{ NaN\nvllm:num_requests_running NaN\nvllm:num_requests_running x\n\0\n\
        vllm:num_requests_running{a=\"} 1\nvllm:num_requests_running{a=1} 1\nvllm:num_requests_running +Inf\n\
        vllm:num_requests_running\nvllm:num_requests_running{engine=\"-1\"}\n";
    assert_eq!(EngineReport::parse(text), EngineReport::default());
    let odd = EngineReport::parse("vllm:num_requests_running{engine=\"all\"} 1\n");
    assert_eq!((odd.whole.running, odd.ranks.len()), (Some(1.0), 0));
    let many: String = (0..5_000).map(|at| format!("vllm:num_requests_running{{engine=\"{at}\"}} 1\n")).collect();
    let many = EngineReport::parse(&many);
    assert_eq!((many.whole.running, many.ranks.len()), (Some(5_000.0), MAX_RANKS));
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC*") {
        EngineReport::parse(&text);
    }

    #[test]
    fn no_label_or_value_panics(
        lines in proptest::collection::vec(
            ("(vllm:num_requests_running|sglang:num_queue_reqs)", "[{}\"\\\\=, a-z0-9é]{0,24}", "[-+.0-9eEinfaN ]{0,12}"),
            0..8,
        ),
    ) {
        let text: String = lines.iter().map(|(name, labels, value)| format!("{name}{labels}{value}\n")).collect();
        let report = EngineReport::parse(&text);
        for figures in [report.whole, report.of_rank(0, 0), report.of_rank(7, 3)] {
            prop_assert!(figures.pressure(0).is_none_or(|pressure| (0.0..=1.0).contains(&pressure)));
        }
    }

    #[test]
    fn a_cut_text_says_nothing_else(cut in 0..VLLM.len()) {
        if let Some(text) = VLLM.get(..cut) {
            prop_assert!(figures(text).running.is_none_or(|running| running <= 7.0));
        }
    }
}
