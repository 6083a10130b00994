//! Where a request should go, and why: the public LookupRoute contract, step by step.
//!
//! [`lookup`] is the whole of one lookup, from its input to its answer; [`decision`] the part of it that asks the index:
//! [`prefix_match`], and where nothing matches [`tenant_hot`], [`unknown`] and [`affinity`]. [`policy`] has what an operator
//! may set, [`score`] the formulas, [`reason`] the codes.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub mod affinity;
pub mod decision;
pub mod lookup;
pub mod policy;
pub mod prefix_match;
pub mod reason;
pub mod score;
pub mod tenant_hot;
pub mod unknown;
