use super::*;
use crate::fingerprint::BlockSize;
use crate::flow::exchange::tests::answering;
use crate::flow::sim::{SimHost, scope};
use crate::request::{PromptInput, Tokenized};

/// What a text foretells that nobody holds, of which `ids` ids are known.
fn foretold(read_usage: bool, ids: usize, complete: bool) -> Option<Foretold> {
    let json = format!(r#"{{"hub_cluster": "hub", "models": [{{"model_id": "m"}}], "read_usage": {read_usage}}}"#);
    let config = FilterConfig::from_json(json.as_bytes()).unwrap();
    let request = LookupRequest {
        scope: scope(),
        prompt: PromptInput::default(),
        block_size: BlockSize::DEFAULT,
        slo_ttft_ms: None,
    };
    let tokenized = Some(Tokenized { ids: vec![7; ids], complete });
    // Too short for a block, so that there is no chain.
    let answer = Answer { decision: Decision::no_hint(Detail::ShortPrompt), chain: None, tokenized };
    Foretold::new(&config, &request, &answer)
}

fn pass(proxy: &SimHost, notices: &mut Notices, body: &str, is_whole: bool) {
    let host = answering(proxy, body);
    let mut reading = foretold(true, 12, true).unwrap().read(&host, None).unwrap();
    assert!(reading.read(&host, body.len()));
    reading.end(&host, notices, is_whole);
}

#[test]
fn a_prompt_of_another_number_of_tokens_is_counted_and_told() {
    let (proxy, mut notices) = (SimHost::default(), Notices::default());
    let mismatched = || proxy.0.counts.borrow().get("warmroute_prompt_tokens_mismatch_total.model.=m.;").copied();
    let told = || proxy.0.logged.borrow().iter().filter(|line| line.contains("13 for it, 12 here")).count();
    for (body, is_whole) in [
        (r#"{"usage":{"prompt_tokens":12}}"#, true),
        (r#"{"usage":{"input_tokens":2,"cache_read_input_tokens":8,"cache_creation_input_tokens":2}}"#, true),
        (r#"{"usage":{"input_tokens":0}}"#, true),
        (r#"{"usage":null}"#, true),
        (r#"{"usage":{"prompt_tokens":13}}"#, false),
    ] {
        pass(&proxy, &mut notices, body, is_whole);
        assert_eq!((mismatched(), told()), (None, 0), "{body}");
    }
    for count in 1..=3 {
        pass(&proxy, &mut notices, r#"{"usage":{"prompt_tokens":13}}"#, true);
        assert_eq!((mismatched(), told()), (Some(count), 1), "told once");
    }
    proxy.0.elapsed_ns.set(proxy.0.elapsed_ns.get() + 600_000_000_000);
    pass(&proxy, &mut notices, r#"{"usage":{"prompt_tokens":13}}"#, true);
    assert_eq!(told(), 2);
    let last = proxy.0.logged.borrow().last().cloned().unwrap();
    assert!(last.contains("3 such prompts since the last warning"), "{last}");
}

#[test]
fn only_a_whole_prompt_has_a_number_of_tokens() {
    assert!(foretold(true, 12, true).is_some());
    assert_eq!(foretold(true, 12, false), None);
    assert_eq!(foretold(false, 12, true), None);
}
