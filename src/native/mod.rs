//! The programs around the filter: the hub, the engines' event formats, models' directories and tools for them, a fake
//! engine, the load generator.

pub mod engine;
pub mod fake;
pub mod hub;
pub mod load;
pub mod models;
pub mod tools;
