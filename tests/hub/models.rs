//! Models from a directory: announced, sent in parts to those who ask, and used for LookupRoute's texts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use warmroute::model::{Assembly, LoadedModel, Package};
use warmroute::native::hub::contract::messages::v1alpha1::LookupRouteRequest;
use warmroute::native::hub::contract::messages::v1alpha1::inference_cache_client::InferenceCacheClient;
use warmroute::native::hub::{Hub, HubConfig};
use warmroute::observation::{ModelDigest, ModelPart, ModelVersion, Subscription};
use warmroute::wire::MAX_UNACKNOWLEDGED_BYTES;

use crate::hub_support::{Observer, get};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/models");

/// A directory of its own with the models `m` and `n`, removed at the end.
struct Models(PathBuf);

impl Models {
    fn new(name: &str) -> Models {
        let path = std::env::temp_dir().join(format!("warmroute-hub-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let models = Models(path);
        models.copy("demo-bytes", "m");
        models.copy("demo-chars", "n");
        models
    }

    fn copy(&self, from: &str, to: &str) {
        let to = self.0.join(to);
        std::fs::create_dir_all(&to).unwrap();
        for file in std::fs::read_dir(Path::new(DEMO).join(from)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }

    /// Makes the package of `m` longer than a window, by a comment that changes no prompt.
    fn lengthen(&self) {
        let path = self.0.join("m/chat_template.jinja");
        let template = std::fs::read_to_string(&path).unwrap();
        let comment: String = (0..40_000).map(|number| format!("{number:07} \n")).collect();
        // At once, so that no half of it is read.
        let draft = self.0.join("m/draft");
        std::fs::write(&draft, format!("{{#- {comment} -#}}\n{template}")).unwrap();
        std::fs::rename(draft, path).unwrap();
    }

    async fn hub(&self) -> Hub {
        self.hub_that_polls(50).await
    }

    async fn hub_that_polls(&self, poll_ms: u64) -> Hub {
        let yaml = format!(
            "listen: {{grpc: '127.0.0.1:0', http: '127.0.0.1:0'}}\nheartbeat_ms: 200\nreports: {{}}\n\
             models: [{{model_id: m, block_size: 4}}, {{model_id: n, block_size: 4}}, {{model_id: none, block_size: 4}}]\n\
             tokenizers: {{directory: '{}', poll_ms: {poll_ms}, cache_directory: '{}', models: {{alias: m}}}}\n",
            self.0.display(),
            self.0.join("cache").display()
        );
        Hub::start(HubConfig::from_yaml(&yaml).unwrap()).await.unwrap()
    }
}

impl Drop for Models {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn subscription(models: &[&str]) -> Subscription {
    let models = models.iter().map(|model| (*model).to_owned()).collect();
    Subscription { node_id: "test".into(), models, ..Subscription::default() }
}

fn assembled(version: ModelVersion, parts: &[ModelPart]) -> Package {
    let mut assembly = Assembly::new(version).unwrap();
    parts.iter().for_each(|part| assembly.push(part).unwrap());
    assembly.finish().unwrap()
}

fn names(observer: &Observer) -> Vec<&str> {
    observer.models.keys().map(String::as_str).collect()
}

async fn complete(hub: &Hub, models: &[&str]) -> Observer {
    let mut observer = Observer::subscribe(hub, subscription(models)).await;
    observer.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    observer
}

#[tokio::test]
async fn a_model_is_announced_and_its_parts_are_the_package_that_was_announced() {
    let models = Models::new("announced");
    let hub = models.hub().await;
    let mut observer = complete(&hub, &[]).await;
    assert_eq!(names(&observer), ["alias", "m", "n"]);
    let version = observer.models["m"];
    assert_eq!(version, observer.models["alias"]);
    observer.want(version.digest, 0).await;
    observer.until("all parts", |seen| seen.parts.len() == version.parts() as usize).await;
    let package = assembled(version, &observer.parts);
    assert_eq!(package.chat_template, std::fs::read_to_string(format!("{DEMO}/demo-bytes/chat_template.jinja")).ok());
    LoadedModel::load(package).unwrap();
    let (_, state) = get(&hub, "/state").await;
    assert!(state.contains(&format!("{:032x}", version.digest.0)), "{state}");
    hub.shutdown().await;
}

#[tokio::test]
async fn no_state_is_told_as_complete_before_the_models_are_read() {
    let models = Models::new("restarted");
    // Of files that were written just now it takes two readings.
    let hub = models.hub_that_polls(1_500).await;
    let mut observer = Observer::subscribe(&hub, subscription(&[])).await;
    assert_eq!(get(&hub, "/healthz").await.0, 200, "the rest is served");
    observer.listen(Duration::from_millis(300)).await;
    assert_eq!(observer.kinds, [""; 0]);
    observer.until("the reset", |seen| seen.kinds.contains(&"reset_complete")).await;
    assert_eq!(names(&observer), ["alias", "m", "n"]);
    assert!(!observer.kinds.contains(&"delta"), "{:?}", observer.kinds);
    assert!(std::fs::read_dir(models.0.join("cache")).unwrap().count() >= 2, "kept for the next start");
    hub.shutdown().await;
}

#[tokio::test]
async fn only_models_asked_for_are_announced() {
    let models = Models::new("filtered");
    let hub = models.hub().await;
    assert_eq!(names(&complete(&hub, &["n", "other"]).await), ["n"]);
    hub.shutdown().await;
}

#[tokio::test]
async fn changes_and_removals_are_followed_and_a_wrong_file_keeps_what_was() {
    let models = Models::new("changed");
    let hub = models.hub().await;
    let mut observer = complete(&hub, &[]).await;
    let before = observer.models["m"];
    models.lengthen();
    observer.until("another version", |seen| seen.models["m"] != before && seen.models["alias"] != before).await;
    let after = observer.models["m"];
    std::fs::write(models.0.join("n/tokenizer.json"), "{").unwrap();
    let limit = tokio::time::Instant::now() + Duration::from_secs(10);
    while !get(&hub, "/metrics").await.1.contains("warmroute_hub_model_problems 1\n") {
        assert!(tokio::time::Instant::now() < limit, "{}", get(&hub, "/metrics").await.1);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    std::fs::remove_dir_all(models.0.join("m")).unwrap();
    observer.until("its removal", |seen| !seen.models.contains_key("m")).await;
    assert_eq!(names(&observer), ["n"], "what is wrong is kept");
    assert_eq!(names(&complete(&hub, &[]).await), ["n"]);
    // Of what is gone nothing comes.
    observer.want(after.digest, 0).await;
    observer.listen(Duration::from_millis(400)).await;
    assert_eq!(observer.parts, []);
    hub.shutdown().await;
}

#[tokio::test]
async fn a_subscriber_that_comes_back_hears_what_it_missed() {
    let models = Models::new("resumed");
    let hub = models.hub().await;
    let mut observer = complete(&hub, &[]).await;
    let (epoch, sequence, before) = (observer.epoch, observer.sequence, observer.models["m"]);
    models.lengthen();
    observer.until("the change", |seen| seen.models["m"] != before).await;
    let position = Subscription { epoch, sequence, ..subscription(&["m"]) };
    let mut resumed = Observer::subscribe(&hub, position).await;
    resumed.sequence = sequence;
    resumed.until("the change", |seen| !seen.models.is_empty()).await;
    assert_eq!(resumed.kinds[..2], ["resumed", "delta"]);
    assert_eq!(resumed.models["m"], observer.models["m"]);
    hub.shutdown().await;
}

#[tokio::test]
async fn parts_wait_for_acknowledgements_and_keep_nothing_else_waiting() {
    let models = Models::new("slow");
    models.lengthen();
    let hub = models.hub().await;
    let mut observer = complete(&hub, &[]).await;
    let (version, other) = (observer.models["m"], observer.models["n"]);
    assert!(version.length as usize > MAX_UNACKNOWLEDGED_BYTES, "{version:?}");
    observer.acknowledges = false;
    observer.want(version.digest, 0).await;
    observer.listen(Duration::from_millis(700)).await;
    let sent = observer.parts.len();
    assert!((1..=4).contains(&sent), "{sent} parts");
    assert!(observer.kinds.iter().filter(|kind| **kind == "heartbeat").count() >= 2, "{:?}", observer.kinds);
    std::fs::remove_dir_all(models.0.join("n")).unwrap();
    observer.until("a change", |seen| !seen.models.contains_key("n")).await;
    assert_eq!(observer.parts.len(), sent, "there was no room for more");

    observer.acknowledges = true;
    observer.acknowledge().await;
    observer.until("all parts", |seen| seen.parts.len() == version.parts() as usize).await;
    assembled(version, &observer.parts);
    assert_ne!(version, other);
    hub.shutdown().await;
}

#[tokio::test]
async fn a_later_wish_takes_the_place_of_an_earlier_one_and_may_begin_anywhere() {
    let models = Models::new("wishes");
    models.lengthen();
    let hub = models.hub().await;
    let mut observer = complete(&hub, &[]).await;
    let (version, other) = (observer.models["m"], observer.models["n"]);
    observer.acknowledges = false;
    observer.want(version.digest, 0).await;
    observer.listen(Duration::from_millis(300)).await;
    let earlier = observer.parts.len();
    assert!((earlier as u32) < version.parts(), "{earlier} parts");
    observer.want(other.digest, 0).await;
    observer.acknowledges = true;
    observer.acknowledge().await;
    let total = earlier + other.parts() as usize;
    observer.until("the other's parts", |seen| seen.parts.len() == total).await;
    assembled(other, &observer.parts[earlier..]);
    // One that nobody has ends what was asked for before it.
    observer.want(ModelDigest(1), 0).await;
    observer.listen(Duration::from_millis(300)).await;
    assert_eq!(observer.parts.len(), total);
    let last = version.parts() - 1;
    observer.want(version.digest, last).await;
    observer.until("the last part", |seen| seen.parts.len() == total + 1).await;
    assert_eq!(observer.parts[total].number, last);
    hub.shutdown().await;
}

#[tokio::test]
async fn texts_of_lookup_route_are_tokenized_with_the_models() {
    let models = Models::new("texts");
    let hub = models.hub().await;
    complete(&hub, &[]).await;
    let mut client = InferenceCacheClient::connect(format!("http://{}", hub.grpc_address())).await.unwrap();
    let request = |model_id: &str| LookupRouteRequest {
        model_id: model_id.into(),
        tenant_id: "t".into(),
        hash_scheme: "s".into(),
        prompt_text: "Hello, which replica holds my prefix?".into(),
        ..LookupRouteRequest::default()
    };
    let mut ids = Vec::new();
    for model_id in ["m", "alias", "n", "none"] {
        ids.push(client.lookup_route(request(model_id)).await.unwrap().into_inner().token_ids);
    }
    let directory = Path::new(DEMO).join("demo-bytes");
    let read = warmroute::native::models::read(&directory, Default::default()).unwrap();
    let prompt = warmroute::request::TextPrompt::User(request("m").prompt_text);
    let clock = warmroute::template::LocalTime { unix_seconds: 0, utc_offset_seconds: 0 };
    let limits = warmroute::model::TextLimits { max_prompt_bytes: 1 << 20, max_tokens: 1 << 20, max_symbols: 1 << 20 };
    let mut workspace = warmroute::tokenize::Workspace::new(0);
    let expected = read.model.tokenize(&prompt, clock, &limits, &mut workspace).unwrap().ids;
    assert!(expected.len() > 8, "{expected:?}");
    assert_eq!(ids[0], expected);
    assert_eq!(ids[1], expected);
    assert!(!ids[2].is_empty() && ids[2] != expected);
    assert_eq!(ids[3], [0; 0], "there is no such directory");
    hub.shutdown().await;
}
