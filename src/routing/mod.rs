//! From what the index found to a decision: score, floors, reason.

pub mod policy;
pub mod reason;
