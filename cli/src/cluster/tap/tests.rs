//! Taps through an API server with scripted responses.

use std::convert::Infallible;

use http::Response;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{Full, StreamBody};
use hyper::body::Frame;
use mesh_api::linkerd2::common::net::{IPv6, IpAddress, TcpAddress, ip_address};
use mesh_api::linkerd2::tap::tap_event::http::{
    Event as HttpEvent, RequestInit, ResponseEnd, StreamId,
};
use mesh_api::linkerd2::tap::tap_event::{self, EndpointMeta, Http, ProxyDirection};
use mesh_api::linkerd2::viz::{Eos, HttpMethod, Scheme, eos, http_method, scheme};
use mesh_api::tap_frames::frame;
use mesh_core::tap::{TapEventKind, TapStreamEnd};

use super::*;
use crate::resource::Resource;

type TestBody = UnsyncBoxBody<Bytes, Infallible>;

/// Returns a cluster whose API server sends this response to each request.
fn cluster(respond: fn(Request<Body>) -> Response<TestBody>) -> Cluster {
    let service = tower::service_fn(move |request: Request<Body>| {
        let response = respond(request);
        async move { Ok::<_, Infallible>(response) }
    });
    Cluster::played(kube::Client::new(service, "default"))
}

fn query() -> TapQuery {
    TapQuery::new(&Resource::parse("deploy/web").unwrap(), "shop").unwrap()
}

fn respond(
    status: StatusCode,
    header: Option<&'static str>,
    body: impl Into<Bytes>,
) -> Response<TestBody> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = status;
    if let Some(name) = header {
        let value = http::HeaderValue::from_static("Internal Server Error");
        response.headers_mut().insert(name, value);
    }
    response
}

fn address(ip: ip_address::Ip, port: u32) -> Option<TcpAddress> {
    Some(TcpAddress {
        ip: Some(IpAddress { ip: Some(ip) }),
        port,
    })
}

fn message(event: HttpEvent) -> Message {
    Message {
        source: address(ip_address::Ip::Ipv4(0x0a00_0001), 5000),
        source_meta: Some(EndpointMeta {
            labels: [("tls".to_owned(), "true".to_owned())].into(),
        }),
        destination: address(
            ip_address::Ip::Ipv6(IPv6 {
                first: 0xfd00 << 48,
                last: 2,
            }),
            80,
        ),
        proxy_direction: ProxyDirection::Inbound.into(),
        event: Some(tap_event::Event::Http(Http { event: Some(event) })),
        ..Message::default()
    }
}

const ID: Option<StreamId> = Some(StreamId { base: 1, stream: 2 });

fn request_init(method: http_method::Type) -> HttpEvent {
    HttpEvent::RequestInit(RequestInit {
        id: ID,
        method: Some(HttpMethod {
            r#type: Some(method),
        }),
        scheme: Some(Scheme {
            r#type: Some(scheme::Type::Registered(scheme::Registered::Https.into())),
        }),
        authority: "web".to_owned(),
        path: "/a".to_owned(),
        headers: None,
    })
}

fn response_end() -> HttpEvent {
    HttpEvent::ResponseEnd(ResponseEnd {
        id: ID,
        since_response_init: Some(mesh_api::linkerd2::Duration {
            seconds: 2,
            nanos: 1_000,
        }),
        since_request_init: Some(mesh_api::linkerd2::Duration {
            seconds: -1,
            nanos: 0,
        }),
        eos: Some(Eos {
            end: Some(eos::End::GrpcStatusCode(5)),
        }),
        ..ResponseEnd::default()
    })
}

/// Sends events in parts of three bytes, some of them of a later version.
fn events(request: Request<Body>) -> Response<TestBody> {
    assert_eq!(request.method(), http::Method::POST);
    let path = "/apis/tap.linkerd.io/v1alpha1/watch/namespaces/shop/deployments/web/tap";
    assert_eq!(request.uri().path(), path);
    let get = http_method::Type::Registered(http_method::Registered::Get.into());
    let invalid = http_method::Type::Unregistered("a b".to_owned());
    let stream = [
        frame(&message(request_init(get))),
        frame(&message(request_init(http_method::Type::Registered(99)))),
        frame(&message(request_init(invalid))),
        frame(&Message::default()),
        frame(&message(response_end())),
    ]
    .concat();
    let parts: Vec<_> = stream
        .chunks(3)
        .map(|part| Ok(Frame::data(Bytes::copy_from_slice(part))))
        .collect();
    Response::new(StreamBody::new(futures_util::stream::iter(parts)).boxed_unsync())
}

#[tokio::test]
async fn events_are_read_and_unknown_ones_left_out() {
    let mut stream = ApiEvents::start(&cluster(events), &query()).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!(first.context.source, "10.0.0.1:5000".parse().unwrap());
    assert_eq!(first.context.destination, "[fd00::2]:80".parse().unwrap());
    assert_eq!(first.context.source_labels.get("tls"), Some("true"));
    let expect = TapEventKind::Request {
        method: http::Method::GET,
        scheme: "https".to_owned(),
        authority: "web".to_owned(),
        path: "/a".to_owned(),
        headers: None,
    };
    assert_eq!(first.kind, expect);
    let last = stream.next().await.unwrap().unwrap();
    let expect = TapEventKind::End {
        since_request: std::time::Duration::ZERO,
        since_response: std::time::Duration::from_micros(2_000_001),
        response_bytes: 0,
        end: TapStreamEnd::GrpcStatus(5),
        trailers: None,
    };
    assert_eq!((last.id, last.kind), (first.id, expect));
    assert!(stream.next().await.unwrap().is_none());
}

async fn start_error(respond: fn(Request<Body>) -> Response<TestBody>) -> String {
    match ApiEvents::start(&cluster(respond), &query()).await {
        Ok(_stream) => panic!("the tap has started"),
        Err(error) => format!("{error:#}"),
    }
}

#[tokio::test]
async fn missing_rights_name_the_rule() {
    let error = start_error(|_| {
        let body = r#"{"error": "\"jane\" may not tap deployments/web"}"#;
        respond(StatusCode::FORBIDDEN, None, body)
    })
    .await;
    assert!(
        error.contains("the verb watch on deployments/tap.tap.linkerd.io"),
        "{error}"
    );
    assert!(error.contains("linkerd-linkerd-viz-tap-admin"), "{error}");
    assert!(error.contains("\"jane\" may not"), "{error}");
}

#[tokio::test]
async fn missing_and_unavailable_extension_are_explained() {
    let missing = start_error(|_| {
        let body = r#"{"kind": "Status", "message": "the server could not find the resource"}"#;
        respond(StatusCode::NOT_FOUND, None, body)
    })
    .await;
    assert!(
        missing.contains("meshctl viz install | kubectl apply -f -"),
        "{missing}"
    );
    let unavailable =
        start_error(|_| respond(StatusCode::SERVICE_UNAVAILABLE, None, "no endpoints")).await;
    assert!(unavailable.contains("(no endpoints)"), "{unavailable}");
    assert!(
        unavailable.contains("v1alpha1.tap.linkerd.io"),
        "{unavailable}"
    );
}

#[tokio::test]
async fn error_with_the_status_of_success_is_an_error() {
    let error = start_error(|_| {
        let error = ApiError {
            error: "no pods to tap".to_owned(),
        };
        respond(StatusCode::OK, Some(ERROR_HEADER), frame(&error))
    })
    .await;
    assert_eq!(
        error,
        "cannot tap deployment/web in namespace shop: no pods to tap"
    );
    let short = start_error(|_| respond(StatusCode::OK, Some(ERROR_HEADER), &b"\x09"[..])).await;
    assert!(short.contains("ended early"), "{short}");
    let large =
        start_error(|_| respond(StatusCode::OK, Some(ERROR_HEADER), vec![0; MAX_ERROR + 1])).await;
    assert!(large.contains("cannot read the tap's error"), "{large}");
}

#[tokio::test]
async fn invalid_events_end_the_tap() {
    for (body, problem) in [
        (&[0xff; 4][..], "expected at most"),
        (
            &(MAX_FRAME + 1).to_le_bytes()[..],
            "1048577 bytes; expected at most 1048576",
        ),
        (&[2, 0, 0, 0, 0xff, 0xff][..], "invalid"),
        (&[9, 0, 0, 0, 1][..], "within a message"),
    ] {
        let mut stream = ApiEvents {
            body: Body::from(body.to_vec()),
            frames: Frames::with_limit(MAX_FRAME),
        };
        let error = format!("{:#}", stream.next().await.unwrap_err());
        assert!(error.contains(problem), "{error}");
    }
}
