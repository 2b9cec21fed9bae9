//! The backends of a rule.

use std::sync::Arc;

use http::StatusCode;
use mesh_core::{
    meta::Meta,
    policy::outbound::{Backend, BackendTarget, Distribution, RouteBackend, TcpVerdict},
    resilience::PeakEwma,
    route::filter::{Filter, Ratio},
};

use super::{Parent, service_meta};
use crate::model::{BackendKind, BackendRef, BackendRule, Name};

/// Makes backends for the routes of one parent.
pub(super) struct Backends<'a> {
    parent: &'a Parent<'a>,
    load: PeakEwma,
    /// How requests fail that a backend cannot take.
    failure: fn(String) -> Filter,
}

/// gRPC's UNAVAILABLE.
const GRPC_UNAVAILABLE: u16 = 14;

impl<'a> Backends<'a> {
    pub(super) fn for_http(parent: &'a Parent<'a>) -> Self {
        Self {
            parent,
            load: load_of_requests(parent),
            failure: |message| Filter::InjectHttpFailure {
                status: StatusCode::INTERNAL_SERVER_ERROR,
                message: message.into(),
                ratio: Ratio::ALL,
            },
        }
    }

    pub(super) fn for_grpc(parent: &'a Parent<'a>) -> Self {
        Self {
            failure: |message| Filter::InjectGrpcFailure {
                code: GRPC_UNAVAILABLE,
                message: message.into(),
                ratio: Ratio::ALL,
            },
            ..Self::for_http(parent)
        }
    }

    pub(super) fn for_connections(parent: &'a Parent<'a>) -> Self {
        Self {
            load: PeakEwma::default(),
            ..Self::for_http(parent)
        }
    }

    /// The parent itself.
    pub(super) fn own(&self) -> Arc<RouteBackend> {
        self.balance(self.parent.name, self.parent.port, Vec::new())
    }

    pub(super) fn distribution(&self, backends: Option<&Vec<BackendRule>>) -> Distribution {
        match backends {
            None => Distribution::FirstAvailable(vec![self.own()]),
            Some(backends) if backends.is_empty() => Distribution::FirstAvailable(vec![self.own()]),
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
            return self.unusable(meta, format!("unsupported kind of backend {name}"));
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
            return self.unusable(meta, format!("backend {name} names no port"));
        };
        match (&rule.filters, self.parent.store.service(&service)) {
            (Err(problem), _) => self.unusable(service_meta(&service, port), problem.to_string()),
            (Ok(_), None) => self.unusable(
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
                },
            },
            filters,
            verdict: TcpVerdict::Forward,
        })
    }

    /// A backend that keeps its share of the requests and fails them, so that a mistake is seen
    /// instead of shifting traffic to others.
    fn unusable(&self, meta: Meta, message: String) -> Arc<RouteBackend> {
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

/// The parent's setting counts for all backends of its routes.
fn load_of_requests(parent: &Parent<'_>) -> PeakEwma {
    PeakEwma {
        penalty: parent
            .service
            .and_then(|service| service.traffic.failure_penalty),
        ..PeakEwma::default()
    }
}
