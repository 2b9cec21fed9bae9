//! A Kubernetes cluster: its client, its objects and connections to its pods. Ports of pods are
//! reached through the API server's port-forward, without kubectl and without a listener on this
//! machine.

pub(crate) mod agent;
pub(crate) mod clock;
pub(crate) mod error;
pub(crate) mod extension;
mod forward;
pub(crate) mod gateway;
pub(crate) mod json;
pub(crate) mod kubeconfig;
pub(crate) mod mirrors;
pub(crate) mod service;
pub(crate) mod tap;
pub(crate) mod trust_bundles;
mod viz;

use std::fmt::Debug;

use anyhow::Context as _;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client};
use mesh_k8s::inject::{TRUST_ROOTS_CONFIG_MAP, TRUST_ROOTS_KEY};
use mesh_k8s::kinds::{ConfigMap, Job, ObjectMeta, Pod, ReplicaSet, Resource};
use mesh_k8s::values::Values;
use serde::de::DeserializeOwned;

use crate::exit::Failure;
use crate::global::Global;
use crate::resource::{MeshPod, Scope};

pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) context: String,
    /// The API server's URL.
    pub(crate) server: String,
    /// The namespace of the context.
    pub(crate) namespace: String,
    pub(crate) control_namespace: String,
}

/// A kind of objects in namespaces.
pub(crate) trait Namespaced:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned
{
}

impl<K> Namespaced for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned
{
}

/// Maximum number of objects in one response. Pages limit the memory that the API server needs for
/// the lists of a large cluster.
const PAGE_SIZE: u32 = 500;

#[cfg(test)]
impl Cluster {
    /// Returns a cluster whose API server a test plays.
    pub(crate) fn played(client: Client) -> Self {
        Self {
            client,
            context: "test".to_owned(),
            server: "https://test".to_owned(),
            namespace: "default".to_owned(),
            control_namespace: "linkerd".to_owned(),
        }
    }
}

impl Cluster {
    /// Reads the kubeconfig and creates a client. Sends no request to the API server.
    pub(crate) async fn connect(global: &Global) -> anyhow::Result<Self> {
        let (context, mut config) = kubeconfig::config(global).await?;
        if let Some(user) = &global.act_as {
            config.auth_info.impersonate = Some(user.clone());
        }
        if !global.act_as_groups.is_empty() {
            config.auth_info.impersonate_groups = Some(global.act_as_groups.clone());
        }
        let server = config.cluster_url.to_string();
        let namespace = config.default_namespace.clone();
        let client = Client::try_from(config)
            .map_err(|error| Failure::Input(format!("context {context}: {error}")))?;
        Ok(Self {
            client,
            context,
            server: server.trim_end_matches('/').to_owned(),
            namespace,
            control_namespace: global.linkerd_namespace.clone(),
        })
    }

    /// Lists the objects of a kind in a scope.
    pub(crate) async fn list<K: Namespaced>(
        &self,
        scope: &Scope,
        params: ListParams,
    ) -> kube::Result<Vec<K>> {
        pages(&self.api(scope), params).await
    }

    /// Lists the objects of a kind in several namespaces.
    pub(crate) async fn list_within<K: Namespaced>(
        &self,
        namespaces: &[String],
        params: ListParams,
    ) -> kube::Result<Vec<K>> {
        let mut found = Vec::new();
        for namespace in namespaces {
            let scope = Scope::Namespace(namespace.clone());
            found.extend(self.list(&scope, params.clone()).await?);
        }
        Ok(found)
    }

    fn api<K: Namespaced>(&self, scope: &Scope) -> Api<K> {
        match scope.namespace() {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    /// Lists the objects of a cluster-scoped kind, or of a namespaced kind in all namespaces.
    pub(crate) async fn list_all<K>(&self) -> kube::Result<Vec<K>>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        pages(&Api::all(self.client.clone()), ListParams::default()).await
    }

    /// Returns an object of the control plane's namespace, if it exists.
    pub(crate) async fn control_object<K: Namespaced>(
        &self,
        name: &str,
    ) -> kube::Result<Option<K>> {
        let api = Api::namespaced(self.client.clone(), &self.control_namespace);
        api.get_opt(name).await
    }

    pub(crate) async fn pods(&self, scope: &Scope) -> anyhow::Result<Vec<MeshPod>> {
        let failed = |error| error::failed("list the pods", error);
        let (pods, owners) = tokio::join!(
            self.list::<Pod>(scope, ListParams::default()),
            self.owners(scope)
        );
        let (pods, owners) = (pods.map_err(failed)?, owners.map_err(failed)?);
        Ok(pods.iter().map(|pod| MeshPod::new(pod, &owners)).collect())
    }

    /// Returns the metadata of the ReplicaSets and Jobs that may own a pod on behalf of a workload.
    pub(crate) async fn owners(&self, scope: &Scope) -> kube::Result<Vec<ObjectMeta>> {
        let (sets, jobs) = tokio::join!(
            self.metadata::<ReplicaSet>(scope),
            self.metadata::<Job>(scope)
        );
        let mut owners = sets?;
        owners.extend(jobs?);
        Ok(owners)
    }

    /// Returns the chart values that ConfigMap linkerd-config records.
    pub(crate) async fn values(&self) -> anyhow::Result<Values> {
        let config = self.control_object::<ConfigMap>("linkerd-config").await;
        let config = config
            .map_err(|error| error::failed("read ConfigMap linkerd-config", error))?
            .ok_or_else(|| {
                Failure::Unreachable(format!(
                    "namespace {} has no ConfigMap linkerd-config: is the mesh installed there? -L selects another namespace",
                    self.control_namespace
                ))
            })?;
        let text = config.data.as_ref().and_then(|data| data.get("values"));
        let text = text.context("ConfigMap linkerd-config has no key \"values\"")?;
        let values = serde_norway::from_str(text)
            .context("the values of ConfigMap linkerd-config are not YAML")?;
        Values::of_installation(values, &self.control_namespace)
            .context("read the values of ConfigMap linkerd-config")
    }

    /// Returns the namespace of the node agents, or the chart's default if the values cannot be
    /// read.
    pub(crate) async fn agent_namespace(&self) -> String {
        let values = self.values().await.unwrap_or_default();
        values.agent_namespace().to_owned()
    }

    /// Returns the trust anchors that the identity service uses, in PEM.
    pub(crate) async fn trust_anchors(&self) -> anyhow::Result<String> {
        let what = format!("read ConfigMap {TRUST_ROOTS_CONFIG_MAP}");
        let map = self.control_object::<ConfigMap>(TRUST_ROOTS_CONFIG_MAP);
        let map = map.await.map_err(|error| error::failed(&what, error))?;
        let bundle = map.and_then(|map| map.data?.remove(TRUST_ROOTS_KEY));
        bundle.with_context(|| {
            format!(
                "namespace {} has no ConfigMap {TRUST_ROOTS_CONFIG_MAP} with key {TRUST_ROOTS_KEY}; `meshctl check` shows the repair",
                self.control_namespace
            )
        })
    }

    async fn metadata<K: Namespaced>(&self, scope: &Scope) -> kube::Result<Vec<ObjectMeta>> {
        let api = self.api::<K>(scope);
        let list = api.list_metadata(&ListParams::default()).await?;
        Ok(list.items.into_iter().map(|item| item.metadata).collect())
    }
}

async fn pages<K>(api: &Api<K>, params: ListParams) -> kube::Result<Vec<K>>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut params = params.limit(PAGE_SIZE);
    let mut items = Vec::new();
    loop {
        let page = api.list(&params).await?;
        items.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(items),
        }
    }
}

/// Returns whether `KUBECONFIG` is set.
pub(crate) fn kubeconfig_in_environment() -> bool {
    std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty())
}

/// Returns whether a kubeconfig exists or this process runs in a pod.
pub(crate) fn is_configured() -> bool {
    let default = std::env::home_dir().map(|home| home.join(".kube/config"));
    kubeconfig_in_environment() || default.is_some_and(|path| path.exists()) || in_cluster()
}

fn in_cluster() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}
