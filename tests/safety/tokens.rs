//! Bearer tokens: what each allows, what others learn, rotation and the end of a token.

use std::time::Duration;

use tokio::time::timeout;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use warmroute::native::hub::Hub;
use warmroute::native::hub::contract::messages::v1alpha1::StreamEventsRequest;
use warmroute::native::hub::contract::messages::v1alpha1::inference_cache_client::InferenceCacheClient;

use crate::client::*;
use crate::hub_support::get;

async fn hub_with(folder: &Folder, files: &[(&str, &str, &str)]) -> Hub {
    let tokens = files.iter().map(|(name, allow, tokens)| {
        let file = folder.write(name, tokens);
        format!("{{file: {file}, allow: [{allow}]}}")
    });
    let tokens: Vec<String> = tokens.collect();
    hub(&format!("security: {{reload_ms: 100, tokens: [{}]}}", tokens.join(", "))).await
}

#[tokio::test]
async fn a_token_opens_what_it_is_for_and_nothing_opens_without_one() {
    let folder = Folder::new();
    let producers = "producer-0123456789";
    let files = [("all", "producers, observers, lookups", TOKEN), ("p", "producers", producers)];
    let hub = hub_with(&folder, &files).await;
    let channel = channel(&hub, None).await.unwrap();
    assert_eq!(try_all(&channel, Some(TOKEN)).await, Outcome::all(Code::Ok));
    assert_eq!(try_all(&channel, None).await, Outcome::all(Code::Unauthenticated));
    for wrong in [OTHER, "", "token-0123456789abcdeg", "token-0123456789abcdef0"] {
        assert_eq!(try_all(&channel, Some(wrong)).await, Outcome::all(Code::Unauthenticated), "{wrong:?}");
    }
    let only = Outcome { producer: Code::Ok, ..Outcome::all(Code::PermissionDenied) };
    assert_eq!(try_all(&channel, Some(producers)).await, only);
    assert_eq!(refused(&hub, "no_token").await, 4.0);
    assert_eq!(refused(&hub, "wrong_token").await, 16.0);
    assert_eq!(refused(&hub, "not_allowed").await, 3.0);
    hub.shutdown().await;
}

#[tokio::test]
async fn nobody_without_a_token_learns_what_there_is() {
    let folder = Folder::new();
    let hub = hub_with(&folder, &[("all", "producers, observers, lookups, operators", TOKEN)]).await;
    let channel = channel(&hub, None).await.unwrap();
    let reflect = async |token: Option<&str>| {
        let list = ServerReflectionRequest {
            message_request: Some(MessageRequest::ListServices(String::new())),
            ..ServerReflectionRequest::default()
        };
        let mut client = ServerReflectionClient::new(channel.clone());
        client.server_reflection_info(with_token(tokio_stream::iter([list]), token)).await.map(|_| ())
    };
    let unknown = async |path: &'static str| {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckRequest>::default();
        let path = hyper::http::uri::PathAndQuery::from_static(path);
        client.unary(tonic::Request::new(HealthCheckRequest::default()), path, codec).await.map(|_| ())
    };
    let said = |answer: Result<(), Status>| answer.err().map(|status| (status.code(), status.message().to_owned()));
    let no = said(reflect(None).await);
    assert_eq!(no, Some((Code::Unauthenticated, "this hub needs a valid bearer token".to_owned())));
    assert_eq!(said(reflect(Some(OTHER)).await), no);
    for path in ["/a.b/C", "/warmroute.v1.Observation/Nothing", "/grpc.health.v1.Health/Watch"] {
        assert_eq!(said(unknown(path).await), no, "{path}");
    }
    assert_eq!(said(reflect(Some(TOKEN)).await), None);
    // Probes carry no tokens, and learn whether the hub serves.
    let mut health = HealthClient::new(channel.clone());
    assert!(health.check(HealthCheckRequest::default()).await.is_ok());
    for open in ["/healthz", "/readyz"] {
        assert!(get(&hub, open).await.1.len() < 40);
    }
    for shut in ["/metrics", "/state", "/another"] {
        let (status, body) = get(&hub, shut).await;
        assert_eq!((status, body.as_str()), (401, "a valid bearer token is needed\n"), "{shut}");
    }
    hub.shutdown().await;
}

#[tokio::test]
async fn the_http_side_asks_for_a_token_of_its_own() {
    let folder = Folder::new();
    let (calls, operators) = ("caller-0123456789", "operator-0123456789");
    let hub = hub_with(&folder, &[("c", "lookups", calls), ("o", "operators", operators)]).await;
    let status = async |token: &str| {
        let url = format!("http://{}/metrics", hub.http_address());
        let head = hyper::Request::get(url).header("authorization", format!("bearer {token}"));
        let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http();
        let request = head.body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap();
        client.request(request).await.unwrap().status().as_u16()
    };
    assert_eq!((status(operators).await, status(calls).await, status(OTHER).await), (200, 403, 401));
    let channel = channel(&hub, None).await.unwrap();
    let outcome = try_all(&channel, Some(operators)).await;
    assert_eq!(outcome, Outcome::all(Code::PermissionDenied));
    hub.shutdown().await;
}

#[tokio::test]
async fn tokens_are_rotated_without_a_restart_and_streams_of_the_old_one_end_with_it() {
    let folder = Folder::new();
    let hub = hub_with(&folder, &[("all", "producers, observers, lookups", TOKEN)]).await;
    let channel = channel(&hub, None).await.unwrap();
    let mut old = observe(&channel, Some(TOKEN)).await.unwrap();
    old.reset().await.unwrap();
    folder.write("all", &format!("# both for a while\n{TOKEN}\n{OTHER}\n"));
    eventually("the new token", async || try_all(&channel, Some(OTHER)).await == Outcome::all(Code::Ok)).await;
    assert_eq!(try_all(&channel, Some(TOKEN)).await, Outcome::all(Code::Ok));
    let mut new = observe(&channel, Some(OTHER)).await.unwrap();
    new.reset().await.unwrap();
    let mut contract = InferenceCacheClient::new(channel.clone());
    let asked = with_token(StreamEventsRequest::default(), Some(TOKEN));
    let mut events = contract.stream_cache_events(asked).await.unwrap().into_inner();
    // The old stream has gone on meanwhile.
    old.until(|_| true).await.unwrap();
    // A file that is gone changes nothing.
    let kept = std::fs::read_to_string(folder.path("all")).unwrap();
    std::fs::remove_file(folder.path("all")).unwrap();
    eventually("the problem", async || metric(&hub, "warmroute_hub_security_problems").await == 1.0).await;
    assert_eq!(try_all(&channel, Some(TOKEN)).await, Outcome::all(Code::Ok));
    folder.write("all", &kept.replace(TOKEN, ""));
    let ended = timeout(Duration::from_secs(30), old.until(|_| false)).await.expect("the old stream ends");
    assert_eq!(ended.unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(events.message().await.unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(try_all(&channel, Some(TOKEN)).await, Outcome::all(Code::Unauthenticated));
    new.until(|_| true).await.unwrap();
    assert_eq!(refused(&hub, "revoked").await, 1.0);
    hub.shutdown().await;
}
