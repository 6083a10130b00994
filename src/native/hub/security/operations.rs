//! Before `/metrics`, `/state` and what else the HTTP side shows to operators: a certificate, or a token that allows it.

use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};

use super::Security;
use super::door::Peer;
use super::gate::bearer;
use super::refusals::{Refusal, Refusals};
use crate::native::hub::config::Access;

/// What probes ask.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// These routes, behind what the configuration asks for.
pub fn guarded(router: Router, security: &Arc<Security>, refusals: &Arc<Refusals>) -> Router {
    if !security.config.guards_operations() {
        return router;
    }
    router.layer(from_fn_with_state((Arc::clone(security), Arc::clone(refusals)), check))
}

async fn check(
    State((security, refusals)): State<(Arc<Security>, Arc<Refusals>)>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    if OPEN.contains(&path) || peer.certified {
        return next.run(request).await;
    }
    let tokens = security.tokens();
    let refusal = match bearer(request.headers()).map(|token| tokens.grant(token)) {
        Some(Some(grant)) if grant.allows(Access::Operators) => return next.run(request).await,
        Some(Some(_)) => Refusal::NotAllowed,
        Some(None) => Refusal::WrongToken,
        None => Refusal::NoToken,
    };
    refusals.note(refusal, peer.address, "the HTTP side");
    if refusal == Refusal::NotAllowed {
        return (StatusCode::FORBIDDEN, "this bearer token is not good for that\n").into_response();
    }
    let challenge = [(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))];
    (StatusCode::UNAUTHORIZED, challenge, "a valid bearer token is needed\n").into_response()
}
