//! What must be true of a cluster before something is rendered for it, and what is found out about
//! it on the way.

use anyhow::{anyhow, bail};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind},
};
use mesh_k8s::kinds::{ConfigMap, EndpointSlice, Secret, Service};
use serde_json::Value;

use super::{
    flags::Overlay,
    overrides::{self, Overrides},
};
use crate::{
    cluster::{Cluster, error},
    exit::Failure,
    global::Global,
};

/// The oldest Kubernetes whose native sidecars, CEL rules and EndpointSlices are all there; the
/// charts say the same.
const OLDEST: (u32, u32) = (1, 31);

/// Definitions without which the policy service cannot start to be useful, one for each group.
const DEFINITIONS: [&str; 2] = ["servers.policy.linkerd.io", "serviceprofiles.linkerd.io"];

/// What was found out about a cluster.
pub(crate) struct Found {
    /// As in v1.36.3.
    pub(crate) version: String,
    /// Values that this cluster needs.
    pub(crate) values: Option<Value>,
}

/// The cluster to render for.
pub(crate) async fn connect(global: &Global) -> anyhow::Result<Cluster> {
    let cluster = Cluster::connect(global).await;
    cluster.map_err(|error| {
        Failure::Input(format!(
            "{error:#}; --ignore-cluster renders without query a cluster"
        ))
        .into()
    })
}

/// Asks the cluster for what every rendering needs.
pub(crate) async fn survey(cluster: &Cluster) -> anyhow::Result<Found> {
    let info = cluster.client.apiserver_version().await;
    let info = info.map_err(|error| unreachable(error, &cluster.server))?;
    let number = |text: &str| -> u32 {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or_default()
    };
    if (number(&info.major), number(&info.minor)) < OLDEST {
        bail!(
            "the cluster's Kubernetes is {}; the mesh needs {}.{} or newer",
            info.git_version,
            OLDEST.0,
            OLDEST.1
        );
    }
    Ok(Found {
        version: info.git_version,
        values: api_server_ports(cluster).await?,
    })
}

/// Is the cluster free for an installation?
pub(crate) async fn free(cluster: &Cluster) -> anyhow::Result<()> {
    let namespace = &cluster.control_namespace;
    if is_installed(cluster).await? {
        if is_helms(cluster).await? {
            bail!(
                "namespace {namespace} has a mesh that Helm installed: use `helm upgrade` for it"
            );
        }
        bail!(
            "namespace {namespace} has a mesh already: use `meshctl upgrade` for it, or --ignore-cluster to render all the same"
        );
    }
    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let definitions: Api<DynamicObject> =
        Api::all_with(cluster.client.clone(), &ApiResource::from_gvk(&kind));
    for name in DEFINITIONS {
        let found = definitions.get_metadata_opt(name).await;
        let found = found.map_err(|error| error::failed("look for the custom resources", error))?;
        if found.is_none() {
            bail!(
                "the cluster does not know {name}: run `meshctl install --crds | kubectl apply -f -` first"
            );
        }
    }
    Ok(())
}

async fn is_installed(cluster: &Cluster) -> anyhow::Result<bool> {
    Ok(control::<ConfigMap>(cluster, "linkerd-config")
        .await?
        .is_some())
}

/// Is there a mesh that `meshctl` did not install?
pub(crate) async fn is_helms(cluster: &Cluster) -> anyhow::Result<bool> {
    let ours = control::<Secret>(cluster, overrides::NAME).await?.is_some();
    Ok(!ours && is_installed(cluster).await?)
}

/// The values that an installation was made with.
pub(crate) async fn stored(cluster: &Cluster) -> anyhow::Result<Overrides> {
    let namespace = &cluster.control_namespace;
    let Some(secret) = control::<Secret>(cluster, overrides::NAME).await? else {
        if !is_installed(cluster).await? {
            bail!(
                "namespace {namespace} has no mesh to upgrade: use `meshctl install`, or -L for another namespace"
            );
        }
        bail!(
            "namespace {namespace} has a mesh that Helm installed (there is no Secret {}): use `helm upgrade` for it",
            overrides::NAME
        );
    };
    let bytes = secret
        .data
        .as_ref()
        .and_then(|data| data.get(overrides::NAME));
    let bytes = bytes.ok_or_else(|| {
        anyhow!(
            "Secret {} of namespace {namespace} has no key of its own name",
            overrides::NAME
        )
    })?;
    let text = String::from_utf8(bytes.0.clone());
    Ok(Overrides::stored(text.map_err(|_not_text| {
        anyhow!(
            "Secret {} of namespace {namespace} holds no text",
            overrides::NAME
        )
    })?))
}

/// The trust anchors that the proxies of this cluster follow.
pub(crate) async fn trust_anchors(cluster: &Cluster) -> anyhow::Result<Option<String>> {
    let roots = control::<ConfigMap>(cluster, "linkerd-identity-trust-roots").await?;
    let bundle = roots.and_then(|roots| roots.data?.remove("ca-bundle.crt"));
    Ok(bundle)
}

async fn control<K>(cluster: &Cluster, name: &str) -> anyhow::Result<Option<K>>
where
    K: mesh_k8s::kinds::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let found = cluster.control_object(name).await;
    found.map_err(|error| {
        error::failed(
            &format!("read {name} in namespace {}", cluster.control_namespace),
            error,
        )
    })
}

/// The ports of the API server where they are not the usual ones: the control plane's pods must
/// reach it before they have a certificate.
async fn api_server_ports(cluster: &Cluster) -> anyhow::Result<Option<Value>> {
    let failed = |error| error::failed("read the Service kubernetes", error);
    let services = Api::<Service>::namespaced(cluster.client.clone(), "default");
    let service = services.get_opt("kubernetes").await.map_err(failed)?;
    let slices = Api::<EndpointSlice>::namespaced(cluster.client.clone(), "default");
    let slice = slices.get_opt("kubernetes").await.map_err(failed)?;
    let of_service = service
        .into_iter()
        .filter_map(|service| service.spec?.ports);
    let of_slice = slice.into_iter().filter_map(|slice| slice.ports);
    let ports = of_service
        .flatten()
        .map(|port| port.port)
        .chain(of_slice.flatten().filter_map(|port| port.port));
    let mut overlay = Overlay::default();
    overlay.some("proxyInit.kubeAPIServerPorts", unusual(ports));
    Ok(overlay.into_value())
}

/// The usual ports and these, when these are not all usual.
fn unusual(ports: impl Iterator<Item = i32>) -> Option<String> {
    const USUAL: [i32; 2] = [443, 6443];
    let mut all = USUAL.to_vec();
    all.extend(ports);
    all.sort_unstable();
    all.dedup();
    let texts: Vec<String> = all.iter().map(i32::to_string).collect();
    (all != USUAL).then(|| texts.join(","))
}

fn unreachable(error: kube::Error, server: &str) -> anyhow::Error {
    let text = format!(
        "{}: {server}; --ignore-cluster renders without query it",
        error::explain(&error)
    );
    Failure::Unreachable(text).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_ports_need_no_value() {
        assert_eq!(unusual([443, 6443].into_iter()), None);
        assert_eq!(unusual([].into_iter()), None);
        assert_eq!(
            unusual([443, 16443].into_iter()).as_deref(),
            Some("443,6443,16443")
        );
    }
}
