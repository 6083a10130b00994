//! The proxy-wasm module: callbacks in, host calls out, nothing else.

mod http;
mod proxy_host;
mod root;
mod vm;

use proxy_wasm::traits::RootContext;

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|context_id| -> Box<dyn RootContext> { Box::new(root::Root::new(context_id)) });
}}
