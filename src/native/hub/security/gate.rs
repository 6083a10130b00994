//! Before every gRPC call: whether its token allows it, and whether there is a place for it.
//!
//! A refused call costs its headers: no message of it is read.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::http::HeaderMap;
use hyper::{Request, Response};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};

use super::calls::{Call, Calls, Holding};
use super::door::Peer;
use super::refusals::{Refusal, Refusals};
use super::tokens::Grant;
use super::{Revoked, Security};
use crate::native::hub::config::Access;

/// The health check that needs no token.
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
/// The header with a call's status where it has no messages.
const GRPC_STATUS: &str = "grpc-status";

/// Stands before all services.
#[derive(Clone)]
pub struct GateLayer(Arc<Gate>);

struct Gate {
    security: Arc<Security>,
    asks_for_tokens: bool,
    refusals: Arc<Refusals>,
    places: Arc<Semaphore>,
    limit: usize,
}

/// A service behind the gate.
#[derive(Clone)]
pub struct Gated<S> {
    gate: Arc<Gate>,
    inner: S,
}

/// What an admitted call has until all of its response was sent.
pub struct Admitted {
    _place: Place,
    _call: Option<Call>,
}

/// A response's body; of a refused call nothing is held.
pub type Placed = Holding<Body, Option<Admitted>>;

pub struct Place {
    open: Gauge,
    _permit: OwnedSemaphorePermit,
}

/// What a path needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Nothing,
    SomeToken,
    Access(Access),
}

// === impl GateLayer ===

impl GateLayer {
    /// With at most `limit` calls and streams at a time.
    pub fn new(security: &Arc<Security>, refusals: &Arc<Refusals>, limit: usize) -> GateLayer {
        let asks_for_tokens = security.config.asks_for_tokens();
        let places = Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
        let (security, refusals) = (Arc::clone(security), Arc::clone(refusals));
        GateLayer(Arc::new(Gate { security, asks_for_tokens, refusals, places, limit }))
    }
}

impl<S> Layer<S> for GateLayer {
    type Service = Gated<S>;

    fn layer(&self, inner: S) -> Gated<S> {
        Gated { gate: Arc::clone(&self.0), inner }
    }
}

// === impl Gated ===

impl<S> Service<Request<Body>> for Gated<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Placed>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Placed>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let admitted = self.gate.admit(&request);
        let (revoked, place) = match admitted {
            Ok(admitted) => admitted,
            Err(status) => {
                let refused = status.into_http::<Body>().map(|body| Placed::new(body, None));
                return Box::pin(std::future::ready(Ok(refused)));
            }
        };
        let call = request.extensions().get::<Calls>().map(Calls::begin);
        let admitted = Admitted { _place: place, _call: call };
        let peer = peer_of(&request);
        request.extensions_mut().insert(revoked);
        let gate = Arc::clone(&self.gate);
        let answered = self.inner.call(request);
        Box::pin(async move {
            let mut response = answered.await?;
            gate.name_too_large(response.headers_mut(), peer);
            Ok(response.map(|body| Placed::new(body, Some(admitted))))
        })
    }
}

// === impl Gate ===

impl Gate {
    fn admit(&self, request: &Request<Body>) -> Result<(Revoked, Place), Status> {
        let peer = peer_of(request);
        let path = request.uri().path();
        let revoked = self.check(need(path), request.headers()).map_err(|(refusal, status)| {
            self.refusals.note(refusal, peer.address, &shown(path));
            status
        })?;
        let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() else {
            let problem = format!("limits.max_streams is {}", self.limit);
            self.refusals.note(Refusal::TooManyStreams, peer.address, &problem);
            return Err(Status::resource_exhausted(format!("the hub has no place for another call: {problem}")));
        };
        let open = self.refusals.metrics().streams().clone();
        open.inc();
        Ok((revoked, Place { open, _permit: permit }))
    }

    fn check(&self, need: Need, headers: &HeaderMap) -> Result<Revoked, (Refusal, Status)> {
        if !self.asks_for_tokens || need == Need::Nothing {
            return Ok(Revoked::default());
        }
        let unknown = |refusal| (refusal, Status::unauthenticated("this hub needs a valid bearer token"));
        let token = bearer(headers).ok_or_else(|| unknown(Refusal::NoToken))?;
        let tokens = self.security.tokens();
        let grant = tokens.grant(token).ok_or_else(|| unknown(Refusal::WrongToken))?;
        if is_met(need, grant) {
            return Ok(grant.revoked());
        }
        Err((Refusal::NotAllowed, Status::permission_denied("this bearer token is not good for that call")))
    }

    /// What gRPC calls it elsewhere: the library says `OUT_OF_RANGE` of a message beyond its limit, and of nothing else here
    /// before a stream has begun.
    fn name_too_large(&self, headers: &mut HeaderMap, peer: Peer) {
        let code = |code: Code| i32::from(code).to_string();
        let is_too_large = headers.get(GRPC_STATUS).is_some_and(|status| *status == code(Code::OutOfRange).as_str());
        if is_too_large && let Ok(value) = HeaderValue::from_str(&code(Code::ResourceExhausted)) {
            headers.insert(GRPC_STATUS, value);
            self.refusals.note(Refusal::MessageTooLarge, peer.address, "see limits.max_message_bytes");
        }
    }
}

fn is_met(need: Need, grant: &Grant) -> bool {
    match need {
        Need::Nothing => true,
        Need::SomeToken => grant.allows_calls(),
        Need::Access(access) => grant.allows(access),
    }
}

fn need(path: &str) -> Need {
    let contract = path.strip_prefix("/inferencecache.v1alpha1.InferenceCache/");
    match (path, contract) {
        (HEALTH_CHECK, _) => Need::Nothing,
        ("/warmroute.v1.Observation/Observe", _) | (_, Some("StreamCacheEvents")) => Need::Access(Access::Observers),
        (_, Some("ReportCacheState" | "PublishEvent")) => Need::Access(Access::Producers),
        (_, Some(_)) => Need::Access(Access::Lookups),
        (_, None) => Need::SomeToken,
    }
}

/// A bearer token, RFC 6750.
pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// A path that anybody may have sent, for the log.
fn shown(path: &str) -> String {
    path.chars().take(80).filter(|char| !char.is_control()).collect()
}

fn peer_of(request: &Request<Body>) -> Peer {
    let nobody = Peer { address: ([0, 0, 0, 0], 0).into(), certified: false };
    request.extensions().get::<Peer>().copied().unwrap_or(nobody)
}

// === impl Place ===

impl Drop for Place {
    fn drop(&mut self) {
        self.open.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_needs_what_it_does() {
        let contract = |method: &str| need(&format!("/inferencecache.v1alpha1.InferenceCache/{method}"));
        for method in ["ReportCacheState", "PublishEvent"] {
            assert_eq!(contract(method), Need::Access(Access::Producers));
        }
        for method in ["LookupRoute", "LookupPDRoute", "GetCacheState", "RenderTemplate", "StreamMetrics", "Another"] {
            assert_eq!(contract(method), Need::Access(Access::Lookups));
        }
        assert_eq!(contract("StreamCacheEvents"), Need::Access(Access::Observers));
        assert_eq!(need("/warmroute.v1.Observation/Observe"), Need::Access(Access::Observers));
        assert_eq!(need("/grpc.health.v1.Health/Check"), Need::Nothing);
        for other in
            ["/grpc.health.v1.Health/Watch", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/", ""]
        {
            assert_eq!(need(other), Need::SomeToken, "{other}");
        }
    }

    #[test]
    fn a_bearer_token_is_found_however_its_scheme_is_written() {
        let of = |value: &'static str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]);
            bearer(&headers).map(<[u8]>::to_vec)
        };
        assert_eq!(of("Bearer abc").as_deref(), Some(&b"abc"[..]));
        assert_eq!(of("bearer  abc ").as_deref(), Some(&b"abc"[..]));
        assert_eq!((of("Basic abc"), of("Bearer"), of("abc")), (None, None, None));
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
