//! `ExternalWorkload`: a workload of the mesh outside of the cluster.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The spec of an `ExternalWorkload`. It is serialized as `v1beta1`; `v1alpha1`, which spells a
/// field differently, is read as well.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "workload.linkerd.io",
    version = "v1beta1",
    kind = "ExternalWorkload",
    namespaced,
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct ExternalWorkloadSpec {
    /// How clients authenticate the workload.
    #[serde(rename = "meshTLS", alias = "meshTls")]
    pub mesh_tls: MeshTls,
    /// The addresses of the workload, one for each address family.
    #[serde(
        default,
        rename = "workloadIPs",
        skip_serializing_if = "Option::is_none"
    )]
    pub workload_ips: Option<Vec<WorkloadIp>>,
    /// The ports of the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<WorkloadPort>>,
}

/// How clients authenticate a workload.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MeshTls {
    /// The identity of the workload: a DNS name or a `spiffe://` URI.
    pub identity: String,
    /// The server name that clients send in TLS.
    pub server_name: String,
}

/// An address of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct WorkloadIp {
    /// An IPv4 or IPv6 address.
    pub ip: String,
}

/// A port of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct WorkloadPort {
    /// The name of the port, for Servers and Services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A port number from 1 to 65535.
    pub port: u16,
    /// `TCP` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

impl WorkloadPort {
    /// Returns whether the protocol of the port is TCP, the default.
    pub fn is_tcp(&self) -> bool {
        matches!(self.protocol.as_deref(), None | Some("" | "TCP"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_of_mesh_tls_are_read() {
        for field in ["meshTls", "meshTLS"] {
            let text = format!(
                "metadata: {{name: vm}}\nspec: {{{field}: {{identity: 'spiffe://example.org/vm', serverName: vm}}, \
                 workloadIPs: [{{ip: 192.0.2.1}}], ports: [{{name: http, port: 80}}, {{port: 53, protocol: UDP}}]}}"
            );
            let read: ExternalWorkload = serde_norway::from_str(&text).unwrap();
            assert_eq!(read.spec.mesh_tls.server_name, "vm");
            let tcp: Vec<bool> = read
                .spec
                .ports
                .iter()
                .flatten()
                .map(WorkloadPort::is_tcp)
                .collect();
            assert_eq!(tcp, [true, false]);
            let written = serde_json::to_value(&read).unwrap();
            assert_eq!(written["spec"]["meshTLS"]["serverName"], "vm");
            assert_eq!(written["spec"]["workloadIPs"][0]["ip"], "192.0.2.1");
        }
    }
}
