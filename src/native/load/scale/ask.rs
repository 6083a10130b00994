//! Asking what the filter decides, and what the hub would.

use futures::stream::{self, StreamExt};
use hyper::{Method, Request};
use tonic::transport::Channel;

use super::ScaleError;
use super::content::Conversation;
use crate::native::hub::contract::messages::v1alpha1::LookupRouteRequest;
use crate::native::hub::contract::messages::v1alpha1::inference_cache_client::InferenceCacheClient;
use crate::native::load::client::{Answer, Client, RequestFailed};
use crate::native::load::envoy_config::MODEL;

/// Lookups at the hub at one time.
const CONCURRENT: usize = 8;

/// What the filter decided, as the response's headers have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The reason code.
    pub reason: String,
    /// The detail of no hint.
    pub detail: String,
    /// The first replica.
    pub replica: String,
    /// Tokens it holds.
    pub matched_tokens: usize,
}

/// How the filter's decisions compare with the hub's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Prompts asked.
    pub asked: usize,
    /// Hints for which hub and filter name the same replica and tokens.
    pub same: usize,
    /// Of the others, those that credit a replica with more than the hub does.
    pub over: usize,
    /// The rest: less than the hub credits, or another replica of the same merit.
    pub under: usize,
    /// One that differs, for the report.
    pub example: Option<String>,
}

// === impl Decision ===

impl Decision {
    /// The decision that a response repeats.
    pub fn of(answer: &Answer) -> Decision {
        Decision {
            reason: answer.header("x-inferencecache-reason-code").to_owned(),
            detail: answer.header("x-inferencecache-detail").to_owned(),
            replica: answer.header("x-inferencecache-replica-id").to_owned(),
            matched_tokens: answer.header("x-inferencecache-matched-tokens").parse().unwrap_or(0),
        }
    }

    /// Whether it is the whole prompt on the replica that holds it.
    pub fn is_whole(&self, conversation: &Conversation) -> bool {
        self.reason == "PREFIX_MATCH"
            && self.replica == replica_id(conversation.replica)
            && self.matched_tokens == conversation.tokens()
    }

    /// Whether it says that the index is not loaded yet.
    pub fn is_catching_up(&self) -> bool {
        self.reason == "NO_HINT" && self.detail == "catching_up"
    }
}

/// A request with a prompt's block hashes and its model in the headers, and no body.
pub fn by_hashes(conversation: &Conversation) -> hyper::http::request::Builder {
    with_hashes(&conversation.hashes_header())
}

/// The same, of hashes that were made before.
pub fn with_hashes(hashes: &str) -> hyper::http::request::Builder {
    Request::builder()
        .method(Method::POST)
        .header("x-inferencecache-model-id", MODEL)
        .header("x-inferencecache-block-hashes", hashes)
        .header("x-inferencecache-block-size", "16")
}

/// What the filter behind `base` decides for a prompt.
///
/// # Errors
/// When there is no response.
pub async fn decide(client: &Client, base: &str, conversation: &Conversation) -> Result<Decision, RequestFailed> {
    let answer = client.request(&format!("{base}/probe"), by_hashes(conversation), bytes::Bytes::new()).await?;
    Ok(Decision::of(&answer))
}

/// Asks filter and hub about the same prompts, when nothing changes.
///
/// # Errors
/// When either does not answer.
pub async fn compare(
    client: &Client,
    base: &str,
    hub: std::net::SocketAddr,
    prompts: impl IntoIterator<Item = Conversation>,
) -> Result<Agreement, ScaleError> {
    let channel = Channel::from_shared(format!("http://{hub}")).map_err(ScaleError::new)?;
    let lookups = InferenceCacheClient::new(channel.connect().await.map_err(ScaleError::new)?);
    let asked = stream::iter(prompts).map(|prompt| {
        let mut lookups = lookups.clone();
        async move {
            let decision = decide(client, base, &prompt).await?;
            let held = held_by_hub(&mut lookups, &prompt).await?;
            Ok::<_, ScaleError>((prompt, decision, held))
        }
    });
    let mut asked = asked.buffer_unordered(CONCURRENT);
    let mut agreement = Agreement::default();
    while let Some(answers) = asked.next().await {
        let (prompt, decision, held) = answers?;
        agreement.add(prompt, &decision, &held);
    }
    Ok(agreement)
}

/// What the hub would say: every replica with the tokens it holds, best first.
async fn held_by_hub(
    lookups: &mut InferenceCacheClient<Channel>,
    prompt: &Conversation,
) -> Result<Vec<(String, usize)>, ScaleError> {
    let request = LookupRouteRequest {
        model_id: MODEL.into(),
        tenant_id: "default".into(),
        hash_scheme: "vllm".into(),
        token_ids: prompt.token_ids(),
        ..LookupRouteRequest::default()
    };
    let response = lookups.lookup_route(request).await.map_err(ScaleError::new)?.into_inner();
    if response.reason_code != "PREFIX_MATCH" {
        return Ok(Vec::new());
    }
    let scores = response.replica_scores.into_iter();
    Ok(scores.map(|score| (score.replica_id, usize::try_from(score.matched_tokens).unwrap_or(0))).collect())
}

/// What a replica is called.
pub fn replica_id(place: usize) -> String {
    format!("engine-{place}")
}

// === impl Agreement ===

impl Agreement {
    /// Whether something was asked and all is the same.
    pub fn is_whole(&self) -> bool {
        self.asked > 0 && self.same == self.asked
    }

    fn add(&mut self, prompt: Conversation, decision: &Decision, held: &[(String, usize)]) {
        self.asked += 1;
        let hinted = (decision.reason == "PREFIX_MATCH").then(|| (decision.replica.clone(), decision.matched_tokens));
        if hinted.as_ref() == held.first() {
            self.same += 1;
            return;
        }
        let credited = hinted.as_ref().map_or(0, |(_, tokens)| *tokens);
        let really = hinted.and_then(|(replica, _)| held.iter().find(|(held, _)| *held == replica));
        if credited > really.map_or(0, |(_, tokens)| *tokens) {
            self.over += 1;
        } else {
            self.under += 1;
        }
        self.example.get_or_insert_with(|| format!("{prompt:?}: {decision:?}, the hub: {held:?}"));
    }
}

impl std::fmt::Display for Agreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Agreement { asked, same, over, under, example } = self;
        write!(f, "{asked} prompts: {same} as the hub has it, {over} credited with more, {under} with less")?;
        example.iter().try_for_each(|example| write!(f, "\n  e.g. {example}"))
    }
}
