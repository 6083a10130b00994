//! A model in a VM, from the parts of its package to the block chain of a body: exports for `benches/vm/text.mjs`. Empty on
//! other targets.
#![cfg(target_arch = "wasm32")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "a bench"
)]
#![allow(
    unsafe_code,
    reason = "an export needs a name of its own, and only the compiler's say that they are no other's"
)]

#[path = "path.rs"]
mod path;

use std::cell::RefCell;

use path::Path;
use warmroute::model::{Assembly, LoadedModel};
use warmroute::observation::{ModelDigest, ModelPart, ModelVersion};

#[derive(Default)]
struct Bench {
    /// What the host writes into.
    buffer: Vec<u8>,
    assembly: Option<Assembly>,
    path: Option<Path>,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::default();
}

/// Room for so many bytes, which the host fills.
#[unsafe(no_mangle)]
extern "C" fn reserve(bytes: u32) -> *mut u8 {
    BENCH.with_borrow_mut(|bench| {
        bench.buffer.clear();
        bench.buffer.resize(bytes as usize, 0);
        bench.buffer.as_mut_ptr()
    })
}

/// A package of this digest and length is going to come.
#[unsafe(no_mangle)]
extern "C" fn begin(upper: u64, lower: u64, length: u32) {
    let digest = ModelDigest((u128::from(upper) << 64) | u128::from(lower));
    BENCH.with_borrow_mut(|bench| bench.assembly = Some(Assembly::new(ModelVersion { digest, length }).unwrap()));
}

/// The buffer is the next part.
#[unsafe(no_mangle)]
extern "C" fn part() {
    BENCH.with_borrow_mut(|bench| {
        let assembly = bench.assembly.as_mut().unwrap();
        let (digest, number) = (assembly.version().digest, assembly.next_part());
        assembly.push(&ModelPart { digest, number, contents: std::mem::take(&mut bench.buffer) }).unwrap();
    });
}

/// All parts are there: loads the model.
#[unsafe(no_mangle)]
extern "C" fn load() {
    BENCH.with_borrow_mut(|bench| {
        let package = bench.assembly.take().unwrap().finish().unwrap();
        bench.path = Some(Path::new(LoadedModel::load(package).unwrap()));
    });
}

macro_rules! export {
    ($($(#[$meta:meta])* $name:ident -> $result:ty;)*) => {
        $(
            $(#[$meta])*
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> $result {
                BENCH.with_borrow_mut(|bench| bench.path.as_mut().unwrap().$name(&bench.buffer))
            }
        )*
    };
}

export! {
    /// Forgets all texts and words.
    forget -> ();
    /// The buffer as a request's body, to its block chain; the number of blocks.
    chain -> u32;
    /// The buffer as a plain text, to token ids; their number.
    encode -> u32;
    /// The same within the limits that a VM has by default.
    bounded -> u32;
    /// The XXH3-64 of the last ids, inverted if they are not all.
    ids_hash -> u64;
    /// Reading the buffer as a request's body, without what a tokenizer does.
    scan -> u32;
    /// The prefix hashes of the last ids.
    hash -> u32;
}
