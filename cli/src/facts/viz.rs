//! The facts about the viz extension.

use std::collections::BTreeSet;

use kube::api::DynamicObject;
use mesh_k8s::kinds::{Deployment, MutatingWebhookConfiguration, Secret};

use super::{Fact, Facts, NOT_QUERIED};

#[derive(Debug)]
pub(crate) struct Viz {
    pub(crate) namespace: Fact<String>,
    /// The URL of a Prometheus that is not the extension's own.
    pub(crate) external_prometheus: Option<String>,
    pub(crate) cluster_roles: Fact<BTreeSet<String>>,
    pub(crate) cluster_role_bindings: Fact<BTreeSet<String>>,
    pub(crate) deployments: Fact<Vec<Deployment>>,
    /// The APIService of the tap API.
    pub(crate) api_service: Fact<Option<DynamicObject>>,
    pub(crate) tap_secret: Fact<Option<Secret>>,
    pub(crate) webhook: Fact<Option<MutatingWebhookConfiguration>>,
    pub(crate) injector_secret: Fact<Option<Secret>>,
    /// The response of the metrics API about itself.
    pub(crate) self_checks: Fact<Vec<SelfCheck>>,
    /// The pods, as namespace/name, whose proxies Prometheus has series of.
    pub(crate) scraped: Fact<BTreeSet<String>>,
}

/// A check that the metrics API makes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SelfCheck {
    pub(crate) description: String,
    /// The problem, if there is one.
    pub(crate) problem: Option<String>,
}

impl Facts {
    /// Returns the namespace of the extension, or its default.
    pub(crate) fn viz_namespace(&self) -> &str {
        self.viz.namespace.as_deref().unwrap_or("linkerd-viz")
    }
}

impl Viz {
    /// Creates facts that are all unknown.
    pub(super) fn not_queried() -> Self {
        let unknown = || NOT_QUERIED.to_owned();
        Self {
            namespace: Err(unknown()),
            external_prometheus: None,
            cluster_roles: Err(unknown()),
            cluster_role_bindings: Err(unknown()),
            deployments: Err(unknown()),
            api_service: Err(unknown()),
            tap_secret: Err(unknown()),
            webhook: Err(unknown()),
            injector_secret: Err(unknown()),
            self_checks: Err(unknown()),
            scraped: Err(unknown()),
        }
    }
}
