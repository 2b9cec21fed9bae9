//! Responses to users with and without access, with a proxy that tells one event.

use std::future::ready;
use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::SubjectAccessReviewStatus;
use mesh_api::linkerd2::tap::tap_event::Event;
use mesh_api::linkerd2::tap::{TapEvent, tap_event};
use mesh_api::linkerd2::viz::{Resource, ResourceSelection};
use mesh_api::proto::tap::tap_server::{Tap, TapServer};
use mesh_api::proto::tap::{ObserveRequest, TapEvent as ProxyEvent};
use mesh_core::labels::Labels;
use mesh_core::tap::{TapContext, TapDirection, TapEventKind, TapStreamEnd, TapStreamId};
use tokio::net::TcpListener;
use tonic::metadata::MetadataMap;
use tonic::transport::server::TcpIncoming;

use super::super::front_proxy::tests::{certificate, front_proxy};
use super::super::pods::tests::{ENABLED, inventory, pod};
use super::*;

const TAP: &str = "/apis/tap.linkerd.io/v1alpha1/watch/namespaces/shop/deployments/web/tap";

/// Allows one user, and only the Deployment `web`.
struct AllowJane;

impl AccessReviewer for AllowJane {
    fn review(&self, mut review: SubjectAccessReview) -> ReviewFuture<'_> {
        let spec = &review.spec;
        let name = spec
            .resource_attributes
            .as_ref()
            .and_then(|asked| asked.name.as_deref());
        let allowed = spec.user.as_deref() == Some("jane") && name == Some("web");
        review.status = Some(SubjectAccessReviewStatus {
            allowed,
            ..SubjectAccessReviewStatus::default()
        });
        Box::pin(ready(Ok(review)))
    }
}

struct Unreachable;

impl AccessReviewer for Unreachable {
    fn review(&self, _review: SubjectAccessReview) -> ReviewFuture<'_> {
        Box::pin(ready(Err("connection refused".to_owned())))
    }
}

/// A tap service that sends one event in each subscription, and reports each request to the test.
struct Proxy(mpsc::Sender<(MetadataMap, ObserveRequest)>);

#[tonic::async_trait]
impl Tap for Proxy {
    type ObserveStream =
        futures_util::stream::Iter<std::option::IntoIter<Result<ProxyEvent, Status>>>;

    async fn observe(
        &self,
        request: tonic::Request<ObserveRequest>,
    ) -> Result<tonic::Response<Self::ObserveStream>, Status> {
        let (metadata, _, asked) = request.into_parts();
        // The test may have read enough.
        let _ended = self.0.send((metadata, asked)).await;
        let context = TapContext {
            direction: TapDirection::Inbound,
            source: "192.0.2.1:4000".parse().unwrap(),
            source_labels: Labels::default(),
            destination: "127.0.0.1:80".parse().unwrap(),
            destination_labels: Labels::default(),
            route_labels: Labels::default(),
        };
        let event = mesh_core::tap::TapEvent {
            context: Arc::new(context),
            id: TapStreamId { base: 1, stream: 2 },
            kind: TapEventKind::End {
                since_request: Duration::ZERO,
                since_response: Duration::ZERO,
                response_bytes: 9,
                end: TapStreamEnd::Complete,
                trailers: None,
            },
        };
        let event = mesh_api::tap::event_to_proto(&event);
        Ok(tonic::Response::new(futures_util::stream::iter(Some(Ok(
            event,
        )))))
    }
}

fn api(access: impl AccessReviewer + 'static, proxy: Option<SocketAddr>) -> TapApi {
    let annotation = if proxy.is_some() { ENABLED } else { "" };
    let pods = [pod("web-1-a", "127.0.0.1", annotation, "Running")];
    let configuration = Some(Arc::new(front_proxy(&[])));
    TapApi {
        inventory: Arc::new(Mutex::new(inventory(&pods))),
        access: Box::new(access),
        front_proxy: watch::channel(configuration).1,
        mesh: MeshNames {
            control_namespace: "linkerd".to_owned(),
            trust_domain: "cluster.local".to_owned(),
            tap_port: Some(proxy.map_or(4190, |proxy| proxy.port())),
        },
        ignored: IgnoredHeaders::default(),
        taps: Arc::new(Semaphore::new(1)),
    }
}

fn tap_request(path: &str, user: &str) -> Request<Full<Bytes>> {
    let target = ResourceSelection {
        resource: Some(Resource {
            namespace: "shop".to_owned(),
            r#type: "deployment".to_owned(),
            name: "web".to_owned(),
        }),
        label_selector: String::new(),
    };
    let message = TapByResourceRequest {
        target: Some(target),
        max_rps: 7.0,
        ..TapByResourceRequest::default()
    };
    let request = Request::post(path).header("x-remote-user", user);
    request.body(Full::from(message.encode_to_vec())).unwrap()
}

async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the bytes after the length of the first frame, which must be the length of the rest.
fn unframed(frame: &Bytes) -> &[u8] {
    let (length, message) = frame.split_first_chunk().unwrap();
    assert_eq!(
        u32::from_le_bytes(*length),
        u32::try_from(message.len()).unwrap()
    );
    message
}

#[tokio::test]
async fn only_the_front_proxy_is_believed_and_only_allowed_users_tap() {
    let (_, trusted) = certificate("front-proxy-client", "a");
    let (_, other) = certificate("kubelet", "b");
    let deployment = api(AllowJane, None);
    let db = TAP.replace("web", "db");
    let table = [
        (TAP, "jane", None, StatusCode::BAD_REQUEST, "no certificate"),
        (
            TAP,
            "jane",
            Some(&other),
            StatusCode::BAD_REQUEST,
            "kubelet",
        ),
        (TAP, "", Some(&trusted), StatusCode::BAD_REQUEST, "no user"),
        (TAP, "joe", Some(&trusted), StatusCode::FORBIDDEN, "joe"),
        (
            &db,
            "jane",
            Some(&trusted),
            StatusCode::FORBIDDEN,
            "deployments/db",
        ),
    ];
    for (path, user, leaf, status, problem) in table {
        let response = deployment.respond(tap_request(path, user), leaf).await;
        assert_eq!(response.status(), status);
        let text = text(response).await;
        assert!(text.contains(problem), "{text}");
    }
    let without_api_server = api(Unreachable, None);
    let response = without_api_server
        .respond(tap_request(TAP, "jane"), Some(&trusted))
        .await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let mut early = api(AllowJane, None);
    early.front_proxy = watch::channel(None).1;
    let response = early
        .respond(tap_request(TAP, "jane"), Some(&trusted))
        .await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn events_of_the_pods_are_streamed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (sender, mut asked) = mpsc::channel(8);
    let server = tonic::transport::Server::builder().add_service(TapServer::new(Proxy(sender)));
    let _server = tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let (_, leaf) = certificate("front-proxy-client", "a");
    let api = api(AllowJane, Some(addr));

    let response = api.respond(tap_request(TAP, "jane"), Some(&leaf)).await;
    assert_eq!(response.headers()[CONTENT_TYPE], OCTETS);
    let mut events = response.into_body();
    let frame = events.frame().await.unwrap().unwrap().into_data().unwrap();
    let event = TapEvent::decode(unframed(&frame)).unwrap();
    assert_eq!(event.destination_meta.unwrap().labels["pod"], "web-1-a");
    let Some(Event::Http(tap_event::Http { event: Some(_) })) = event.event else {
        panic!("not an event of HTTP");
    };
    let (metadata, request) = asked.recv().await.unwrap();
    let identity = "web.shop.serviceaccount.identity.linkerd.cluster.local";
    assert_eq!(metadata.get("l5d-require-id").unwrap(), identity);
    assert_eq!(request.limit, 7);

    // The only permit is taken until the client has gone.
    let second = api.respond(tap_request(TAP, "jane"), Some(&leaf)).await;
    assert!(second.headers().contains_key(ERROR_HEADER));
    assert!(text(second).await.contains("taps are running"));
    drop(events);
    let third = api.respond(tap_request(TAP, "jane"), Some(&leaf)).await;
    assert!(!third.headers().contains_key(ERROR_HEADER));
}

#[tokio::test]
async fn errors_of_a_tap_have_a_header_and_a_message() {
    let (_, leaf) = certificate("front-proxy-client", "a");
    let api = api(AllowJane, None);
    let large = Request::post(TAP)
        .header("x-remote-user", "jane")
        .body(Full::from(vec![0; MAX_REQUEST + 1]))
        .unwrap();
    for (request, problem) in [
        (
            tap_request(TAP, "jane"),
            "1 meshed pods were created without tap",
        ),
        (large, "cannot read the request"),
    ] {
        let response = api.respond(request, Some(&leaf)).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.headers().contains_key(ERROR_HEADER));
        let frame = response.into_body().collect().await.unwrap().to_bytes();
        let error = ApiError::decode(unframed(&frame)).unwrap();
        assert!(error.error.contains(problem), "{error:?}");
    }
}

#[tokio::test]
async fn api_server_finds_the_resources() {
    let api = api(AllowJane, None);
    let get = |path: &str| Request::get(path).body(Full::<Bytes>::default()).unwrap();
    let group = text(
        api.respond(get("/apis/tap.linkerd.io/v1alpha1"), None)
            .await,
    )
    .await;
    for resource in ["deployments/tap", "namespaces/tap", "cronjobs/tap"] {
        assert!(group.contains(resource), "{group}");
    }
    assert_eq!(
        api.respond(get("/secret"), None).await.status(),
        StatusCode::NOT_FOUND
    );
    let denied = api.respond(get(TAP), None).await;
    assert_eq!(denied.status(), StatusCode::METHOD_NOT_ALLOWED);
}
