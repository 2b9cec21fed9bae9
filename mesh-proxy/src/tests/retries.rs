//! Requests that a policy retries. `policy` tests HTTP routes, `bodies` the kept part of requests,
//! `filters` the changes by backends, `grpc` calls whose status decides, `profile` routes of
//! ServiceProfiles.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mesh_core::endpoint::Endpoint;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    Backend, BackendTarget, Distribution, HttpRoute, HttpRoutes, OutboundPolicy, OutboundProtocol,
    OutboundRule, RouteBackend, TcpVerdict,
};
use mesh_core::profile::Profile;
use mesh_core::resilience::{Backoff, HttpRetry, PeakEwma, Queue, Retry, Timeouts};
use mesh_core::route::Rule;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use super::app::{self, App, Client, Speaks, try_message};
use super::world::{CLIENT, Proxy, World, add, none, while_time_passes};

mod bodies;
mod filters;
mod grpc;
mod policy;
mod profile;

const SERVICE: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7)),
    80,
);
const WEB: &str = "web.shop.svc.cluster.local:80";
const OTHER: &str = "other.shop.svc.cluster.local:80";

const BACKOFF: Backoff = Backoff {
    min: Duration::from_millis(25),
    max: Duration::from_millis(250),
    jitter: 1.0,
};

/// Retries 5xx.
fn retry(max_retries: u16) -> HttpRetry {
    Retry {
        max_retries,
        max_request_bytes: 64 * 1024,
        conditions: vec![500..=599],
        timeout: None,
        backoff: Some(BACKOFF),
    }
}

/// A rule that sends requests to the first available of these authorities.
fn rule<T>(retry: Option<T>, authorities: &[&str]) -> OutboundRule<T> {
    let backend = |authority: &&str| RouteBackend {
        backend: Backend {
            meta: Meta::new_default(authority),
            target: BackendTarget::Balance {
                authority: (*authority).into(),
                load: PeakEwma::default(),
                queue: Queue::default(),
            },
        },
        filters: Vec::new(),
        verdict: TcpVerdict::Forward,
    };
    let backends = authorities.iter().map(|name| Arc::new(backend(name)));
    OutboundRule {
        filters: Vec::new(),
        backends: Distribution::FirstAvailable(backends.collect()),
        timeouts: Timeouts::default(),
        retry,
        allow_request_headers: false,
    }
}

/// The policy with one HTTP rule.
fn http_policy(rule: OutboundRule<HttpRetry>) -> OutboundProtocol {
    let routes = HttpRoutes {
        routes: vec![HttpRoute {
            meta: Meta::new_default("web"),
            hosts: Vec::new(),
            rules: vec![Rule {
                matches: Vec::new(),
                action: rule,
            }],
        }],
        failure_accrual: None,
    };
    OutboundProtocol::Detect {
        timeout: Duration::from_secs(10),
        opaque: None,
        http1: routes.clone(),
        http2: routes,
    }
}

/// The proxy of a client, with a control plane that responds by itself.
struct Scene {
    proxy: Proxy,
}

impl Scene {
    async fn new(protocol: OutboundProtocol, endpoints: &[(&str, Vec<SocketAddr>)]) -> Self {
        Self::with(protocol, endpoints, &[]).await
    }

    /// With other settings of the proxy.
    async fn with(
        protocol: OutboundProtocol,
        endpoints: &[(&str, Vec<SocketAddr>)],
        changes: &[(&str, Option<&str>)],
    ) -> Self {
        let no_profiles = [("DESTINATION_PROFILE_NETWORKS", Some(""))];
        let changes = [&no_profiles, changes].concat();
        Self::scripted(protocol, Profile::default(), endpoints, &changes).await
    }

    async fn scripted(
        protocol: OutboundProtocol,
        profile: Profile,
        endpoints: &[(&str, Vec<SocketAddr>)],
        changes: &[(&str, Option<&str>)],
    ) -> Self {
        let (world, mut control) = World::scripted().await;
        let proxy = world.proxy_with(CLIENT, changes);
        let profile = mesh_api::destination::profile_to_proto(&profile);
        let policy = mesh_api::outbound::extended_to_proto(&OutboundPolicy {
            parent: Meta::new_default("web"),
            protocol,
        });
        let endpoints: HashMap<String, Vec<Endpoint>> = endpoints
            .iter()
            .map(|(authority, addrs)| {
                let endpoints = addrs.iter().copied().map(Endpoint::plain);
                ((*authority).to_owned(), endpoints.collect())
            })
            .collect();
        spawn_local(async move {
            let mut streams = (Vec::new(), Vec::new(), Vec::new());
            loop {
                tokio::select! {
                    Some(call) = control.outbound.recv() => {
                        let stream = call.stream();
                        stream.send(Ok(policy.clone())).unwrap();
                        streams.0.push(stream);
                    }
                    Some(call) = control.profiles.recv() => {
                        let stream = call.stream();
                        stream.send(Ok(profile.clone())).unwrap();
                        streams.2.push(stream);
                    }
                    Some(call) = control.endpoints.recv() => {
                        let update = match &endpoints[&call.request.path][..] {
                            [] => none(true),
                            some => add(some),
                        };
                        let stream = call.stream();
                        stream.send(Ok(update)).unwrap();
                        streams.1.push(stream);
                    }
                }
            }
        });
        Self { proxy }
    }

    /// Sends requests of HTTP/1 to one application under an HTTP rule.
    async fn simple(rule: OutboundRule<HttpRetry>, app: &ScriptedApp) -> Self {
        Self::new(http_policy(rule), &[(WEB, vec![app.addr])]).await
    }

    async fn client(&self) -> TcpStream {
        self.proxy.outbound(SERVICE).await
    }

    /// Sends a request on its own connection, and returns the response.
    async fn ask(&self, request: &str) -> String {
        let mut client = self.client().await;
        while_time_passes(async {
            app::send(&mut client, request).await;
            app::message(&mut client).await
        })
        .await
    }

    async fn get(&self, speaks: Speaks) -> u16 {
        let mut client = Client::new(self.client().await, speaks).await;
        while_time_passes(client.get()).await.0
    }

    /// A counter `outbound_http_route_retry_<name>_total`.
    fn counted(&self, name: &str) -> u64 {
        self.proxy
            .metric(&format!("outbound_http_route_retry_{name}_total{{"))
    }
}

/// How an application responds to one request.
#[derive(Clone, Copy)]
enum Answer {
    Status(u16),
    /// Bytes, and then the end of the connection.
    Then(&'static str),
    Nothing,
}

/// An HTTP/1 application that responds to its n-th request with the n-th answer, and to further
/// ones with the last.
struct ScriptedApp {
    addr: SocketAddr,
    requests: Rc<RefCell<Vec<String>>>,
}

impl ScriptedApp {
    async fn start(answers: &[Answer]) -> Self {
        let answers = answers.to_vec();
        let last = answers.len() - 1;
        Self::start_with(move |n| answers[n.min(last)]).await
    }

    async fn start_with(answer: impl Fn(usize) -> Answer + 'static) -> Self {
        let app = App::start().await;
        let scripted = Self {
            addr: app.addr,
            requests: Rc::default(),
        };
        let (requests, answer) = (scripted.requests.clone(), Rc::new(answer));
        spawn_local(async move {
            loop {
                let tcp = app.accept().await;
                spawn_local(serve(tcp, requests.clone(), answer.clone()));
            }
        });
        scripted
    }

    fn requests(&self) -> Vec<String> {
        self.requests.borrow().clone()
    }

    fn count(&self) -> usize {
        self.requests.borrow().len()
    }
}

async fn serve(
    mut tcp: TcpStream,
    requests: Rc<RefCell<Vec<String>>>,
    answer: Rc<impl Fn(usize) -> Answer>,
) {
    while let Some(request) = try_message(&mut tcp).await {
        let n = requests.borrow().len();
        requests.borrow_mut().push(request);
        let sent = match answer(n) {
            Answer::Status(status) => {
                let response = format!("HTTP/1.1 {status} Any\r\ncontent-length: 2\r\n\r\nhi");
                tcp.write_all(response.as_bytes()).await
            }
            Answer::Then(bytes) => {
                let _closed = tcp.write_all(bytes.as_bytes()).await;
                return;
            }
            Answer::Nothing => std::future::pending().await,
        };
        if sent.is_err() {
            return;
        }
    }
}

fn status_of(response: &str) -> u16 {
    response[9..12].parse().unwrap()
}

const GET: &str = "GET / HTTP/1.1\r\nhost: web\r\n\r\n";
