//! What the node agent says on its unix socket, and to whom.
//!
//! The CNI plugin and `meshctl` send one JSON object on one line and read one JSON object on one
//! line; the connection then closes. The types live here because the command line must not depend
//! on the agent. Field names are camelCase as everywhere in Kubernetes. A field may be added; none
//! changes its meaning, and unknown fields are ignored, so that a plugin binary left on a node by
//! an older version goes on working.

use std::{collections::BTreeMap, fmt, net::IpAddr, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};

/// Where the agent listens when nothing else is said.
pub const DEFAULT_SOCKET: &str = "/run/mesh/agent.sock";
/// Where the agent keeps one record for each enrolled pod when nothing else is said.
pub const DEFAULT_STATE_DIR: &str = "/run/mesh";
/// Where the agent pins its programs, maps and links when nothing else is said.
pub const DEFAULT_PIN_DIR: &str = "/sys/fs/bpf/mesh";
/// Instead of a CNI network's name, for a pod that the agent enrolled without a CNI command. Such
/// an attachment ends with any DEL of its container.
pub const IN_PLACE: &str = "";

/// How a pod's connections reach its proxy. Ordered from best to last resort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// eBPF in both directions.
    Full,
    /// eBPF for outbound connections, nftables inside the pod for inbound ones.
    Split,
    /// nftables inside the pod in both directions.
    Nft,
    /// iptables inside the pod in both directions.
    Iptables,
}

/// One request line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    /// Enrol a pod. Asking twice is asking once.
    Add(Attachment),
    /// Forget a pod's attachment. Of an unknown pod too, this succeeds.
    Del(AttachmentId),
    /// Is the pod enrolled, and is everything in place that its tier needs?
    Check(Attachment),
    Status,
    Pods,
    /// Forget every attachment of the network that is not listed.
    Gc(ValidAttachments),
}

/// One answer line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    Added(Enrolled),
    Deleted,
    Checked,
    Status(Box<NodeStatus>),
    Pods(Vec<PodStatus>),
    Collected(Collected),
    Refused(Refusal),
}

/// Which network interface of which pod sandbox, in which CNI network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentId {
    pub container_id: String,
    /// The name of the CNI network; garbage collection is per network. [`IN_PLACE`] for a pod that
    /// was enrolled while it ran.
    pub network: String,
    pub interface: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    #[serde(flatten)]
    pub id: AttachmentId,
    pub netns: PathBuf,
    pub pod: PodRef,
    /// The addresses that the plugins before ours gave to the pod.
    pub addresses: Vec<IpAddr>,
    /// The pod's annotations; only those of the mesh are read.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    /// Empty when the container runtime does not tell it.
    #[serde(default)]
    pub uid: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ValidAttachments {
    pub network: String,
    pub keep: Vec<AttachmentId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Enrolled {
    pub tier: Tier,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Collected {
    pub removed: usize,
}

/// A request that was understood and could not be fulfilled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    pub reason: RefusalReason,
    /// One sentence: what, which pod, why, what to do.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalReason {
    /// An annotation, an address or a name that cannot be used.
    Invalid,
    /// The pod is not enrolled, or something of its redirection is missing.
    NotEnrolled,
    /// The kernel or the file system refused.
    Failed,
    /// The agent is stopping or has not yet started; asking again may help.
    TryAgain,
}

/// What `meshctl check` and `meshctl diagnostics` show of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    pub agent_version: String,
    /// For the reader only: nothing is decided by it.
    pub kernel: String,
    pub tier: Tier,
    /// Why this tier: what was forced, or what the better ones said.
    pub reason: String,
    pub forced: bool,
    /// Every tier that was tried, in order.
    pub trials: Vec<Trial>,
    pub self_test: Vec<SelfTestCase>,
    pub cgroup_root: Option<PathBuf>,
    pub pin_dir: PathBuf,
    /// The eBPF programs of ours that are attached, by name.
    pub programs: Vec<String>,
    /// What an administrator should know though everything works, one sentence each.
    pub warnings: Vec<String>,
    /// How many pods are enrolled, by tier.
    pub pods: BTreeMap<Tier, usize>,
    /// Connections by verdict since the programs were loaded, over the pods that are enrolled now.
    pub connections: BTreeMap<String, u64>,
    /// Where mesh-cni stands among the node's CNI plugins; absent when the agent does not look
    /// after it.
    #[serde(default)]
    pub cni: Option<CniStatus>,
    /// Pods of this node that asked for the mesh and are not enrolled.
    #[serde(default)]
    pub waiting: Vec<WaitingPod>,
    /// What the agent found damaged and put right within the last 24 hours, one entry for each
    /// kind.
    #[serde(default)]
    pub repairs: Vec<Repair>,
}

/// Damage of one kind that the agent put right, so that the mesh goes on working.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Repair {
    pub kind: RepairKind,
    /// The latest one: which file, program or pod, one sentence.
    pub detail: String,
    /// When the latest one was, in seconds since the Unix epoch.
    pub at: u64,
    /// How many there were in the 24 hours up to now, also by earlier agents of the node.
    pub last_day: u32,
}

/// What was damaged. Also the label `found` of the agent's metric `mesh_agent_repairs_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RepairKind {
    /// The entry of mesh-cni was gone from the CNI configuration.
    PluginUnchained,
    /// Another CNI configuration came first, without mesh-cni.
    PluginShadowed,
    /// The program mesh-cni was gone.
    PluginMissing,
    /// The program mesh-cni was another one.
    PluginAltered,
    /// The program mesh-cni could not be executed.
    PluginNotExecutable,
    /// A kernel program was detached or its pin removed.
    ProgramsDetached,
    /// All pins of the kernel programs were gone, and with them every pod's redirection.
    PinsDeleted,
    /// A pod's redirection was not complete.
    Incomplete,
    /// A meshed pod ran without redirection.
    NotEnrolled,
    /// One that a newer agent knows.
    #[serde(other)]
    Other,
}

/// The network configuration that the node's container runtime uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CniStatus {
    /// The directory as the agent sees it.
    pub conf_dir: PathBuf,
    /// The file's name; absent when there is none that can be used.
    pub file: Option<String>,
    pub network: Option<String>,
    /// The types of its plugins, in the order in which they run.
    pub plugins: Vec<String>,
    /// Is mesh-cni one of them?
    pub chained: bool,
    /// Why it is not, one sentence; empty when it is.
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingPod {
    pub pod: PodRef,
    /// What it waits for, or what went wrong, one sentence.
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trial {
    pub tier: Tier,
    pub works: bool,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SelfTestCase {
    pub name: String,
    pub outcome: SelfTestOutcome,
    /// What was seen; empty for a case that passed.
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelfTestOutcome {
    Passed,
    Failed,
    /// This kernel lacks what the case is about.
    Skipped,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    pub pod: PodRef,
    pub container_id: String,
    pub netns: PathBuf,
    pub netns_cookie: u64,
    pub addresses: Vec<IpAddr>,
    pub tier: Tier,
    /// Connections by verdict; empty in the tiers without eBPF.
    pub connections: BTreeMap<String, u64>,
}

impl RepairKind {
    /// Those that an agent reports.
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

    /// As it is serialised, and as the metric's label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PluginUnchained => "plugin-unchained",
            Self::PluginShadowed => "plugin-shadowed",
            Self::PluginMissing => "plugin-missing",
            Self::PluginAltered => "plugin-altered",
            Self::PluginNotExecutable => "plugin-not-executable",
            Self::ProgramsDetached => "programs-detached",
            Self::PinsDeleted => "pins-deleted",
            Self::Incomplete => "incomplete",
            Self::NotEnrolled => "not-enrolled",
            Self::Other => "other",
        }
    }

    /// What had happened, as a sentence without its full stop.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::PluginUnchained => "mesh-cni had been taken out of the CNI configuration",
            Self::PluginShadowed => "another CNI configuration came before the one with mesh-cni",
            Self::PluginMissing => "the program mesh-cni had been deleted",
            Self::PluginAltered => "the program mesh-cni had been replaced by another one",
            Self::PluginNotExecutable => "the program mesh-cni was not executable",
            Self::ProgramsDetached => "a kernel program had been detached or unpinned",
            Self::PinsDeleted => "the pins of the kernel programs had been deleted",
            Self::Incomplete => "the redirection of a pod was incomplete",
            Self::NotEnrolled => "a meshed pod ran without redirection",
            Self::Other => "something that this version does not know had been damaged",
        }
    }
}

impl fmt::Display for RepairKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no tier (full, split, nft, iptables)")]
pub struct UnknownTier(pub String);

impl Tier {
    pub const ALL: [Self; 4] = [Self::Full, Self::Split, Self::Nft, Self::Iptables];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Split => "split",
            Self::Nft => "nft",
            Self::Iptables => "iptables",
        }
    }

    /// Does this tier need programs and maps in the kernel, shared by the pods of the node?
    pub const fn uses_ebpf(self) -> bool {
        matches!(self, Self::Full | Self::Split)
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
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

impl RefusalReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::NotEnrolled => "not-enrolled",
            Self::Failed => "failed",
            Self::TryAgain => "try-again",
        }
    }
}
