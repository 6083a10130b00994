//! What is served beside the contract's four real calls: health, reflection, and the answers of what is not built.

use tokio_stream::StreamExt;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
use warmroute::native::hub::contract::messages::v1alpha1::{
    LookupPdRouteRequest, LookupPdRouteResponse, RenderTemplateRequest, RenderTemplateResponse, StreamMetricsRequest,
};

use crate::client::{connect, hub};

const SERVICE: &str = "inferencecache.v1alpha1.InferenceCache";

#[tokio::test]
async fn what_is_not_built_answers_the_contracts_defaults() {
    let hub = hub("").await;
    let mut client = connect(&hub).await;
    let rendered = client.render_template(RenderTemplateRequest::default()).await.unwrap().into_inner();
    assert_eq!(rendered, RenderTemplateResponse { reason_code: "OK".into(), ..RenderTemplateResponse::default() });
    let routed = client.lookup_pd_route(LookupPdRouteRequest::default()).await.unwrap().into_inner();
    assert_eq!(routed, LookupPdRouteResponse { reason_code: "NO_HINT".into(), ..LookupPdRouteResponse::default() });
    let metrics = client.stream_metrics(StreamMetricsRequest::default()).await.unwrap().into_inner();
    assert_eq!(metrics.collect::<Vec<_>>().await.len(), 0);
    hub.shutdown().await;
}

#[tokio::test]
async fn the_server_and_its_services_are_serving() {
    let hub = hub("").await;
    let mut health = HealthClient::new(channel(&hub).await);
    for service in ["", SERVICE, "warmroute.v1.Observation"] {
        let asked = HealthCheckRequest { service: service.into() };
        let answer = health.check(asked).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    assert!(health.check(HealthCheckRequest { service: "another".into() }).await.is_err());
    hub.shutdown().await;
}

#[tokio::test]
async fn reflection_lists_the_services_and_describes_their_messages() {
    let hub = hub("").await;
    let services = match reflect(&hub, MessageRequest::ListServices(String::new())).await {
        Some(MessageResponse::ListServicesResponse(list)) => list.service,
        other => panic!("no list: {other:?}"),
    };
    let names: Vec<&str> = services.iter().map(|service| service.name.as_str()).collect();
    for name in [SERVICE, "warmroute.v1.Observation", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let symbol = MessageRequest::FileContainingSymbol("inferencecache.v1alpha1.LookupRouteRequest".into());
    let files = match reflect(&hub, symbol).await {
        Some(MessageResponse::FileDescriptorResponse(files)) => files.file_descriptor_proto,
        other => panic!("no description: {other:?}"),
    };
    assert!(files.iter().any(|file| String::from_utf8_lossy(file).contains("block_token_counts")));
    hub.shutdown().await;
}

async fn reflect(hub: &warmroute::native::hub::Hub, asked: MessageRequest) -> Option<MessageResponse> {
    let mut client = ServerReflectionClient::new(channel(hub).await);
    let asked = ServerReflectionRequest { message_request: Some(asked), ..ServerReflectionRequest::default() };
    let mut answers = client.server_reflection_info(tokio_stream::iter([asked])).await.unwrap().into_inner();
    let answer: ServerReflectionResponse = answers.message().await.unwrap().unwrap();
    answer.message_response
}

async fn channel(hub: &warmroute::native::hub::Hub) -> tonic::transport::Channel {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", hub.grpc_address())).unwrap();
    endpoint.connect().await.unwrap()
}
