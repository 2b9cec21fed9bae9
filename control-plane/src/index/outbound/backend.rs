//! The backends of a rule.

use std::sync::Arc;

use http::StatusCode;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{Backend, BackendTarget, Distribution, RouteBackend, TcpVerdict};
use mesh_core::resilience::{PeakEwma, Queue};
use mesh_core::route::filter::{Filter, Ratio};

use super::{RouteParent, service_meta};
use crate::model::{BackendKind, BackendRef, BackendRule, Name};

/// Builds backends for the routes of a parent.
pub(super) struct BackendBuilder<'a> {
    parent: &'a RouteParent<'a>,
    load: PeakEwma,
    /// The filter that fails requests to an invalid backend.
    failure: fn(String) -> Filter,
}

/// gRPC's UNAVAILABLE.
const GRPC_UNAVAILABLE: u16 = 14;

impl<'a> BackendBuilder<'a> {
    pub(super) fn for_http(parent: &'a RouteParent<'a>) -> Self {
        Self {
            parent,
            load: request_load(parent),
            failure: |message| Filter::InjectHttpFailure {
                status: StatusCode::INTERNAL_SERVER_ERROR,
                message: message.into(),
                ratio: Ratio::ALL,
            },
        }
    }

    pub(super) fn for_grpc(parent: &'a RouteParent<'a>) -> Self {
        Self {
            failure: |message| Filter::InjectGrpcFailure {
                code: GRPC_UNAVAILABLE,
                message: message.into(),
                ratio: Ratio::ALL,
            },
            ..Self::for_http(parent)
        }
    }

    pub(super) fn for_connections(parent: &'a RouteParent<'a>) -> Self {
        Self {
            load: PeakEwma::default(),
            ..Self::for_http(parent)
        }
    }

    /// Returns the parent as backend.
    pub(super) fn parent_backend(&self) -> Arc<RouteBackend> {
        self.balance(self.parent.name, self.parent.port, Vec::new())
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

    fn backend(&self, rule: &BackendRule) -> Arc<RouteBackend> {
        let BackendRef {
            kind,
            namespace,
            name,
            port,
        } = &rule.backend;
        if *kind != BackendKind::Service {
            let meta = Meta::new_default("invalid");
            return self.failing_backend(meta, format!("unsupported kind of backend {name}"));
        }
        let service = Name {
            namespace: namespace
                .as_ref()
                .unwrap_or(&self.parent.name.namespace)
                .clone(),
            name: name.clone(),
        };
        let Some(port) = *port else {
            let meta = Meta::new_default("invalid");
            return self.failing_backend(meta, format!("backend {name} has no port"));
        };
        match (&rule.filters, self.parent.store.service(&service)) {
            (Err(problem), _) => {
                self.failing_backend(service_meta(&service, port), problem.to_string())
            }
            (Ok(_), None) => self.failing_backend(
                service_meta(&service, port),
                format!("Service not found {name}"),
            ),
            (Ok(filters), Some(_)) => self.balance(&service, port, filters.clone()),
        }
    }

    fn balance(&self, service: &Name, port: u16, filters: Vec<Filter>) -> Arc<RouteBackend> {
        let Name { namespace, name } = service;
        let domain = &self.parent.settings.cluster_domain;
        Arc::new(RouteBackend {
            backend: Backend {
                meta: service_meta(service, port),
                target: BackendTarget::Balance {
                    authority: format!("{name}.{namespace}.svc.{domain}:{port}").into(),
                    load: self.load,
                    queue: Queue::LINKERD,
                },
            },
            filters,
            verdict: TcpVerdict::Forward,
        })
    }

    /// Returns a backend that gets its share of the requests and fails them, so that an error is
    /// visible instead of shifting traffic to other backends.
    fn failing_backend(&self, meta: Meta, message: String) -> Arc<RouteBackend> {
        Arc::new(RouteBackend {
            backend: Backend {
                meta,
                target: BackendTarget::None,
            },
            verdict: TcpVerdict::Forward,
            filters: vec![(self.failure)(message)],
        })
    }
}

/// The setting of the parent applies to all backends of its routes.
fn request_load(parent: &RouteParent<'_>) -> PeakEwma {
    PeakEwma {
        penalty: parent
            .service
            .and_then(|service| service.traffic.failure_penalty),
        ..PeakEwma::default()
    }
}
