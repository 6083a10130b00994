//! Texts, bodies and templates that are out to do harm, through a model with the limits that a VM has by default: each
//! ends with token ids that are exact, or with an error, and takes no more than the limits say.
//!
//! Work is bounded by counts, so that is what is compared: bytes, token ids, symbols. On wasm32 so is the memory that is
//! left behind.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failing test says so by panicking, helpers included"
)]

#[path = "text_bounds/hostile.rs"]
mod hostile;

#[cfg(not(target_arch = "wasm32"))]
#[path = "support/small_stack.rs"]
mod small_stack;

#[cfg(not(target_arch = "wasm32"))]
mod native {
    use super::hostile;
    use super::small_stack::on_a_small_stack;

    #[test]
    fn texts_without_words_end() {
        on_a_small_stack(hostile::texts_without_words_end);
    }

    #[test]
    fn bodies_end() {
        on_a_small_stack(hostile::bodies_end);
    }

    #[test]
    fn templates_end() {
        on_a_small_stack(hostile::templates_end);
    }
}

#[cfg(target_arch = "wasm32")]
mod wasm {
    use super::hostile;
    use wasm_bindgen_test::wasm_bindgen_test;

    const PAGE_BYTES: usize = 64 * 1024;
    /// What all of it together may leave behind: the texts themselves, a megabyte each and held twice, take the most.
    const MAX_GROWTH_BYTES: usize = 48 << 20;

    #[wasm_bindgen_test]
    fn hostile_texts_bodies_and_templates_end() {
        let before = core::arch::wasm32::memory_size(0);
        hostile::texts_without_words_end();
        hostile::bodies_end();
        hostile::templates_end();
        let grown = (core::arch::wasm32::memory_size(0) - before) * PAGE_BYTES;
        assert!(grown <= MAX_GROWTH_BYTES, "{grown} bytes");
    }
}
