//! The time to a response's first byte.

use super::*;

const METRIC: &str = "warmroute_time_to_first_byte_ms.model.=m.;.reason_code.=";

fn recorded(request: &Request) -> Vec<(String, Vec<u64>)> {
    let recorded = request.proxy.0.recorded.borrow();
    let of_it = recorded.iter().filter_map(|(name, values)| Some((name.strip_prefix(METRIC)?.to_owned(), values)));
    of_it.map(|(reason, values)| (reason.trim_end_matches(".;").to_owned(), values.clone())).collect()
}

/// A response with this status whose body's pieces, of these bytes, come each after so many ms.
fn pass(vm: &mut Vm, request: &Request, status: &str, pieces: &[(u64, usize)]) {
    let mut exchange = vm.send(request);
    request.response.borrow_mut().insert(":status".to_owned(), status.to_owned());
    let notices = &mut vm.notices;
    exchange.on_response_headers(request, &vm.config, notices, pieces.is_empty());
    for (after_ms, bytes) in pieces {
        let elapsed_ns = &request.proxy.0.elapsed_ns;
        elapsed_ns.set(elapsed_ns.get() + after_ms * 1_000_000);
        *request.response_body.borrow_mut() = vec![b' '; *bytes];
        exchange.on_response_body(request, notices, *bytes, false);
    }
    exchange.end_response(request, notices, false);
    assert!(!exchange.reads_response(), "nothing is awaited any more");
}

#[test]
fn it_counts_from_the_end_of_the_input_to_the_first_byte_by_reason() {
    let mut vm = Vm::knowing("", &THREE);
    let hit = vm.explicit(8);
    pass(&mut vm, &hit, "200", &[(30, 0), (12, 5), (1_000, 5)]);
    assert_eq!(recorded(&hit), [("PREFIX_MATCH".to_owned(), vec![42])]);
}

#[test]
fn neither_errors_nor_answers_without_a_body_nor_requests_without_a_prompt_count() {
    let mut vm = Vm::knowing("", &THREE);
    for (status, pieces) in [("503", &[(5, 9)][..]), ("200", &[]), ("404", &[(5, 9)])] {
        let hit = vm.explicit(8);
        pass(&mut vm, &hit, status, pieces);
        assert_eq!(recorded(&hit), []);
    }
    let bare = Request { proxy: vm.proxy.clone(), ..Request::default() };
    pass(&mut vm, &bare, "200", &[(5, 9)]);
    assert_eq!(recorded(&bare), []);
}
