//! A control plane that responds with the policies, profiles and endpoints of a test, and their
//! builders.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use mesh_api::outbound::ExtendedPolicy;
use mesh_api::proto::destination::DestinationProfile;
use mesh_core::endpoint::Endpoint;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    Backend, BackendTarget, Distribution, HttpRoute, HttpRoutes, OutboundPolicy, OutboundProtocol,
    OutboundRule, RouteBackend, Target, TcpRoute, TcpVerdict,
};
use mesh_core::profile::Profile;
use mesh_core::resilience::{PeakEwma, Queue, Timeouts};
use mesh_core::route::filter::Filter;
use mesh_core::route::{HostMatch, Rule};
use tokio::task::spawn_local;
use tonic::Status;

use super::world::{World, add, all_unauthenticated, none};
use crate::tests::fake_control_plane::{ControlPlane, MessageSender};

/// The control plane's responses, by address or authority. Unknown ones are refused as `NotFound`.
/// Every port of a server admits all clients.
#[derive(Clone, Default)]
pub(super) struct Answers(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    policies: HashMap<String, ExtendedPolicy>,
    profiles: HashMap<String, Profile>,
    endpoints: HashMap<String, Vec<Endpoint>>,
    /// Targets whose lookups get no response.
    silent: HashSet<String>,
    /// The lookups of policies so far.
    lookups: Vec<String>,
    policy_streams: HashMap<String, MessageSender<ExtendedPolicy>>,
    profile_streams: HashMap<String, MessageSender<DestinationProfile>>,
    /// Keeps the other streams open.
    streams: Vec<Box<dyn std::any::Any>>,
}

impl Answers {
    /// Starts the control plane.
    pub(super) async fn start() -> (World, Self) {
        let (world, control) = World::scripted().await;
        let answers = Self::default();
        spawn_local(answers.clone().serve(control));
        (world, answers)
    }

    /// Sets a policy, also for streams that are open.
    pub(super) fn policy(&self, target: impl ToString, protocol: OutboundProtocol) {
        let policy = OutboundPolicy {
            parent: Meta::new_default("parent"),
            protocol,
        };
        self.policy_message(target, mesh_api::outbound::extended_to_proto(&policy));
    }

    pub(super) fn policy_message(&self, target: impl ToString, message: impl Into<ExtendedPolicy>) {
        let message = message.into();
        let mut state = self.0.borrow_mut();
        let target = target.to_string();
        if let Some(stream) = state.policy_streams.get(&target) {
            let _closed = stream.send(Ok(message.clone()));
        }
        state.policies.insert(target, message);
    }

    /// Sets a profile, also for streams that are open.
    pub(super) fn profile(&self, target: impl ToString, profile: Profile) {
        let mut state = self.0.borrow_mut();
        let target = target.to_string();
        if let Some(stream) = state.profile_streams.get(&target) {
            let message = mesh_api::destination::profile_to_proto(&profile);
            let _closed = stream.send(Ok(message));
        }
        state.profiles.insert(target, profile);
    }

    /// Refuses the lookups of a policy from now on. Open streams go on.
    pub(super) fn no_policy(&self, target: impl ToString) {
        self.0.borrow_mut().policies.remove(&target.to_string());
    }

    /// Leaves the lookups of a policy from now on without a response. Open streams go on.
    pub(super) fn silent(&self, target: impl ToString) {
        self.0.borrow_mut().silent.insert(target.to_string());
    }

    /// The number of lookups of a policy so far.
    pub(super) fn lookups(&self, target: &str) -> usize {
        let state = self.0.borrow();
        state.lookups.iter().filter(|it| *it == target).count()
    }

    /// Sets the endpoints of a Service, which have no proxies.
    pub(super) fn endpoints(&self, authority: &str, addrs: &[SocketAddr]) {
        let endpoints = addrs.iter().map(|addr| Endpoint::plain(*addr)).collect();
        self.described_endpoints(authority, endpoints);
    }

    /// Sets the endpoints of a Service with all of their properties.
    pub(super) fn described_endpoints(&self, authority: &str, endpoints: Vec<Endpoint>) {
        let mut state = self.0.borrow_mut();
        state.endpoints.insert(authority.to_owned(), endpoints);
    }

    async fn serve(self, mut control: ControlPlane) {
        loop {
            tokio::select! {
                Some(call) = control.outbound.recv() => {
                    let target = match mesh_api::outbound::target(call.request.target.clone()) {
                        Ok(Target::Addr(addr)) => addr.to_string(),
                        Ok(Target::Authority(authority)) => authority.to_string(),
                        Err(error) => panic!("{error}"),
                    };
                    let mut state = self.0.borrow_mut();
                    state.lookups.push(target.clone());
                    match state.policies.get(&target).cloned() {
                        _ if state.silent.contains(&target) => {
                            state.streams.push(Box::new(call.stream()));
                        }
                        Some(policy) => {
                            let stream = call.stream();
                            stream.send(Ok(policy)).unwrap();
                            state.policy_streams.insert(target, stream);
                        }
                        None => call.refuse(Status::not_found("no policy")),
                    }
                }
                Some(call) = control.inbound.recv() => {
                    let stream = call.stream();
                    stream.send(Ok(all_unauthenticated())).unwrap();
                    self.0.borrow_mut().streams.push(Box::new(stream));
                }
                Some(call) = control.profiles.recv() => {
                    let mut state = self.0.borrow_mut();
                    let target = call.request.path.clone();
                    match state.profiles.get(&target).cloned() {
                        Some(profile) => {
                            let stream = call.stream();
                            let message = mesh_api::destination::profile_to_proto(&profile);
                            stream.send(Ok(message)).unwrap();
                            state.profile_streams.insert(target, stream);
                        }
                        None => call.refuse(Status::not_found("no profile")),
                    }
                }
                Some(call) = control.endpoints.recv() => {
                    let mut state = self.0.borrow_mut();
                    let endpoints = state.endpoints.get(&call.request.path).cloned();
                    let stream = call.stream();
                    let message = match endpoints.as_deref() {
                        Some(endpoints @ [_, ..]) => add(endpoints),
                        Some([]) => none(true),
                        None => none(false),
                    };
                    stream.send(Ok(message)).unwrap();
                    state.streams.push(Box::new(stream));
                }
                else => return,
            }
        }
    }
}

pub(super) fn backend(name: &str, target: BackendTarget) -> RouteBackend {
    RouteBackend {
        backend: Backend {
            meta: Meta::new_default(name),
            target,
        },
        filters: Vec::new(),
        verdict: TcpVerdict::Forward,
    }
}

/// A Service with the endpoints of `authority`.
pub(super) fn service(authority: &str) -> RouteBackend {
    let target = BackendTarget::Balance {
        authority: authority.into(),
        load: PeakEwma::default(),
        queue: Queue::default(),
    };
    backend(authority, target)
}

/// The original address.
pub(super) fn forward(addr: SocketAddr) -> RouteBackend {
    let target = BackendTarget::Forward(Box::new(Endpoint::plain(addr)));
    backend("forward", target)
}

pub(super) fn first(backend: RouteBackend) -> Distribution {
    Distribution::FirstAvailable(vec![Arc::new(backend)])
}

pub(super) fn weighted(backends: impl IntoIterator<Item = (RouteBackend, u32)>) -> Distribution {
    let backends = backends.into_iter();
    Distribution::RandomAvailable(backends.map(|(b, weight)| (Arc::new(b), weight)).collect())
}

pub(super) fn tcp(backends: Distribution, verdict: TcpVerdict) -> OutboundProtocol {
    OutboundProtocol::Opaque(Some(TcpRoute {
        meta: Meta::new_default("tcp"),
        backends,
        verdict,
    }))
}

pub(super) fn host(name: &str) -> HostMatch {
    match name.strip_prefix("*.") {
        Some(suffix) => HostMatch::Suffix(suffix.rsplit('.').map(Into::into).collect()),
        None => HostMatch::Exact(name.into()),
    }
}

/// A route of these hosts with one rule for all requests.
pub(super) fn http_route(
    name: &str,
    hosts: &[&str],
    filters: Vec<Filter>,
    backends: Distribution,
) -> HttpRoute {
    HttpRoute {
        meta: Meta::new_default(name),
        hosts: hosts.iter().map(|name| host(name)).collect(),
        rules: vec![Rule {
            matches: Vec::new(),
            action: OutboundRule {
                filters,
                backends,
                timeouts: Timeouts::default(),
                retry: None,
                allow_request_headers: false,
            },
        }],
    }
}

/// A policy that detects the protocol.
pub(super) fn detect(routes: Vec<HttpRoute>, opaque: Option<TcpRoute>) -> OutboundProtocol {
    let http = HttpRoutes {
        routes,
        failure_accrual: None,
    };
    OutboundProtocol::Detect {
        timeout: std::time::Duration::from_secs(10),
        opaque,
        http1: http.clone(),
        http2: http,
    }
}
