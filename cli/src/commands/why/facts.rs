//! The facts about one connection or request. [`super::gather`] collects them from the running
//! system, [`super::report`] evaluates them. The reason stands in the place of a fact that could
//! not be collected.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use mesh_core::endpoint::Endpoint;
use mesh_core::identity::Identity;
use mesh_core::labels::Labels;
use mesh_core::node::Tier;
use mesh_core::policy::inbound::ServerPolicy;
use mesh_core::policy::outbound::OutboundPolicy;
use mesh_core::ports::PortSet;
use mesh_core::profile::Profile;
use mesh_core::redirection::RedirectionEvent;
use mesh_core::route::http::RequestHead;
use mesh_core::tap::TapStreamEnd;

pub(super) use crate::facts::Fact;

#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) place: Place,
    pub(super) client: Workload,
    pub(super) target: Target,
    /// `None` if only a connection was opened.
    pub(super) request: Option<RequestLine>,
    pub(super) connection: Connection,
    /// What the kernel decided in the client's pod while the connection was made.
    pub(super) client_kernel: Fact<Vec<RedirectionEvent>>,
    pub(super) discovery: Discovery,
    /// What the client's proxy reported of the request. `Ok(None)` if it did not report it.
    pub(super) client_tap: Fact<Option<TappedRequest>>,
    /// The server, as far as it is known.
    pub(super) server: Fact<Server>,
}

/// Where policies are changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Cluster,
    Local {
        /// The directory of the node's manifests.
        manifests: PathBuf,
    },
    /// At a workstation of the cluster; the client is a unit of this machine.
    Machine,
}

/// A workload and its part in the mesh.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    pub(super) kind: WorkloadKind,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) service_account: String,
    pub(super) ip: std::net::IpAddr,
    /// The identity of its proxy; `None` if it has none.
    pub(super) identity: Option<Identity>,
    pub(super) enrolment: Fact<Enrolment>,
    pub(super) skip_outbound: PortSet,
    pub(super) skip_inbound: PortSet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkloadKind {
    Pod,
    /// A systemd unit of this machine, in the namespace of its ServiceAccount.
    Unit,
    /// An ExternalWorkload.
    External,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Enrolment {
    Enrolled(Tier),
    /// Not enrolled, for this reason.
    Waiting(String),
    Absent,
}

/// What the client connects to.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// As the client would name it, with the port: the authority of the request.
    pub(super) authority: String,
    /// The Service, as `NAMESPACE/NAME`.
    pub(super) service: Option<String>,
    pub(super) address: SocketAddr,
    /// How the address was found, if it is not the Service's.
    pub(super) note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestLine {
    pub(super) method: Method,
    pub(super) path: String,
    /// The value of the header that marks the request.
    pub(super) marker: String,
}

#[derive(Clone, Debug)]
pub(super) enum Connection {
    /// The agent makes no connections from this pod, for this reason.
    NotMade(String),
    /// The connection was refused or got no answer, for this reason.
    Failed(String),
    Made {
        local: SocketAddr,
        exchange: Exchange,
    },
}

/// What happened on the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Exchange {
    /// Without a request: it stayed open for this time.
    Open(Duration),
    /// Without a request: the peer closed it after this time.
    Closed(Duration),
    Response(Response),
    /// The request got no response, for this reason.
    NoResponse {
        reason: String,
        after: Duration,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) status: StatusCode,
    /// The text of the client's proxy, if it answered in place of the server.
    pub(super) proxy_error: Option<String>,
    /// From the request to the end of the body.
    pub(super) after: Duration,
    pub(super) body_bytes: u64,
}

/// What the controllers tell the client's proxy about the target.
#[derive(Clone, Debug)]
pub(super) struct Discovery {
    pub(super) profile: Fact<Profile>,
    pub(super) policy: Fact<OutboundPolicy>,
    pub(super) endpoints: Fact<Vec<Endpoint>>,
    /// What the client's proxy has sent to each endpoint before, as far as its metrics retain it.
    pub(super) load: Fact<Vec<EndpointLoad>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct EndpointLoad {
    pub(super) address: SocketAddr,
    pub(super) requests: u64,
    pub(super) open_connections: u64,
    pub(super) mean_latency: Option<Duration>,
}

/// What a proxy reported of the request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TappedRequest {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) source_labels: Labels,
    pub(super) destination_labels: Labels,
    pub(super) response: Option<TappedResponse>,
    pub(super) end: Option<TapStreamEnd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TappedResponse {
    pub(super) status: StatusCode,
    /// Since the proxy sent the request.
    pub(super) after: Duration,
}

/// The pod that the connection goes to.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) pod: Workload,
    pub(super) address: SocketAddr,
    pub(super) chosen_by: Choice,
    pub(super) kernel: Fact<Vec<RedirectionEvent>>,
    pub(super) policy: Fact<ServerPolicy>,
    /// `Ok(None)` if its proxy did not report the request.
    pub(super) tap: Fact<Option<TappedRequest>>,
}

/// The inbound side of a systemd unit.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) unit: Workload,
    /// The policy of each port where the unit listens, as its proxy completes it.
    pub(super) policies: BTreeMap<u16, Fact<ServerPolicy>>,
}

/// How the server is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The client's proxy reported it.
    Reported,
    /// The kernel saw the connection of the client's proxy.
    Seen,
    /// It is the only one.
    Only,
    /// It stands for several; the connection went to one of them.
    Example,
}

impl RequestLine {
    /// Returns the parts of the request that routes match.
    pub(super) fn head<'a>(
        &'a self,
        authority: &'a str,
        headers: &'a HeaderMap,
    ) -> RequestHead<'a> {
        let (path, query) = match self.path.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (self.path.as_str(), None),
        };
        RequestHead {
            method: &self.method,
            scheme: None,
            authority: Some(authority),
            path,
            is_raw: false,
            query,
            headers,
        }
    }
}

impl Workload {
    pub(super) fn is_meshed(&self) -> bool {
        self.identity.is_some()
    }

    /// Returns the name without the kind.
    pub(super) fn name(&self) -> String {
        match self.kind {
            WorkloadKind::Unit => self.name.clone(),
            WorkloadKind::Pod | WorkloadKind::External => {
                format!("{}/{}", self.namespace, self.name)
            }
        }
    }
}

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            WorkloadKind::Pod => "pod",
            WorkloadKind::Unit => "unit",
            WorkloadKind::External => "ExternalWorkload",
        };
        write!(f, "{kind} {}", self.name())
    }
}
