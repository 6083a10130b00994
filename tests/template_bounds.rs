//! Templates and conversations that are out to do harm: every one ends, soon, with an answer or an error.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failing test says so by panicking, helpers included"
)]

#[path = "templates/hostile.rs"]
mod hostile;
#[path = "templates/odd.rs"]
mod odd;

#[cfg(not(target_arch = "wasm32"))]
#[path = "support/small_stack.rs"]
mod small_stack;

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use super::small_stack::on_a_small_stack;
    use super::{hostile, odd};

    #[test]
    fn looping_templates_end() {
        on_a_small_stack(hostile::looping_templates_end);
    }

    #[test]
    fn huge_outputs_end() {
        on_a_small_stack(hostile::huge_outputs_end);
    }

    #[test]
    fn deep_nesting_ends() {
        on_a_small_stack(hostile::deep_nesting_ends);
    }

    #[test]
    fn long_chains_end() {
        on_a_small_stack(hostile::long_chains_end);
    }

    #[test]
    fn random_conversations_never_panic() {
        on_a_small_stack(|| hostile::random_conversations(200));
    }

    #[test]
    fn bodies_gone_wrong_never_panic() {
        on_a_small_stack(|| hostile::bodies_gone_wrong(2_000));
    }

    #[test]
    fn odd_arguments_never_panic() {
        on_a_small_stack(|| odd::odd_arguments_never_panic(1));
    }

    #[test]
    fn broken_templates_never_panic() {
        on_a_small_stack(|| hostile::broken_templates(400));
    }
}

#[cfg(target_arch = "wasm32")]
mod wasm {
    use super::{hostile, odd};
    use wasm_bindgen_test::wasm_bindgen_test;

    #[wasm_bindgen_test]
    fn hostile_templates_and_conversations_end() {
        hostile::looping_templates_end();
        hostile::huge_outputs_end();
        hostile::deep_nesting_ends();
        hostile::long_chains_end();
        hostile::random_conversations(20);
        hostile::bodies_gone_wrong(200);
        hostile::broken_templates(40);
        odd::odd_arguments_never_panic(29);
    }
}
