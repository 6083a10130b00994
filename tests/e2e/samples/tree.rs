//! No YAML file of the repository is one that no test loads.

use std::path::{Path, PathBuf};

/// Folders that are not the repository's own.
const SKIPPED: [&str; 4] = ["target", ".git", "node_modules", "__pycache__"];

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

/// Those of `paths` that neither a test names nor what a test composes. A name is the file's with the folder that it is in, at
/// the end of a text; or the file's alone, where no other has it.
fn unknown<'a>(paths: &'a [String], tests: &str, composed: &str) -> Vec<&'a String> {
    let name = |path: &'a str| path.rsplit('/').next().unwrap_or(path);
    let known = |path: &&'a String| {
        let ends = path.rmatch_indices('/').nth(1).map_or(0, |(at, _)| at + 1);
        let is_only = paths.iter().filter(|other| name(other) == name(path)).count() == 1;
        tests.contains(&format!("{}\"", &path[ends..]))
            || is_only && tests.contains(&format!("\"{}\"", name(path)))
            || composed.contains(&format!("{path}:"))
    };
    paths.iter().filter(|path| !known(path)).collect()
}

/// The texts of files, one after the other.
fn texts(files: &[PathBuf]) -> String {
    files.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
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
    let tests = texts(&files(&root.join("tests"), &|name| name.ends_with(".rs") || name.ends_with(".py")));
    let is_compose = |path: &&PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("docker-compose") && tests.contains(&format!("\"{name}\""))
    };
    let composed = texts(&yaml.iter().filter(is_compose).cloned().collect::<Vec<_>>());
    let paths: Vec<String> = yaml.iter().map(|path| path.strip_prefix(root).unwrap().display().to_string()).collect();
    assert!(paths.len() > 5, "{paths:?}");
    assert_eq!(unknown(&paths, &tests, &composed), Vec::<&String>::new(), "no test names these");
}

#[test]
fn a_file_that_no_test_names_is_told() {
    let paths =
        ["one.yml", "envoy/a.yaml", "envoy/istio/a.yaml", "envoy/new.yaml", "deploy/b.yaml", "deploy/only.yaml"];
    let paths = paths.map(str::to_owned);
    let tests = "\"one.yml\" include_str!(\"../../envoy/a.yaml\"); \"a.yaml\" \"only.yaml\" // not envoy/new.yaml";
    assert_eq!(unknown(&paths, tests, "- ./deploy/b.yaml:/etc/b.yaml"), [&paths[2], &paths[3]]);
    assert_eq!(unknown(&paths, tests, ""), [&paths[2], &paths[3], &paths[4]]);
}
