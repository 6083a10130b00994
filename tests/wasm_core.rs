//! The same golden files on wasm32, under Node: what a VM computes is what the hub computes.
#![cfg(target_arch = "wasm32")]

use wasm_bindgen_test::wasm_bindgen_test;

#[path = "golden/domains.rs"]
mod domains;
#[path = "golden/vectors.rs"]
mod vectors;

#[wasm_bindgen_test]
fn fingerprints_are_those_of_the_generator() {
    vectors::compare_all();
}

#[wasm_bindgen_test]
fn domains_are_those_of_the_generator() {
    domains::compare_all();
}
