//! The bytes that leave the process, against files made by an independent generator.

#[cfg(test)]
#[path = "golden/affinity.rs"]
mod affinity;
#[cfg(test)]
#[path = "golden/domains.rs"]
mod domains;
#[cfg(test)]
#[path = "golden/shared_data.rs"]
mod shared_data;
#[cfg(test)]
#[path = "golden/vectors.rs"]
mod vectors;

#[test]
fn fingerprints_are_those_of_the_generator() {
    vectors::compare_all();
}

#[test]
fn affinity_picks_are_those_of_the_generator() {
    affinity::compare_all();
}

#[test]
fn domains_are_those_of_the_generator() {
    domains::compare_all();
}

#[test]
fn values_in_shared_data_are_those_of_the_generator() {
    shared_data::compare_all();
}

#[test]
fn an_index_writes_the_pages_that_it_was_loaded_from() {
    shared_data::rewrite_pages();
}
