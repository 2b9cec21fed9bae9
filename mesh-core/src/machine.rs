//! Enrolment of systemd units on a host without Kubernetes, as clients request it over the agent's
//! socket ([`crate::node`]).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Default directory of the records of enrolled units, which outlive the host's boot.
pub const DEFAULT_UNITS_DIR: &str = "/var/lib/mesh";

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
}

/// A reference to an enrolled unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitRef {
    /// Its name.
    pub unit: String,
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
