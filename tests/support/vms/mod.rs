//! Several VMs of one proxy over the shared log, under a test's control.
//!
//! [`proxy`] is what they run in, [`observed`] the hub whose stream the leading one follows, [`fleet`] both together with
//! the VMs, [`dump`] what a VM knows.

#![allow(dead_code, reason = "each test that includes this uses a part of it")]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a failing test says so by panicking, helpers included"
)]

pub mod dump;
pub mod fleet;
pub mod observed;
pub mod proxy;
