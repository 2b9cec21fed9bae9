//! The cluster that links others: Secrets with credentials, Services whose endpoints are in linked
//! clusters, and Links for service mirrors.

use std::fs;
use std::net::SocketAddr;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mesh_core::annotation::{
    CLUSTER_DOMAIN, CLUSTER_NAME, EXPORTED, REMOTE_DISCOVERY, REMOTE_SERVICE, TRUST_DOMAIN,
};
use mesh_test_support::kube_api::ScriptedApi;
use serde_json::{Value, json};

use super::Options;
use crate::kube_api::population::{Population, service_name, service_namespace};

/// The objects of the cluster.
pub(super) struct Own {
    population: Population,
    /// The kubeconfig of each linked cluster.
    kubeconfigs: Vec<String>,
}

/// A Service whose endpoints are in linked clusters.
pub(crate) struct Discovered {
    pub(crate) name: String,
    /// The clusters with a member.
    pub(crate) members: u32,
    kind: Discovery,
}

enum Discovery {
    /// The endpoints of a Service in this cluster.
    Remote(u32),
    /// The endpoints of a Service in all clusters from this one.
    Federated(u32),
}

/// The namespace of Links and their credentials.
pub(crate) const MULTICLUSTER: &str = "linkerd-multicluster";
/// Members of each federated Service but one, which has all clusters.
const MEMBERS: u32 = 10;
/// The members of federated Services: the second Service of each cluster, and the third.
const OF_SOME: u32 = 1;
const OF_ALL: u32 = 2;

/// Returns the name of a linked cluster.
pub(crate) fn cluster_name(number: u32) -> String {
    format!("east-{number}")
}

/// Returns the Services whose endpoints are in linked clusters: for each cluster one with its
/// endpoints, for each ten a federated one, and a federated one with a member in all.
pub(crate) fn discovered(clusters: u32) -> Vec<Discovered> {
    let remote = (0..clusters).map(|cluster| Discovered {
        name: format!("{}-{}", service_name(0), cluster_name(cluster)),
        members: 1,
        kind: Discovery::Remote(cluster),
    });
    let some = (0..clusters).step_by(MEMBERS as usize);
    let some = some.map(|first| Discovered {
        name: format!("{}-federated-{first}", service_name(OF_SOME)),
        members: MEMBERS.min(clusters - first),
        kind: Discovery::Federated(first),
    });
    let all = (clusters > 0).then(|| Discovered {
        name: format!("{}-federated", service_name(OF_ALL)),
        members: clusters,
        kind: Discovery::Federated(0),
    });
    remote.chain(some).chain(all).collect()
}

impl Discovered {
    /// Returns whether it has a member in all of several linked clusters.
    pub(crate) fn is_of_all(&self) -> bool {
        self.name == format!("{}-federated", service_name(OF_ALL))
    }

    fn object(&self) -> Value {
        let mut metadata = json!({
            "name": self.name, "namespace": service_namespace(0), "uid": self.name,
        });
        match self.kind {
            Discovery::Remote(cluster) => {
                metadata["labels"] = json!({
                    REMOTE_DISCOVERY: cluster_name(cluster), REMOTE_SERVICE: service_name(0),
                });
            }
            Discovery::Federated(first) => {
                let of = if self.is_of_all() { OF_ALL } else { OF_SOME };
                let members = (first..first + self.members)
                    .map(|cluster| format!("{}@{}", service_name(of), cluster_name(cluster)));
                let members: Vec<String> = members.collect();
                metadata["annotations"] = json!({ REMOTE_DISCOVERY: members.join(",") });
            }
        }
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {
                "type": "ClusterIP",
                "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
            },
        })
    }
}

impl Own {
    pub(super) fn new(options: &Options, addresses: &[SocketAddr]) -> anyhow::Result<Self> {
        let anchor = options.authority.join("anchor.pem");
        let anchor = fs::read(&anchor).with_context(|| format!("read {}", anchor.display()))?;
        let kubeconfigs = addresses.iter().map(|address| {
            let config = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "east",
                "clusters": [{"name": "east", "cluster": {
                    "server": format!("https://{address}"),
                    "tls-server-name": options.server_name,
                    "certificate-authority-data": STANDARD.encode(&anchor),
                }}],
                // As long as a token of a ServiceAccount.
                "users": [{"name": "mirror", "user": {"token": "t".repeat(1000)}}],
                "contexts": [{"name": "east", "context": {"cluster": "east", "user": "mirror"}}],
            });
            config.to_string()
        });
        Ok(Self {
            population: options.population,
            kubeconfigs: kubeconfigs.collect(),
        })
    }

    /// Returns the objects of a kind that the destination controller reads, by its plural.
    pub(super) fn objects(&self, plural: &str) -> Box<dyn Iterator<Item = Value>> {
        match plural {
            "secrets" => Box::new(self.secrets("linkerd").into_iter()),
            "services" => {
                let clusters = u32::try_from(self.kubeconfigs.len()).unwrap_or(u32::MAX);
                let discovered = discovered(clusters).into_iter().map(|it| it.object());
                Box::new(self.population.services().chain(discovered))
            }
            _ => self.population.objects(plural),
        }
    }

    /// Returns the cluster as service mirrors see it: without Services, until they write some.
    pub(super) fn for_mirrors(&self) -> ScriptedApi {
        let api = ScriptedApi::default();
        let put = |path: &str, object: Value| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            api.put(&format!("{path}/{name}"), object.clone());
        };
        for namespace in self.population.namespaces() {
            put("/api/v1/namespaces", namespace);
        }
        put(
            "/api/v1/namespaces",
            json!({"metadata": {"name": MULTICLUSTER}}),
        );
        for secret in self.secrets(MULTICLUSTER) {
            put(
                &format!("/api/v1/namespaces/{MULTICLUSTER}/secrets"),
                secret,
            );
        }
        for (number, _) in (0..).zip(&self.kubeconfigs) {
            let path =
                format!("/apis/multicluster.linkerd.io/v1alpha3/namespaces/{MULTICLUSTER}/links");
            put(&path, link(&cluster_name(number)));
        }
        api
    }

    fn secrets(&self, namespace: &str) -> Vec<Value> {
        let secrets = (0..).zip(&self.kubeconfigs).map(|(number, kubeconfig)| {
            let cluster = cluster_name(number);
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": "mirror.linkerd.io/remote-kubeconfig",
                "metadata": {
                    "name": credentials(&cluster), "namespace": namespace, "uid": cluster,
                    "labels": {CLUSTER_NAME: cluster},
                    "annotations": {TRUST_DOMAIN: "cluster.local", CLUSTER_DOMAIN: "cluster.local"},
                },
                "data": {"kubeconfig": STANDARD.encode(kubeconfig)},
            })
        });
        secrets.collect()
    }
}

fn credentials(cluster: &str) -> String {
    format!("cluster-credentials-{cluster}")
}

/// Returns the Link of a cluster whose gateway is not probed.
fn link(cluster: &str) -> Value {
    json!({
        "apiVersion": "multicluster.linkerd.io/v1alpha3", "kind": "Link",
        "metadata": {
            "name": cluster, "namespace": MULTICLUSTER, "uid": cluster,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "targetClusterName": cluster, "targetClusterDomain": "cluster.local",
            "targetClusterLinkerdNamespace": "linkerd",
            "clusterCredentialsSecret": credentials(cluster),
            "gatewayAddress": "192.0.2.1", "gatewayPort": "4143",
            "gatewayIdentity": "gateway.linkerd-multicluster.serviceaccount.identity.linkerd.cluster.local",
            "selector": {"matchLabels": {EXPORTED: "true"}},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cluster_is_a_member_of_each_kind_of_service() {
        for clusters in [0, 1, 10, 25, 200] {
            let all = discovered(clusters);
            let of = |is: fn(&Discovered) -> bool| -> u32 {
                all.iter().filter(|it| is(it)).map(|it| it.members).sum()
            };
            assert_eq!(of(|it| matches!(it.kind, Discovery::Remote(_))), clusters);
            assert_eq!(of(Discovered::is_of_all), clusters);
            let some =
                |it: &Discovered| matches!(it.kind, Discovery::Federated(_)) && !it.is_of_all();
            assert_eq!(of(some), clusters, "{clusters}");
        }
    }

    #[test]
    fn federated_service_names_its_members() {
        let all = discovered(12);
        let names =
            |it: &Discovered| it.object()["metadata"]["annotations"][REMOTE_DISCOVERY].clone();
        assert_eq!(names(&all[13]), "web-1@east-10,web-1@east-11");
        assert!(all[14].is_of_all());
    }
}
