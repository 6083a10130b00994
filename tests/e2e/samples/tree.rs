//! No YAML file of the repository is one that no test loads.

use std::path::{Path, PathBuf};

/// Folders that are not the repository's own.
const SKIPPED: [&str; 3] = ["target", ".git", "node_modules"];

/// Every file below a folder for which `wanted` holds.
fn files(folder: &Path, wanted: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in folder.read_dir().unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            if !SKIPPED.contains(&name.as_str()) {
                found.extend(files(&path, wanted));
            }
        } else if wanted(&name) {
            found.push(path);
        }
    }
    found
}

/// Those of `paths` whose name, with the folder that they are in, ends no text in `sources`.
fn unknown<'a>(paths: &'a [String], sources: &str) -> Vec<&'a String> {
    let ends = |path: &str| path.rmatch_indices('/').nth(1).map_or(0, |(at, _)| at + 1);
    paths.iter().filter(|path| !sources.contains(&format!("{}\"", &path[ends(path)..]))).collect()
}

#[test]
fn every_yaml_file_is_valid_and_named_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let yaml = files(root, &|name| name.ends_with(".yaml") || name.ends_with(".yml"));
    for path in &yaml {
        let text = std::fs::read_to_string(path).unwrap();
        for document in serde_norway::Deserializer::from_str(&text) {
            let parsed: Result<serde_norway::Value, _> = serde::Deserialize::deserialize(document);
            assert!(parsed.is_ok(), "{}: {parsed:?}", path.display());
        }
    }
    let sources: String = files(&root.join("tests"), &|name| name.ends_with(".rs"))
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    let paths: Vec<String> = yaml.iter().map(|path| path.strip_prefix(root).unwrap().display().to_string()).collect();
    assert!(paths.len() > 5, "{paths:?}");
    assert_eq!(unknown(&paths, &sources), Vec::<&String>::new(), "no test names these");
}

#[test]
fn a_file_that_no_test_names_is_told() {
    let paths = ["one.yml", "envoy/a.yaml", "envoy/istio/a.yaml", "envoy/new.yaml"].map(str::to_owned);
    let sources = "\"one.yml\" include_str!(\"../../envoy/a.yaml\"); // not envoy/new.yaml";
    assert_eq!(unknown(&paths, sources), [&paths[2], &paths[3]]);
}
