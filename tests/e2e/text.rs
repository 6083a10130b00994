//! Prompts that are text: the filter makes the engines' token ids of them, whatever API they come by.
//!
//! What the filter matches is compared with what the engine that answers says it had in its cache, and with the token ids
//! that the engine gives for the same body.

mod apis;
mod bounds;
mod files;
mod parity;
mod talk;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use hyper::http::request::Builder;
use hyper::{Method, Request};
use serde_json::{Value, json};
use warmroute::native::load::client::Answer;
use warmroute::native::load::demo::models_directory;
use warmroute::native::load::stack::{ServedModel, Stack, StackOptions, eventually};

use crate::pool::*;

/// Byte-level BPE; its template takes text and puts tools into the system turn.
pub const BYTES: &str = "demo-bytes";
/// BPE over characters; its template takes parts and puts tools first.
pub const CHARS: &str = "demo-chars";

/// Paths of requests that the filter reads and no engine knows: in place of `/v1`.
pub const PROBE: &str = "/probe";
const PROBED: [&str; 4] = ["/chat/completions", "/completions", "/responses", "/messages"];

/// A folder that is removed in the end.
pub struct Scratch(PathBuf);

/// The demo's model as engines serve it.
pub fn served(model: &str) -> ServedModel {
    ServedModel { id: model.to_owned(), model_dir: Some(models_directory().join(model)) }
}

/// Engines of both demo models in turn, the first of the byte-level one. All are in one cluster, so what the filter has no
/// hint for may reach an engine of the other model: prompts are first computed past Envoy.
pub async fn text_stack(change: impl FnOnce(&mut StackOptions)) -> Stack {
    stack(|options| {
        options.engines = 4;
        options.models = vec![served(BYTES), served(CHARS)];
        options.models_directory = Some(models_directory());
        options.plugin["tenant"] = json!({ "header": "x-tenant", "default": "default" });
        let paths = PROBED.iter().flat_map(|path| [format!("/v1{path}"), format!("{PROBE}{path}")]);
        options.plugin["paths"] = paths.collect();
        change(options);
    })
    .await
}

/// Waits until every worker makes token ids of conversations with these models: each loads them once it is asked, and a
/// connection is one worker's, whichever the kernel picks.
pub async fn loaded(stack: &Stack, models: &[&str]) {
    let announced = eventually(SOON * 20, async || {
        stack.metrics().await.unwrap().sum("warmroute_models_announced", &[]) >= models.len() as f64
    });
    assert!(announced.await, "{}", stack.envoy.log_tail());
    let request = |turn: usize| {
        let messages = json!([{ "role": "user", "content": "Hi." }]);
        (of("default"), json!({ "model": models[turn % models.len()], "messages": messages }).to_string())
    };
    let is_so = |decided: &Decided| !["catching_up", "no_tokenizer"].contains(&decided.detail.as_str());
    every_worker(stack, &format!("{PROBE}/chat/completions"), (16, SOON * 20), request, is_so).await;
}

/// The head of a JSON request of a tenant.
pub fn of(tenant: &str) -> Builder {
    Request::builder().method(Method::POST).header("content-type", "application/json").header("x-tenant", tenant)
}

/// What the filter says to a conversation. No engine computes it.
pub async fn probed(stack: &Stack, tenant: &str, body: &Value) -> Decided {
    probed_at(stack, tenant, "/v1/chat/completions", body).await
}

/// The same to a body of another API.
pub async fn probed_at(stack: &Stack, tenant: &str, path: &str, body: &Value) -> Decided {
    let answer = send(stack, of(tenant), &path.replace("/v1", PROBE), body.to_string()).await;
    assert_eq!(answer.status, 404, "an engine answered");
    decided(&answer)
}

/// Waits until the filter says to a conversation what `is_expected`.
pub async fn said(stack: &Stack, tenant: &str, body: &Value, is_expected: impl Fn(&Decided) -> bool) -> Decided {
    let mut last = None;
    let seen = eventually(SOON * 10, async || {
        let decided = probed(stack, tenant, body).await;
        let seen = is_expected(&decided);
        last = Some(decided);
        seen
    });
    assert!(seen.await, "last: {last:?}, to {body}, {}", stack.envoy.log_tail());
    last.unwrap()
}

/// The token ids that an engine makes of a body, `prompt` or `messages`.
pub async fn ids(stack: &Stack, engine: usize, body: &Value) -> Vec<u64> {
    let answer = post(stack, engine, "/tokenize", body).await;
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    let ids: Vec<u64> = answer["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    assert_eq!(answer["count"], ids.len());
    ids
}

/// Sends a body to an engine, past Envoy.
pub async fn post(stack: &Stack, engine: usize, path: &str, body: &Value) -> Answer {
    let url = format!("{}{path}", stack.engine_url(engine));
    let answer = stack.client.post_json(&url, body.to_string()).await.unwrap();
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer
}

/// Text of so many words that no other `seed` begins with.
pub fn words(seed: usize, count: usize) -> String {
    const WORDS: [&str; 8] = ["city", "order", "price", "train", "reason", "table", "check", "month"];
    let word = |place: usize| WORDS[(seed * 31 + place * place + place * seed) % WORDS.len()];
    let text: Vec<&str> = (0..count).map(word).collect();
    format!("Number {seed}: {}", text.join(" "))
}

// === impl Scratch ===

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("warmroute-text-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Puts a copy of a demo model here, with another chat template if one is given: an empty one for none.
    pub fn copy(&self, model: &str, name: &str, template: Option<&str>) {
        let (from, to) = (models_directory().join(model), self.0.join(name));
        std::fs::create_dir_all(&to).unwrap();
        for file in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
            std::fs::copy(from.join(file), to.join(file)).unwrap();
        }
        match template {
            Some("") => std::fs::remove_file(to.join("chat_template.jinja")).unwrap(),
            Some(template) => std::fs::write(to.join("chat_template.jinja"), template).unwrap(),
            None => {}
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
