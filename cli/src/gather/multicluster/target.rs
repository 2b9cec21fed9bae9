//! What the credentials of a Link show of its target cluster. The mirror controller has no others,
//! so that none are used here.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kube::api::{ListParams, PostParams};
use kube::client::Body;
use kube::{Api, Client};
use mesh_cluster::api_server::{LinkedKubeconfig, LinkedKubeconfigError};
use mesh_cluster::source::kube::kinds;
use mesh_core::annotation::GATEWAY_IDENTITY;
use mesh_core::identity::trust_domain;
use mesh_core::rights::{self, Right, service_mirror};
use mesh_k8s::crd::Link;
use mesh_k8s::crd::link::CREDENTIALS_KEY;
use mesh_k8s::kinds::authorization::{SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use mesh_k8s::kinds::{ConfigMap, ResourceExt, Secret, Service};
use serde_json::Value;

use super::access;
use crate::certificate::read_pem;
use crate::clients;
use crate::cluster::error::to_fact;
use crate::cluster::{Cluster, clock};
use crate::facts::names::{BUNDLE_KEY, TRUST_ROOTS};
use crate::facts::{Fact, Target, TargetMesh, fact_ref};

/// The ConfigMap with the values of a mesh.
const CONFIG: &str = "linkerd-config";

pub(super) async fn query(cluster: &Cluster, link: &Link, timeout: Duration) -> Fact<Target> {
    let (client, server) = client(cluster, link).await?;
    let target = tokio::time::timeout(timeout, ask(&client, &server, link)).await;
    target.unwrap_or_else(|_elapsed| Err(format!("no response of {server} within {timeout:?}")))
}

/// Returns a client of the target cluster, and the URL of its API server.
async fn client(cluster: &Cluster, link: &Link) -> Fact<(Client, String)> {
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
        let client = kubeconfig.connect("meshctl", rights()).await?;
        Ok::<_, LinkedKubeconfigError>((client, kubeconfig.server()))
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
        .chain(rights::all("", "services", &["list"]))
        .collect()
}

async fn ask(client: &Client, server: &str, link: &Link) -> Fact<Target> {
    let (version, clock_ahead) = version(client, server).await?;
    let namespace = &link.spec.target_cluster_linkerd_namespace;
    let config = async {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let found = maps.get_opt(CONFIG).await;
        to_fact(&format!("read its ConfigMap {CONFIG}"), found)
    };
    let (config, denied, gateways) = tokio::join!(config, denied(client, link), gateways(client));
    let values = values(&config, namespace);
    Ok(Target {
        version,
        denied,
        anchors: anchors(client, namespace, &values).await,
        clock_ahead,
        mesh: mesh(&config, &values),
        gateways,
    })
}

/// Returns the version of the API server, and how many seconds its clock is ahead.
async fn version(client: &Client, server: &str) -> Fact<(String, Option<i64>)> {
    let what = format!("reach its API server {server}");
    let request = http::Request::get("/version").body(Body::empty());
    let request = request.map_err(|error| error.to_string())?;
    let response = match client.send(request).await {
        Ok(response) if response.status() == http::StatusCode::UNAUTHORIZED => {
            return Err(format!(
                "its API server {server} refuses the credentials (401): they were revoked, or are of another cluster"
            ));
        }
        response => to_fact(&what, response)?,
    };
    let ahead = clock::of(response.headers()).and_then(ahead);
    let version = to_fact(&what, client.apiserver_version().await)?;
    Ok((version.git_version, ahead))
}

fn ahead(clock: u64) -> Option<i64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    clock.checked_signed_diff(now)
}

/// Returns which rights of a mirror controller the credentials lack, and of the destination
/// controller if the Link is for it as well.
async fn denied(client: &Client, link: &Link) -> Fact<Vec<String>> {
    let discovers = link.spec.discovers_endpoints();
    let discovery = discovers.then(kinds::remote_rights);
    let mut needed: Vec<Right> = service_mirror::target().collect();
    for right in discovery.into_iter().flatten() {
        if !needed.contains(&right) {
            needed.push(right);
        }
    }
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let reviews = needed.iter().map(|right| {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(access::attributes(right, None)),
                ..Default::default()
            },
            ..Default::default()
        };
        let api = &api;
        async move {
            let created = api.create(&PostParams::default(), &review).await;
            let review = to_fact("query the permissions of the credentials", created)?;
            let is_allowed = review.status.is_some_and(|status| status.allowed);
            Ok((!is_allowed).then(|| right.to_string()))
        }
    });
    let denied: Fact<Vec<Option<String>>> =
        clients::concurrently(reviews).await.into_iter().collect();
    Ok(denied?.into_iter().flatten().collect())
}

/// Returns the Services with the annotations of a gateway.
async fn gateways(client: &Client) -> Fact<Vec<Service>> {
    let what = "list its Services";
    let all: Api<Service> = Api::all(client.clone());
    let listed = to_fact(what, all.list_metadata(&ListParams::default()).await)?;
    let is_gateway = |meta: &&kube::core::PartialObjectMeta<Service>| {
        meta.annotations().contains_key(GATEWAY_IDENTITY)
    };
    let mut gateways = Vec::new();
    for meta in listed.iter().filter(is_gateway) {
        let namespace = meta.namespace().unwrap_or_default();
        let named = ListParams::default().fields(&format!("metadata.name={}", meta.name_any()));
        let services: Api<Service> = Api::namespaced(client.clone(), &namespace);
        gateways.extend(to_fact(what, services.list(&named).await)?);
    }
    Ok(gateways)
}

/// Returns the values of the mesh.
fn values(config: &Fact<Option<ConfigMap>>, namespace: &str) -> Fact<Value> {
    let config = fact_ref(config)?.as_ref();
    let config = config.ok_or_else(|| format!("its namespace {namespace} has no {CONFIG}"))?;
    let values = config.data.as_ref().and_then(|data| data.get("values"));
    let values = values.ok_or_else(|| format!("its ConfigMap {CONFIG} has no key \"values\""))?;
    serde_norway::from_str(values)
        .map_err(|error| format!("the values of its ConfigMap {CONFIG}: {error}"))
}

fn mesh(config: &Fact<Option<ConfigMap>>, values: &Fact<Value>) -> Fact<TargetMesh> {
    let values = fact_ref(values)?;
    let text = |key: &str| values[key].as_str().unwrap_or_default();
    let domain = match text("clusterDomain") {
        "" => "cluster.local",
        domain => domain,
    };
    let id = config.as_ref().ok().and_then(Option::as_ref);
    Ok(TargetMesh {
        id: id
            .and_then(|it| it.metadata.uid.clone())
            .unwrap_or_default(),
        cluster_domain: domain.to_owned(),
        trust_domain: trust_domain(text("identityTrustDomain"), domain).to_owned(),
    })
}

/// Returns the trust anchors that the identity service of the target uses, or else those in the
/// values of its mesh: credentials of Linkerd may read only these.
async fn anchors(client: &Client, namespace: &str, values: &Fact<Value>) -> Fact<Vec<Vec<u8>>> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let roots = maps.get_opt(TRUST_ROOTS).await;
    if let Ok(Some(roots)) = &roots
        && let Some(bundle) = roots.data.as_ref().and_then(|data| data.get(BUNDLE_KEY))
    {
        return read_pem(bundle.as_bytes(), &format!("its ConfigMap {TRUST_ROOTS}"));
    }
    let pem = fact_ref(values)?["identityTrustAnchorsPEM"]
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
