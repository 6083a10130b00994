//! Files and environment, natively and under Node.

#[cfg(not(target_arch = "wasm32"))]
mod host {
    pub fn read(path: &str) -> Option<Vec<u8>> {
        std::fs::read(path).ok()
    }

    pub fn variable(name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    pub fn say(line: &str) {
        println!("{line}");
    }
}

#[cfg(target_arch = "wasm32")]
mod host {
    use wasm_bindgen::prelude::*;

    #[wasm_bindgen(module = "fs")]
    extern "C" {
        #[wasm_bindgen(catch, js_name = readFileSync)]
        fn read_file_sync(path: &str) -> Result<js_sys::Uint8Array, JsValue>;
    }

    #[wasm_bindgen]
    extern "C" {
        #[wasm_bindgen(thread_local_v2, js_namespace = process, js_name = env)]
        static ENVIRONMENT: JsValue;
    }

    pub fn read(path: &str) -> Option<Vec<u8>> {
        read_file_sync(path).ok().map(|bytes| bytes.to_vec())
    }

    pub fn variable(name: &str) -> Option<String> {
        ENVIRONMENT.with(|environment| js_sys::Reflect::get(environment, &name.into())).ok()?.as_string()
    }

    pub fn say(line: &str) {
        wasm_bindgen_test::console_log!("{line}");
    }
}

pub use host::{read, say, variable};

/// A file of this folder.
pub fn beside(name: &str) -> String {
    format!("{}/tests/tokenizers/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Where `scripts/tokenizers.py` puts a tokenizer.
pub fn installed(name: &str) -> String {
    let home = || format!("{}/.cache", variable("HOME").unwrap_or_default());
    let cache = variable("XDG_CACHE_HOME").filter(|path| !path.is_empty()).unwrap_or_else(home);
    format!("{cache}/warmroute/tokenizers/{name}.json")
}
