//! The backends of a rule.

use std::sync::Arc;

use http::StatusCode;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{Backend, BackendTarget, Distribution, RouteBackend, TcpVerdict};
use mesh_core::resilience::{PeakEwma, Queue};
use mesh_core::route::filter::{Filter, Ratio, RequestMirror};

use super::parent::{ParentObject, RouteParent};
use super::{egress_network_meta, service_meta, special};
use crate::model::{BackendKind, BackendRef, BackendRule, Mirror, Name, Rule};

/// Builds backends for the routes of a parent.
pub(super) struct BackendBuilder<'a> {
    parent: &'a RouteParent<'a>,
    load: PeakEwma,
    failure: Failure,
}

/// How an invalid backend fails its traffic.
enum Failure {
    Http,
    Grpc,
    Connection,
}

/// gRPC's UNAVAILABLE.
const GRPC_UNAVAILABLE: u16 = 14;

impl<'a> BackendBuilder<'a> {
    pub(super) fn for_http(parent: &'a RouteParent<'a>) -> Self {
        Self {
            parent,
            load: request_load(parent),
            failure: Failure::Http,
        }
    }

    pub(super) fn for_grpc(parent: &'a RouteParent<'a>) -> Self {
        Self {
            failure: Failure::Grpc,
            ..Self::for_http(parent)
        }
    }

    /// Connections are balanced without penalties, which depend on responses.
    pub(super) fn for_connections(parent: &'a RouteParent<'a>) -> Self {
        Self {
            parent,
            load: PeakEwma::default(),
            failure: Failure::Connection,
        }
    }

    pub(super) fn distribution(&self, backends: Option<&Vec<BackendRule>>) -> Distribution {
        match backends {
            None => Distribution::FirstAvailable(vec![self.parent_backend()]),
            Some(backends) if backends.is_empty() => {
                Distribution::FirstAvailable(vec![self.parent_backend()])
            }
            Some(backends) => Distribution::RandomAvailable(
                backends
                    .iter()
                    .filter(|rule| rule.weight > 0)
                    .map(|rule| (self.backend(rule), rule.weight))
                    .collect(),
            ),
        }
    }

    /// Returns the filters of a rule with its mirrors. Mirrors whose backend does not exist are
    /// omitted, as the Gateway API requires; the status of the route says so.
    pub(super) fn filters<M>(&self, rule: &Rule<M>) -> Vec<Filter> {
        let mut filters = rule.filters.clone();
        let mut omitted = 0;
        for mirror in &rule.mirrors {
            match self.mirror(mirror) {
                Some(filter) => filters.insert(mirror.place - omitted, filter),
                None => omitted += 1,
            }
        }
        filters
    }

    fn mirror(&self, mirror: &Mirror) -> Option<Filter> {
        let reference = &mirror.backend;
        let object = self.object(reference);
        let port = reference.port?;
        let exists = self.parent.store.service(&object).is_some();
        (reference.kind == BackendKind::Service && exists).then(|| {
            Filter::RequestMirror(RequestMirror {
                backend: Arc::new(self.balance(&object, port)),
                ratio: mirror.ratio,
            })
        })
    }

    /// Returns the name of a backend, which is in the namespace of the parent by default.
    fn object(&self, reference: &BackendRef) -> Name {
        let namespace = reference.namespace.as_ref();
        Name {
            namespace: namespace.unwrap_or(&self.parent.name().namespace).clone(),
            name: reference.name.clone(),
        }
    }

    /// Returns the parent as backend.
    fn parent_backend(&self) -> Arc<RouteBackend> {
        match self.parent.object {
            ParentObject::Service { name, .. } => {
                route_backend(self.balance(name, self.parent.port), Vec::new())
            }
            ParentObject::EgressNetwork { .. } => self.forward(Vec::new()),
        }
    }

    fn backend(&self, rule: &BackendRule) -> Arc<RouteBackend> {
        let BackendRef {
            kind, name, port, ..
        } = &rule.backend;
        let object = self.object(&rule.backend);
        let invalid = |problem| self.failing_backend(Meta::new_default("invalid"), problem);
        match kind {
            BackendKind::Other => invalid(format!("unsupported kind of backend {name}")),
            BackendKind::EgressNetwork => self.egress_network(&object, rule),
            BackendKind::Service => {
                let Some(port) = *port else {
                    return invalid(format!("backend {name} has no port"));
                };
                let meta = || service_meta(&object, port);
                match (&rule.filters, self.parent.store.service(&object)) {
                    (Err(problem), _) => self.failing_backend(meta(), problem.to_string()),
                    (Ok(_), None) => {
                        self.failing_backend(meta(), format!("Service not found {name}"))
                    }
                    (Ok(filters), Some(_)) => {
                        route_backend(self.balance(&object, port), filters.clone())
                    }
                }
            }
        }
    }

    /// Only traffic to an address of the EgressNetwork has an original destination in it.
    fn egress_network(&self, backend: &Name, rule: &BackendRule) -> Arc<RouteBackend> {
        let port = rule.backend.port.unwrap_or(self.parent.port);
        let meta = egress_network_meta(backend, port);
        match (self.parent.object, &rule.filters) {
            (ParentObject::EgressNetwork { network, .. }, Ok(filters))
                if network.name == *backend =>
            {
                self.forward(filters.clone())
            }
            (ParentObject::EgressNetwork { network, .. }, Err(problem))
                if network.name == *backend =>
            {
                self.failing_backend(meta, problem.to_string())
            }
            _ => {
                let problem = format!(
                    "EgressNetwork {backend} can only be a backend of routes that have it as parent"
                );
                self.failing_backend(meta, problem)
            }
        }
    }

    fn balance(&self, service: &Name, port: u16) -> Backend {
        let Name { namespace, name } = service;
        let domain = &self.parent.settings.cluster_domain;
        let target = BackendTarget::Balance {
            authority: format!("{name}.{namespace}.svc.{domain}:{port}").into(),
            load: self.load,
            queue: Queue::LINKERD,
        };
        Backend {
            meta: service_meta(service, port),
            target,
        }
    }

    /// Forwards to the original destination.
    fn forward(&self, filters: Vec<Filter>) -> Arc<RouteBackend> {
        let target = match self.parent.object {
            ParentObject::EgressNetwork { addr, .. } => special::forward(addr),
            ParentObject::Service { .. } => BackendTarget::None,
        };
        let backend = Backend {
            meta: self.parent.meta(),
            target,
        };
        route_backend(backend, filters)
    }

    /// Returns a backend that gets its share of the traffic and fails it, so that an error is
    /// visible instead of shifting traffic to other backends.
    fn failing_backend(&self, meta: Meta, problem: String) -> Arc<RouteBackend> {
        let message = problem.into();
        let (filters, verdict) = match self.failure {
            Failure::Http => {
                let failure = Filter::InjectHttpFailure {
                    status: StatusCode::INTERNAL_SERVER_ERROR,
                    message,
                    ratio: Ratio::ALL,
                };
                (vec![failure], TcpVerdict::Forward)
            }
            Failure::Grpc => {
                let failure = Filter::InjectGrpcFailure {
                    code: GRPC_UNAVAILABLE,
                    message,
                    ratio: Ratio::ALL,
                };
                (vec![failure], TcpVerdict::Forward)
            }
            Failure::Connection => (Vec::new(), TcpVerdict::Invalid(message)),
        };
        Arc::new(RouteBackend {
            backend: Backend {
                meta,
                target: BackendTarget::None,
            },
            filters,
            verdict,
        })
    }
}

fn route_backend(backend: Backend, filters: Vec<Filter>) -> Arc<RouteBackend> {
    Arc::new(RouteBackend {
        backend,
        filters,
        verdict: TcpVerdict::Forward,
    })
}

/// The setting of a Service applies to all backends of its routes.
fn request_load(parent: &RouteParent<'_>) -> PeakEwma {
    let penalty = match parent.object {
        ParentObject::Service { service, .. } => {
            service.and_then(|service| service.traffic.failure_penalty)
        }
        ParentObject::EgressNetwork { .. } => None,
    };
    PeakEwma {
        penalty,
        ..PeakEwma::default()
    }
}
