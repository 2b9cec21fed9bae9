//! The credentials of a linked cluster, in a Secret of the control plane's namespace.

use std::sync::Arc;

use mesh_cluster::api_server::{LinkedKubeconfig, LinkedKubeconfigError};
use mesh_core::annotation::{CLUSTER_DOMAIN, CLUSTER_NAME, TRUST_DOMAIN};
use mesh_k8s::kinds::{ObjectMeta, Secret};
use mesh_k8s::pod::meta_annotation;

/// A linked cluster.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Link {
    pub(super) cluster: Arc<str>,
    /// The trust domain of its identities.
    pub(super) trust_domain: Arc<str>,
    pub(super) cluster_domain: Arc<str>,
    pub(super) kubeconfig: LinkedKubeconfig,
}

/// Why a Secret is not a link.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("has no label {CLUSTER_NAME} with the name of the cluster")]
    Name,
    #[error("has no annotation {0}")]
    Annotation(&'static str),
    #[error("has no credentials")]
    Credentials(#[source] LinkedKubeconfigError),
}

impl Link {
    pub(super) fn read(secret: &Secret) -> Result<Self, LinkError> {
        let meta = &secret.metadata;
        let labels = meta.labels.as_ref();
        let cluster = labels.and_then(|labels| labels.get(CLUSTER_NAME));
        let cluster = cluster.filter(|name| !name.is_empty());
        Ok(Self {
            cluster: cluster.ok_or(LinkError::Name)?.as_str().into(),
            trust_domain: required(meta, TRUST_DOMAIN)?,
            cluster_domain: required(meta, CLUSTER_DOMAIN)?,
            kubeconfig: LinkedKubeconfig::of_secret(secret).map_err(LinkError::Credentials)?,
        })
    }
}

fn required(meta: &ObjectMeta, annotation: &'static str) -> Result<Arc<str>, LinkError> {
    let value = meta_annotation(meta, annotation).filter(|value| !value.is_empty());
    value
        .map(Arc::from)
        .ok_or(LinkError::Annotation(annotation))
}
