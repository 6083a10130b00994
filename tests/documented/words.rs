//! Reason codes, details, headers and commands.

use std::collections::BTreeSet;
use std::path::Path;

use warmroute::request::names;
use warmroute::routing::reason::{Detail, ReasonCode};

use super::{first_column, quoted};

const README: &str = include_str!("../../README.md");

/// Every page, README first.
pub fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec![("README.md".to_owned(), README.to_owned())];
    for entry in root.join("docs").read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
        }
    }
    pages
}

#[test]
fn every_reason_code_and_detail_is_in_the_readme_and_no_other() {
    let says = README.split_once("## What it says").unwrap().1.split_once("\n## ").unwrap().0;
    let documented: BTreeSet<&str> = first_column(says).flat_map(quoted).filter(|name| *name != "NO_HINT").collect();
    let codes = ReasonCode::ALL.iter().map(|code| code.as_str()).filter(|code| *code != "NO_HINT");
    let mut there_are: BTreeSet<&str> = codes.chain(Detail::ALL.iter().map(|detail| detail.as_str())).collect();
    // Columns also name codes that a detail goes with, and what an affinity hint is; empty is no detail's name.
    there_are.remove("");
    assert!(there_are.len() > 30, "{there_are:?}");
    assert_eq!(there_are.difference(&documented).collect::<Vec<_>>(), Vec::<&&str>::new(), "not in the README");
    assert_eq!(documented.difference(&there_are).collect::<Vec<_>>(), Vec::<&&str>::new(), "there is no such");
}

/// The operator's page says what to do at each; what asks for nothing is said above the table.
#[test]
fn what_to_do_is_said_of_every_reason_code_and_detail() {
    let page = include_str!("../../docs/operations.md");
    let section = page.split_once("## What a code or detail asks of you").unwrap().1.split_once("\n## ").unwrap().0;
    let said: BTreeSet<&str> = quoted(section).collect();
    let codes = ReasonCode::ALL.iter().map(|code| code.as_str()).filter(|code| *code != "NO_HINT");
    let there_are = codes.chain(Detail::ALL.iter().map(|detail| detail.as_str())).filter(|name| !name.is_empty());
    assert_eq!(there_are.filter(|name| !said.contains(name)).collect::<Vec<_>>(), Vec::<&str>::new());
    let table: BTreeSet<&str> = first_column(section).flat_map(quoted).collect();
    let is_one = |name: &&str| {
        ReasonCode::ALL.iter().any(|code| code.as_str() == *name)
            || Detail::ALL.iter().any(|detail| detail.as_str() == *name)
    };
    assert_eq!(table.iter().filter(|name| !is_one(*name)).collect::<Vec<_>>(), Vec::<&&str>::new(), "there is no such");
}

/// Headers in backquotes, where `-b` after `x-inferencecache-a` is `x-inferencecache-b`.
fn headers(page: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut prefix = None;
    for name in quoted(page).flat_map(|name| name.split(": ").next()) {
        let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        if name.starts_with("x-") && is_name {
            prefix = name.starts_with("x-inferencecache-").then_some("x-inferencecache");
            all.insert(name.to_owned());
        } else if name.starts_with('-')
            && !name.starts_with("--")
            && is_name
            && let Some(prefix) = prefix
        {
            all.insert(format!("{prefix}{name}"));
        } else if is_name {
            prefix = None;
        }
    }
    all
}

#[test]
fn every_header_is_documented_and_every_documented_one_is_there() {
    let all = names::OUTPUT.iter().chain(&names::INPUT).chain([&names::DATA_PARALLEL_RANK]);
    let there_are: BTreeSet<String> = all.map(|name| (*name).to_owned()).collect();
    let mut documented = BTreeSet::new();
    for (page, text) in pages() {
        let named = headers(&text);
        let ours = named.into_iter().filter(|name| name.contains("inferencecache") || name.contains("gateway-dest"));
        for header in ours {
            assert!(there_are.contains(&header), "{page}: there is no header {header}");
            documented.insert(header);
        }
        documented.extend(headers(&text).into_iter().filter(|name| there_are.contains(name)));
    }
    assert_eq!(there_are.difference(&documented).collect::<Vec<_>>(), Vec::<&String>::new(), "on no page");
}

#[test]
fn every_target_of_make_that_a_page_names_is_there_and_every_one_is_named() {
    let makefile = include_str!("../../Makefile");
    let phony = makefile.lines().find_map(|line| line.strip_prefix(".PHONY: ")).unwrap();
    let there_are: BTreeSet<&str> = phony.split(' ').collect();
    let mut named = BTreeSet::new();
    for (page, text) in pages() {
        let in_line = quoted(&text).filter_map(|code| code.strip_prefix("make "));
        let in_block = text.lines().filter_map(|line| line.strip_prefix("make "));
        for target in in_line.chain(in_block) {
            let target = target.split(' ').next().unwrap();
            assert!(there_are.contains(target), "{page}: make has no target {target}");
            named.insert(target.to_owned());
        }
    }
    // What the others call.
    let own = ["setup", "wasm-faults"];
    let of_no_page: Vec<_> = there_are.iter().filter(|target| !named.contains(**target)).collect();
    assert_eq!(of_no_page.into_iter().filter(|target| !own.contains(target)).collect::<Vec<_>>(), Vec::<&&str>::new());
}

#[test]
fn every_file_that_a_page_links_to_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut links = 0;
    for (page, text) in pages() {
        let folder = root.join(&page).parent().unwrap().to_owned();
        for (_, rest) in text.match_indices("](").map(|(at, _)| text.split_at(at + 2)) {
            let target = rest.split(')').next().unwrap();
            if target.contains("://") || target.starts_with('#') {
                continue;
            }
            let file = target.split('#').next().unwrap();
            assert!(folder.join(file).exists(), "{page} links to {target}");
            links += 1;
        }
    }
    assert!(links > 10, "{links}");
}
