//! `Server`: a port of the workloads that match a selector.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use mesh_core::policy::inbound::DefaultPolicy;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};

/// The spec of a `Server`. It is serialized as `v1beta3`; `v1alpha1` and `v1beta1` (without access
/// policy and ExternalWorkloads) and `v1beta2` are read as well.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "policy.linkerd.io",
    version = "v1beta3",
    kind = "Server",
    shortname = "srv",
    namespaced,
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct ServerSpec {
    /// The pods that the Server selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    /// The ExternalWorkloads that the Server selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_workload_selector: Option<LabelSelector>,
    /// The port of the selected workloads.
    pub port: PortRef,
    /// The protocol of connections to the port.
    #[serde(default)]
    pub proxy_protocol: ProxyProtocol,
    /// The policy for clients that no authorization matches.
    #[serde(default = "access_policy::default", with = "access_policy")]
    #[schemars(with = "String")]
    pub access_policy: DefaultPolicy,
}

/// A port, by number or by the name of a container port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(untagged)]
pub enum PortRef {
    /// A port number from 1 to 65535.
    Number(u16),
    /// The name of a container port.
    Name(String),
}

/// The protocol of a Server's port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum ProxyProtocol {
    /// The proxy detects the protocol of each connection.
    #[default]
    #[serde(rename = "unknown")]
    Unknown,
    /// HTTP/1.0 or HTTP/1.1.
    #[serde(rename = "HTTP/1")]
    Http1,
    /// HTTP/2.
    #[serde(rename = "HTTP/2")]
    Http2,
    /// gRPC, which is HTTP/2 with gRPC routes.
    #[serde(rename = "gRPC")]
    Grpc,
    /// TCP, without protocol detection.
    #[serde(rename = "opaque")]
    Opaque,
    /// TLS that the application terminates.
    #[serde(rename = "TLS")]
    Tls,
}

impl fmt::Display for PortRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(port) => port.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl<'de> Deserialize<'de> for PortRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PortRefVisitor)
    }
}

impl JsonSchema for PortRef {
    fn schema_name() -> Cow<'static, str> {
        "PortRef".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true })
    }
}

struct PortRefVisitor;

impl de::Visitor<'_> for PortRefVisitor {
    type Value = PortRef;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a port number (1-65535) or the name of a container port")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<PortRef, E> {
        match u16::try_from(value) {
            Ok(port) if port > 0 => Ok(PortRef::Number(port)),
            _ => Err(E::invalid_value(de::Unexpected::Unsigned(value), &self)),
        }
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<PortRef, E> {
        match u64::try_from(value) {
            Ok(value) => self.visit_u64(value),
            Err(_) => Err(E::invalid_value(de::Unexpected::Signed(value), &self)),
        }
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<PortRef, E> {
        if value.is_empty() {
            return Err(E::invalid_value(de::Unexpected::Str(value), &self));
        }
        Ok(PortRef::Name(value.to_owned()))
    }
}

mod access_policy {
    use mesh_core::policy::inbound::DefaultPolicy;
    use serde::{Deserialize, Deserializer, Serializer, de};

    /// A Server denies clients that no authorization matches, unless its spec sets another policy.
    pub(super) fn default() -> DefaultPolicy {
        DefaultPolicy::Deny
    }

    pub(super) fn serialize<S: Serializer>(
        policy: &DefaultPolicy,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(policy.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<DefaultPolicy, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(text: &str) -> Result<Server, serde_norway::Error> {
        serde_norway::from_str(text)
    }

    #[test]
    fn old_version_gets_defaults_of_missing_fields() {
        let server = server(
            "apiVersion: policy.linkerd.io/v1beta1\nkind: Server\nmetadata: {name: web, namespace: shop}\n\
             spec: {podSelector: {matchLabels: {app: web}}, port: http}",
        )
        .unwrap();
        assert_eq!(server.spec.port, PortRef::Name("http".into()));
        assert_eq!(server.spec.proxy_protocol, ProxyProtocol::Unknown);
        assert_eq!(server.spec.access_policy, DefaultPolicy::Deny);
    }

    #[test]
    fn newest_version_is_read_and_written() {
        let server = server(
            "apiVersion: policy.linkerd.io/v1beta3\nkind: Server\nmetadata: {name: web}\n\
             spec: {podSelector: {}, port: 8080, proxyProtocol: HTTP/2, accessPolicy: all-authenticated}",
        )
        .unwrap();
        assert_eq!(server.spec.port, PortRef::Number(8080));
        assert_eq!(server.spec.proxy_protocol, ProxyProtocol::Http2);
        assert_eq!(server.spec.access_policy, DefaultPolicy::AllAuthenticated);
        let written = serde_json::to_value(&server).unwrap();
        assert_eq!(written["apiVersion"], "policy.linkerd.io/v1beta3");
        assert_eq!(written["spec"]["port"], 8080);
    }

    #[test]
    fn invalid_ports_are_rejected() {
        for bad in ["0", "65536", "-1", "\"\"", "[]"] {
            let text = format!("metadata: {{name: web}}\nspec: {{port: {bad}}}");
            assert!(server(&text).is_err(), "{bad}");
        }
    }
}
