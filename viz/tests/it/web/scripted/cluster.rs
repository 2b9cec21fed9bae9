//! The API server: the objects that the dashboard reads, and taps.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{Stream, StreamExt as _, unfold};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use mesh_api::linkerd2::common::net::{IpAddress, TcpAddress, ip_address};
use mesh_api::linkerd2::tap::tap_event::http::{
    Event as HttpEvent, RequestInit, ResponseEnd, ResponseInit, StreamId,
};
use mesh_api::linkerd2::tap::tap_event::{EndpointMeta, Event, Http, ProxyDirection};
use mesh_api::linkerd2::tap::{TapByResourceRequest, TapEvent};
use mesh_api::linkerd2::viz::headers::{Header, header};
use mesh_api::linkerd2::viz::{
    ApiError, Eos, Headers, HttpMethod, Scheme, eos, http_method, scheme,
};
use mesh_test_support::kube_api;
use prost::Message;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::time::interval;

use super::{CONTROLLERS, Pace};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The API server.
#[derive(Debug)]
pub(crate) struct Cluster {
    pace: Pace,
}

/// The events of a tap that does not move.
pub(crate) const STEADY_REQUESTS: u64 = 3;

/// More requests than the dashboard queues for one viewer.
pub(crate) const FLOOD_REQUESTS: u64 = 40_000;

/// Pods and policies of one workload, which a policy controller can read too.
pub(crate) const SHOP: &str = include_str!("shop.yaml");

/// More endpoints than the dashboard shows.
pub(crate) const MANY_ENDPOINTS: usize = 600;

const SHOP_PODS: &str = "/api/v1/namespaces/shop/pods/";

const TAP: &str = "/apis/tap.linkerd.io/v1alpha1/watch/namespaces/";

impl Cluster {
    pub(crate) fn new(pace: Pace) -> Arc<Self> {
        Arc::new(Self { pace })
    }

    /// Serves until the process ends.
    pub(crate) async fn serve(self: Arc<Self>) -> SocketAddr {
        let respond = move |request| {
            let cluster = self.clone();
            async move { cluster.respond(request).await }
        };
        kube_api::start(respond).await
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        if request.method() == Method::POST && path.starts_with(TAP) {
            return self.tap(&path, request).await;
        }
        let query = request.uri().query().unwrap_or_default();
        kube_api::found(object(&path, query)).map(BodyExt::boxed_unsync)
    }

    async fn tap(&self, path: &str, request: Request<Incoming>) -> Response<Body> {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let asked = TapByResourceRequest::decode(body).unwrap();
        let target = asked.target.and_then(|target| target.resource);
        let name = target.map(|target| target.name).unwrap_or_default();
        match name.as_str() {
            "forbidden" => {
                let error = json!({ "error": format!("may not tap {path}") });
                let response = kube_api::response(StatusCode::FORBIDDEN, &error);
                return response.map(BodyExt::boxed_unsync);
            }
            "missing" => {
                let error = ApiError {
                    error: "no pods to tap".to_owned(),
                };
                let mut response = Response::new(Full::new(framed(&error)).boxed_unsync());
                let headers = response.headers_mut();
                headers.insert("linkerd-error", "Internal Server Error".parse().unwrap());
                return response;
            }
            _ => {}
        }
        let events = match (name.as_str(), self.pace) {
            ("flood", _) => events(FLOOD_REQUESTS, None).boxed(),
            (_, Pace::Steady) => events(STEADY_REQUESTS, None).boxed(),
            (_, Pace::Moving) => events(u64::MAX, Some(Duration::from_millis(150))).boxed(),
        };
        let frames = events.map(|event| Ok(Frame::data(framed(&event))));
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

fn object(path: &str, query: &str) -> Option<Value> {
    let hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/";
    Some(match path {
        "/version" => json!({ "major": "1", "minor": "32" }),
        "/api/v1/namespaces" => {
            let metadata = json!({
                "name": "linkerd-viz", "uid": "f00d",
                "labels": { "linkerd.io/extension": "viz" },
            });
            json!({ "kind": "NamespaceList", "items": [{ "metadata": metadata }] })
        }
        "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.tap.linkerd.io" => json!({
            "status": { "conditions": [{ "type": "Available", "status": "True" }] },
        }),
        "/apis/apps/v1/namespaces/shop/deployments/web" => json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {
                "name": "web", "namespace": "shop", "managedFields": [{}],
                "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "hunter2" },
            },
            "spec": { "replicas": 2, "template": { "spec": { "containers": [
                { "name": "web", "env": [{ "name": "PASSWORD", "value": "hunter2" }] },
            ] } } },
        }),
        path if path.starts_with(hooks) => json!({
            "webhooks": [{ "clientConfig": { "caBundle": "QQ==" } }],
        }),
        path if path.starts_with(SHOP_PODS) => {
            let name = path.trim_start_matches(SHOP_PODS);
            let is_named = |pod: &Value| pod["kind"] == "Pod" && pod["metadata"]["name"] == name;
            return shop().into_iter().find(is_named);
        }
        path if path.ends_with("/endpointslices") => endpoint_slices(path, query),
        "/api/v1/namespaces/linkerd/pods" => pods("linkerd"),
        "/api/v1/namespaces/linkerd-viz/pods" => pods("linkerd-viz"),
        _ => return None,
    })
}

/// Returns the objects of [`SHOP`].
fn shop() -> Vec<Value> {
    let documents = serde_norway::Deserializer::from_str(SHOP);
    let objects = documents.map(|document| Value::deserialize(document).unwrap());
    objects.collect()
}

/// Returns the EndpointSlices of a Service of the namespace `shop`: `web` has the pods of [`SHOP`],
/// `many` has [`MANY_ENDPOINTS`] whose pods have gone, and more slices; others have none.
fn endpoint_slices(path: &str, query: &str) -> Value {
    let is_of =
        |name: &str| path.contains("/shop/") && query.contains(&format!("service-name%3D{name}&"));
    let endpoint = |address: &Value, node: &Value, pod: &Value| {
        json!({
            "addresses": [address],
            "conditions": { "ready": true },
            "nodeName": node,
            "zone": "west-1",
            "targetRef": { "kind": "Pod", "name": pod },
        })
    };
    let endpoints: Vec<Value> = if is_of("web") {
        let pods = shop().into_iter().filter(|object| object["kind"] == "Pod");
        pods.map(|pod| {
            let (status, spec) = (&pod["status"], &pod["spec"]);
            endpoint(
                &status["podIP"],
                &spec["nodeName"],
                &pod["metadata"]["name"],
            )
        })
        .collect()
    } else if is_of("many") {
        (0..MANY_ENDPOINTS)
            .map(|at| {
                let address = format!("10.2.{}.{}", at / 250, at % 250);
                endpoint(
                    &json!(address),
                    &json!("node-a"),
                    &json!(format!("many-{at}")),
                )
            })
            .collect()
    } else {
        return json!({ "kind": "EndpointSliceList", "items": [] });
    };
    let slice = json!({ "ports": [{ "name": "http", "port": 8080 }], "endpoints": endpoints });
    let more = if is_of("many") { "more" } else { "" };
    json!({ "kind": "EndpointSliceList", "metadata": { "continue": more }, "items": [slice] })
}

fn pods(namespace: &str) -> Value {
    let pods = CONTROLLERS.iter().filter(|(of, _)| *of == namespace);
    let pods: Vec<Value> = pods
        .map(|(_, name)| {
            let component = name.trim_start_matches("linkerd-");
            json!({
                "metadata": {
                    "name": format!("{name}-5d8f7-abcde"),
                    "labels": { "linkerd.io/control-plane-component": component },
                },
                "status": {
                    "phase": "Running",
                    "conditions": [{ "type": "Ready", "status": "True" }],
                },
            })
        })
        .collect();
    json!({ "kind": "PodList", "items": pods })
}

/// Returns the events of `requests` requests, three for each. Then the stream stays open without
/// events.
fn events(requests: u64, pause: Option<Duration>) -> impl Stream<Item = TapEvent> + Send {
    let timer = pause.map(interval);
    unfold((0, timer), move |(at, mut timer)| async move {
        if at / 3 >= requests {
            std::future::pending::<()>().await;
        }
        if let Some(timer) = &mut timer
            && at % 3 == 0
        {
            timer.tick().await;
        }
        Some((event(at / 3, at % 3), (at + 1, timer)))
    })
}

fn address(host: u8, port: u32) -> Option<TcpAddress> {
    Some(TcpAddress {
        ip: Some(IpAddress {
            ip: Some(ip_address::Ip::Ipv4(Ipv4Addr::new(10, 1, 0, host).into())),
        }),
        port,
    })
}

fn labels(pairs: &[(&str, &str)]) -> Option<EndpointMeta> {
    let labels = pairs.iter();
    Some(EndpointMeta {
        labels: labels
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
    })
}

fn millis(millis: u64) -> Option<mesh_api::linkerd2::Duration> {
    Duration::from_millis(millis).try_into().ok()
}

fn headers(name: &str, value: String) -> Option<Headers> {
    Some(Headers {
        headers: vec![Header {
            name: name.to_owned(),
            value: Some(header::Value::ValueStr(value)),
        }],
    })
}

fn event(request: u64, phase: u64) -> TapEvent {
    const PATHS: [&str; 4] = ["/products", "/products/17", "/cart", "/orders"];
    let path = PATHS[(request % 4) as usize];
    let is_failure = request % 11 == 10;
    let latency = 3 + request * 7 % 40;
    let id = Some(StreamId {
        base: 1,
        stream: request,
    });
    let http = match phase {
        0 => HttpEvent::RequestInit(RequestInit {
            id,
            method: Some(HttpMethod {
                r#type: Some(http_method::Type::Registered(i32::from(path == "/orders"))),
            }),
            scheme: Some(Scheme {
                r#type: Some(scheme::Type::Registered(0)),
            }),
            authority: "web.shop.svc.cluster.local:8080".to_owned(),
            path: path.to_owned(),
            headers: headers("user-agent", "curl/8.5".to_owned()),
        }),
        1 => HttpEvent::ResponseInit(ResponseInit {
            id,
            since_request_init: millis(latency),
            http_status: if is_failure { 503 } else { 200 },
            headers: headers("content-type", "application/json".to_owned()),
        }),
        _ => HttpEvent::ResponseEnd(ResponseEnd {
            id,
            since_request_init: millis(latency + 1),
            since_response_init: millis(1),
            response_bytes: 900 + request % 700,
            eos: Some(Eos {
                end: Some(eos::End::GrpcStatusCode(0)),
            }),
            trailers: None,
        }),
    };
    TapEvent {
        source: address(7, 40_000),
        source_meta: labels(&[
            ("deployment", "ingress"),
            ("namespace", "edge"),
            ("tls", "true"),
        ]),
        destination: address(9, 8_080),
        destination_meta: labels(&[("deployment", "web"), ("namespace", "shop")]),
        route_meta: None,
        proxy_direction: ProxyDirection::Inbound.into(),
        event: Some(Event::Http(Http { event: Some(http) })),
    }
}

fn framed(message: &impl Message) -> Bytes {
    let encoded = message.encode_to_vec();
    let length = u32::try_from(encoded.len()).unwrap();
    [&length.to_le_bytes()[..], &encoded].concat().into()
}
