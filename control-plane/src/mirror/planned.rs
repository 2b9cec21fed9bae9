//! The objects that should exist in this cluster, and the outcome for each selected Service.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mesh_k8s::kinds::core::EndpointPort;
use mesh_objects::model::Name;

use super::records::{LocalEndpoints, LocalService, RemoteService};

/// What should exist.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) entries: BTreeMap<Key, Entry>,
    /// By the Service of the target cluster.
    pub(super) mirrored: BTreeMap<Name, Outcome>,
    pub(super) federated: BTreeMap<Name, Outcome>,
}

/// An object of this cluster. They are written in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Key {
    Namespace(Arc<str>),
    Service(Name),
    Endpoints(Name),
    /// The status of the Link.
    Status(Name),
}

/// What an object should be.
#[derive(Debug)]
pub(super) enum Entry {
    /// It stays as it is, because its Service cannot be mirrored now.
    Kept,
    Absent,
    Namespace,
    /// The mirror of a Service.
    Mirror(Source, Form),
    /// Its Endpoints: the gateway, if the Service has a ready endpoint.
    MirrorEndpoints(Source, bool),
    /// The Endpoints of a headless mirror: the mirrors of the hosts.
    HeadlessEndpoints(Source, Vec<HostGroup>),
    /// The mirror of a host.
    Host(Source, Arc<str>),
    /// Its Endpoints: the gateway, if the host is ready.
    HostEndpoints(Source, Arc<str>, bool),
    /// A federated Service with this member.
    Member(Source),
    /// A federated Service without this member.
    NoMember(Arc<str>),
    /// The Endpoints of the Service that the gateway is probed by.
    ProbeEndpoints,
    Status,
}

/// A Service of the target cluster.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) name: Name,
    pub(super) service: Arc<RemoteService>,
}

/// The kind of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Gateway,
    Discovery,
    Headless,
}

/// Hosts with the same ports.
#[derive(Clone, Debug, Default)]
pub(super) struct HostGroup {
    pub(super) ports: Vec<EndpointPort>,
    /// Whether each is ready.
    pub(super) hosts: BTreeMap<Arc<str>, bool>,
}

/// What becomes of a selected Service.
#[derive(Debug, PartialEq)]
pub(super) enum Outcome {
    /// It is mirrored when this Service exists, and its Endpoints if it has some.
    Planned {
        local: Name,
        has_endpoints: bool,
        /// The parts that are left out, or empty.
        note: Box<str>,
    },
    Failed(Problem),
}

/// Why a Service is not mirrored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Linkerd's reasons.
pub(super) const MIRRORED: &str = "Mirrored";
pub(super) const INVALID_SERVICE: &str = "InvalidService";
pub(super) const ERROR: &str = "Error";

/// The suffix of federated Services.
pub(super) const FEDERATED: &str = "federated";

impl Plan {
    /// Returns whether a Service changes as planned.
    pub(super) fn expects_service(
        &self,
        name: &Name,
        service: Option<&LocalService>,
        cluster: Option<&str>,
    ) -> bool {
        let mirror = service.and_then(|it| it.mirror_of(cluster));
        match self.entries.get(&Key::Service(name.clone())) {
            Some(Entry::Absent) => service.is_none(),
            Some(Entry::Mirror(_, form)) => {
                mirror.is_some_and(|mirror| mirror.headless == (*form == Form::Headless))
            }
            Some(Entry::Host(..)) => mirror.is_some_and(|mirror| !mirror.headless),
            Some(Entry::Member(_)) => service.and_then(|it| it.mirror_of(None)).is_some(),
            _ => false,
        }
    }

    /// Returns whether Endpoints change as planned.
    pub(super) fn expects_endpoints(
        &self,
        name: &Name,
        endpoints: Option<&LocalEndpoints>,
        cluster: Option<&str>,
    ) -> bool {
        let is_own = endpoints.map(|it| Some(&*it.cluster) == cluster);
        match self.entries.get(&Key::Endpoints(name.clone())) {
            Some(Entry::Absent) => is_own.is_none(),
            Some(Entry::Kept) => false,
            Some(_) => is_own == Some(true),
            None => is_own != Some(true),
        }
    }
}

impl Outcome {
    pub(super) fn planned(local: &Name) -> Self {
        Self::Planned {
            local: local.clone(),
            has_endpoints: false,
            note: "".into(),
        }
    }
}

impl Problem {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(name) => write!(f, "Namespace {name}"),
            Self::Service(name) => write!(f, "Service {name}"),
            Self::Endpoints(name) => write!(f, "Endpoints {name}"),
            Self::Status(name) => write!(f, "Link {name}"),
        }
    }
}
