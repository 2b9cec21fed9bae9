//! The facts about linked clusters.

use mesh_core::exposition::Sample;
use mesh_k8s::crd::Link;
use mesh_k8s::foreign_domain::recorded::Recorded;
use mesh_k8s::foreign_domain::{ForeignDomain, Refused, select};
use mesh_k8s::kinds::core::Endpoints;
use mesh_k8s::kinds::{ConfigMap, Deployment, Service};
use mesh_k8s::trust::FOREIGN_KEY;

use super::names::TRUST_BUNDLE;
use super::{Fact, Facts, NOT_QUERIED, fact_ref};
use crate::cluster::mirrors::GatewayStatus;

#[derive(Debug)]
pub(crate) struct Multicluster {
    /// The namespaces with the label of the extension.
    pub(crate) namespaces: Fact<Vec<String>>,
    pub(crate) links: Fact<Vec<LinkFacts>>,
    /// The Deployments of mirror controllers.
    pub(crate) controllers: Fact<Vec<Deployment>>,
    /// The Services that controllers and charts label: mirrors, federated Services, and those whose
    /// endpoints are gateways.
    pub(crate) services: Fact<Vec<Service>>,
    /// The Endpoints of such Services.
    pub(crate) endpoints: Fact<Vec<Endpoints>>,
    /// The Secrets of the control plane's namespace with the credentials of the destination
    /// controller.
    pub(crate) discovered: Fact<Vec<Credentials>>,
    /// The ConfigMaps of linked clusters with trust anchors of their own.
    pub(crate) trust_bundles: Fact<Vec<ConfigMap>>,
    /// The replicas of the identity service. Queried only if there are such ConfigMaps.
    pub(crate) replicas: Fact<Vec<Replica>>,
}

/// A replica of the identity service.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) pod: String,
    pub(crate) metrics: Fact<Vec<Sample>>,
}

/// A Secret of the control plane's namespace that is labelled with a cluster.
#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    pub(crate) secret: String,
    pub(crate) cluster: String,
    /// What its annotations say about the cluster.
    pub(crate) trust_domain: Option<String>,
    pub(crate) cluster_domain: Option<String>,
    /// Whether the controller reads it, by its type.
    pub(crate) is_followed: bool,
}

/// A Link, and what depends on it.
#[derive(Debug)]
pub(crate) struct LinkFacts {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The Link, or why it is invalid. Nothing else is known about an invalid one.
    pub(crate) link: Fact<Link>,
    pub(crate) target: Fact<Target>,
    /// What the mirror controller knows about the gateway; `None` without a gateway.
    pub(crate) gateway: Fact<Option<GatewayStatus>>,
    /// The permissions that the mirror controller lacks, as `list services`.
    pub(crate) denied: Fact<Vec<String>>,
}

/// The target cluster, as the credentials of the Link show it.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) version: String,
    /// The permissions that the credentials lack, as `list services`.
    pub(crate) denied: Fact<Vec<String>>,
    /// The trust anchors of its mesh in DER.
    pub(crate) anchors: Fact<Vec<Vec<u8>>>,
    /// Seconds that its API server's clock is ahead of this machine's, if it sends its time.
    pub(crate) clock_ahead: Option<i64>,
    pub(crate) mesh: Fact<TargetMesh>,
    /// The Services with the annotations of a gateway.
    pub(crate) gateways: Fact<Vec<Service>>,
}

/// The mesh of a target cluster, by its values.
#[derive(Debug, Clone)]
pub(crate) struct TargetMesh {
    /// The id of its ConfigMap, which no other cluster has.
    pub(crate) id: String,
    pub(crate) cluster_domain: String,
    pub(crate) trust_domain: String,
}

impl LinkFacts {
    /// Creates facts about which nothing but the object is known.
    pub(crate) fn new(namespace: &str, name: &str, link: Fact<Link>) -> Self {
        let unknown = || NOT_QUERIED.to_owned();
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            link,
            target: Err(unknown()),
            gateway: Err(unknown()),
            denied: Err(unknown()),
        }
    }
}

impl Facts {
    /// Returns the namespace of the extension: the one with its label, or else the first one with
    /// a Link, or else its default.
    pub(crate) fn multicluster_namespace(&self) -> &str {
        let labelled = self.multicluster.namespaces.iter().flatten();
        let of_links = self.multicluster.links.iter().flatten();
        let mut names = labelled.chain(of_links.map(|link| &link.namespace));
        names.next().map_or("linkerd-multicluster", String::as_str)
    }

    /// Returns the trust domains of linked clusters with trust anchors of their own, and the
    /// ConfigMaps that are not in effect.
    pub(crate) fn foreign_domains(&self) -> Fact<(Vec<ForeignDomain>, Vec<Refused>)> {
        let objects = fact_ref(&self.multicluster.trust_bundles)?;
        Ok(select(self.values()?.trust_domain(), objects.clone()))
    }

    /// Returns the bundles of such domains that the identity service sends to proxies.
    pub(crate) fn recorded_domains(&self) -> Fact<Recorded> {
        let record = fact_ref(&self.objects.trust_bundle)?.as_ref();
        let text = record.and_then(|record| record.data.as_ref()?.get(FOREIGN_KEY));
        Recorded::read(text.map(String::as_str))
            .map_err(|error| format!("ConfigMap {TRUST_BUNDLE}: data[{FOREIGN_KEY}]: {error}"))
    }
}

impl Multicluster {
    /// Creates facts that are all unknown.
    pub(super) fn not_queried() -> Self {
        let unknown = || NOT_QUERIED.to_owned();
        Self {
            namespaces: Err(unknown()),
            links: Err(unknown()),
            controllers: Err(unknown()),
            services: Err(unknown()),
            endpoints: Err(unknown()),
            discovered: Err(unknown()),
            trust_bundles: Err(unknown()),
            replicas: Err(unknown()),
        }
    }
}
