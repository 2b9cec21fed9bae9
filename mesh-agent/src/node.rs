//! The redirection of this node's pods: CNI commands, restarts and reconciliation.
//!
//! [`Node`] is used by the agent (module `daemon`, which owns the only one while it runs) and, when
//! no agent responds, by the plugin (module `cni`) for the length of one command. All state is in
//! the registry, the pinned maps and the pods' namespaces, so that either can continue where the
//! other stopped. It is synchronous: one command takes a few milliseconds of system calls.

mod attachments;
mod namespace;
mod redirection;
mod report;
mod trace;

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use mesh_core::node::{Attachment, AttachmentId, IN_PLACE, RefusalReason, ValidAttachments};
use mesh_ebpf_common::quota::ADDRESSES_PER_POD;
use mesh_runtime::log::chain;

use crate::ebpf::{self, EnrolledPod, Programs};
use crate::redirect::{AnnotationError, PodRedirect, PodRef, RedirectSpec, Tier};
use crate::registry::{PodRecord, Registry, RegistryError};
use crate::sys::netns;

use self::attachments::{assigned_addresses, ordered_addresses, with_attachment};
pub use namespace::NamespaceError;
pub(crate) use namespace::{addresses, reachable_addresses};
pub use redirection::RedirectionError;
pub use report::by_verdict;

#[derive(Debug)]
pub struct Node {
    registry: Registry,
    /// For new pods; enrolled pods keep theirs.
    tier: Tier,
    /// Present when the tier needs them, and also when pods of an earlier agent do.
    programs: Option<Programs>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct ReconcileReport {
    /// Pods whose redirection is complete.
    pub intact: usize,
    /// Pods whose redirection was incomplete and has been repaired, each with its fault.
    pub repaired: Vec<(PodRef, String)>,
    /// Pods whose addresses changed since the last reconciliation.
    pub readdressed: Vec<PodRef>,
    /// Pods whose network namespace no longer exists, and whose record was removed.
    pub removed: Vec<PodRef>,
    /// What could not be repaired, one sentence each.
    pub failures: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Annotation(#[from] AnnotationError),
    #[error("pod {pod} cannot be enrolled")]
    Namespace { pod: String, source: NamespaceError },
    #[error(
        "pod {pod} runs in the node's own network namespace ({netns}); redirecting it would redirect the node"
    )]
    HostNetwork { pod: String, netns: PathBuf },
    #[error(
        "network namespace {netns} has none of the addresses in the status of pod {pod}, so that it is not certain to be the pod's"
    )]
    Unproven { pod: String, netns: PathBuf },
    #[error("network namespace {netns} belongs to another pod than {pod}, which is enrolled")]
    OfOtherPod { pod: String, netns: PathBuf },
    #[error("pod {pod} has no address that other pods could reach")]
    NoAddress { pod: String },
    #[error(
        "the network plugins assigned {count} addresses to pod {pod}, and at most {ADDRESSES_PER_POD} can be redirected; attach it to fewer networks"
    )]
    TooManyAddresses { pod: String, count: usize },
    #[error(
        "pod {pod} has assigned itself more than {ADDRESSES_PER_POD} addresses; connections from the others are not redirected"
    )]
    ExcessAddresses { pod: String },
    #[error("pod {pod} cannot be redirected (tier {tier})")]
    Apply {
        pod: String,
        tier: Tier,
        source: RedirectionError,
    },
    #[error("the redirection of pod {pod} (tier {tier}) cannot be removed")]
    Remove {
        pod: String,
        tier: Tier,
        source: RedirectionError,
    },
    #[error("pod {pod} is not enrolled")]
    NotEnrolled { pod: String },
    #[error("the redirection of pod {pod} (tier {tier}) is incomplete")]
    Incomplete {
        pod: String,
        tier: Tier,
        source: RedirectionError,
    },
    #[error(
        "no mesh agent has set up this node since it booted ({state_dir} has no record of its tier)"
    )]
    NotInitialized { state_dir: PathBuf },
    #[error(
        "pod {pod} is redirected by tier {tier}, which has no kernel programs to trace; the decisions of a packet filter are counted by its rules"
    )]
    NothingToTrace { pod: String, tier: Tier },
    #[error("no kernel programs are loaded on this node; restart the mesh agent")]
    NoPrograms,
    #[error("the kernel programs cannot be used")]
    Programs(#[source] Box<ebpf::Error>),
}

impl Node {
    /// Used by the agent, which has chosen the tier and loaded the programs.
    pub fn new(registry: Registry, tier: Tier, programs: Option<Programs>) -> Self {
        Self {
            registry,
            tier,
            programs,
        }
    }

    /// Used by the plugin: opens the state of an agent that does not respond.
    pub fn open_offline(state_dir: &Path, pin_dir: &Path) -> Result<Self, NodeError> {
        let not_initialized = || NodeError::NotInitialized {
            state_dir: state_dir.to_owned(),
        };
        let registry = Registry::open_existing(state_dir)?.ok_or_else(not_initialized)?;
        let tier = registry.node()?.ok_or_else(not_initialized)?.tier;
        let programs = match Programs::open(pin_dir) {
            Ok(programs) => Some(programs),
            Err(error) if tier.uses_ebpf() => return Err(error.into()),
            Err(_) => None,
        };
        Ok(Self::new(registry, tier, programs))
    }

    /// Enrols a pod, or updates the settings of an enrolled one; returns its tier.
    pub fn add(&self, attachment: &Attachment) -> Result<Tier, NodeError> {
        let pod = &attachment.pod;
        let spec = RedirectSpec::from_annotations(pod, &attachment.annotations)?;
        let failed = |source| NodeError::Namespace {
            pod: pod.to_string(),
            source,
        };
        let cookie = namespace::cookie(&attachment.netns).map_err(failed)?;
        if is_node_netns(cookie) {
            return Err(NodeError::HostNetwork {
                pod: pod.to_string(),
                netns: attachment.netns.clone(),
            });
        }
        let found = addresses(&attachment.netns).map_err(failed)?;
        let previous = self.previous_record(&attachment.id.container_id, cookie)?;
        let attachments = with_attachment(previous.as_ref(), attachment);
        let assigned: HashSet<IpAddr> = assigned_addresses(&attachments).collect();
        if assigned.len() > ADDRESSES_PER_POD {
            return Err(NodeError::TooManyAddresses {
                pod: pod.to_string(),
                count: assigned.len(),
            });
        }
        let addresses = ordered_addresses(&attachments, &found);
        if addresses.is_empty() {
            return Err(NodeError::NoAddress {
                pod: pod.to_string(),
            });
        }
        let tier = previous
            .as_ref()
            .map_or(self.tier, |record| record.redirect.tier);
        let record = PodRecord {
            redirect: PodRedirect {
                pod: pod.clone(),
                sandbox_id: attachment.id.container_id.clone(),
                netns: attachment.netns.clone(),
                cookie,
                addresses,
                spec,
                tier,
            },
            attachments,
        };
        self.registry.put(&record)?;
        match redirection::apply(self.programs.as_ref(), &record.redirect) {
            Ok(()) => Ok(tier),
            Err(source) => {
                self.roll_back(&record, previous.as_ref());
                Err(NodeError::Apply {
                    pod: pod.to_string(),
                    tier,
                    source,
                })
            }
        }
    }

    /// Enrols a running pod in a namespace that was found by the pod's UID. A pod's object may
    /// claim another pod's UID, so that the namespace must have an address of the pod's status, and
    /// must not belong to another enrolled pod.
    pub fn enrol_in_place(&self, attachment: &Attachment) -> Result<Tier, NodeError> {
        let pod = &attachment.pod;
        let failed = |source| NodeError::Namespace {
            pod: pod.to_string(),
            source,
        };
        let found = addresses(&attachment.netns).map_err(failed)?;
        if !found
            .iter()
            .any(|address| attachment.addresses.contains(address))
        {
            return Err(NodeError::Unproven {
                pod: pod.to_string(),
                netns: attachment.netns.clone(),
            });
        }
        let cookie = namespace::cookie(&attachment.netns).map_err(failed)?;
        let (records, _) = self.registry.records()?;
        let mut known = records.iter().map(|record| &record.redirect);
        if known.any(|known| known.cookie == cookie && !is_same_pod(&known.pod, pod)) {
            return Err(NodeError::OfOtherPod {
                pod: pod.to_string(),
                netns: attachment.netns.clone(),
            });
        }
        self.add(attachment)
    }

    /// Removes one attachment, and the pod with its last. An unknown attachment is not an error.
    pub fn del(&self, id: &AttachmentId) -> Result<(), NodeError> {
        let Some(mut record) = self.registry.get(&id.container_id)? else {
            return Ok(());
        };
        record.attachments.retain(|attachment| {
            // An attachment that was enrolled in place has no network name.
            let is_same_network =
                [id.network.as_str(), IN_PLACE].contains(&attachment.network.as_str());
            !is_same_network || attachment.interface != id.interface
        });
        if record.attachments.is_empty() {
            self.remove_pod(&record)
        } else {
            Ok(self.registry.put(&record)?)
        }
    }

    /// Checks that the pod is enrolled, and completely.
    pub fn check(&self, attachment: &Attachment) -> Result<(), NodeError> {
        let not_enrolled = || NodeError::NotEnrolled {
            pod: attachment.pod.to_string(),
        };
        let record = self
            .registry
            .get(&attachment.id.container_id)?
            .ok_or_else(not_enrolled)?;
        let redirect = record.redirect;
        if namespace::is_gone(&attachment.netns, redirect.cookie) {
            return Err(not_enrolled());
        }
        let programs = self.programs.as_ref();
        redirection::enrolled(programs)
            .and_then(|enrolled| redirection::verify(programs, &enrolled, &redirect))
            .map_err(|source| NodeError::Incomplete {
                pod: redirect.pod.to_string(),
                tier: redirect.tier,
                source,
            })
    }

    /// Removes every attachment of the network that is not listed; returns how many.
    pub fn collect(&self, valid: &ValidAttachments) -> Result<usize, NodeError> {
        let mut removed = 0;
        for record in self.registry.records()?.0 {
            for attachment in &record.attachments {
                let id = AttachmentId {
                    container_id: record.redirect.sandbox_id.clone(),
                    network: attachment.network.clone(),
                    interface: attachment.interface.clone(),
                };
                let is_kept = valid.keep.iter().any(|kept| {
                    kept.container_id == id.container_id && kept.interface == id.interface
                });
                if id.network == valid.network && !is_kept {
                    self.del(&id)?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }

    /// Brings every recorded pod to its desired state: finishes deletions, removes pods that no
    /// longer exist, completes incomplete redirection.
    ///
    /// `include_costly` also verifies the tiers whose check starts processes.
    pub fn reconcile(&self, include_costly: bool) -> Result<ReconcileReport, NodeError> {
        let mut report = ReconcileReport::default();
        self.finish_deletions(&mut report)?;
        let (records, damaged) = self.registry.records()?;
        report
            .failures
            .extend(damaged.iter().map(|error| chain(error)));
        // When the maps cannot be read, the repair of each pod fails and reports why.
        let enrolled = redirection::enrolled(self.programs.as_ref()).unwrap_or_default();
        for record in &records {
            self.reconcile_pod(record, &enrolled, include_costly, &mut report);
        }
        if let Some(programs) = &self.programs {
            let known: Vec<PodRedirect> =
                records.into_iter().map(|record| record.redirect).collect();
            if let Err(error) = programs.sweep(&known) {
                report.failures.push(chain(&error));
            }
        }
        Ok(report)
    }

    /// Removes the redirection from every pod, and all records. Returns what could not be undone.
    pub fn release_all(self) -> Result<Vec<String>, NodeError> {
        self.registry.close()?;
        let (records, _) = self.registry.records()?;
        let failures = records
            .iter()
            .filter_map(|record| self.remove_pod(record).err())
            .map(|error| chain(&error))
            .collect();
        self.registry.erase()?;
        Ok(failures)
    }

    /// Returns the record of an earlier enrolment of the pod. A record with the same sandbox id and
    /// another namespace is removed first.
    fn previous_record(
        &self,
        container_id: &str,
        cookie: u64,
    ) -> Result<Option<PodRecord>, NodeError> {
        match self.registry.get(container_id)? {
            Some(record) if record.redirect.cookie != cookie => {
                self.remove_pod(&record)?;
                Ok(None)
            }
            other => Ok(other),
        }
    }

    /// Undoes a failed enrolment: removes a new pod entirely; restores the record of a pod that was
    /// enrolled before, which the next reconciliation completes.
    fn roll_back(&self, record: &PodRecord, previous: Option<&PodRecord>) {
        let result = match previous {
            Some(previous) => self.registry.put(previous).map_err(NodeError::from),
            None => self.remove_pod(record),
        };
        if let Err(error) = result {
            tracing::warn!(
                pod = %record.redirect.pod,
                error = chain(&error),
                "Cannot undo a failed enrolment; retrying with the next reconciliation"
            );
        }
    }

    /// Removes the redirection, then the record, so that an interrupted removal is found again.
    fn remove_pod(&self, record: &PodRecord) -> Result<(), NodeError> {
        let redirect = &record.redirect;
        redirection::remove(self.programs.as_ref(), redirect).map_err(|source| {
            NodeError::Remove {
                pod: redirect.pod.to_string(),
                tier: redirect.tier,
                source,
            }
        })?;
        Ok(self.registry.remove(&redirect.sandbox_id)?)
    }

    fn finish_deletions(&self, report: &mut ReconcileReport) -> Result<(), NodeError> {
        for id in self.registry.tombstones()? {
            match self.del(&id) {
                Ok(()) => self.registry.remove_tombstone(&id)?,
                Err(error) => report.failures.push(chain(&error)),
            }
        }
        Ok(())
    }

    /// Updates the kernel programs when the pod's interface addresses changed; returns whether they
    /// did. Until then a connection from a new address counts as one with a foreign source. Packet
    /// filters need no addresses.
    fn update_addresses(&self, record: &PodRecord) -> Result<bool, NodeError> {
        let known = &record.redirect;
        if !known.tier.uses_ebpf() {
            return Ok(false);
        }
        let found = addresses(&known.netns).map_err(|source| NodeError::Namespace {
            pod: known.pod.to_string(),
            source,
        })?;
        let addresses = ordered_addresses(&record.attachments, &found);
        if addresses == known.addresses || addresses.is_empty() {
            return if found.len() > ADDRESSES_PER_POD {
                Err(NodeError::ExcessAddresses {
                    pod: known.pod.to_string(),
                })
            } else {
                Ok(false)
            };
        }
        let record = PodRecord {
            redirect: PodRedirect {
                addresses,
                ..known.clone()
            },
            attachments: record.attachments.clone(),
        };
        self.registry.put(&record)?;
        redirection::apply(self.programs.as_ref(), &record.redirect).map_err(|source| {
            NodeError::Apply {
                pod: known.pod.to_string(),
                tier: known.tier,
                source,
            }
        })?;
        Ok(true)
    }

    fn reconcile_pod(
        &self,
        record: &PodRecord,
        enrolled: &[EnrolledPod],
        include_costly: bool,
        report: &mut ReconcileReport,
    ) {
        let redirect = &record.redirect;
        if namespace::is_gone(&redirect.netns, redirect.cookie) {
            match self.remove_pod(record) {
                Ok(()) => report.removed.push(redirect.pod.clone()),
                Err(error) => report.failures.push(chain(&error)),
            }
            return;
        }
        match self.update_addresses(record) {
            Ok(false) => {}
            Ok(true) => {
                report.readdressed.push(redirect.pod.clone());
                return;
            }
            Err(error @ NodeError::ExcessAddresses { .. }) => report.failures.push(chain(&error)),
            Err(error) => {
                report.failures.push(chain(&error));
                return;
            }
        }
        if !include_costly && !redirection::is_cheap_to_verify(redirect.tier) {
            report.intact += 1;
            return;
        }
        let Err(found) = redirection::verify(self.programs.as_ref(), enrolled, redirect) else {
            report.intact += 1;
            return;
        };
        match redirection::apply(self.programs.as_ref(), redirect) {
            Ok(()) => report.repaired.push((redirect.pod.clone(), chain(&found))),
            Err(source) => report.failures.push(chain(&NodeError::Apply {
                pod: redirect.pod.to_string(),
                tier: redirect.tier,
                source,
            })),
        }
    }
}

impl From<ebpf::Error> for NodeError {
    fn from(error: ebpf::Error) -> Self {
        Self::Programs(Box::new(error))
    }
}

impl NodeError {
    /// Returns the reason that the agent's refusal carries.
    pub fn reason(&self) -> RefusalReason {
        match self {
            Self::Annotation(_)
            | Self::TooManyAddresses { .. }
            | Self::HostNetwork { .. }
            | Self::NoAddress { .. }
            | Self::Unproven { .. }
            | Self::OfOtherPod { .. }
            | Self::NothingToTrace { .. }
            | Self::Registry(RegistryError::ContainerId { .. }) => RefusalReason::Invalid,
            Self::NotEnrolled { .. } | Self::Incomplete { .. } => RefusalReason::NotEnrolled,
            Self::NotInitialized { .. } => RefusalReason::TryAgain,
            Self::Registry(_)
            | Self::Namespace { .. }
            | Self::ExcessAddresses { .. }
            | Self::Apply { .. }
            | Self::Remove { .. }
            | Self::NoPrograms
            | Self::Programs(_) => RefusalReason::Failed,
        }
    }
}

/// Returns whether the cookie is of the node's namespace, which agent and plugin run in.
fn is_node_netns(cookie: u64) -> bool {
    netns::current_cookie().is_ok_and(|own| own == cookie)
}

/// Some runtimes pass no UID.
fn is_same_pod(known: &PodRef, pod: &PodRef) -> bool {
    let has_uid = known.uid.is_empty() || known.uid == pod.uid;
    has_uid && (&known.namespace, &known.name) == (&pod.namespace, &pod.name)
}
