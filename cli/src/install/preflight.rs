//! Checks a cluster before manifests are rendered for it, and detects the values that it needs.

use std::time::Duration;

use anyhow::{anyhow, bail};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use mesh_k8s::kinds::{ConfigMap, Deployment, EndpointSlice, Secret, Service};
use serde_json::Value;
use tokio::time::Instant;

use super::flags::Overlay;
use super::overrides::{self, Overrides};
use crate::cluster::{Cluster, Namespaced, error};
use crate::exit::Failure;
use crate::global::Global;
use crate::output::progress::Progress;
use crate::resource::Scope;

/// The oldest supported version of Kubernetes, with native sidecars, CEL rules and EndpointSlices;
/// the charts require the same.
const MIN_VERSION: (u32, u32) = (1, 31);

/// Definitions that the policy controller requires, one of each group.
const DEFINITIONS: [&str; 2] = ["servers.policy.linkerd.io", "serviceprofiles.linkerd.io"];

/// The properties of a cluster that affect rendering.
pub(crate) struct PreflightResult {
    /// The version of Kubernetes, such as v1.36.3.
    pub(crate) version: String,
    /// Values that this cluster requires.
    pub(crate) values: Option<Value>,
}

/// Connects to the cluster that the manifests are for.
pub(crate) async fn connect(global: &Global) -> anyhow::Result<Cluster> {
    let cluster = Cluster::connect(global).await;
    cluster.map_err(|error| {
        Failure::Input(format!(
            "{error:#}; --ignore-cluster renders without contacting a cluster"
        ))
        .into()
    })
}

/// Queries the properties that all manifests depend on.
pub(crate) async fn inspect(cluster: &Cluster) -> anyhow::Result<PreflightResult> {
    let info = cluster.client.apiserver_version().await;
    let info = info.map_err(|error| unreachable(error, &cluster.server))?;
    let number = |text: &str| -> u32 {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or_default()
    };
    if (number(&info.major), number(&info.minor)) < MIN_VERSION {
        bail!(
            "the cluster's Kubernetes is {}; the mesh needs {}.{} or newer",
            info.git_version,
            MIN_VERSION.0,
            MIN_VERSION.1
        );
    }
    Ok(PreflightResult {
        version: info.git_version,
        values: api_server_ports(cluster).await?,
    })
}

/// Checks that no mesh is installed and that the custom resource definitions are.
pub(crate) async fn ensure_installable(cluster: &Cluster) -> anyhow::Result<()> {
    let namespace = &cluster.control_namespace;
    if is_installed(cluster).await? {
        if is_installed_by_helm(cluster).await? {
            bail!("namespace {namespace} has a mesh that Helm installed: use `helm upgrade`");
        }
        bail!(
            "namespace {namespace} already has a mesh: use `meshctl upgrade`, or --ignore-cluster to render anyway"
        );
    }
    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let definitions: Api<DynamicObject> =
        Api::all_with(cluster.client.clone(), &ApiResource::from_gvk(&kind));
    for name in DEFINITIONS {
        let found = definitions.get_metadata_opt(name).await;
        let found =
            found.map_err(|error| error::failed("read the custom resource definitions", error))?;
        if found.is_none() {
            bail!(
                "the cluster does not have {name}: run `meshctl install --crds | kubectl apply -f -` first"
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

/// Returns whether the mesh was installed by Helm instead of `meshctl`.
pub(crate) async fn is_installed_by_helm(cluster: &Cluster) -> anyhow::Result<bool> {
    let has_overrides = control::<Secret>(cluster, overrides::NAME).await?.is_some();
    Ok(!has_overrides && is_installed(cluster).await?)
}

/// Returns whether the namespace has a release of Helm with this name, which Helm stores in
/// Secrets.
pub(crate) async fn is_helm_release(
    cluster: &Cluster,
    namespace: &str,
    release: &str,
) -> anyhow::Result<bool> {
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), namespace);
    let selector = ListParams::default()
        .labels(&format!("owner=helm,name={release}"))
        .limit(1);
    let found = secrets.list_metadata(&selector).await.map_err(|error| {
        error::failed(
            &format!("list the releases of namespace {namespace}"),
            error,
        )
    })?;
    Ok(!found.items.is_empty())
}

/// Refuses a release of Helm: Helm does not change objects that it did not create, and its next
/// upgrade would undo what `kubectl apply` has changed.
pub(crate) async fn ensure_no_helm_release(
    cluster: &Cluster,
    namespace: &str,
    release: &str,
) -> anyhow::Result<()> {
    if is_helm_release(cluster, namespace, release).await? {
        bail!(Failure::Input(format!(
            "namespace {namespace} has an extension that Helm installed: use `helm upgrade`, or --ignore-cluster to render anyway"
        )));
    }
    Ok(())
}

/// Waits until the controllers that a meshed pod needs are available.
pub(crate) async fn wait_for_controllers(cluster: &Cluster, wait: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + wait;
    let namespace = &cluster.control_namespace;
    let scope = Scope::Namespace(namespace.clone());
    let mut progress = Progress::new("waiting for the controllers");
    loop {
        let deployments = cluster.list::<Deployment>(&scope, ListParams::default());
        let deployments = progress.run(deployments).await;
        let deployments =
            deployments.map_err(|error| error::failed("list the controllers", error))?;
        let missing = unavailable(&deployments);
        if missing.is_empty() {
            progress.clear();
            return Ok(());
        }
        let missing = missing.join(", ");
        if Instant::now() >= deadline {
            progress.clear();
            bail!(Failure::TimedOut(format!(
                "{missing} in namespace {namespace} not available, so pods of the extension would get no proxy: `meshctl check` says why; --ignore-cluster renders anyway"
            )));
        }
        progress.set_text(&format!("waiting for {missing}"));
        progress.run(tokio::time::sleep(RETRY_INTERVAL)).await;
    }
}

/// The time between two queries; each takes as long as a list of Deployments.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Without the first two a proxy does not start, and without the last one a pod gets none.
const CONTROLLERS: [&str; 3] = [
    "linkerd-destination",
    "linkerd-identity",
    "linkerd-proxy-injector",
];

/// Returns the controllers without an available replica.
fn unavailable(deployments: &[Deployment]) -> Vec<&'static str> {
    let is_available = |name: &&str| {
        deployments.iter().any(|deployment| {
            let status = deployment.status.as_ref();
            let replicas = status.and_then(|status| status.available_replicas);
            deployment.metadata.name.as_deref() == Some(name) && replicas > Some(0)
        })
    };
    let missing = CONTROLLERS.into_iter().filter(|name| !is_available(name));
    missing.collect()
}

/// Returns the values of the installation.
pub(crate) async fn stored_overrides(cluster: &Cluster) -> anyhow::Result<Overrides> {
    let namespace = &cluster.control_namespace;
    let Some(secret) = control::<Secret>(cluster, overrides::NAME).await? else {
        if !is_installed(cluster).await? {
            bail!(
                "namespace {namespace} has no mesh to upgrade: use `meshctl install`, or -L for another namespace"
            );
        }
        bail!(
            "namespace {namespace} has a mesh that Helm installed (it has no Secret {}): use `helm upgrade`",
            overrides::NAME
        );
    };
    let bytes = secret
        .data
        .as_ref()
        .and_then(|data| data.get(overrides::NAME));
    let bytes = bytes.ok_or_else(|| {
        anyhow!(
            "Secret {0} of namespace {namespace} has no key {0}",
            overrides::NAME
        )
    })?;
    let text = String::from_utf8(bytes.0.clone());
    Ok(Overrides::stored(text.map_err(|_not_text| {
        anyhow!(
            "Secret {} of namespace {namespace} is not valid UTF-8",
            overrides::NAME
        )
    })?))
}

/// Returns the trust anchors of the proxies of this cluster.
pub(crate) async fn trust_anchors(cluster: &Cluster) -> anyhow::Result<Option<String>> {
    let roots = control::<ConfigMap>(cluster, "linkerd-identity-trust-roots").await?;
    let bundle = roots.and_then(|roots| roots.data?.remove("ca-bundle.crt"));
    Ok(bundle)
}

async fn control<K: Namespaced>(cluster: &Cluster, name: &str) -> anyhow::Result<Option<K>> {
    let found = cluster.control_object(name).await;
    found.map_err(|error| {
        error::failed(
            &format!("read {name} in namespace {}", cluster.control_namespace),
            error,
        )
    })
}

/// Returns the value for ports of the API server that differ from the default. The control plane's
/// pods must reach them before they have certificates.
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
    overlay.set("proxyInit.kubeAPIServerPorts", nondefault_ports(ports));
    Ok(overlay.into_value())
}

/// Returns the default ports and `ports`, or `None` if all of these are default ports.
fn nondefault_ports(ports: impl Iterator<Item = i32>) -> Option<String> {
    const DEFAULT: [i32; 2] = [443, 6443];
    let mut all = DEFAULT.to_vec();
    all.extend(ports);
    all.sort_unstable();
    all.dedup();
    let texts: Vec<String> = all.iter().map(i32::to_string).collect();
    (all != DEFAULT).then(|| texts.join(","))
}

fn unreachable(error: kube::Error, server: &str) -> anyhow::Error {
    let text = format!(
        "{}: {server}; --ignore-cluster renders without contacting it",
        error::explain(&error)
    );
    Failure::Unreachable(text).into()
}

#[cfg(test)]
mod tests {
    use kube::Client;
    use mesh_test_support::kube_api::ScriptedApi;
    use serde_json::json;

    use super::*;

    const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/linkerd/deployments";

    fn list(available: [Option<i32>; 3]) -> Value {
        let items = CONTROLLERS.iter().zip(available).map(|(name, replicas)| {
            json!({
                "metadata": { "name": name, "namespace": "linkerd" },
                "status": { "availableReplicas": replicas },
            })
        });
        let items: Vec<Value> = items.collect();
        json!({ "apiVersion": "apps/v1", "kind": "DeploymentList", "metadata": {}, "items": items })
    }

    #[tokio::test(start_paused = true)]
    async fn controllers_are_awaited_for_the_given_time() {
        let api = ScriptedApi::default();
        let cluster = Cluster::played(Client::new(api.service("meshctl"), "default"));
        api.put(DEPLOYMENTS, list([Some(1), None, Some(0)]));
        let start = Instant::now();
        let wait = Duration::from_secs(30);
        let error = wait_for_controllers(&cluster, wait).await.unwrap_err();
        let missing = "linkerd-identity, linkerd-proxy-injector in namespace linkerd";
        assert!(error.to_string().contains(missing), "{error}");
        assert!(matches!(error.downcast_ref(), Some(Failure::TimedOut(_))));
        let waited = start.elapsed();
        assert!(
            waited >= wait && waited < wait + RETRY_INTERVAL,
            "{waited:?}"
        );
        let become_ready = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            api.put(DEPLOYMENTS, list([Some(1); 3]));
        };
        let (awaited, ()) = tokio::join!(wait_for_controllers(&cluster, wait), become_ready);
        awaited.unwrap();
        assert!(start.elapsed() < waited + Duration::from_secs(10));
    }

    #[test]
    fn default_ports_need_no_value() {
        assert_eq!(nondefault_ports([443, 6443].into_iter()), None);
        assert_eq!(nondefault_ports([].into_iter()), None);
        assert_eq!(
            nondefault_ports([443, 16443].into_iter()).as_deref(),
            Some("443,6443,16443")
        );
    }
}
