//! Text prompts, from a VM that knows nothing to one that has the model.

use super::*;
use crate::flow::sim::packages::{LARGE, packages};

/// The detail of a request with a text.
fn detail(vm: &mut Vm) -> Option<String> {
    let body = r#"{"model": "m", "prompt": "a"}"#;
    let request = vm.posted(body);
    let mut exchange = vm.hold(&request);
    assert_eq!(exchange.on_request_body(&request, vm.router(), body.len(), true), Next::Continue);
    request.detail()
}

#[test]
fn a_text_without_its_model_is_told_what_there_is_to_wait_for() {
    assert_eq!(detail(&mut Vm::new("")).as_deref(), Some("cold"));
    let mut vm = Vm::knowing("", &THREE);
    let mut late = Vm {
        proxy: vm.proxy.clone(),
        config: vm.config.clone(),
        node: Node::new("exchange"),
        notices: Notices::default(),
    };
    assert_eq!(detail(&mut vm).as_deref(), Some("no_tokenizer"), "none is announced");
    // Every look at the clock takes longer than a request may.
    late.proxy.0.look_ns.set(20_000_000);
    assert_eq!(detail(&mut late).as_deref(), Some("catching_up"));
    late.proxy.0.look_ns.set(0);

    let made = &packages()[LARGE];
    vm.say(4, StreamBody::Heartbeat);
    vm.tick();
    let announced = vec![Observation::Model { model_id: "m".into(), version: made.version }];
    vm.say(5, StreamBody::Delta { first_sequence: 1, observations: announced });
    vm.tick();
    assert_eq!(detail(&mut vm).as_deref(), Some("catching_up"), "it has not come yet");
    (6..).zip(&made.parts).for_each(|(number, part)| vm.say(number, StreamBody::ModelPart(part.clone())));
    (0..4).for_each(|_| vm.tick());
    assert_eq!(detail(&mut vm).as_deref(), Some("short_prompt"), "one token");
}
