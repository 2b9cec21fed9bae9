//! The metrics of one route, which the configuration may split by the host of the request. Held by
//! the compiled rules.

use std::cell::RefCell;
use std::rc::Rc;

use ahash::AHashMap;

use crate::host_name::is_host_name;
use crate::http::Request;
use crate::telemetry::RouteMetrics;

/// The metric handles of one route.
pub(super) enum MetricsByHost {
    /// The label `hostname` is empty.
    Unlabelled(Rc<RouteMetrics>),
    Labelled(HostTable),
}

/// Handles by host, resolved when a host is first requested.
pub(super) struct HostTable {
    resolve: Box<ResolveHost>,
    hosts: RefCell<AHashMap<Box<str>, Rc<RouteMetrics>>>,
}

/// Resolves the handles of a host, or those without a host.
type ResolveHost = dyn Fn(Option<&str>) -> RouteMetrics;

/// Maximum number of hosts whose handles one route keeps on one thread, the same as the number of
/// series ([`mesh_runtime::metrics::MAX_OUTSIDE`]). When it is reached, all are resolved again.
const MAX_HOSTS: usize = mesh_runtime::metrics::MAX_OUTSIDE;

impl MetricsByHost {
    /// Returns metrics with an empty label.
    pub(super) fn unlabelled(resolve: &ResolveHost) -> Self {
        Self::Unlabelled(Rc::new(resolve(None)))
    }

    /// Returns metrics that are split by host.
    pub(super) fn labelled(resolve: impl Fn(Option<&str>) -> RouteMetrics + 'static) -> Self {
        Self::Labelled(HostTable {
            resolve: Box::new(resolve),
            hosts: RefCell::default(),
        })
    }

    pub(super) fn of_request(&self, request: &Request) -> Rc<RouteMetrics> {
        match self {
            Self::Unlabelled(metrics) => metrics.clone(),
            Self::Labelled(table) => table.of_host(request.uri().host().unwrap_or_default()),
        }
    }
}

impl HostTable {
    /// Invalid host names have an empty label, as in Linkerd.
    fn of_host(&self, host: &str) -> Rc<RouteMetrics> {
        let host = if is_host_name(host) { host } else { "" };
        if let Some(metrics) = self.hosts.borrow().get(host) {
            return metrics.clone();
        }
        let label = (!host.is_empty()).then(|| host.to_ascii_lowercase());
        let metrics = Rc::new((self.resolve)(label.as_deref()));
        let mut hosts = self.hosts.borrow_mut();
        if hosts.len() >= MAX_HOSTS {
            hosts.clear();
        }
        hosts.insert(host.into(), metrics.clone());
        metrics
    }
}
