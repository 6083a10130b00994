//! Models' packages on their way from the hub into the VMs.
//!
//! What is announced stands in the log: which model has which version. The contents, some megabytes, are beside the log, in
//! parts under their digest. The leader [keeps](keeper) them there: it asks the hub for what is missing. Every VM that
//! serves requests [collects](collector) what its configurations name, a part a step. Until it has a version, or where it
//! cannot have it, requests are told so; a version that is not the announced one answers none.

pub mod collector;
mod holdings;
pub mod keeper;
