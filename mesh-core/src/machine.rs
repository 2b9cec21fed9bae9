//! Enrolment of systemd units on a host without Kubernetes, and the host's membership of a mesh, as
//! clients request them over the agent's socket ([`crate::node`]).

mod join;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use self::join::{
    InvalidJoinFile, JOIN_API_VERSION, JOIN_KIND, JOIN_TOKEN, JoinFile, MACHINE_SUBJECT,
    MAX_ANCHORS, MAX_JOIN_FILE, MAX_MACHINE_CERTIFICATES, MeshSettings, Secret, ServiceAddress,
    is_host_and_port, is_sha256, join_token,
};

/// Default directory of the records of enrolled units, which outlive the host's boot.
pub const DEFAULT_UNITS_DIR: &str = "/var/lib/mesh";

/// Returns the name of a unit in the names of its proxy's unit and files: the unit without
/// `.service`.
pub fn instance(unit: &str) -> &str {
    unit.strip_suffix(".service").unwrap_or(unit)
}

/// Returns the unit of a unit's proxy, an instance of the packages' template.
pub fn proxy_unit(unit: &str) -> String {
    format!("mesh-proxy@{}.service", instance(unit))
}

/// A systemd unit to enrol. Enrolling a unit again changes its settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnitEnrolment {
    /// The name of a service or slice, such as `nginx.service`.
    pub unit: String,
    /// The path of its cgroup below the root of the hierarchy. If it is absent, systemd is asked
    /// for it, and for the unit's sockets.
    #[serde(default)]
    pub cgroup: Option<String>,
    /// The path of its proxy's cgroup. By default it is of `mesh-proxy@NAME.service`, where `NAME`
    /// is the unit without `.service`, in the slice of the proxies.
    #[serde(default)]
    pub proxy_cgroup: Option<String>,
    /// The settings that a pod has as annotations: skipped ports and subnets, families, and the
    /// ports of the proxy, if they are not to be chosen. Others are refused.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// Redirects the unit at once. By default it is redirected when its proxy listens, so that a
    /// running unit loses no connection; from then on it stays redirected.
    #[serde(default)]
    pub immediately: bool,
    /// The ServiceAccount whose identity its proxy has, NAMESPACE/NAME, on a machine that has
    /// joined a mesh. Without one, the agent does not provide an identity.
    #[serde(default)]
    pub service_account: Option<String>,
    /// The name of its ExternalWorkload in the namespace of the ServiceAccount. By default it is
    /// `MACHINE-NAME`, where `NAME` is the unit without `.service`.
    #[serde(default)]
    pub external_workload: Option<String>,
}

/// A reference to an enrolled unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitRef {
    /// Its name.
    pub unit: String,
}

/// A connection that a unit may make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitConnection {
    /// The name of the unit.
    pub unit: String,
    /// The address that it calls.
    pub destination: SocketAddr,
}

crate::names! {
    /// Whether the connections of a unit are redirected.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum UnitState, ALL {
        /// Not yet: its proxy has not listened since the enrolment.
        Waiting = "waiting",
        /// They are, and are refused while the proxy does not listen.
        Redirected = "redirected",
    }
}

/// The status of an enrolled unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnitStatus {
    /// The name of the unit.
    pub unit: String,
    /// Whether its connections are redirected.
    pub state: UnitState,
    /// The paths of its cgroup and of its sockets' cgroups, below the root of the hierarchy.
    pub cgroups: Vec<String>,
    /// Whether one of them exists, as while the unit runs.
    pub running: bool,
    /// The path of its proxy's cgroup.
    pub proxy_cgroup: String,
    /// Whether the proxy listens in both directions.
    pub proxy_listens: bool,
    /// The ports of the proxy.
    pub ports: UnitPorts,
    /// Where sockets of the unit listen for other hosts: connections to these go to the proxy.
    pub listening: Vec<SocketAddr>,
    /// Connections by verdict.
    pub connections: BTreeMap<String, u64>,
    /// Conditions that need the administrator's attention, one sentence each.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The identity that the agent provides to the proxy.
    #[serde(default)]
    pub identity: Option<UnitIdentity>,
    /// The settings of its enrolment, without the ports that the agent has chosen.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// The file with the environment that the agent writes for the proxy; absent of an earlier
    /// agent.
    #[serde(default)]
    pub environment_file: Option<PathBuf>,
    /// Where processes other than the proxy listen on its ports, which it cannot have then.
    #[serde(default)]
    pub foreign_listeners: Vec<SocketAddr>,
}

/// The identity of an enrolled unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnitIdentity {
    /// The ServiceAccount, NAMESPACE/NAME.
    pub service_account: String,
    /// The name of the ExternalWorkload in the same namespace.
    pub external_workload: String,
    /// The name in the certificates of the proxy; absent while the machine has not joined.
    #[serde(default)]
    pub name: Option<String>,
    /// When the token expires that the proxy gets its certificates with, in seconds since the Unix
    /// epoch; absent while there is none.
    #[serde(default)]
    pub token_expires: Option<u64>,
    /// The file of the token; absent of an earlier agent.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
}

/// The key of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineKey {
    /// The SHA-256 of the public key (SubjectPublicKeyInfo in DER), in hexadecimal.
    pub sha256: String,
}

/// A machine as a member of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MembershipStatus {
    /// The name that it is admitted by.
    pub machine: String,
    /// Its name in its certificate.
    pub name: String,
    /// The trust domain of the mesh.
    pub trust_domain: String,
    /// The namespace of the control plane.
    pub control_plane_namespace: String,
    /// The SHA-256 of its public key.
    pub key_sha256: String,
    /// The address of the identity service.
    pub identity_address: String,
    /// When its certificate expires, in seconds since the Unix epoch.
    pub certificate_expires: u64,
    /// When its certificate is renewed next.
    pub renews_at: u64,
    /// Why the last renewal failed, if it did.
    #[serde(default)]
    pub renewal_failure: Option<String>,
    /// The services of the control plane; empty of an earlier agent.
    #[serde(default)]
    pub services: Vec<MeshService>,
    /// The trust anchors, in PEM; empty of an earlier agent.
    #[serde(default)]
    pub trust_anchors: String,
}

/// A service of the control plane as a machine reaches it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeshService {
    /// `identity`, `destination` or `policy`.
    pub service: String,
    /// HOST:PORT.
    pub address: String,
    /// Its identity, a DNS name.
    pub name: String,
}

/// What a machine left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Left {
    /// The machine; absent if it had not joined.
    #[serde(default)]
    pub machine: Option<String>,
    /// The units that were withdrawn, because their identity ended.
    pub units: Vec<String>,
}

/// The ports of the host that the proxy of a unit uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnitPorts {
    /// Its listener of inbound connections.
    pub inbound: u16,
    /// Its listener of outbound connections.
    pub outbound: u16,
    /// Its admin server.
    pub admin: u16,
    /// Its tap service.
    pub control: u16,
    /// The first port that outbound connections of the unit are redirected to.
    pub redirect_first: u16,
    /// The last one.
    pub redirect_last: u16,
}
