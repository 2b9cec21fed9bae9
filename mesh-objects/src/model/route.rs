//! Routes, with a Server (inbound), or a Service or EgressNetwork (outbound) as parent.

use std::sync::Arc;
use std::time::Duration;

use mesh_core::resilience::Timeouts;
use mesh_core::route::HostMatch;
use mesh_core::route::filter::{Filter, Proxies, Ratio, RequestKind};
use mesh_core::route::grpc::GrpcMatch;
use mesh_core::route::http::HttpMatch;
pub use mesh_k8s::crd::ParentKind;
use mesh_k8s::traffic_annotations::Retries;

use super::{Kind, Name};

/// A route with matches of type `M`.
#[derive(Clone, Debug, PartialEq)]
pub struct Route<M> {
    pub id: RouteId,
    /// Seconds since 1970; `None` for objects that are not from an API server.
    pub created: Option<i64>,
    pub parents: Vec<ParentRef>,
    pub hosts: Vec<HostMatch>,
    pub rules: Vec<Rule<M>>,
    /// The timeouts of its annotations, which together replace the parent's. Zero means none.
    pub timeouts: Option<Timeouts>,
    pub retries: Option<Retries>,
}

pub type HttpRoute = Route<HttpMatch>;
pub type GrpcRoute = Route<GrpcMatch>;
/// A TLSRoute, whose hosts are server names, or a TCPRoute. Its rules have no matches and only
/// backends.
pub type ConnectionRoute = Route<()>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteId {
    pub kind: Kind,
    pub name: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParentRef {
    pub kind: ParentKind,
    pub name: Name,
    pub port: Option<u16>,
    /// The section of the parent: the name of a port of a Service. Servers have none.
    pub section: Option<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Rule<M> {
    pub matches: Vec<M>,
    /// Without mirrors.
    pub filters: Vec<Filter>,
    /// In the order of their places.
    pub mirrors: Vec<Mirror>,
    /// `None` for the parent.
    pub backends: Option<Vec<BackendRule>>,
    /// `timeouts.request`
    pub request_timeout: Option<Duration>,
    /// `timeouts.backendRequest`
    pub backend_timeout: Option<Duration>,
}

impl<M> Rule<M> {
    /// Returns why a Server cannot apply the filters: inbound policies have no extension for them.
    pub fn problem_of_servers(&self, requests: RequestKind) -> Option<String> {
        let filters = self.filters.iter().enumerate();
        let beyond = filters.filter_map(|(at, filter)| {
            Some((self.place(at), filter.type_beyond_linkerd(requests)?))
        });
        let mirrors = self.mirrors.iter();
        let (at, found) = beyond
            .chain(mirrors.map(|mirror| (mirror.place, "RequestMirror")))
            .min()?;
        let supported = match requests {
            RequestKind::Http => "RequestHeaderModifier, RequestRedirect",
            RequestKind::Grpc => "RequestHeaderModifier",
        };
        Some(format!(
            "filters[{at}].type: {found} is not supported for Servers, only {supported}; remove the filter"
        ))
    }

    /// Returns the place of the first filter that these proxies leave out, and what they do.
    pub fn left_out(&self, by: Proxies) -> Option<String> {
        let find = |filters: &[Filter]| {
            let mut filters = filters.iter().enumerate();
            filters.find_map(|(at, filter)| Some((at, filter.left_out(by)?)))
        };
        if let Some((at, effect)) = find(&self.filters) {
            return Some(format!("filters[{}]: {effect}", self.place(at)));
        }
        let mut backends = self.backends.iter().flatten().enumerate();
        backends.find_map(|(backend, rule)| {
            let (at, effect) = find(rule.filters.as_ref().ok()?)?;
            Some(format!("backendRefs[{backend}].filters[{at}]: {effect}"))
        })
    }

    /// Returns the place of a filter among the filters of the object.
    pub fn place(&self, at: usize) -> usize {
        let mirrors = self.mirrors.iter();
        mirrors.fold(at, |place, mirror| {
            place + usize::from(mirror.place <= place)
        })
    }
}

/// A `RequestMirror` filter. Its backend is resolved together with the rule's.
#[derive(Clone, Debug, PartialEq)]
pub struct Mirror {
    /// Among all filters of the rule.
    pub place: usize,
    pub backend: BackendRef,
    pub ratio: Ratio,
}

/// A backend with its weight.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendRule {
    pub backend: BackendRef,
    pub weight: u32,
    /// The filters of this backend, or why they cannot be applied.
    pub filters: Result<Vec<Filter>, Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendRef {
    pub kind: BackendKind,
    /// `None` for the namespace of the route's parent.
    pub namespace: Option<Arc<str>>,
    pub name: Arc<str>,
    pub port: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    Service,
    EgressNetwork,
    Other,
}
