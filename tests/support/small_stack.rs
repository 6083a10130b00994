//! Tests on as much stack as a wasm32 module has, which is less than a test's thread has.

const STACK_BYTES: usize = 1 << 20;

pub fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(STACK_BYTES).spawn(test).unwrap().join().unwrap();
}
