//! The protocol of the node agent's unix socket.
//!
//! The CNI plugin and `meshctl` send one JSON object on one line and receive one JSON object on one
//! line; the agent then closes the connection. A trace is the exception: after
//! [`Response::Tracing`] the agent sends a [`TraceLine`] on each line until the client closes the
//! connection, at most for [`TRACE_LIMIT`]. The types are here because the command line must not
//! depend on the agent. Field names are camelCase as everywhere in Kubernetes. Fields may be added,
//! but do not change their meaning, and unknown fields are ignored, so that a plugin binary that an
//! older version left on a node continues to work.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::machine::{
    JoinFile, Left, MachineKey, MembershipStatus, UnitConnection, UnitEnrolment, UnitRef,
    UnitStatus,
};
use crate::redirection::RedirectionEvent;

/// Default path of the agent's socket.
pub const DEFAULT_SOCKET: &str = "/run/mesh/agent.sock";
/// Default directory of the agent's records, one for each enrolled pod.
pub const DEFAULT_STATE_DIR: &str = "/run/mesh";
/// Default directory of the agent's pinned programs, maps and links.
pub const DEFAULT_PIN_DIR: &str = "/sys/fs/bpf/mesh";
/// The network name of a pod that the agent enrolled without a CNI command. Any DEL of its
/// container removes such an attachment.
pub const IN_PLACE: &str = "";
/// How long a trace lasts at most, so that one whose client does not notice its own end still ends:
/// longer than an operator waits for an answer.
pub const TRACE_LIMIT: Duration = Duration::from_secs(300);

crate::names! {
    /// How a pod's connections are redirected to its proxy, from the best method to the last
    /// resort.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Tier, ALL {
        /// eBPF in both directions.
        Full = "full",
        /// eBPF for outbound connections, nftables inside the pod for inbound ones.
        Split = "split",
        /// nftables inside the pod in both directions.
        Nft = "nft",
        /// iptables inside the pod in both directions.
        Iptables = "iptables",
    }
}

/// A request to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    /// Enrols a pod. Idempotent.
    Add(Attachment),
    /// Removes a pod's attachment. Succeeds for an unknown pod.
    Del(AttachmentId),
    /// Checks that the pod is enrolled and that its redirection is complete.
    Check(Attachment),
    /// Requests the status of the node.
    Status,
    /// Requests the enrolled pods.
    Pods,
    /// Removes every attachment of the network that is not listed.
    Gc(ValidAttachments),
    /// Requests the decisions of the kernel programs about an enrolled pod's connections, from now
    /// on. The connection ends the trace.
    Trace(PodRef),
    /// Enrols a systemd unit, on a host without Kubernetes. Idempotent.
    EnrolUnit(UnitEnrolment),
    /// Ends the enrolment of a unit. Succeeds for an unknown unit.
    WithdrawUnit(UnitRef),
    /// Requests the enrolled units.
    Units,
    /// Requests what the kernel programs would decide about a connection of a redirected unit.
    /// Nothing is sent.
    DecideUnit(UnitConnection),
    /// Requests the fingerprint of the machine's key, which is made if there is none.
    MachineKey,
    /// Joins the machine to a mesh.
    Join(Box<JoinFile>),
    /// Requests the machine's membership.
    Membership,
    /// Withdraws the units with an identity, and deletes key and certificate of the machine.
    /// Idempotent.
    Leave,
}

/// A response of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// The pod is enrolled.
    Added(Enrolled),
    /// The attachment does not exist any more.
    Deleted,
    /// The pod's redirection is complete.
    Checked,
    /// The status of the node.
    Status(Box<NodeStatus>),
    /// The enrolled pods.
    Pods(Vec<PodStatus>),
    /// Attachments were removed.
    Collected(Collected),
    /// The pod is traced; [`TraceLine`]s follow.
    Tracing,
    /// The unit is enrolled.
    Unit(Box<UnitStatus>),
    /// The unit is not enrolled any more.
    Withdrawn,
    /// The enrolled units.
    Units(Vec<UnitStatus>),
    /// The decision about a connection, at the time 0.
    Decided(RedirectionEvent),
    /// The key of the machine.
    MachineKey(MachineKey),
    /// The machine has joined.
    Joined(Box<MembershipStatus>),
    /// The membership, if the machine has joined.
    Membership(Option<Box<MembershipStatus>>),
    /// The machine has left.
    Left(Left),
    /// The request failed.
    Refused(Refusal),
}

/// A line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceLine {
    /// A decision.
    Event(RedirectionEvent),
    /// This number of further decisions is missing: the pod made them faster than they could be
    /// reported.
    Dropped(u64),
    /// The agent has ended the trace, and why, in one clause.
    Ended(String),
}

/// A network interface of a pod sandbox in a CNI network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentId {
    /// The container id of the sandbox.
    pub container_id: String,
    /// The name of the CNI network, or [`IN_PLACE`] for a pod that was enrolled while it ran.
    /// Garbage collection is per network.
    pub network: String,
    /// The name of the interface in the pod.
    pub interface: String,
}

/// A pod to enrol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// The interface.
    #[serde(flatten)]
    pub id: AttachmentId,
    /// The path of the pod's network namespace.
    pub netns: PathBuf,
    /// The pod that the interface belongs to.
    pub pod: PodRef,
    /// The addresses that earlier CNI plugins assigned to the pod.
    pub addresses: Vec<IpAddr>,
    /// The pod's annotations; only annotations of the mesh are used.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// A reference to a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub name: String,
    /// The UID, empty when the container runtime does not provide it.
    #[serde(default)]
    pub uid: String,
}

/// The attachments of a network that still exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ValidAttachments {
    /// The name of the CNI network.
    pub network: String,
    /// The attachments to keep.
    pub keep: Vec<AttachmentId>,
}

/// The result of an enrolment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Enrolled {
    /// The tier of the pod.
    pub tier: Tier,
}

/// The result of a garbage collection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Collected {
    /// The number of removed attachments.
    pub removed: usize,
}

/// A valid request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// The kind of failure.
    pub reason: RefusalReason,
    /// The operation, the pod, the cause and the remedy in one sentence.
    pub message: String,
}

crate::names! {
    /// Why a request failed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum RefusalReason {
        /// Invalid annotation, address or name.
        Invalid = "invalid",
        /// The pod is not enrolled, or its redirection is incomplete.
        NotEnrolled = "not-enrolled",
        /// An operation of the kernel or the file system failed.
        Failed = "failed",
        /// The agent is starting or stopping, or has reached its limit of traces; the request may
        /// be retried.
        TryAgain = "try-again",
    }
}

/// The status of a node for `meshctl check` and `meshctl diagnostics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// The version of the agent's build.
    pub agent_version: String,
    /// The kernel's release, for display only.
    pub kernel: String,
    /// The tier in use.
    pub tier: Tier,
    /// Why this tier is in use: it was forced, or the better ones failed.
    pub reason: String,
    /// Whether the tier was forced by configuration.
    pub forced: bool,
    /// All tiers that were tried, in order.
    pub trials: Vec<TierAttempt>,
    /// The results of the self-test.
    pub self_test: Vec<SelfTestCase>,
    /// The root of the cgroup hierarchy where programs are attached.
    pub cgroup_root: Option<PathBuf>,
    /// The directory of the pinned programs, maps and links.
    pub pin_dir: PathBuf,
    /// Names of the mesh's attached eBPF programs.
    pub programs: Vec<String>,
    /// Conditions that need the administrator's attention although the mesh works, one sentence
    /// each.
    pub warnings: Vec<String>,
    /// Number of enrolled pods by tier.
    pub pods: BTreeMap<Tier, usize>,
    /// Connections by verdict since the programs were loaded, of currently enrolled pods.
    pub connections: BTreeMap<String, u64>,
    /// The CNI configuration; absent when the agent does not manage it.
    #[serde(default)]
    pub cni: Option<CniStatus>,
    /// Pods of this node that request the mesh and are not enrolled.
    #[serde(default)]
    pub waiting: Vec<WaitingPod>,
    /// Damage that the agent repaired within the last 24 hours, one entry for each kind.
    #[serde(default)]
    pub repairs: Vec<Repair>,
}

/// Annotation of the pods that `meshctl local dashboard` serves to the dashboard: the pod's
/// redirection tier. Pods of a cluster do not have it.
pub const TIER_ANNOTATION: &str = "mesh-agent/redirection-tier";
/// Annotation beside [`TIER_ANNOTATION`]: why the tier is in use.
pub const TIER_REASON_ANNOTATION: &str = "mesh-agent/redirection-reason";

/// Damage of one kind that the agent has repaired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repair {
    /// The kind of damage.
    pub kind: RepairKind,
    /// The affected file, program or pod of the last repair, in one sentence.
    pub detail: String,
    /// The time of the last repair, in seconds since the Unix epoch.
    pub at: u64,
    /// Number of repairs in the last 24 hours, including repairs by earlier agents of the node.
    pub last_day: u32,
}

crate::names! {
    /// The kind of damage. Its serialized name is also the label `found` of the agent's metric
    /// `mesh_agent_repairs_total`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum RepairKind {
        /// The entry of mesh-cni was missing from the CNI configuration.
        PluginUnchained = "plugin-unchained",
        /// Another CNI configuration without mesh-cni took precedence.
        PluginShadowed = "plugin-shadowed",
        /// The program mesh-cni was missing.
        PluginMissing = "plugin-missing",
        /// The program mesh-cni was replaced by another one.
        PluginAltered = "plugin-altered",
        /// The program mesh-cni could not be executed.
        PluginNotExecutable = "plugin-not-executable",
        /// A kernel program was detached or its pin removed.
        ProgramsDetached = "programs-detached",
        /// All pins of the kernel programs were removed, and with them every pod's redirection.
        PinsDeleted = "pins-deleted",
        /// A pod's redirection was incomplete.
        Incomplete = "incomplete",
        /// A meshed pod ran without redirection.
        NotEnrolled = "not-enrolled",
        /// A kind that only a newer agent reports.
        #[serde(other)]
        Other = "other",
    }
}

/// The network configuration that the node's container runtime uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CniStatus {
    /// The directory of CNI configurations, as a path in the agent's mount namespace.
    pub conf_dir: PathBuf,
    /// The file name of the configuration; absent when none is usable.
    pub file: Option<String>,
    /// The name of the CNI network.
    pub network: Option<String>,
    /// The types of its plugins, in order of execution.
    pub plugins: Vec<String>,
    /// Whether mesh-cni is one of them.
    pub chained: bool,
    /// Why mesh-cni is not chained, in one sentence; empty when it is.
    pub reason: String,
}

/// A pod that requests the mesh and is not enrolled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingPod {
    /// The pod, whose connections are not redirected.
    pub pod: PodRef,
    /// What enrolment waits for, or why it failed, in one sentence.
    pub reason: String,
}

/// An attempt to use a tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TierAttempt {
    /// The tier that was tried.
    pub tier: Tier,
    /// Whether it works on this node.
    pub works: bool,
    /// Why it does not work; empty when it works.
    pub reason: String,
}

/// The result of one case of the self-test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SelfTestCase {
    /// The name of the case.
    pub name: String,
    /// Whether the kernel behaves as the case expects.
    pub outcome: SelfTestOutcome,
    /// The observation; empty for a case that passed.
    pub detail: String,
}

/// The outcome of a case of the self-test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelfTestOutcome {
    /// The case passed.
    Passed,
    /// The case failed.
    Failed,
    /// The kernel lacks the tested feature.
    Skipped,
}

/// The status of an enrolled pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// The enrolled pod.
    pub pod: PodRef,
    /// The container id of the sandbox.
    pub container_id: String,
    /// The path of the pod's network namespace.
    pub netns: PathBuf,
    /// The kernel's cookie of the network namespace.
    pub netns_cookie: u64,
    /// The addresses of the pod.
    pub addresses: Vec<IpAddr>,
    /// The tier of the pod.
    pub tier: Tier,
    /// Connections by verdict; empty in the tiers without eBPF.
    pub connections: BTreeMap<String, u64>,
}

impl RepairKind {
    /// All kinds that this version reports.
    pub const ALL: [Self; 9] = [
        Self::PluginUnchained,
        Self::PluginShadowed,
        Self::PluginMissing,
        Self::PluginAltered,
        Self::PluginNotExecutable,
        Self::ProgramsDetached,
        Self::PinsDeleted,
        Self::Incomplete,
        Self::NotEnrolled,
    ];

    /// Describes the damage in a clause.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::PluginUnchained => "mesh-cni was removed from the CNI configuration",
            Self::PluginShadowed => {
                "another CNI configuration took precedence over the one with mesh-cni"
            }
            Self::PluginMissing => "the program mesh-cni was deleted",
            Self::PluginAltered => "the program mesh-cni was replaced by another one",
            Self::PluginNotExecutable => "the program mesh-cni was not executable",
            Self::ProgramsDetached => "a kernel program was detached or unpinned",
            Self::PinsDeleted => "the pins of the kernel programs were deleted",
            Self::Incomplete => "the redirection of a pod was incomplete",
            Self::NotEnrolled => "a meshed pod ran without redirection",
            Self::Other => "damage of a kind that this version does not know",
        }
    }
}

/// The name of a tier that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown tier {0:?}: expected full, split, nft or iptables")]
pub struct UnknownTier(pub String);

/// A text that does not name a pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} does not name a pod: expected NAMESPACE/NAME")]
pub struct InvalidPodRef(pub String);

impl Tier {
    /// Whether the tier needs eBPF programs and maps, which the pods of the node share.
    pub const fn uses_ebpf(self) -> bool {
        matches!(self, Self::Full | Self::Split)
    }
}

impl FromStr for PodRef {
    type Err = InvalidPodRef;

    fn from_str(text: &str) -> Result<Self, InvalidPodRef> {
        match text.split_once('/') {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                Ok(Self {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                    uid: String::new(),
                })
            }
            _ => Err(InvalidPodRef(text.to_owned())),
        }
    }
}

impl FromStr for Tier {
    type Err = UnknownTier;

    fn from_str(text: &str) -> Result<Self, UnknownTier> {
        Self::ALL
            .into_iter()
            .find(|tier| tier.as_str() == text)
            .ok_or_else(|| UnknownTier(text.to_owned()))
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_is_named_by_namespace_and_name() {
        let pod: PodRef = "shop/web-0".parse().unwrap();
        assert_eq!((&*pod.namespace, &*pod.name), ("shop", "web-0"));
        for text in ["", "web-0", "/web-0", "shop/", "shop/web/0"] {
            assert!(text.parse::<PodRef>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn unit_is_enrolled_by_its_name_alone() {
        let request = r#"{"op":"enrol-unit","unit":"nginx.service"}"#;
        let enrolment = UnitEnrolment {
            unit: "nginx.service".to_owned(),
            ..UnitEnrolment::default()
        };
        let expected = Request::EnrolUnit(enrolment);
        assert_eq!(serde_json::from_str::<Request>(request).unwrap(), expected);
        let request = r#"{"op":"units"}"#;
        assert_eq!(
            serde_json::from_str::<Request>(request).unwrap(),
            Request::Units
        );
    }

    #[test]
    fn trace_is_requested_and_reported_in_one_line_each() {
        let pod: PodRef = "shop/web-0".parse().unwrap();
        let request = serde_json::to_string(&Request::Trace(pod)).unwrap();
        assert_eq!(
            request,
            r#"{"op":"trace","namespace":"shop","name":"web-0","uid":""}"#
        );
        let text = |line: &TraceLine| serde_json::to_string(line).unwrap();
        assert_eq!(text(&TraceLine::Dropped(3)), r#"{"dropped":3}"#);
        let line = r#"{"event":{"monotonicNs":1,"hook":"connect","verdict":"outbound-proxy","destination":"[::1]:80"}}"#;
        assert!(matches!(
            serde_json::from_str(line).unwrap(),
            TraceLine::Event(_)
        ));
    }
}
