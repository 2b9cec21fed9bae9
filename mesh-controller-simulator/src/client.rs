//! The clients of the controllers: each subscribes to one value, again and again, and keeps what
//! it has seen.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt as _;
use mesh_api::mesh::service::outbound_policies_client::OutboundPoliciesClient;
use mesh_api::proto::destination::destination_client::DestinationClient;
use mesh_api::proto::destination::{GetDestination, Update, update};
use mesh_api::proto::inbound::PortSpec;
use mesh_api::proto::inbound::inbound_server_policies_client::InboundServerPoliciesClient;
use mesh_api::{destination, inbound, outbound};
use mesh_control_plane::simulation::Served;
use tokio::time::{Instant, sleep};
use tonic::service::Routes;
use tonic::{Code, Status, Streaming};

use crate::objects::generation_of;
use crate::process::{Controlled, Controller};

/// A value to subscribe to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Endpoints(&'static str),
    Profile(&'static str),
    Outbound(&'static str),
    Inbound(&'static str),
}

/// What a client has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    Endpoints(BTreeMap<String, String>),
    Message(String),
    /// The call was refused.
    Refused(Refusal),
}

/// The code of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refusal(pub i32);

/// A state, and since when a client has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Observation {
    pub at: Duration,
    pub state: State,
}

/// A subscriber. Clones are the same one.
#[derive(Clone)]
pub struct Client {
    pub target: Target,
    pub process: usize,
    observed: Rc<RefCell<Vec<Observation>>>,
}

/// The values that clients of each controller subscribe to.
#[rustfmt::skip] // a table, one row a line
pub const TARGETS: [(Controller, Target); 10] = [
    (Controller::Destination, Target::Endpoints("web.shop.svc.cluster.local:80")),
    (Controller::Destination, Target::Endpoints("cart.shop.svc.cluster.local:80")),
    (Controller::Destination, Target::Profile("web.shop.svc.cluster.local:80")),
    (Controller::Destination, Target::Profile("10.96.0.1:80")),
    (Controller::Destination, Target::Profile("10.2.0.1:8080")),
    (Controller::Policy, Target::Outbound("10.96.0.1:80")),
    (Controller::Policy, Target::Outbound("10.96.0.2:80")),
    (Controller::Policy, Target::Inbound("{\"ns\":\"shop\",\"pod\":\"web-a\"}")),
    (Controller::Policy, Target::Inbound("{\"ns\":\"shop\",\"external_workload\":\"vm\"}")),
    (Controller::Policy, Target::Inbound("{\"ns\":\"shop\",\"pod\":\"cart-a\"}")),
];

/// How long a client waits before it subscribes again.
const RETRY: Duration = Duration::from_millis(500);

/// The client of the subscriptions.
const CONTEXT: &str = "{\"ns\":\"shop\",\"nodeName\":\"node-a\",\"pod\":\"client\"}";

impl Client {
    pub fn new(target: Target, process: &Controlled) -> Self {
        Self {
            target,
            process: process.number(),
            observed: Rc::default(),
        }
    }

    /// The states, the oldest first.
    pub fn observed(&self) -> Vec<Observation> {
        self.observed.borrow().clone()
    }

    /// The current state.
    pub fn state(&self) -> Option<State> {
        let observed = self.observed.borrow();
        observed.last().map(|it| it.state.clone())
    }

    /// Subscribes until the world ends.
    pub async fn run(self, process: Controlled, start: Instant) {
        loop {
            if let Some(serving) = process.serving()
                && let Served::Grpc(routes) = serving.served
            {
                tokio::select! {
                    biased;
                    () = serving.down.cancelled() => {}
                    ended = self.subscribe(routes, start) => {
                        if let Err(status) = ended {
                            self.observe(start, State::Refused(Refusal(status.code() as i32)));
                        }
                    }
                }
            }
            sleep(RETRY).await;
        }
    }

    fn observe(&self, start: Instant, state: State) {
        let at = start.elapsed();
        let mut observed = self.observed.borrow_mut();
        if observed.last().is_none_or(|last| last.state != state) {
            observed.push(Observation { at, state });
        }
    }

    async fn subscribe(&self, routes: Routes, start: Instant) -> Result<(), Status> {
        let request = |path: &str| GetDestination {
            scheme: "k8s".to_owned(),
            path: path.to_owned(),
            context_token: CONTEXT.to_owned(),
        };
        match self.target {
            Target::Endpoints(path) => {
                let mut client = DestinationClient::new(routes);
                let mut endpoints = BTreeMap::new();
                let mut stream = client.get(request(path)).await?.into_inner();
                while let Some(message) = stream.message().await? {
                    apply(&mut endpoints, message);
                    // A state consists of all messages that were sent together.
                    while let Some(more) = stream.message().now_or_never() {
                        match more? {
                            Some(message) => apply(&mut endpoints, message),
                            None => break,
                        }
                    }
                    self.observe(start, State::Endpoints(endpoints.clone()));
                }
                Ok(())
            }
            Target::Profile(path) => {
                let mut client = DestinationClient::new(routes);
                let stream = client.get_profile(request(path)).await?;
                let decode = |message| format!("{:?}", destination::profile(message));
                self.messages(stream.into_inner(), start, decode).await
            }
            Target::Outbound(addr) => {
                let mut client = OutboundPoliciesClient::new(routes);
                let addr = addr.parse().map_err(|_invalid| Status::unknown(addr))?;
                let target = mesh_core::policy::outbound::Target::Addr(addr);
                let stream = client
                    .watch(outbound::traffic_spec(CONTEXT, &target))
                    .await?;
                let decode = |message| format!("{:?}", outbound::extended_policy(message));
                self.messages(stream.into_inner(), start, decode).await
            }
            Target::Inbound(workload) => {
                let mut client = InboundServerPoliciesClient::new(routes);
                let port = PortSpec {
                    workload: workload.to_owned(),
                    port: 8080,
                };
                let stream = client.watch_port(port).await?;
                let decode = |message| format!("{:?}", inbound::server_policy(message));
                self.messages(stream.into_inner(), start, decode).await
            }
        }
    }

    async fn messages<M>(
        &self,
        mut stream: Streaming<M>,
        start: Instant,
        decode: impl Fn(M) -> String,
    ) -> Result<(), Status> {
        while let Some(message) = stream.message().await? {
            self.observe(start, State::Message(decode(message)));
        }
        Ok(())
    }
}

/// Applies a message to the endpoints by address.
fn apply(endpoints: &mut BTreeMap<String, String>, message: Update) {
    let name = |addr: Option<&mesh_api::proto::net::TcpAddress>| {
        let addr = addr.and_then(|it| std::net::SocketAddr::try_from(*it).ok());
        addr.map_or_else(|| "?".to_owned(), |addr| addr.to_string())
    };
    match message.update {
        Some(update::Update::Add(added)) => {
            let labels: BTreeMap<_, _> = added.metric_labels.into_iter().collect();
            for mut endpoint in added.addrs {
                let own: BTreeMap<_, _> = endpoint.metric_labels.drain().collect();
                let text = format!("{endpoint:?} {own:?} {labels:?}");
                endpoints.insert(name(endpoint.addr.as_ref()), text);
            }
        }
        Some(update::Update::Remove(removed)) => {
            for addr in &removed.addrs {
                endpoints.remove(&name(Some(addr)));
            }
        }
        Some(update::Update::NoEndpoints(_)) => endpoints.clear(),
        None => {}
    }
}

impl State {
    /// The generations of objects that the state was computed from.
    pub fn generations(&self) -> Vec<u64> {
        match self {
            Self::Endpoints(endpoints) => {
                let addresses = endpoints.keys().filter_map(|addr| {
                    let (ip, _port) = addr.rsplit_once(':')?;
                    generation_of(ip)
                });
                let texts = endpoints.values();
                let texts = texts.flat_map(|text| crate::objects::generations(text));
                addresses.chain(texts).collect()
            }
            Self::Message(text) => crate::objects::generations(text).collect(),
            Self::Refused(_) => Vec::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Endpoints(endpoints) if endpoints.is_empty())
    }

    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(Refusal(code)) => Some(Code::from_i32(*code)),
            _ => None,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoints(endpoints) => {
                write!(f, "{} endpoints", endpoints.len())?;
                for (addr, text) in endpoints {
                    write!(f, "\n    {addr} {text}")?;
                }
                Ok(())
            }
            Self::Message(text) => f.write_str(text),
            Self::Refused(Refusal(code)) => write!(f, "refused: {:?}", Code::from_i32(*code)),
        }
    }
}
