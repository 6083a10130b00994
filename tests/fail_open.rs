//! Fault by fault, on a real Envoy: each request still reaches an engine as it was sent, on time, and its answer comes back
//! as the engine gave it. `docs/faults.md` has the faults in one table.
//!
//! While a fault lasts, requests of several kinds go on ([`load`]); afterwards all of it is counted and compared, by the
//! engines, by the clients and by Envoy ([`world`]).
//!
//! Needs `make wasm wasm-faults` before; `make test` does that.
#![cfg(feature = "native")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "fail_open/clients.rs"]
mod clients;
#[path = "fail_open/clock.rs"]
mod clock;
#[path = "fail_open/echo.rs"]
mod echo;
#[path = "fail_open/engines.rs"]
mod engines;
#[path = "fail_open/hostile_hub.rs"]
mod hostile_hub;
#[path = "fail_open/hub.rs"]
mod hub;
#[path = "fail_open/listeners.rs"]
mod listeners;
#[path = "fail_open/load.rs"]
mod load;
#[path = "fail_open/many.rs"]
mod many;
#[allow(dead_code, reason = "shared with tests/e2e, which needs more of it")]
#[path = "e2e/pool.rs"]
mod pool;
#[allow(dead_code, reason = "shared with other tests, which need more of it")]
#[path = "support/random.rs"]
mod random;
#[path = "fail_open/scripted_hub.rs"]
mod scripted_hub;
#[path = "fail_open/shared_data.rs"]
mod shared_data;
#[path = "fail_open/tenants.rs"]
mod tenants;
#[path = "fail_open/trust.rs"]
mod trust;
#[path = "fail_open/values.rs"]
mod values;
#[path = "fail_open/workers.rs"]
mod workers;
#[path = "fail_open/world.rs"]
mod world;
#[allow(dead_code, reason = "shared with other tests, which read the requests themselves")]
#[path = "support/worst.rs"]
mod worst;
#[path = "fail_open/worst_requests.rs"]
mod worst_requests;
