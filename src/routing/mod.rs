//! From what the index found to a decision: score, floors, reason.

pub mod decision;
pub mod policy;
pub mod reason;
pub mod score;
