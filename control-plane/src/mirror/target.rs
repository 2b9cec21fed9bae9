//! The decisions of a Link: which Services are mirrored, how, and under which names.

use std::sync::Arc;

use mesh_core::annotation::{MIRRORED_CLUSTER, REMOTE_DISCOVERY};
use mesh_k8s::crd::LinkSpec;
use mesh_k8s::crd::link::{Gateway, link_excludes, link_selects};
use mesh_k8s::invalid::Invalid;
use mesh_k8s::kinds::{LabelSelector, LabelSelectorRequirement};
use mesh_objects::model::{Labels, Name};

use super::packed::Packed;

/// The cluster whose Services are mirrored, and the Services.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    /// `None` for this cluster, whose members of federated Services have no Link.
    pub(super) cluster: Option<Arc<str>>,
    /// The DNS domain of the cluster.
    pub(super) domain: Arc<str>,
    pub(super) gateway: Option<Gateway>,
    /// The Secret with the credentials for the cluster.
    pub(super) credentials: Option<Arc<str>>,
    selectors: Selectors,
    excluded: Excluded,
}

/// An absent or empty selector selects nothing.
#[derive(Clone, Debug, Default, PartialEq)]
struct Selectors {
    gateway: Option<LabelSelector>,
    discovery: Option<LabelSelector>,
    federated: Option<LabelSelector>,
}

/// Labels and annotations that mirrors do not get.
#[derive(Clone, Debug, Default, PartialEq)]
struct Excluded {
    labels: Vec<String>,
    annotations: Vec<String>,
}

/// How a Service is mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Clients connect to the gateway.
    Gateway,
    /// Clients connect to the pods of the target cluster.
    Discovery,
}

/// Annotations about the nodes of the target cluster, and what `kubectl apply` remembers about the
/// object there, which may be most of its text.
const NOT_COPIED: [&str; 3] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "service.kubernetes.io/topology-aware-hints",
    "service.kubernetes.io/topology-mode",
];

impl Target {
    /// Returns the target of a Link.
    ///
    /// # Errors
    ///
    /// The problems of the Link's fields.
    pub(super) fn of_link(spec: &LinkSpec) -> Result<Self, Vec<Invalid>> {
        let problems = spec.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            cluster: Some(spec.target_cluster_name.as_str().into()),
            domain: spec.target_cluster_domain.as_str().into(),
            gateway: spec.gateway()?,
            credentials: Some(spec.cluster_credentials_secret.as_str().into()),
            selectors: Selectors {
                gateway: spec.selector.clone(),
                discovery: spec.remote_discovery_selector.clone(),
                federated: spec.federated_service_selector.clone(),
            },
            excluded: Excluded {
                labels: spec.excluded_labels.clone(),
                annotations: spec.excluded_annotations.clone(),
            },
        })
    }

    /// Returns the target for this cluster's members of federated Services.
    pub(crate) fn local(
        members: LabelSelector,
        excluded_labels: Vec<String>,
        excluded_annotations: Vec<String>,
    ) -> Self {
        Self {
            cluster: None,
            domain: "".into(),
            gateway: None,
            credentials: None,
            selectors: Selectors {
                federated: Some(members),
                ..Selectors::default()
            },
            excluded: Excluded {
                labels: excluded_labels,
                annotations: excluded_annotations,
            },
        }
    }

    /// Returns how a Service with these labels is mirrored; `None` if it is not.
    pub(super) fn mode(&self, labels: &Labels) -> Option<Mode> {
        let selects = |selector: &Option<_>| link_selects(selector.as_ref(), Some(labels));
        if selects(&self.selectors.discovery) {
            Some(Mode::Discovery)
        } else if selects(&self.selectors.gateway) {
            Some(Mode::Gateway)
        } else {
            None
        }
    }

    /// Returns whether a Service with these labels is a member of a federated Service.
    pub(super) fn is_member(&self, labels: &Labels) -> bool {
        link_selects(self.selectors.federated.as_ref(), Some(labels))
    }

    /// Returns whether a Service with these labels decides about anything.
    pub(super) fn selects(&self, labels: &Labels) -> bool {
        self.mode(labels).is_some() || self.is_member(labels)
    }

    /// Returns whether another version of a Link reads the same objects.
    pub(super) fn reads_as(&self, other: &Self) -> bool {
        (&self.cluster, &self.selectors) == (&other.cluster, &other.selectors)
    }

    /// Returns whether the readiness of endpoints matters, which it does behind the gateway.
    pub(super) fn reads_endpoints(&self) -> bool {
        self.selectors.gateway.as_ref().is_some_and(is_used)
    }

    /// Returns the selected Services in the notation of the API server; `None` if several selectors
    /// select some, which it has no notation for.
    pub(super) fn watched_labels(&self) -> Option<String> {
        let Selectors {
            gateway,
            discovery,
            federated,
        } = &self.selectors;
        let used = [gateway, discovery, federated].into_iter().flatten();
        let mut used = used.filter(|selector| is_used(selector));
        match (used.next(), used.next()) {
            (Some(only), None) => notation(only),
            _ => None,
        }
    }

    /// Returns the name of a mirror, which has the namespace of its Service.
    pub(super) fn mirror(&self, remote: &Name) -> Name {
        named(remote, self.cluster.as_deref().unwrap_or_default())
    }

    /// Returns the labels that a mirror gets from its Service.
    pub(super) fn copied_labels(&self, labels: &Packed) -> Labels {
        copied(labels, &self.excluded.labels)
    }

    /// Returns the annotations that a mirror gets from its Service.
    pub(super) fn copied_annotations(&self, annotations: &Packed) -> Labels {
        copied(annotations, &self.excluded.annotations)
    }
}

/// Returns a Service's name with a suffix, in the same namespace.
pub(super) fn named(of: &Name, suffix: &str) -> Name {
    Name {
        namespace: of.namespace.clone(),
        name: format!("{}-{suffix}", of.name).into(),
    }
}

/// Returns whether a mirror can get a label or an annotation. The ones of the extension describe
/// the Service in its own cluster, whose links are others.
pub(super) fn is_copied(key: &str) -> bool {
    let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
    let own = [MIRRORED_CLUSTER, REMOTE_DISCOVERY];
    let is_own = own
        .iter()
        .any(|own| own.split_once('/').is_some_and(|it| it.0 == prefix));
    !is_own && !NOT_COPIED.contains(&key)
}

fn copied(pairs: &Packed, excluded: &[String]) -> Labels {
    let pairs = pairs.iter();
    let pairs = pairs.filter(|(key, _)| is_copied(key) && !link_excludes(excluded, key));
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn is_used(selector: &LabelSelector) -> bool {
    let LabelSelector {
        match_labels,
        match_expressions,
    } = selector;
    match_labels.as_ref().is_some_and(|it| !it.is_empty())
        || match_expressions.as_ref().is_some_and(|it| !it.is_empty())
}

/// Returns a selector in the notation of the API server; `None` for an invalid one.
fn notation(selector: &LabelSelector) -> Option<String> {
    let labels = selector.match_labels.iter().flatten();
    let labels = labels.map(|(key, value)| Some(format!("{key}={value}")));
    let expressions = selector.match_expressions.iter().flatten().map(expression);
    let all: Option<Vec<String>> = labels.chain(expressions).collect();
    Some(all?.join(","))
}

fn expression(requirement: &LabelSelectorRequirement) -> Option<String> {
    let LabelSelectorRequirement {
        key,
        operator,
        values,
    } = requirement;
    let values = values.as_deref().unwrap_or_default();
    match (operator.as_str(), values) {
        ("Exists", []) => Some(key.clone()),
        ("DoesNotExist", []) => Some(format!("!{key}")),
        ("In", [_, ..]) => Some(format!("{key} in ({})", values.join(","))),
        ("NotIn", [_, ..]) => Some(format!("{key} notin ({})", values.join(","))),
        _ => None,
    }
}
