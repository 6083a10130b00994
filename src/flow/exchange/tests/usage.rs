//! What a response says of its prompt, held against what was matched.

use super::*;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";

/// How a response ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    WithTheLastPiece,
    WithAnEmptyPiece,
    WithTrailers,
    BrokenOff,
}

fn usage(cached: u64) -> String {
    format!(r#"{{"choices":[],"usage":{{"prompt_tokens":500,"prompt_tokens_details":{{"cached_tokens":{cached}}}}}}}"#)
}

impl Request {
    /// The answer's head, by the replica at `address`.
    fn answered_by(mut self, address: &str, status: &str, content_type: &str) -> Request {
        self.properties.insert("upstream.address".to_owned(), address.to_owned());
        let head = [(":status", status), ("content-type", content_type)];
        self.response.borrow_mut().extend(head.map(|(name, value)| (name.to_owned(), value.to_owned())));
        self
    }

    fn outcomes(&self) -> Vec<(String, u64)> {
        let counts = self.proxy.0.counts.borrow();
        let of_usage = |(name, count): (&String, &u64)| {
            let outcome =
                name.strip_prefix("warmroute_usage_compared_total.model.=m.;.outcome.=")?.strip_suffix(".;")?;
            Some((outcome.to_owned(), *count))
        };
        counts.iter().filter_map(of_usage).collect()
    }

    fn failures(&self) -> u64 {
        self.counted("warmroute_prediction_failures_total.model.=m.;")
    }

    fn recorded(&self, name: &str) -> Vec<u64> {
        self.proxy.0.recorded.borrow().get(&format!("{name}.model.=m.;")).cloned().unwrap_or_default()
    }
}

impl Vm {
    /// Sends the request and has its response pass.
    fn pass(&mut self, request: &Request, pieces: &[&[u8]], end: End) {
        let mut exchange = self.send(request);
        let notices = &mut self.notices;
        exchange.on_response_headers(request, &self.config, notices, false);
        for (at, piece) in pieces.iter().enumerate() {
            *request.response_body.borrow_mut() = piece.to_vec();
            let is_last = end == End::WithTheLastPiece && at + 1 == pieces.len();
            exchange.on_response_body(request, notices, piece.len(), is_last);
            assert_eq!(*request.response_body.borrow(), *piece);
        }
        match end {
            End::WithTheLastPiece => {}
            End::WithAnEmptyPiece => exchange.on_response_body(request, notices, 0, true),
            End::WithTrailers => exchange.end_response(request, notices, true),
            End::BrokenOff => {}
        }
        // The proxy always says that it is done.
        exchange.end_response(request, notices, false);
        assert!(!exchange.reads_response());
    }

    fn pass_whole(&mut self, request: &Request, body: &str) {
        self.pass(request, &[body.as_bytes()], End::WithTheLastPiece);
    }

    fn warnings(&self, text: &str) -> usize {
        self.proxy.0.logged.borrow().iter().filter(|line| line.contains(text)).count()
    }
}

fn only(outcome: &str) -> Vec<(String, u64)> {
    vec![(outcome.to_owned(), 1)]
}

#[test]
fn what_was_cached_is_held_against_what_the_replica_was_to_have() {
    // The first of the list was to have 128 tokens, the second 96; a block has 16.
    for (address, cached, outcome, predicted, failures) in [
        ("10.0.0.1:80", 128, "as_predicted", 128, 0),
        ("10.0.0.1:80", 112, "as_predicted", 128, 0),
        ("10.0.0.1:80", 144, "as_predicted", 128, 0),
        ("10.0.0.1:80", 111, "fewer", 128, 1),
        ("10.0.0.1:80", 0, "fewer", 128, 1),
        ("10.0.0.1:80", 145, "more", 128, 0),
        ("10.0.0.2:80", 96, "as_predicted", 96, 0),
        ("10.0.0.2:80", 128, "more", 96, 0),
        ("10.0.0.2:80", 64, "fewer", 96, 1),
    ] {
        let mut vm = Vm::knowing("", &THREE);
        let request = vm.explicit(8).answered_by(address, "200", JSON);
        vm.pass_whole(&request, &usage(cached));
        assert_eq!(request.outcomes(), only(outcome), "{address} {cached}");
        assert_eq!(request.recorded("warmroute_predicted_tokens"), [predicted]);
        assert_eq!(request.recorded("warmroute_cached_tokens"), [cached]);
        assert_eq!(request.failures(), failures, "{address} {cached}");
    }
}

#[test]
fn where_nobody_was_to_have_any_no_engine_should() {
    let missing = [(names::BLOCK_HASHES, "00000000000000ff"), (names::BLOCK_SIZE, "64"), (names::MODEL_ID, "m")];
    for (cached, outcome, failures) in [(0, "as_predicted", 0), (64, "as_predicted", 0), (65, "more", 1)] {
        let mut vm = Vm::knowing("", &THREE);
        let request = vm.request(&missing).answered_by("10.9.9.9:80", "200", JSON);
        vm.pass_whole(&request, &usage(cached));
        assert_eq!(request.detail().as_deref(), Some("miss"));
        assert_eq!((request.outcomes(), request.failures()), (only(outcome), failures), "{cached}");
    }
    // Of a single key that nobody has, shorter prefixes may be there.
    let mut vm = Vm::knowing("", &THREE);
    let single = [(names::PREFIX_HASH, "00000000000000ff"), (names::PREFIX_TOKEN_COUNT, "640"), (names::MODEL_ID, "m")];
    let request = vm.request(&single).answered_by("10.9.9.9:80", "200", JSON);
    vm.pass_whole(&request, &usage(512));
    assert_eq!((request.detail().as_deref(), request.outcomes()), (Some("miss"), vec![]));
}

#[test]
fn what_was_not_foretold_is_not_read() {
    let mut vm = Vm::knowing("", &THREE);
    let elsewhere = vm.explicit(8).answered_by("10.9.9.9:80", "200", JSON);
    vm.pass_whole(&elsewhere, &usage(0));
    let below_floor = vm.explicit(1).answered_by("10.0.0.1:80", "200", JSON);
    vm.pass_whole(&below_floor, &usage(0));
    let undecided = vm.request(&[("content-type", "text/plain")]).answered_by("10.0.0.1:80", "200", JSON);
    vm.pass_whole(&undecided, &usage(0));
    let mut cold = Vm::new("");
    let early = cold.explicit(8).answered_by("10.0.0.1:80", "200", JSON);
    cold.pass_whole(&early, &usage(0));
    let mut off = Vm::knowing(r#", "read_usage": false"#, &THREE);
    let unwanted = off.explicit(8).answered_by("10.0.0.1:80", "200", JSON);
    off.pass_whole(&unwanted, &usage(0));
    for request in [elsewhere, below_floor, undecided, early, unwanted] {
        assert_eq!((request.response_read.get(), request.outcomes()), (0, vec![]));
    }
}

#[test]
fn only_a_success_that_can_be_read_is() {
    for (status, content_type, encoding, is_read) in [
        ("200", JSON, "", true),
        ("201", "Application/JSON ; charset=utf-8", "identity", true),
        ("200", EVENTS, "", true),
        ("200", JSON, "gzip", false),
        ("200", "text/html", "", false),
        ("200", "", "", false),
        ("204", "", "", false),
        ("302", JSON, "", false),
        ("404", JSON, "", false),
        ("503", JSON, "", false),
    ] {
        let mut vm = Vm::knowing("", &THREE);
        let request = vm.explicit(8).answered_by("10.0.0.1:80", status, content_type);
        request.set_response_header("content-encoding", encoding);
        vm.pass_whole(&request, "{}");
        assert_eq!(request.response_read.get() > 0, is_read, "{status} {content_type} {encoding}");
        assert_eq!(request.outcomes(), if is_read { only("no_usage") } else { vec![] });
    }
    // No body at all, and headers that the proxy does not hand out.
    let mut vm = Vm::knowing("", &THREE);
    let request = vm.explicit(8).answered_by("10.0.0.1:80", "200", JSON);
    let mut exchange = vm.send(&request);
    exchange.on_response_headers(&request, &vm.config, &mut vm.notices, true);
    assert!(!exchange.reads_response());
    let request = vm.explicit(8).answered_by("10.0.0.1:80", "200", JSON);
    request.response.borrow_mut().clear();
    vm.pass_whole(&request, &usage(0));
    assert_eq!((request.response_read.get(), request.outcomes()), (0, vec![]));
}

#[test]
fn a_response_may_come_in_any_pieces_and_end_in_any_way() {
    let whole = usage(64);
    let stream = format!("data: {{\"choices\":[{{\"text\":\"a\"}}]}}\n\ndata: {whole}\n\ndata: [DONE]\n\n");
    for (content_type, body) in [(JSON, &whole), (EVENTS, &stream)] {
        for size in [1, 7, 1_000] {
            for end in [End::WithTheLastPiece, End::WithAnEmptyPiece, End::WithTrailers, End::BrokenOff] {
                let mut vm = Vm::knowing("", &THREE);
                let request = vm.explicit(8).answered_by("10.0.0.1:80", "200", content_type);
                let pieces: Vec<&[u8]> = body.as_bytes().chunks(size).collect();
                vm.pass(&request, &pieces, end);
                assert_eq!(request.outcomes(), only("fewer"), "{content_type} {size} {end:?}");
                assert_eq!(request.response_read.get(), body.len(), "each byte once");
            }
        }
    }
}

#[test]
fn what_is_broken_off_before_its_usage_says_nothing() {
    let mut vm = Vm::knowing("", &THREE);
    for body in ["", r#"{"choices":[]"#, r#"{"usage":{"prompt_tokens":500"#, r#"{"usage":{"prompt_tokens":500,"#] {
        let request = vm.explicit(8).answered_by("10.0.0.1:80", "200", JSON);
        vm.pass(&request, &[body.as_bytes()], End::BrokenOff);
        assert_eq!((request.response_read.get(), request.outcomes()), (body.len(), vec![]), "{body}");
    }
}

#[test]
fn megabytes_are_read_in_parts_and_a_part_that_is_withheld_ends_it() {
    let mut vm = Vm::knowing("", &THREE);
    let text = r#"\"usage\":{\"prompt_tokens\":1} "#.repeat(150_000);
    let body = format!(r#"{{"choices":[{{"text":"{text}"}}],{}"#, &usage(128)[1..]);
    assert!(body.len() > 4_000_000);
    let request = vm.explicit(8).answered_by("10.0.0.1:80", "200", JSON);
    vm.pass_whole(&request, &body);
    assert_eq!((request.outcomes(), request.response_read.get()), (only("as_predicted"), body.len()));

    let withheld = vm.explicit(8).answered_by("10.0.0.1:80", "200", JSON);
    let mut exchange = vm.send(&withheld);
    exchange.on_response_headers(&withheld, &vm.config, &mut vm.notices, false);
    exchange.on_response_body(&withheld, &mut vm.notices, 100, false);
    assert!(!exchange.reads_response());
    assert_eq!(request.outcomes(), only("as_predicted"), "nothing was added");
}

#[test]
fn a_request_body_that_is_still_coming_when_it_is_answered_goes_on() {
    let mut vm = Vm::knowing("", &THREE);
    let request = vm.explicit(8).answered_by("10.0.0.1:80", "200", JSON);
    let mut exchange = vm.send(&request);
    exchange.on_response_headers(&request, &vm.config, &mut vm.notices, false);
    assert!(exchange.reads_response());
    let decided = request.counted(&metrics::no_hint("not_configured"));
    assert_eq!(exchange.on_request_body(&request, vm.router(), 9, false), Next::Continue);
    exchange.end_response(&request, &mut vm.notices, true);
    assert_eq!(exchange.on_request_trailers(&request, vm.router()), Next::Continue);
    assert_eq!(request.counted(&metrics::no_hint("not_configured")), decided);
}

#[test]
fn nothing_cached_may_be_left_out_by_engines_that_say_what_is() {
    let mut vm = Vm::knowing("", &THREE);
    let mut outcomes = |body: &str| {
        let request = vm.explicit(8).answered_by("10.0.0.1:80", "200", JSON);
        vm.pass_whole(&request, body);
        request.outcomes().into_iter().map(|(outcome, count)| format!("{outcome} {count}")).collect::<Vec<_>>()
    };
    let left_out = r#"{"usage":{"prompt_tokens":500,"prompt_tokens_details":null}}"#;
    assert_eq!(outcomes(left_out), ["no_usage 1"], "the engine may never say");
    assert_eq!(outcomes(&usage(128)), ["as_predicted 1", "no_usage 1"]);
    assert_eq!(outcomes(left_out), ["as_predicted 1", "fewer 1", "no_usage 1"]);
    assert_eq!(outcomes("{}"), ["as_predicted 1", "fewer 1", "no_usage 2"], "no usage at all");
}

#[test]
fn predictions_that_keep_failing_are_told_and_told_again_after_ten_minutes() {
    let mut vm = Vm::knowing("", &THREE);
    let mut pass = |vm: &mut Vm, cached: u64, times: usize| {
        for _ in 0..times {
            let request = vm.explicit(8).answered_by("10.0.0.1:80", "200", JSON);
            vm.pass_whole(&request, &usage(cached));
        }
        vm.warnings("predictions for model \"m\" keep failing")
    };
    assert_eq!(pass(&mut vm, 0, 10), 0);
    assert_eq!(pass(&mut vm, 128, 10), 0, "half of twenty");
    assert_eq!(pass(&mut vm, 0, 11), 0);
    assert_eq!(pass(&mut vm, 128, 9), 1, "more than half");
    let text = vm.proxy.0.logged.borrow().iter().find(|line| line.contains("keep failing")).cloned().unwrap();
    assert!(text.contains("11 had fewer tokens cached than predicted"), "{text}");
    assert!(text.contains("the last of them 0 where 128 were predicted"), "{text}");
    assert!(text.contains("block_size"), "{text}");
    assert_eq!(pass(&mut vm, 0, 100), 1, "once in ten minutes");
    let elapsed_ns = &vm.proxy.0.elapsed_ns;
    elapsed_ns.set(elapsed_ns.get() + 600_000_000_000);
    // The hub has to be heard again for a request to be matched.
    let missing = [(names::BLOCK_HASHES, "00000000000000ff"), (names::BLOCK_SIZE, "16"), (names::MODEL_ID, "m")];
    vm.config = FilterConfig::from_json(format!("{{{BASE}, \"when_stale\": \"serve\"}}").as_bytes()).unwrap();
    assert_eq!(pass(&mut vm, 0, 20), 2);
    for _ in 0..40 {
        let request = vm.request(&missing).answered_by("10.0.0.1:80", "200", JSON);
        vm.pass_whole(&request, &usage(256));
    }
    assert_eq!(vm.warnings("keep failing"), 2);
}

#[test]
fn engines_that_have_what_nobody_was_to_have_are_told() {
    let mut vm = Vm::knowing("", &THREE);
    let missing = [(names::BLOCK_HASHES, "00000000000000ff"), (names::BLOCK_SIZE, "16"), (names::MODEL_ID, "m")];
    for _ in 0..20 {
        let request = vm.request(&missing).answered_by("10.0.0.1:80", "200", JSON);
        vm.pass_whole(&request, &usage(256));
    }
    assert_eq!(vm.warnings("20 had some although none were"), 1, "{:?}", vm.proxy.0.logged.borrow());
    assert_eq!(vm.warnings("chat template"), 1);
}
