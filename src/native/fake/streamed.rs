//! From a generation to the response: whole, or token by token.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Json, Response};
use bytes::Bytes;
use futures::{StreamExt, stream};

use super::completion::CompletionRequest;
use super::reply::{Event, Generated, Reply, Usage};
use super::scheduler::Generation;
use super::vocabulary::Vocabulary;

/// What the parts of one response share.
struct Parts {
    request: CompletionRequest,
    reply: Reply,
    vocabulary: Arc<Vocabulary>,
}

/// The response to a request whose prompt has been computed.
pub(super) async fn respond(
    request: CompletionRequest,
    reply: Reply,
    vocabulary: Arc<Vocabulary>,
    generation: Generation,
) -> Response {
    let parts = Parts { request, reply, vocabulary };
    if parts.request.stream { parts.stream(generation) } else { parts.whole(generation).await }
}

// === impl Parts ===

impl Parts {
    async fn whole(self, mut generation: Generation) -> Response {
        let mut token_ids = Vec::new();
        while let Some(token_id) = generation.next_token().await {
            token_ids.push(token_id);
        }
        let text = self.vocabulary.detokenize(&token_ids);
        let generated = Generated { token_ids: &token_ids, text: &text };
        Json(self.reply.whole(&self.request, generated, usage(&generation))).into_response()
    }

    /// Server-sent events: what opens the stream, one a token, what closes it. Dropped by the client, it stops.
    fn stream(self, generation: Generation) -> Response {
        let opening = stream::iter(self.reply.opening(usage(&generation)));
        let tokens = stream::unfold((self, generation, Some(Vec::new())), async |(parts, mut generation, said)| {
            let mut said = said?;
            let Some(token_id) = generation.next_token().await else {
                let text = parts.vocabulary.detokenize(&said);
                let closing = parts.reply.closing(&parts.request, &text, usage(&generation));
                return Some((closing, (parts, generation, None)));
            };
            said.push(token_id);
            let event = parts.token(token_id, generation.produced());
            Some((vec![event], (parts, generation, Some(said))))
        });
        let events = opening.chain(tokens.flat_map(stream::iter));
        let body = Body::from_stream(events.map(|event: Event| Ok::<_, Infallible>(Bytes::from(event.to_bytes()))));
        ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], body).into_response()
    }

    fn token(&self, token_id: u32, produced: usize) -> Event {
        let text = self.vocabulary.detokenize(&[token_id]);
        let generated = Generated { token_ids: &[token_id], text: &text };
        self.reply.token(&self.request, generated, produced == 1, produced == self.request.max_tokens)
    }
}

fn usage(generation: &Generation) -> Usage {
    Usage {
        prompt_tokens: generation.prompt_tokens(),
        cached_tokens: generation.cached_tokens(),
        completion_tokens: generation.produced(),
    }
}
