//! The file that a machine joins the mesh with: `meshctl machine admit` prints it at a workstation,
//! and `meshctl machine join` sends it to the agent of the machine (docs/adr/0230).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::identity::{Identity, is_dns_label};

/// The `apiVersion` of a join file.
pub const JOIN_API_VERSION: &str = "meshctl/v1";
/// The `kind` of a join file.
pub const JOIN_KIND: &str = "MachineJoin";
/// How the token begins that a machine joins with: `NAME.SECRET` follows.
pub const JOIN_TOKEN: &str = "mesh-join.";
/// How the subject of a token begins that a machine signs for itself: its name follows.
pub const MACHINE_SUBJECT: &str = "system:machine:";
/// The most certificates of a machine: its own, the issuer's, and some above it during a rotation.
pub const MAX_MACHINE_CERTIFICATES: usize = 8;
/// The largest join file, in bytes. It has a few kilobytes, most of them trust anchors.
pub const MAX_JOIN_FILE: usize = 512 * 1024;
/// The most bytes of trust anchors in a join file.
pub const MAX_ANCHORS: usize = 256 * 1024;

/// The most variables for proxies; the injector writes about 60.
const MAX_VARIABLES: usize = 256;
/// The longest value of a variable, in bytes.
const MAX_VALUE: usize = 16 * 1024;
/// The longest token; ours have less than 150 bytes.
const MAX_TOKEN: usize = 512;

/// Returns the token that a machine joins with.
pub fn join_token(machine: &str, secret: &str) -> String {
    format!("{JOIN_TOKEN}{machine}.{secret}")
}

/// What a machine joins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JoinFile {
    /// [`JOIN_API_VERSION`].
    pub api_version: String,
    /// [`JOIN_KIND`].
    pub kind: String,
    /// The name that the machine is admitted by, a DNS label.
    pub machine: String,
    /// The SHA-256 of the public key of the machine, as the ConfigMap has it.
    pub key_sha256: String,
    /// The token, which the ConfigMap has the SHA-256 of.
    pub token: Secret,
    /// When the token expires, as 2026-01-02T03:04:05Z.
    pub token_expires: String,
    /// The mesh.
    pub mesh: MeshSettings,
}

/// What a machine knows of its mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MeshSettings {
    /// The namespace of the control plane.
    pub control_plane_namespace: String,
    /// The trust domain of the mesh.
    pub trust_domain: String,
    /// The identity service.
    pub identity: ServiceAddress,
    /// The destination service.
    pub destination: ServiceAddress,
    /// The policy service.
    pub policy: ServiceAddress,
    /// The trust anchors, in PEM.
    pub trust_anchors: String,
    /// Further variables of all proxies of the machine, as the injector sets them for pods.
    #[serde(default)]
    pub proxy_environment: BTreeMap<String, String>,
}

/// A service of the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceAddress {
    /// HOST:PORT, as the machine reaches it.
    pub address: String,
    /// Its identity, a DNS name.
    pub name: String,
}

/// A text that is not shown in logs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

/// Why a join file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field {field} of the join file {problem}")]
pub struct InvalidJoinFile {
    /// The path of the field.
    pub field: String,
    /// A clause.
    pub problem: String,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl JoinFile {
    /// Checks all fields but the time of the token.
    ///
    /// # Errors
    ///
    /// The first invalid field.
    pub fn validate(&self) -> Result<(), InvalidJoinFile> {
        let version = format!("is {:?}, expected {JOIN_API_VERSION}", self.api_version);
        check(self.api_version == JOIN_API_VERSION, "apiVersion", version)?;
        let kind = format!("is {:?}, expected {JOIN_KIND}", self.kind);
        check(self.kind == JOIN_KIND, "kind", kind)?;
        label("machine", &self.machine)?;
        let digits = "is not a SHA-256 in hexadecimal, 64 digits in lower case";
        check(is_sha256(&self.key_sha256), "keySha256", digits)?;
        let Secret(token) = &self.token;
        let secret = token.strip_prefix(&join_token(&self.machine, ""));
        let is_secret = |secret: &str| {
            !secret.is_empty() && secret.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        check(
            token.len() <= MAX_TOKEN && secret.is_some_and(is_secret),
            "token",
            format!("is not {}", join_token(&self.machine, "SECRET")),
        )?;
        self.mesh.validate()
    }
}

impl MeshSettings {
    fn validate(&self) -> Result<(), InvalidJoinFile> {
        label("mesh.controlPlaneNamespace", &self.control_plane_namespace)?;
        let domain = &self.trust_domain;
        check(
            Identity::parse(domain).is_ok_and(|name| name.as_str() == domain),
            "mesh.trustDomain",
            "is not a domain name in lower case",
        )?;
        for (name, service) in [
            ("identity", &self.identity),
            ("destination", &self.destination),
            ("policy", &self.policy),
        ] {
            service.validate(name)?;
        }
        check(
            self.trust_anchors.len() <= MAX_ANCHORS && is_text(&self.trust_anchors),
            "mesh.trustAnchors",
            format!("is not PEM of at most {} KiB", MAX_ANCHORS / 1024),
        )?;
        let variables = &self.proxy_environment;
        check(
            variables.len() <= MAX_VARIABLES,
            "mesh.proxyEnvironment",
            format!("has more than {MAX_VARIABLES} variables"),
        )?;
        for (name, value) in variables {
            let field = format!("mesh.proxyEnvironment[{name:?}]");
            let problem = "is not a variable of the proxy (LINKERD2_PROXY_… or MESH_PROXY_…)";
            check(is_variable(name), &field, problem)?;
            let problem = format!("is not a text of at most {} KiB", MAX_VALUE / 1024);
            check(value.len() <= MAX_VALUE && is_text(value), &field, problem)?;
        }
        Ok(())
    }
}

impl ServiceAddress {
    fn validate(&self, service: &str) -> Result<(), InvalidJoinFile> {
        check(
            is_host_and_port(&self.address),
            &format!("mesh.{service}.address"),
            format!("is {:?}, expected HOST:PORT", self.address),
        )?;
        check(
            matches!(Identity::parse(&self.name), Ok(Identity::Dns(_))),
            &format!("mesh.{service}.name"),
            format!("is {:?}, expected a DNS name", self.name),
        )
    }
}

/// Returns whether a text is a SHA-256 in hexadecimal, in lower case.
pub fn is_sha256(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == 64 && text.bytes().all(is_digit)
}

/// Returns whether a text is a host and a port, as `10.0.0.7:8080`, `[fd00::7]:8080` or
/// `identity.example.:8080`.
pub fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    let inside = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let is_host = match inside {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => Identity::parse(host.strip_suffix('.').unwrap_or(host)).is_ok(),
    };
    is_port && is_host && !host.contains('/')
}

fn check(is_valid: bool, field: &str, problem: impl Into<String>) -> Result<(), InvalidJoinFile> {
    if is_valid {
        return Ok(());
    }
    Err(InvalidJoinFile {
        field: field.to_owned(),
        problem: problem.into(),
    })
}

fn label(field: &str, text: &str) -> Result<(), InvalidJoinFile> {
    let problem = "is not a DNS label (lower-case letters, digits and '-', at most 63)";
    check(is_dns_label(text), field, problem)
}

fn is_variable(name: &str) -> bool {
    let is_ours = name.starts_with("LINKERD2_PROXY_") || name.starts_with("MESH_PROXY_");
    let mut bytes = name.bytes();
    is_ours
        && name.len() <= 128
        && bytes.all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Returns whether a text can be in an environment file.
fn is_text(text: &str) -> bool {
    text.chars().all(|c| c == '\n' || !c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn file() -> JoinFile {
        let service = |port: u16, name: &str| ServiceAddress {
            address: format!("10.0.0.7:{port}"),
            name: format!("{name}.linkerd.serviceaccount.identity.linkerd.cluster.local"),
        };
        JoinFile {
            api_version: JOIN_API_VERSION.to_owned(),
            kind: JOIN_KIND.to_owned(),
            machine: "db-1".to_owned(),
            key_sha256: KEY.to_owned(),
            token: Secret("mesh-join.db-1.00ff".to_owned()),
            token_expires: "2026-01-02T03:04:05Z".to_owned(),
            mesh: MeshSettings {
                control_plane_namespace: "linkerd".to_owned(),
                trust_domain: "cluster.local".to_owned(),
                identity: service(8080, "linkerd-identity"),
                destination: service(8086, "linkerd-destination"),
                policy: service(8090, "linkerd-destination"),
                trust_anchors: "-----BEGIN CERTIFICATE-----\n".to_owned(),
                proxy_environment: [("LINKERD2_PROXY_LOG".to_owned(), "warn".to_owned())].into(),
            },
        }
    }

    #[test]
    fn every_invalid_field_is_named() {
        file().validate().unwrap();
        type Change = fn(&mut JoinFile);
        let changes: [(&str, Change); 17] = [
            ("apiVersion", |it| it.api_version = "v2".to_owned()),
            ("kind", |it| it.kind = "Unit".to_owned()),
            ("machine", |it| it.machine = "db.1".to_owned()),
            ("keySha256", |it| it.key_sha256 = KEY.to_uppercase()),
            ("token", |it| it.token.0 = "mesh-join.db-2.00ff".to_owned()),
            ("token", |it| it.token.0 = "mesh-join.db-1.".to_owned()),
            ("token", |it| it.token.0.push('\n')),
            ("token", |it| it.token.0.push_str(&"a".repeat(MAX_TOKEN))),
            ("mesh.controlPlaneNamespace", |it| {
                it.mesh.control_plane_namespace.clear();
            }),
            ("mesh.trustDomain", |it| {
                it.mesh.trust_domain = "A.example".to_owned();
            }),
            ("mesh.identity.address", |it| {
                it.mesh.identity.address = "10.0.0.7".to_owned();
            }),
            ("mesh.destination.name", |it| {
                it.mesh.destination.name = "spiffe://a/b".to_owned();
            }),
            ("mesh.policy.address", |it| {
                it.mesh.policy.address = "a b:1".to_owned();
            }),
            ("mesh.trustAnchors", |it| {
                it.mesh.trust_anchors = "a".repeat(MAX_ANCHORS + 1);
            }),
            ("mesh.proxyEnvironment[\"PATH\"]", |it| {
                let variables = &mut it.mesh.proxy_environment;
                variables.insert("PATH".to_owned(), String::new());
            }),
            ("mesh.proxyEnvironment[\"LINKERD2_PROXY_LOG\"]", |it| {
                let variables = &mut it.mesh.proxy_environment;
                variables.insert("LINKERD2_PROXY_LOG".to_owned(), "a\0".to_owned());
            }),
            ("mesh.proxyEnvironment", |it| {
                let many =
                    (0..=MAX_VARIABLES).map(|at| (format!("MESH_PROXY_{at}"), String::new()));
                it.mesh.proxy_environment = many.collect();
            }),
        ];
        for (field, change) in changes {
            let mut changed = file();
            change(&mut changed);
            assert_eq!(changed.validate().unwrap_err().field, field);
        }
    }

    #[test]
    fn unknown_field_is_refused_and_token_is_not_shown() {
        let json = serde_json::to_value(file()).unwrap();
        assert_eq!(
            serde_json::from_value::<JoinFile>(json.clone()).unwrap(),
            file()
        );
        let mut unknown = json;
        unknown["mesh"]["colour"] = "red".into();
        serde_json::from_value::<JoinFile>(unknown).unwrap_err();
        assert!(!format!("{:?}", file()).contains("00ff"));
    }

    #[test]
    fn address_is_a_host_and_a_port() {
        for valid in [
            "10.0.0.7:8080",
            "[fd00::7]:80",
            "a.example:1",
            "a.example.:1",
        ] {
            assert!(is_host_and_port(valid), "{valid}");
        }
        for invalid in [
            "",
            "a",
            "a:",
            "a:0",
            "a:65536",
            "fd00::7:80",
            ":80",
            "http://a:80",
        ] {
            assert!(!is_host_and_port(invalid), "{invalid}");
        }
    }
}
