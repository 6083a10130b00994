//! The release module, callback by callback: what it does, and that no host call's failure traps it.

#![allow(clippy::unwrap_used, reason = "a failing test says so by panicking")]

mod hub;

use hub::model::MODEL;
use hub::{BLOCKS, CONFIGURATION, Pool, body, json_headers};
use wasm_host::{Action, Process, RootId, module_path, status};

/// Every function that the module imports; `the_module_imports_what_is_tried_here` keeps the list whole.
const CALLS: [&str; 22] = [
    "proxy_get_current_time_nanoseconds",
    "proxy_get_shared_data",
    "proxy_set_shared_data",
    "proxy_register_shared_queue",
    "proxy_resolve_shared_queue",
    "proxy_enqueue_shared_queue",
    "proxy_dequeue_shared_queue",
    "proxy_get_header_map_pairs",
    "proxy_get_header_map_value",
    "proxy_replace_header_map_value",
    "proxy_remove_header_map_value",
    "proxy_get_buffer_bytes",
    "proxy_get_property",
    "proxy_set_property",
    "proxy_define_metric",
    "proxy_increment_metric",
    "proxy_record_metric",
    "proxy_log",
    "proxy_set_tick_period_milliseconds",
    "proxy_grpc_stream",
    "proxy_grpc_send",
    "proxy_grpc_cancel",
];

/// Another module, which panics when it is asked to.
#[test]
fn a_trap_is_told_with_the_callback_and_a_backtrace() {
    let process = Process::new(&module_path().with_file_name("fault_module.wasm"));
    let mut vm = process.vm().unwrap();
    let root = vm.root("fault", b"").unwrap();
    let context = vm.request(root).unwrap();
    let headers = vec![(":path".to_owned(), b"/".to_vec())];
    assert_eq!(vm.request_headers(context, headers, true).unwrap(), Action::Continue);
    let trapped = vm.request_headers(context, vec![("x-fault-trap".to_owned(), b"1".to_vec())], true).unwrap_err();
    assert_eq!(trapped.callback, "proxy_on_request_headers");
    assert!(trapped.error.contains("unreachable") && trapped.error.contains("panic"), "{trapped}");
}

#[test]
fn the_module_imports_what_is_tried_here() {
    let mut imported = Process::new(&module_path()).imports();
    imported.sort();
    let mut tried = CALLS.to_vec();
    tried.sort();
    assert_eq!(imported, tried);
}

#[test]
fn a_prefix_is_matched_once_the_hub_told_of_it() {
    let process = Process::new(&module_path());
    let mut pool = Pool::new(&process, 2, CONFIGURATION).unwrap();
    let cold = pool.ask(1, &body(BLOCKS)).unwrap();
    assert_eq!((cold.code.as_deref(), cold.action), (Some("NO_HINT"), Action::Continue));
    pool.settle(40).unwrap();
    let known = pool.ask(1, &body(BLOCKS)).unwrap();
    assert_eq!(known.code.as_deref(), Some("PREFIX_MATCH"), "{known:?}, {:#?}", process.logged());
    assert_eq!(known.destination.as_deref(), Some("10.0.0.1:80"));
    assert_eq!(known.matched_tokens.as_deref(), Some("320"));
    assert_eq!(process.metric("warmroute_stream_opened_total"), 1);
}

#[test]
fn a_chat_is_tokenized_as_soon_as_the_model_has_come() {
    let process = Process::new(&module_path());
    let mut pool = Pool::new(&process, 2, CONFIGURATION).unwrap();
    pool.settle(40).unwrap();
    let words = "one and two and three and four and five and six and seven. ".repeat(20);
    let chat = serde_json::json!({ "model": "m", "messages": [{ "role": "user", "content": words }] }).to_string();
    let ids = MODEL.ids(chat.as_bytes());
    let ask = |pool: &mut Pool<'_>| pool.ask_at(1, "/v1/chat/completions", chat.as_bytes()).unwrap();
    // The first one has the VM load the model.
    let first = ask(&mut pool);
    assert_eq!((first.code.as_deref(), first.detail.as_deref()), (Some("NO_HINT"), Some("catching_up")));
    pool.settle(20).unwrap();
    assert_eq!(ask(&mut pool).detail.as_deref(), Some("miss"));
    pool.tell_of(&ids).unwrap();
    pool.settle(20).unwrap();
    let known = ask(&mut pool);
    assert_eq!(known.code.as_deref(), Some("PREFIX_MATCH"), "{known:?}");
    assert_eq!(known.matched_tokens, Some((ids.len() / 16 * 16).to_string()));
}

#[test]
fn callbacks_of_contexts_that_are_not_known_are_passed_over() {
    const UNKNOWN: u32 = 4_711;
    let process = Process::new(&module_path());
    let mut pool = Pool::new(&process, 2, CONFIGURATION).unwrap();
    pool.settle(40).unwrap();
    let (root, vm) = pool.worker(1);
    let request = vm.request(root).unwrap();
    for context in [UNKNOWN, request, root.0] {
        vm.queue_ready(context, 1).unwrap();
        vm.grpc_message(context, 99, b"\x0a".to_vec()).unwrap();
        vm.grpc_close(context, 99, 14).unwrap();
        vm.tick(RootId(context)).unwrap();
    }
    assert_eq!(vm.request_body(UNKNOWN, body(BLOCKS), true).unwrap(), Action::Continue);
    assert_eq!(vm.response_headers(UNKNOWN, Vec::new(), false).unwrap(), Action::Continue);
    vm.end_request(UNKNOWN).unwrap();
    // A request of a root context that is not there has its routing headers removed.
    let orphan = vm.request(RootId(UNKNOWN)).unwrap();
    assert_eq!(vm.request_headers(orphan, json_headers(10), false).unwrap(), Action::Continue);
    assert_eq!(vm.header(orphan, "x-gateway-destination-endpoint"), None);
    vm.end_request(orphan).unwrap();
    // A number is given again while its context is still there.
    vm.create_again(request, root).unwrap();
    vm.end_request(request).unwrap();
    assert_eq!(pool.ask(1, &body(BLOCKS)).unwrap().code.as_deref(), Some("PREFIX_MATCH"));
}

#[test]
fn a_request_is_held_for_its_body_and_let_go_at_its_end() {
    let process = Process::new(&module_path());
    let mut pool = Pool::new(&process, 2, CONFIGURATION).unwrap();
    pool.settle(40).unwrap();
    let (root, vm) = pool.worker(1);
    let context = vm.request(root).unwrap();
    let text = body(BLOCKS);
    assert_eq!(vm.request_headers(context, json_headers(text.len()), false).unwrap(), Action::Pause);
    assert_eq!(vm.request_body(context, text[..10].to_vec(), false).unwrap(), Action::Pause);
    assert_eq!(vm.request_body(context, text, true).unwrap(), Action::Continue);
    assert_eq!(vm.header(context, "x-inferencecache-reason-code").as_deref(), Some("PREFIX_MATCH"));
    vm.end_request(context).unwrap();
}

#[test]
fn no_failure_of_a_host_call_traps_or_holds_a_request_for_ever() {
    let process = Process::new(&module_path());
    for call in CALLS {
        for failing in
            [status::NOT_FOUND, status::BAD_ARGUMENT, status::EMPTY, status::CAS_MISMATCH, status::INTERNAL_FAILURE, 99]
        {
            let process = process.restarted();
            let fail = |faults: &mut wasm_host::Faults| faults.always(call, failing);
            // From the start, and once all is known.
            for late in [false, true] {
                if !late {
                    process.faults(fail);
                }
                let mut pool = Pool::new(&process, 2, CONFIGURATION)
                    .unwrap_or_else(|trapped| panic!("{call} {failing}: {trapped}"));
                let mut run = || {
                    pool.settle(12)?;
                    if late {
                        process.faults(fail);
                    }
                    let told = pool.ask(1, &body(BLOCKS))?;
                    assert_eq!(told.action, Action::Continue, "{call} {failing}");
                    pool.settle(12)?;
                    pool.lose_stream(14)?;
                    pool.settle(12)?;
                    pool.ask(1, b"{")
                };
                run().unwrap_or_else(|trapped| panic!("{call} answers {failing}, late {late}: {trapped}"));
                process.faults(wasm_host::Faults::none);
            }
        }
    }
}

#[test]
fn a_stream_that_cannot_be_opened_is_tried_again() {
    let process = Process::new(&module_path());
    for failing in [status::PARSE_FAILURE, status::INTERNAL_FAILURE] {
        let process = process.restarted();
        process.faults(|faults| faults.always("proxy_grpc_stream", failing));
        let mut pool = Pool::new(&process, 2, CONFIGURATION).unwrap();
        pool.settle(60).unwrap();
        assert_eq!(pool.ask(1, &body(BLOCKS)).unwrap().code.as_deref(), Some("NO_HINT"));
        process.faults(wasm_host::Faults::none);
        // The pauses between attempts grow.
        pool.settle(900).unwrap();
        assert_eq!(pool.ask(1, &body(BLOCKS)).unwrap().code.as_deref(), Some("PREFIX_MATCH"), "{failing}");
    }
}

#[test]
fn memory_that_ends_far_above_its_limits_is_never_asked_for() {
    const MEGABYTE: usize = 1 << 20;
    let process = Process::new(&module_path());
    // 16 MiB of index, and what VM, configuration, a catch-up and requests take.
    process.set_max_memory(64 * MEGABYTE);
    let configuration = r#"{"hub_cluster":"hub","models":[{"model_id":"m"}],"limits":{"max_index_bytes":16777216}}"#;
    let mut pool = Pool::new(&process, 2, configuration).unwrap();
    pool.settle(20).unwrap();
    let mut told = 0;
    for prompt in 1..3_000 {
        told += pool.tell_of_prompt(prompt, 400).unwrap();
        pool.settle(1).unwrap();
    }
    pool.settle(200).unwrap();
    let (memory, refused) = (pool.vms[1].1.memory_bytes(), process.metric("warmroute_evictions_total"));
    println!("{told} blocks told, {} MiB a VM, {refused} evicted", memory / MEGABYTE);
    assert!(refused > 0 && told > 1_000_000, "{told} {refused}");
    assert_eq!(pool.ask(1, &body(BLOCKS)).unwrap().action, Action::Continue);
}

#[test]
fn a_configuration_that_is_refused_leaves_the_last_good_one() {
    let process = Process::new(&module_path());
    let mut pool = Pool::new(&process, 2, CONFIGURATION).unwrap();
    pool.settle(40).unwrap();
    for wrong in [&b"{"[..], b"", b"[]", b"{\"hub_cluster\":1}", b"\xff\xfe"] {
        for at in 0..2 {
            let (root, vm) = pool.worker(at);
            assert!(vm.configure(root, wrong).unwrap());
        }
        pool.settle(5).unwrap();
        assert_eq!(pool.ask(1, &body(BLOCKS)).unwrap().code.as_deref(), Some("PREFIX_MATCH"));
    }
    assert_eq!(process.metric("warmroute_config_refused_total"), 10);
}
