//! What the credentials of a Link show of its target cluster. The mirror controller has no others,
//! so that none are used here.

use std::time::Duration;

use kube::api::PostParams;
use kube::{Api, Client};
use mesh_cluster::api_server::LinkedKubeconfig;
use mesh_core::rights::{self, Right};
use mesh_k8s::crd::Link;
use mesh_k8s::crd::link::CREDENTIALS_KEY;
use mesh_k8s::kinds::authorization::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use mesh_k8s::kinds::{ConfigMap, ResourceExt, Secret};
use serde_json::Value;

use crate::certificate::read_pem;
use crate::cluster::Cluster;
use crate::cluster::error::to_fact;
use crate::facts::names::{BUNDLE_KEY, TRUST_ROOTS};
use crate::facts::{Fact, Target};

/// The ConfigMap with the values of a mesh.
const CONFIG: &str = "linkerd-config";

pub(super) async fn query(cluster: &Cluster, link: &Link, timeout: Duration) -> Fact<Target> {
    let client = client(cluster, link).await?;
    let target = tokio::time::timeout(timeout, ask(&client, link)).await;
    target.unwrap_or_else(|_elapsed| Err(format!("no response within {timeout:?}")))
}

/// Returns a client of the target cluster.
async fn client(cluster: &Cluster, link: &Link) -> Fact<Client> {
    let namespace = link.namespace().unwrap_or_default();
    let name = &link.spec.cluster_credentials_secret;
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), &namespace);
    let secret = format!("Secret {namespace}/{name}");
    let found = to_fact(&format!("read {secret}"), secrets.get_opt(name).await)?;
    let found = found.ok_or_else(|| format!("{secret} does not exist"))?;
    let data = found
        .data
        .as_ref()
        .and_then(|data| data.get(CREDENTIALS_KEY));
    let data = data.ok_or_else(|| format!("{secret} has no key {CREDENTIALS_KEY}"))?;
    let text = str::from_utf8(&data.0)
        .map_err(|_invalid| format!("{secret}: {CREDENTIALS_KEY} is not UTF-8"))?;
    let connect = async {
        let kubeconfig = LinkedKubeconfig::read(text)?;
        kubeconfig.connect("meshctl", rights()).await
    };
    let client = connect.await.map_err(anyhow::Error::from);
    client.map_err(|error| format!("{secret}: {CREDENTIALS_KEY} {error:#}"))
}

fn rights() -> Vec<Right> {
    let reviews = rights::all(
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        &["create"],
    );
    reviews
        .chain(rights::all("", "configmaps", &["get"]))
        .collect()
}

async fn ask(client: &Client, link: &Link) -> Fact<Target> {
    let version = to_fact("reach its API server", client.apiserver_version().await)?;
    let namespace = &link.spec.target_cluster_linkerd_namespace;
    Ok(Target {
        version: version.git_version,
        denied: denied(client).await,
        anchors: anchors(client, namespace).await,
    })
}

/// Returns which rights on Services the credentials lack, without which nothing is mirrored.
async fn denied(client: &Client) -> Fact<Vec<String>> {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut denied = Vec::new();
    for verb in ["get", "list", "watch"] {
        let attributes = ResourceAttributes {
            resource: Some("services".to_owned()),
            verb: Some(verb.to_owned()),
            ..ResourceAttributes::default()
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..Default::default()
            },
            ..Default::default()
        };
        let created = api.create(&PostParams::default(), &review).await;
        let review = to_fact("query the permissions of the credentials", created)?;
        if !review.status.is_some_and(|status| status.allowed) {
            denied.push(format!("{verb} services"));
        }
    }
    Ok(denied)
}

/// Returns the trust anchors that the identity service of the target uses, or else those in the
/// values of its mesh: credentials of Linkerd may read only these.
async fn anchors(client: &Client, namespace: &str) -> Fact<Vec<Vec<u8>>> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let roots = maps.get_opt(TRUST_ROOTS).await;
    if let Ok(Some(roots)) = &roots
        && let Some(bundle) = roots.data.as_ref().and_then(|data| data.get(BUNDLE_KEY))
    {
        return read_pem(bundle.as_bytes(), &format!("its ConfigMap {TRUST_ROOTS}"));
    }
    let config = to_fact(
        &format!("read its ConfigMap {CONFIG}"),
        maps.get_opt(CONFIG).await,
    )?;
    let config = config.ok_or_else(|| format!("its namespace {namespace} has no {CONFIG}"))?;
    let values = config.data.as_ref().and_then(|data| data.get("values"));
    let values = values.ok_or_else(|| format!("its ConfigMap {CONFIG} has no key \"values\""))?;
    let values: Value = serde_norway::from_str(values)
        .map_err(|error| format!("the values of its ConfigMap {CONFIG}: {error}"))?;
    let pem = values["identityTrustAnchorsPEM"]
        .as_str()
        .unwrap_or_default();
    if pem.is_empty() {
        let reason = to_fact(&format!("read its ConfigMap {TRUST_ROOTS}"), roots);
        return Err(reason.err().unwrap_or_else(|| {
            format!("its namespace {namespace} has no ConfigMap {TRUST_ROOTS}")
        }));
    }
    read_pem(pem.as_bytes(), &format!("its ConfigMap {CONFIG}"))
}
