//! `ServerAuthorization`: which clients are authorized to connect to Servers. It is older than
//! `AuthorizationPolicy`, and applies beside it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Network, Server};
use crate::select;

/// The spec of a `ServerAuthorization`: clients that match `client` are authorized to connect to
/// the Servers. It is serialized as `v1beta1`; `v1alpha1` has the same fields.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "policy.linkerd.io",
    version = "v1beta1",
    kind = "ServerAuthorization",
    shortname = "saz",
    shortname = "serverauthz",
    shortname = "srvauthz",
    namespaced,
    derive = "PartialEq"
)]
pub struct ServerAuthorizationSpec {
    /// The Servers of the same namespace.
    pub server: ServerSelector,
    /// The authorized clients.
    pub client: ClientSelector,
}

/// Selects Servers either by name or by labels.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub struct ServerSelector {
    /// The name of the only Server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The labels of the Servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// The clients in one of the networks that are authenticated as required.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientSelector {
    /// The networks of the clients; the cluster's networks if absent or empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<Network>>,
    /// Whether clients need no authentication.
    #[serde(default)]
    pub unauthenticated: bool,
    /// The authentication by TLS of the mesh that clients need.
    #[serde(default, rename = "meshTLS", skip_serializing_if = "Option::is_none")]
    pub mesh_tls: Option<MeshTlsSelector>,
}

/// Authentication by TLS of the mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MeshTlsSelector {
    /// Whether clients need no identity.
    #[serde(default, rename = "unauthenticatedTLS")]
    pub unauthenticated_tls: bool,
    /// Identities, as in a `MeshTLSAuthentication`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identities: Option<Vec<String>>,
    /// ServiceAccounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_accounts: Option<Vec<ServiceAccountRef>>,
}

/// A ServiceAccount; without `namespace` in the namespace of the referring object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub struct ServiceAccountRef {
    /// The name of the ServiceAccount.
    pub name: String,
    /// The namespace of the ServiceAccount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl ServerAuthorization {
    /// Returns whether it selects a Server. One that has both a name and a selector, or neither, is
    /// invalid and selects none.
    pub fn selects(&self, server: &Server) -> bool {
        let ServerSelector { name, selector } = &self.spec.server;
        self.metadata.namespace == server.metadata.namespace
            && match (name, selector) {
                (Some(name), None) => server.metadata.name.as_ref() == Some(name),
                (None, Some(selector)) => {
                    select::matches(selector, server.metadata.labels.as_ref())
                }
                (None, None) | (Some(_), Some(_)) => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read_and_the_newer_is_written() {
        for version in ["v1alpha1", "v1beta1"] {
            let text = format!(
                "apiVersion: policy.linkerd.io/{version}\nkind: ServerAuthorization\nmetadata: {{name: web}}\n\
                 spec:\n  server: {{selector: {{matchLabels: {{app: web}}}}}}\n  client:\n    networks: [{{cidr: 10.0.0.0/8}}]\n    \
                 meshTLS: {{unauthenticatedTLS: false, identities: ['*'], serviceAccounts: [{{name: web, namespace: shop}}]}}\n"
            );
            let read: ServerAuthorization = serde_norway::from_str(&text).unwrap();
            let tls = read.spec.client.mesh_tls.as_ref().unwrap();
            assert_eq!(tls.identities.as_deref(), Some(&["*".to_owned()][..]));
            let accounts = tls.service_accounts.as_ref().unwrap();
            assert_eq!(accounts[0].namespace.as_deref(), Some("shop"));
            let written = serde_json::to_value(&read).unwrap();
            assert_eq!(written["apiVersion"], "policy.linkerd.io/v1beta1");
            assert_eq!(written["spec"]["client"]["meshTLS"]["identities"][0], "*");
        }
    }
}
