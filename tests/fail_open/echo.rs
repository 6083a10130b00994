//! Engines that compute nothing, and answer with the request's headers as they came; and a stack of them, whose hub is the
//! tests' own.

use axum::Router;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use warmroute::native::fake::server;
use warmroute::native::load::client::Answer;
use warmroute::native::load::stack::{Stack, StackOptions};
use warmroute::wire::v1::fact::Kind as Fact;

use crate::pool::stack;
use crate::scripted_hub::{ScriptedHub, Speaker};
use crate::world::{STALE_AFTER, plugin};

/// A request to this path is sent on to [`LANDED`] by a redirect.
pub const REDIRECTS: &str = "/redirects";
pub const LANDED: &str = "/landed";

/// The stack. Dropped, everything stops.
pub struct Echoes {
    pub stack: Stack,
    _hub: ScriptedHub,
    _engines: DropGuard,
}

// === impl Echoes ===

impl Echoes {
    /// Engines of which those in `up` answer, and a hub that says `facts` of their addresses, and then that it lives.
    pub async fn start(
        up: &[usize],
        facts: impl FnOnce(&[String]) -> Vec<Fact>,
        change: impl FnOnce(&mut StackOptions),
    ) -> Echoes {
        let stack = stack(|options| {
            options.with_hub = false;
            options.with_engines = false;
            options.plugin = plugin();
            change(options);
        })
        .await;
        let stop = CancellationToken::new();
        for place in up {
            let listener = TcpListener::bind(stack.addresses.engines[*place].http).await.unwrap();
            tokio::spawn(server::serve(listener, router(*place), stop.clone()));
        }
        let addresses: Vec<String> = stack.addresses.engines.iter().map(|engine| engine.http.to_string()).collect();
        let facts = facts(&addresses);
        let hub = ScriptedHub::start(stack.addresses.hub_grpc, move |stream| {
            let facts = facts.clone();
            async move {
                let mut hub = Speaker::new(7 + u64::from(stream.number));
                for message in hub.state(facts) {
                    stream.say(&message).await;
                }
                while stream.say(&hub.heartbeat()).await {
                    tokio::time::sleep(STALE_AFTER / 4).await;
                }
            }
        })
        .await;
        Echoes { stack, _hub: hub, _engines: stop.drop_guard() }
    }
}

fn router(place: usize) -> Router {
    Router::new().fallback(move |uri: Uri, headers: HeaderMap| async move { echo(place, &uri, &headers) })
}

fn echo(place: usize, uri: &Uri, headers: &HeaderMap) -> Response {
    let id = ("x-engine-id", format!("engine-{place}"));
    if uri.path() == REDIRECTS {
        let host = headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
        return (StatusCode::FOUND, [id, ("location", format!("http://{host}{LANDED}"))]).into_response();
    }
    let pairs: Vec<[String; 2]> = headers
        .iter()
        .map(|(name, value)| [name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()])
        .collect();
    ([id], Json(json!({ "path": uri.path(), "headers": pairs }))).into_response()
}

/// What the engine says it got, as an entry of an engine's log has it.
pub fn seen(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|_| panic!("no engine answered: {}", answer.text()))
}
