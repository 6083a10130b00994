//! Batches in every layout that an engine has had: what is read of them, and what of it counts.
//!
//! `engines/golden.json` has the batches, made by `engines/generate.py` with the engines' own encoder and, for the versions
//! that it names, found to be the same bytes as the engines' own classes make.
#![cfg(feature = "native")]

#[cfg(test)]
#[path = "engines/fixtures.rs"]
mod fixtures;
#[cfg(test)]
#[path = "engines/golden.rs"]
mod golden;
#[cfg(test)]
#[path = "engines/hostile.rs"]
mod hostile;
