//! Requests through proxies, as a collector of spans sees them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use mesh_api::opentelemetry::common::v1::{KeyValue, any_value};
use mesh_api::opentelemetry::trace::v1::Span;
use mesh_api::opentelemetry::trace::v1::span::SpanKind;
use mesh_api::trace::trace_service_server::{TraceService, TraceServiceServer};
use mesh_api::trace::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use mesh_core::endpoint::ProtocolHint;
use mesh_runtime::metrics::Format;
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;
use tokio::time::{Instant, advance};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};
use tower::Service as _;

use super::app::{App, expect, head, send};
use super::world::{CLIENT, POD, Proxy, WEB, World, pod, run, settle, while_time_passes};
use crate::tls::server::ClientTlsInfo;
use crate::tls::{self, Purpose};
use crate::transport::Io;

const COLLECTOR: &str = "collector.tracing.serviceaccount.identity.linkerd.cluster.local";

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const ROOT: &str = "00f067aa0ba902b7";

/// The fields of a request from a party with the span [`ROOT`], by format.
const SAMPLED: [&str; 4] = [
    "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\ntracestate: vendor=1\r\n",
    "x-b3-traceid: 4bf92f3577b34da6a3ce929d0e0e4736\r\nx-b3-spanid: 00f067aa0ba902b7\r\nx-b3-sampled: 1\r\n",
    "b3: 4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1\r\n",
    "grpc-trace-bin: AABL+S81d7NNpqPOkp0ODkc2AQDwZ6oLqQK3AgE\r\n",
];

/// A collector of the mesh, which passes each call to the test.
struct Collector {
    addr: SocketAddr,
    exports: mpsc::UnboundedReceiver<Export>,
    clients: mpsc::UnboundedReceiver<ClientTlsInfo>,
}

/// A call that waits for its response.
struct Export {
    request: ExportTraceServiceRequest,
    answer: oneshot::Sender<Result<ExportTraceServiceResponse, Status>>,
}

#[derive(Clone)]
struct Calls(mpsc::UnboundedSender<Export>);

#[tonic::async_trait]
impl TraceService for Calls {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let (answer, answered) = oneshot::channel();
        let request = request.into_inner();
        let sent = self.0.send(Export { request, answer });
        sent.map_err(|_ended| Status::unavailable("the test has ended"))?;
        let dropped = |_| Err(Status::unavailable("the test dropped the call"));
        answered.await.unwrap_or_else(dropped).map(Response::new)
    }
}

impl Collector {
    async fn start(world: &World) -> Self {
        let listener = TcpListener::bind((POD, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let credentials = world.credentials(COLLECTOR);
        let (calls, exports) = mpsc::unbounded_channel();
        let (connected, clients) = mpsc::unbounded_channel();
        spawn_local(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let service = TraceServiceServer::new(Calls(calls.clone()));
                let (connected, credentials) = (connected.clone(), credentials.clone());
                spawn_local(async move {
                    let io = Io::plain(tcp);
                    let accepted =
                        tls::server::terminate(io, &credentials, false, Purpose::Control);
                    // The client may refuse the collector's identity.
                    let Ok((io, client)) = accepted.await else {
                        return;
                    };
                    connected.send(client).unwrap();
                    let respond = service_fn(move |request| service.clone().call(request));
                    let _end = http2::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(io), respond)
                        .await;
                });
            }
        });
        Self {
            addr,
            exports,
            clients,
        }
    }

    /// The variables of a proxy that exports to this collector, as an injector sets them.
    fn variables<'a>(addr: &'a str, service: &'a str) -> [(&'a str, Option<&'a str>); 4] {
        [
            ("TRACE_COLLECTOR_SVC_ADDR", Some(addr)),
            ("TRACE_COLLECTOR_SVC_NAME", Some(COLLECTOR)),
            ("TRACE_PROTOCOL", Some("opentelemetry")),
            ("TRACE_SERVICE_NAME", Some(service)),
        ]
    }

    /// A proxy that exports to this collector.
    fn proxy(&self, world: &World, name: &str, service: &str) -> Proxy {
        let addr = self.addr.to_string();
        world.proxy_with(name, &Self::variables(&addr, service))
    }

    /// Returns the proxies of a client and of a server, and the address where the client's proxy
    /// reaches the application through the server's.
    async fn pair(&self, world: &World, app: &App) -> (Proxy, Proxy, SocketAddr) {
        let server = self.proxy(world, WEB, "of-server");
        let addr = server.listen(app.addr).await;
        world.knows(addr, pod(addr, ProtocolHint::Http2, None));
        let client = self.proxy(world, CLIENT, "of-client");
        (client, server, addr)
    }

    /// Takes the next call without time passing.
    async fn call(&mut self) -> Export {
        self.exports.recv().await.unwrap()
    }

    /// Takes this many spans, and the services that they are of.
    async fn spans(&mut self, count: usize) -> Vec<(String, Span)> {
        let mut spans = Vec::new();
        while spans.len() < count {
            spans.extend(while_time_passes(self.call()).await.accept());
        }
        assert_eq!(spans.len(), count, "{spans:?}");
        spans
    }
}

impl Export {
    fn accept(self) -> Vec<(String, Span)> {
        self.respond(ExportTraceServiceResponse::default())
    }

    fn respond(self, response: ExportTraceServiceResponse) -> Vec<(String, Span)> {
        // The client may have cancelled the call.
        let _sent = self.answer.send(Ok(response));
        let mut all = Vec::new();
        for of_resource in self.request.resource_spans {
            let resource = of_resource.resource.unwrap();
            let service = attribute(&resource.attributes, "service.name").unwrap();
            for scope in of_resource.scope_spans {
                let spans = scope
                    .spans
                    .iter()
                    .map(|span| Span::decode(&span[..]).unwrap());
                all.extend(spans.map(|span| (service.clone(), span)));
            }
        }
        all
    }
}

fn attribute(all: &[KeyValue], name: &str) -> Option<String> {
    let found = all.iter().find(|attribute| attribute.key == name)?;
    match found.value.clone()?.value? {
        any_value::Value::StringValue(text) => Some(text),
        any_value::Value::IntValue(number) => Some(number.to_string()),
    }
}

pub(crate) fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: web.shop:80\r\n{fields}\r\n")
}

/// Sends a request and returns its header section as the application receives it.
async fn exchange(tcp: &mut TcpStream, app: &mut TcpStream, request: &str) -> String {
    send(tcp, request).await;
    let received = head(app).await;
    send(app, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    expect(tcp, 200).await;
    received
}

/// A connection through a proxy to an application, whose own end is returned too.
async fn connected(proxy: &Proxy, app: &App) -> (TcpStream, TcpStream) {
    connected_to(proxy, app.addr, app).await
}

/// The same by an address that leads to the application.
async fn connected_to(proxy: &Proxy, addr: SocketAddr, app: &App) -> (TcpStream, TcpStream) {
    let mut tcp = proxy.outbound(addr).await;
    send(&mut tcp, &get("/first", "")).await;
    let mut accepted = app.accept().await;
    head(&mut accepted).await;
    send(
        &mut accepted,
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    )
    .await;
    expect(&mut tcp, 200).await;
    (tcp, accepted)
}

#[test]
fn client_both_proxies_and_server_are_one_trace() {
    for fields in SAMPLED {
        run(async || {
            let world = World::new().await;
            let mut collector = Collector::start(&world).await;
            let app = App::start().await;
            let (client, _server, addr) = collector.pair(&world, &app).await;

            let mut tcp = client.outbound(addr).await;
            send(&mut tcp, &get("/a?b=c", fields)).await;
            let (mut accepted, received) = app.receive().await;
            send(
                &mut accepted,
                "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            )
            .await;
            expect(&mut tcp, 404).await;

            let spans = collector.spans(4).await;
            let by_parent: HashMap<String, &(String, Span)> = spans
                .iter()
                .map(|span| (hex(&span.1.parent_span_id), span))
                .collect();
            let mut parent = ROOT.to_owned();
            for (service, direction, kind, proto) in [
                ("of-client", "outbound", SpanKind::Server, None),
                ("of-client", "outbound", SpanKind::Client, None),
                ("of-server", "inbound", SpanKind::Server, Some("HTTP/1.1")),
                ("of-server", "inbound", SpanKind::Client, None),
            ] {
                let (reported_by, span) = by_parent[&parent];
                let of = |name| attribute(&span.attributes, name);
                assert_eq!(reported_by, service);
                assert_eq!(span.kind(), kind);
                assert_eq!(hex(&span.trace_id), TRACE);
                assert_eq!(span.name, "/a");
                assert_eq!(span.flags, 0x301);
                assert_eq!(of("direction").as_deref(), Some(direction));
                assert_eq!(of("http.request.header.l5d-orig-proto").as_deref(), proto);
                assert_eq!(of("http.response.status_code").as_deref(), Some("404"));
                assert_eq!(of("server.address").as_deref(), Some("web.shop"));
                assert_eq!(of("url.query").as_deref(), Some("b=REDACTED"));
                let state = if fields.contains("tracestate") {
                    "vendor=1"
                } else {
                    ""
                };
                assert_eq!(span.trace_state, state);
                parent = hex(&span.span_id);
            }
            // The application's span becomes the child of the last one.
            let last = by_parent
                .values()
                .find(|(_, span)| hex(&span.span_id) == parent);
            assert!(last.is_some());
            let is_forwarded = received.contains(&parent) || fields.contains("grpc-trace-bin");
            assert!(is_forwarded, "{received}");
            assert!(
                !received.contains(&fields[..fields.len() - 2]),
                "{received}"
            );

            let clients = [collector.clients.try_recv(), collector.clients.try_recv()];
            for (connected, name) in clients.into_iter().zip([CLIENT, WEB]) {
                let id = connected.unwrap().id.unwrap();
                assert!([CLIENT, WEB].contains(&id.as_str()), "{id} {name}");
            }
        });
    }
}

/// The span of each family whose histograms have an exemplar. All exemplars must be of [`TRACE`].
fn exemplars(proxy: &Proxy) -> HashMap<String, String> {
    let text = String::from_utf8(proxy.registry.encode_as(Format::OpenMetrics)).unwrap();
    let exemplar = |line: &str| {
        let (series, exemplar) = line.split_once(" # ")?;
        let (family, _) = series.split_once("_bucket{")?;
        let begin = format!("{{trace_id=\"{TRACE}\",span_id=\"");
        let rest = exemplar.strip_prefix(&begin).expect(exemplar);
        let (span, _) = rest.split_once('"')?;
        Some((family.to_owned(), span.to_owned()))
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(exemplar).collect()
}

#[test]
fn latencies_of_a_traced_request_refer_to_its_spans() {
    run(async || {
        let world = World::new().await;
        let mut collector = Collector::start(&world).await;
        let app = App::start().await;
        let (client, server, addr) = collector.pair(&world, &app).await;
        let (mut tcp, mut accepted) = connected_to(&client, addr, &app).await;
        let unsampled = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00\r\n";
        exchange(&mut tcp, &mut accepted, &get("/", unsampled)).await;
        for proxy in [&client, &server] {
            assert_eq!(exemplars(proxy), HashMap::new());
        }

        exchange(&mut tcp, &mut accepted, &get("/", SAMPLED[0])).await;
        let spans = collector.spans(4).await;
        let span = |service: &str, kind: SpanKind| {
            let mut of = spans.iter().filter(|(name, _)| name == service);
            let found = of.find(|(_, span)| span.kind() == kind).unwrap();
            hex(&found.1.span_id)
        };
        let of_client = exemplars(&client);
        let of_server = exemplars(&server);
        let attempt = span("of-client", SpanKind::Client);
        assert_eq!(of_client["response_latency_ms"], attempt);
        let backend = "outbound_http_route_backend_response_duration_seconds";
        assert_eq!(of_client[backend], attempt);
        let route = "outbound_http_route_request_duration_seconds";
        assert_eq!(of_client[route], span("of-client", SpanKind::Server));
        assert_eq!(of_client.len(), 3, "{of_client:?}");
        let sent = span("of-server", SpanKind::Client);
        for family in [
            "response_latency_ms",
            "inbound_http_request_duration_seconds",
            "inbound_http_response_duration_seconds",
        ] {
            assert_eq!(of_server[family], sent, "{family}");
        }
        assert_eq!(of_server.len(), 3, "{of_server:?}");
    });
}

#[test]
fn proxy_without_collector_has_no_exemplars() {
    run(async || {
        let world = World::new().await;
        let app = App::start().await;
        let proxy = world.proxy(CLIENT);
        let (mut tcp, mut accepted) = connected(&proxy, &app).await;
        exchange(&mut tcp, &mut accepted, &get("/", SAMPLED[0])).await;
        assert_eq!(proxy.metric("response_latency_ms_count"), 2);
        assert_eq!(exemplars(&proxy), HashMap::new());
    });
}

#[test]
fn unsampled_requests_have_no_span_and_keep_their_headers() {
    run(async || {
        let world = World::new().await;
        let mut collector = Collector::start(&world).await;
        let app = App::start().await;
        let proxy = collector.proxy(&world, CLIENT, "proxy");
        let (mut tcp, mut accepted) = connected(&proxy, &app).await;
        let overlong = format!("tracestate: {}\r\n", "a=1,".repeat(2000));
        for fields in [
            "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00\r\n",
            "traceparent: 00-00000000000000000000000000000000-00f067aa0ba902b7-01\r\n",
            "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01\r\n",
            "traceparent: invalid\r\n",
            &SAMPLED[0][..70].repeat(2),
            "x-b3-traceid: 4bf92f3577b34da6a3ce929d0e0e4736\r\nx-b3-spanid: 00f067aa0ba902b7\r\n",
            "b3: 4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\r\n",
            "grpc-trace-bin: AABL+S81d7NNpqPOkp0ODkc2AQDwZ6oLqQK3AgA\r\n",
            &overlong,
        ] {
            let received = exchange(&mut tcp, &mut accepted, &get("/", fields)).await;
            assert!(received.contains(fields), "{fields}{received}");
        }
        // Only this one is reported, and its `tracestate` is forwarded as it is.
        let (parent, _) = SAMPLED[0].split_once("\r\n").unwrap();
        let fields = format!("{parent}\r\n{overlong}");
        let received = exchange(&mut tcp, &mut accepted, &get("/sampled", &fields)).await;
        assert!(received.contains(&overlong) && !received.contains(parent));
        for (_, span) in collector.spans(2).await {
            assert_eq!(span.name, "/sampled");
            assert_eq!(span.trace_state, "");
        }
        settle().await;
        let exports = "opentelemetry_span_export";
        assert_eq!(proxy.metric(&format!("{exports}s ")), 2);
        assert_eq!(proxy.metric(&format!("{exports}_requests ")), 1);
        assert_eq!(proxy.metric(&format!("{exports}_streams ")), 1);
        assert_eq!(proxy.metric("mesh_trace_spans_dropped_total"), 0);
    });
}

/// The spans of a request take more than 32 KiB.
fn long_request() -> String {
    let long = "x".repeat(4000);
    get(&format!("/{long}?{long}=x"), SAMPLED[0])
}

#[test]
fn hanging_collector_costs_spans_and_delays_no_request() {
    run(async || {
        let world = World::new().await;
        let mut collector = Collector::start(&world).await;
        let app = App::start().await;
        let proxy = collector.proxy(&world, CLIENT, "proxy");
        let (mut tcp, mut accepted) = connected(&proxy, &app).await;
        let dropped = |reason: &str| {
            let family = "mesh_trace_spans_dropped_total";
            proxy.metric(&format!("{family}{{reason=\"{reason}\"}}"))
        };
        let began = Instant::now();
        for _ in 0..200 {
            exchange(&mut tcp, &mut accepted, &long_request()).await;
        }
        let hanging = collector.call().await;
        assert_eq!(began.elapsed(), Duration::ZERO, "no request has waited");
        assert!(dropped("queue_full") > 0);
        assert_eq!(dropped("failed"), 0);

        // The call times out, and the next ones are taken.
        while dropped("failed") == 0 {
            settle().await;
            advance(Duration::from_millis(100)).await;
        }
        assert!(began.elapsed() >= Duration::from_secs(10));
        let first = hanging.accept().len() as u64;
        let flushing = spawn_local(proxy.flush_spans(Duration::from_secs(60)));
        let lost = first + dropped("queue_full");
        let mut taken = 0;
        while lost + taken < 400 {
            taken += collector.call().await.accept().len() as u64;
        }
        flushing.await.unwrap();
        assert_eq!((dropped("failed"), lost + taken), (first, 400));
    });
}

#[test]
fn refused_and_rejected_spans_are_counted() {
    run(async || {
        let world = World::new().await;
        let mut collector = Collector::start(&world).await;
        let app = App::start().await;
        let proxy = collector.proxy(&world, CLIENT, "proxy");
        let (mut tcp, mut accepted) = connected(&proxy, &app).await;
        let request = get("/", SAMPLED[0]);
        exchange(&mut tcp, &mut accepted, &request).await;
        let refused = while_time_passes(collector.call()).await;
        // Details that are not base64 make the refusal no other.
        let mut fields = http::HeaderMap::new();
        fields.insert("grpc-status-details-bin", "%%%".parse().unwrap());
        let details = MetadataMap::from_headers(fields);
        let status = Status::with_metadata(Code::ResourceExhausted, "not now", details);
        refused.answer.send(Err(status)).unwrap();
        // The other connection has been idle for too long.
        let (mut tcp, mut accepted) = connected(&proxy, &app).await;
        exchange(&mut tcp, &mut accepted, &request).await;
        let partial = ExportTraceServiceResponse {
            partial_success: Some(ExportTracePartialSuccess {
                // More than were sent.
                rejected_spans: i64::MAX,
                error_message: "too old".to_owned(),
            }),
        };
        while_time_passes(collector.call()).await.respond(partial);
        settle().await;
        let dropped = "mesh_trace_spans_dropped_total";
        assert_eq!(proxy.metric(&format!("{dropped}{{reason=\"failed\"}}")), 2);
        assert_eq!(
            proxy.metric(&format!("{dropped}{{reason=\"rejected\"}}")),
            2
        );
        assert_eq!(proxy.metric("opentelemetry_span_exports "), 2);
        assert_eq!(proxy.metric("opentelemetry_span_export_streams "), 2);
    });
}

#[test]
fn overlong_response_of_the_collector_counts_as_failure() {
    run(async || {
        let world = World::new().await;
        let mut collector = Collector::start(&world).await;
        let app = App::start().await;
        let proxy = collector.proxy(&world, CLIENT, "proxy");
        let (mut tcp, mut accepted) = connected(&proxy, &app).await;
        exchange(&mut tcp, &mut accepted, &get("/", SAMPLED[0])).await;
        let call = while_time_passes(collector.call()).await;
        let partial = ExportTracePartialSuccess {
            rejected_spans: 1,
            error_message: "x".repeat(5 << 20),
        };
        call.respond(ExportTraceServiceResponse {
            partial_success: Some(partial),
        });
        let failed = "mesh_trace_spans_dropped_total{reason=\"failed\"}";
        for _ in 0..1000 {
            settle().await;
            if proxy.metric(failed) > 0 {
                break;
            }
        }
        assert_eq!(proxy.metric(failed), 2);
        assert_eq!(proxy.metric("opentelemetry_span_exports "), 0);
    });
}

#[test]
fn collector_with_another_identity_gets_no_spans() {
    run(async || {
        let world = World::new().await;
        let mut collector = Collector::start(&world).await;
        let app = App::start().await;
        let addr = collector.addr.to_string();
        let mut variables = Collector::variables(&addr, "proxy");
        variables[1].1 = Some("other.tracing.serviceaccount.identity.linkerd.cluster.local");
        let proxy = world.proxy_with(CLIENT, &variables);
        let (mut tcp, mut accepted) = connected(&proxy, &app).await;
        exchange(&mut tcp, &mut accepted, &get("/", SAMPLED[0])).await;
        while proxy.metric("mesh_trace_spans_dropped_total{reason=\"failed\"}") < 2 {
            settle().await;
            advance(Duration::from_millis(100)).await;
        }
        assert!(collector.exports.try_recv().is_err());
    });
}

#[test]
fn denied_request_has_a_server_span_only() {
    run(async || {
        let world = World::new().await;
        let mut collector = Collector::start(&world).await;
        let app = App::start().await;
        let addr = collector.addr.to_string();
        let variables = Collector::variables(&addr, "proxy");
        let deny = ("INBOUND_DEFAULT_POLICY", Some("deny"));
        let proxy = world.proxy_with(WEB, &[&variables[..], &[deny]].concat());
        let mut tcp = proxy.inbound(app.addr).await;
        send(&mut tcp, &get("/", SAMPLED[0])).await;
        expect(&mut tcp, 403).await;
        let spans = collector.spans(1).await;
        assert_eq!(spans[0].1.kind(), SpanKind::Server);
        let status = attribute(&spans[0].1.attributes, "http.response.status_code");
        assert_eq!(status.as_deref(), Some("403"));
    });
}

#[test]
fn shutdown_exports_the_queued_spans() {
    run(async || {
        let world = World::new().await;
        let mut collector = Collector::start(&world).await;
        let app = App::start().await;
        let proxy = collector.proxy(&world, CLIENT, "proxy");
        let (mut tcp, mut accepted) = connected(&proxy, &app).await;
        exchange(&mut tcp, &mut accepted, &get("/", SAMPLED[0])).await;
        drop((tcp, accepted));
        proxy.drain().await;
        let began = Instant::now();
        let flushing = spawn_local(proxy.flush_spans(Duration::from_secs(60)));
        assert_eq!(collector.call().await.accept().len(), 2);
        flushing.await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
    });
}

#[test]
fn shutdown_does_not_wait_for_a_hanging_collector() {
    run(async || {
        for (grace, waits) in [(60, 5), (1, 1)] {
            let world = World::new().await;
            let mut collector = Collector::start(&world).await;
            let app = App::start().await;
            let proxy = collector.proxy(&world, CLIENT, "proxy");
            let (mut tcp, mut accepted) = connected(&proxy, &app).await;
            exchange(&mut tcp, &mut accepted, &get("/", SAMPLED[0])).await;
            let began = Instant::now();
            let flushing = spawn_local(proxy.flush_spans(Duration::from_secs(grace)));
            let _hanging = collector.call().await;
            while_time_passes(flushing).await.unwrap();
            assert_eq!(began.elapsed(), Duration::from_secs(waits));
        }
    });
}
