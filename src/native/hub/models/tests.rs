use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [],
    "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "never", "split": false},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}"#;

/// A directory of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("warmroute-hub-models-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn directory(&self, models: &[(&str, &str)], forced: &[&str]) -> ModelsDirectory {
        let owned = |(id, path): &(&str, &str)| ((*id).to_owned(), (*path).to_owned());
        ModelsDirectory::new(TokenizersConfig {
            directory: self.0.clone(),
            poll: Duration::from_secs(60),
            cache_directory: None,
            unplaced: BTreeSet::new(),
            models: models.iter().map(owned).collect(),
            force_chat_template: forced.iter().map(|id| (*id).to_owned()).collect(),
            utc_offset_seconds: 0,
        })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn ids(reading: &ModelsReading) -> Vec<&str> {
    reading.models.keys().map(String::as_str).collect()
}

#[test]
fn a_model_is_where_its_id_says_and_may_share_its_directory() {
    let folder = Folder::new();
    folder.write("org/name/tokenizer.json", TOKENIZER);
    let reading = folder.directory(&[("org/name", "org/name"), ("alias", "org/name"), ("c", "c")], &[]).read();
    assert_eq!(ids(&reading), ["alias", "org/name"]);
    assert!(Arc::ptr_eq(&reading.models["alias"], &reading.models["org/name"]), "compiled once");
    assert_eq!(reading.problems, [""; 0]);
    let notes: Vec<&str> = reading.notes.iter().map(String::as_str).collect();
    let [alias, gone, _] = notes[..] else { panic!("{notes:?}") };
    assert_eq!(alias, "alias: there is no chat template, so conversations get no hint");
    assert!(gone.starts_with("c: ") && gone.contains("is not there"), "{gone}");
}

#[test]
fn what_is_wrong_keeps_the_model_and_what_is_gone_takes_it_along() {
    let folder = Folder::new();
    folder.write("m/tokenizer.json", TOKENIZER);
    let mut directory = folder.directory(&[("m", "m")], &[]);
    let first = directory.read().models["m"].clone();
    assert!(Arc::ptr_eq(&first, &directory.read().models["m"]), "compiled once");
    folder.write("m/tokenizer.json", "{");
    for _ in 0..2 {
        let reading = directory.read();
        assert!(Arc::ptr_eq(&first, &reading.models["m"]));
        assert!(reading.problems[0].starts_with("m: m/tokenizer.json: not JSON"), "{:?}", reading.problems);
    }
    std::fs::remove_file(folder.0.join("m/tokenizer.json")).unwrap();
    assert_eq!(directory.read().problems, ["m: m/tokenizer.json: is not there"]);
    assert_eq!(ids(&directory.read()), ["m"]);
    folder.write("m/tokenizer.json", &TOKENIZER.replace("\"ab\"", "\"ba\"").replace("a b", "b a"));
    let changed = directory.read();
    assert_eq!(changed.problems, [""; 0]);
    assert_ne!(changed.models["m"].version, first.version);
    std::fs::remove_dir_all(folder.0.join("m")).unwrap();
    let gone = directory.read();
    assert_eq!((ids(&gone).len(), gone.problems.len(), gone.notes.len()), (0, 0, 1));
}

#[test]
fn a_directory_that_cannot_be_read_keeps_every_model() {
    let folder = Folder::new();
    folder.write("models/m/tokenizer.json", TOKENIZER);
    let mut directory = folder.directory(&[("m", "m")], &[]);
    directory.config.directory = folder.0.join("models");
    assert_eq!(ids(&directory.read()), ["m"]);
    std::fs::rename(folder.0.join("models"), folder.0.join("elsewhere")).unwrap();
    let reading = directory.read();
    assert_eq!(ids(&reading), ["m"]);
    assert!(reading.problems[0].starts_with("tokenizers.directory is"), "{:?}", reading.problems);
}

#[test]
fn the_swap_of_a_config_map_is_a_change() {
    let folder = Folder::new();
    folder.write("..1/tokenizer.json", TOKENIZER);
    folder.write(
        "..2/tokenizer.json",
        &TOKENIZER.replace("\"b\": 1", "\"c\": 1").replace("\"ab\"", "\"ac\"").replace("a b", "a c"),
    );
    symlink("..1", folder.0.join("..data")).unwrap();
    std::fs::create_dir(folder.0.join("m")).unwrap();
    symlink("../..data/tokenizer.json", folder.0.join("m/tokenizer.json")).unwrap();
    let mut directory = folder.directory(&[("m", "m")], &[]);
    let first = directory.read().models["m"].version;
    symlink("..2", folder.0.join("..swap")).unwrap();
    std::fs::rename(folder.0.join("..swap"), folder.0.join("..data")).unwrap();
    assert_ne!(directory.read().models["m"].version, first);
}

#[test]
fn a_template_that_is_left_out_is_noted_and_can_be_forced_for_one_model() {
    let folder = Folder::new();
    folder.write("m/tokenizer.json", TOKENIZER);
    folder.write("m/config.json", r#"{"model_type": "gpt_oss"}"#);
    folder.write("m/chat_template.jinja", "x");
    let reading = folder.directory(&[("m", "m"), ("n", "m")], &["n"]).read();
    assert!(!reading.models["m"].has_chat_template && reading.models["n"].has_chat_template);
    assert!(reading.notes.len() == 1 && reading.notes[0].starts_with("m: model_type gpt_oss"), "{:?}", reading.notes);
}

#[test]
fn a_follower_says_what_changed_once_and_counts_it() {
    let folder = Folder::new();
    let metrics = ModelMetrics::default();
    let directory = folder.directory(&[("m", "m")], &[]);
    let mut follower = ModelsFollower::new(directory.config, metrics.clone());
    assert!(follower.poll().is_none(), "none before and none now");
    folder.write("m/tokenizer.json", TOKENIZER);
    assert!(follower.poll().is_none() && !follower.directory.is_settled(), "it is to be read again");
    assert_eq!(follower.poll().map(BTreeMap::len), Some(1));
    assert!(follower.poll().is_none() && follower.directory.is_settled());
    folder.write("m/tokenizer.json", "{");
    for _ in 0..2 {
        assert!(follower.poll().is_none());
    }
    assert_eq!((metrics.models.get(), metrics.problems.get(), metrics.reloads.get()), (1, 1, 1));
    std::fs::remove_dir_all(folder.0.join("m")).unwrap();
    assert_eq!(follower.poll().map(BTreeMap::len), Some(0));
    assert_eq!((metrics.models.get(), metrics.problems.get(), metrics.reloads.get()), (0, 0, 2));
}

#[test]
fn of_files_that_are_being_copied_no_half_is_used() {
    let folder = Folder::new();
    let directory = folder.directory(&[("m", "m")], &[]);
    let mut follower = ModelsFollower::new(directory.config, ModelMetrics::default());
    folder.write("m/tokenizer.json", TOKENIZER);
    assert!(follower.poll().is_none());
    folder.write("m/chat_template.jinja", "x");
    assert!(follower.poll().is_none(), "it changed since");
    assert!(follower.poll().unwrap()["m"].has_chat_template);
    folder.write("m/chat_template.jinja", "y");
    assert!(follower.poll().is_none());
    folder.write("m/chat_template.jinja", "x");
    assert!(follower.poll().is_none() && follower.directory.is_settled(), "back at what it was");
}

#[test]
fn at_the_start_what_has_not_changed_for_a_poll_counts_at_once() {
    let folder = Folder::new();
    folder.write("m/tokenizer.json", TOKENIZER);
    let ModelsDirectory { config, .. } = folder.directory(&[("m", "m")], &[]);
    let poll = Duration::from_millis(50);
    std::thread::sleep(4 * poll);
    let config = TokenizersConfig { poll, ..config };
    let mut follower = ModelsFollower::new(config, ModelMetrics::default());
    assert_eq!(follower.poll().map(BTreeMap::len), Some(1));
}

#[test]
fn a_model_without_a_place_is_noted() {
    let folder = Folder::new();
    let mut directory = folder.directory(&[], &[]);
    directory.config.unplaced.insert("../../etc".to_owned());
    let notes = directory.read().notes;
    assert_eq!(notes, ["../../etc has no directory: name one in tokenizers.models, or its texts get no hint"]);
}

#[test]
fn models_of_replicas_that_come_later_are_found_and_stay() {
    let folder = Folder::new();
    folder.write("org/name/tokenizer.json", TOKENIZER);
    let fleet = Arc::new(FleetBook::default());
    let mut follower = ModelsFollower {
        directory: folder.directory(&[], &[]),
        fleet: Some(Arc::clone(&fleet)),
        metrics: ModelMetrics::default(),
        models: TextModels::new(),
        reported: BTreeSet::new(),
    };
    assert!(follower.poll().is_none());
    let replicas = "[{id: a, address: 'h:1', kv_events: 'tcp://h:2', model: org/name}, \
                    {id: b, address: 'h:1', kv_events: 'tcp://h:2', model: ../up}]";
    fleet.set(crate::native::hub::config::replicas_of_file(replicas).unwrap().iter());
    assert_eq!(follower.poll().unwrap().keys().collect::<Vec<_>>(), ["org/name"]);
    assert!(follower.directory.config.unplaced.contains("../up"));
    fleet.set([].into_iter());
    assert!(follower.poll().is_none(), "it stays");
}

/// The same, with the names of two tokens changed: as long as before.
fn another() -> String {
    TOKENIZER.replace("\"b\": 1", "\"c\": 1").replace("\"ab\"", "\"ac\"").replace("a b", "a c")
}

#[test]
fn contents_in_place_of_as_many_bytes_and_with_the_old_time_are_seen() {
    let folder = Folder::new();
    folder.write("m/tokenizer.json", TOKENIZER);
    let mut directory = folder.directory(&[("m", "m")], &[]);
    let first = directory.read().models["m"].version;
    assert_eq!(directory.read().models["m"].version, first);
    let file = std::fs::OpenOptions::new().write(true).open(folder.0.join("m/tokenizer.json")).unwrap();
    let before = file.metadata().unwrap();
    // Times are as fine as the kernel's ticks.
    std::thread::sleep(Duration::from_millis(50));
    folder.write("m/tokenizer.json", &another());
    file.set_modified(before.modified().unwrap()).unwrap();
    let now = file.metadata().unwrap();
    assert_eq!(
        (now.len(), now.modified().unwrap(), now.ino()),
        (before.len(), before.modified().unwrap(), before.ino())
    );
    assert_ne!(directory.read().models["m"].version, first);
}

#[test]
fn contents_are_read_again_after_some_readings_whatever_the_file_system_says() {
    let folder = Folder::new();
    folder.write("m/tokenizer.json", TOKENIZER);
    let mut directory = folder.directory(&[("m", "m")], &[]);
    let first = directory.read().models["m"].version;
    folder.write("m/tokenizer.json", &another());
    // As if it said the same as before.
    let known = directory.known.values_mut().next().unwrap();
    known.stamps = FileStamps::of(&folder.0.join("m"));
    assert!(known.stamps.is_some());
    let unread = (0..).take_while(|_| directory.read().models["m"].version == first).count();
    assert_eq!(unread, READ_ANYWAY as usize - 1);
}

#[test]
fn what_could_not_be_read_or_waits_to_be_read_again_is_read_each_time() {
    let folder = Folder::new();
    folder.write("m/tokenizer.json", TOKENIZER);
    let mut directory = folder.directory(&[("m", "m")], &[]);
    directory.settle = Some(Duration::from_secs(3_600));
    // Young, so that it counts from the second reading on.
    assert_eq!(ids(&directory.read()), [""; 0]);
    assert_eq!(ids(&directory.read()), ["m"]);
    let path = folder.0.join("m/chat_template.jinja");
    std::fs::create_dir(&path).unwrap();
    for _ in 0..3 {
        assert_eq!(directory.read().problems.len(), 1);
        assert!(directory.known.values().all(|known| known.passed == 0), "it was read");
    }
}
