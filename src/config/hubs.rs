//! Where the hubs are, and what the filter shows them: `hub_cluster` or `hub_clusters`, and `hub_token`.

use serde_json::Value;

use super::section::{Problems, Section};

/// The most hubs.
const MAX_CLUSTERS: usize = 16;
/// The longest token, in bytes.
const MAX_TOKEN_BYTES: usize = 4_096;

/// The hubs, and how to get in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hubs {
    /// Their Envoy clusters, the one to begin with first; at least one, none twice. All know of the same replicas.
    pub clusters: Vec<String>,
    /// The bearer token that goes with every stream.
    pub token: Option<HubToken>,
}

/// A bearer token. It is shown to hubs and to nobody else.
#[derive(Clone, PartialEq, Eq)]
pub struct HubToken(String);

// === impl Hubs ===

impl Hubs {
    pub(super) fn read(root: &mut Section, problems: &mut Problems) -> Hubs {
        Hubs { clusters: read_clusters(root, problems), token: read_token(root, problems) }
    }
}

fn read_clusters(root: &mut Section, problems: &mut Problems) -> Vec<String> {
    let one = root.take("hub_cluster");
    let Some(several) = root.take("hub_clusters") else {
        let cluster = one.and_then(Value::as_str).filter(|cluster| !cluster.is_empty());
        if cluster.is_none() {
            problems.note("hub_cluster", one, "a text that is not empty");
        }
        return cluster.map(str::to_owned).into_iter().collect();
    };
    if one.is_some() {
        problems.note("hub_clusters", Some(several), "absent where there is a hub_cluster: one of both");
    }
    let clusters = root.texts("hub_clusters", problems).unwrap_or_default();
    let repeats =
        (1..clusters.len()).any(|place| clusters.iter().take(place).any(|name| clusters.get(place) == Some(name)));
    if several.is_array() && (clusters.is_empty() || clusters.len() > MAX_CLUSTERS || repeats) {
        problems.note("hub_clusters", Some(several), format!("1 to {MAX_CLUSTERS} names, none of them twice"));
    }
    clusters
}

fn read_token(root: &mut Section, problems: &mut Problems) -> Option<HubToken> {
    let value = root.take("hub_token")?;
    let token = value.as_str().filter(|token| is_token(token));
    if token.is_none() {
        problems.note_unseen("hub_token", format!("1 to {MAX_TOKEN_BYTES} letters, digits and any of -._~+/="));
    }
    token.map(|token| HubToken(token.to_owned()))
}

/// RFC 6750, section 2.1.
fn is_token(token: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    (1..=MAX_TOKEN_BYTES).contains(&token.len()) && token.bytes().all(allowed)
}

// === impl HubToken ===

impl HubToken {
    /// The value of the `authorization` header.
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl std::fmt::Debug for HubToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HubToken")
    }
}
