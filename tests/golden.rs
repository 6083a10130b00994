//! The bytes that leave the process, against files made by an independent generator.

#[cfg(test)]
#[path = "golden/domains.rs"]
mod domains;
#[cfg(test)]
#[path = "golden/vectors.rs"]
mod vectors;

#[test]
fn fingerprints_are_those_of_the_generator() {
    vectors::compare_all();
}

#[test]
fn domains_are_those_of_the_generator() {
    domains::compare_all();
}
