//! The proxy-wasm module: callbacks in, host calls out, nothing else.

mod contexts;
mod exports;
mod http;
mod proxy_host;
mod root;
mod vm;
