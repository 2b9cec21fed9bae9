//! The redirection of this node's pods: what a CNI command, a restart and the passing of time do to
//! it.
//!
//! [`Node`] is used by the agent (module `daemon`, which owns the only one while it runs) and, when
//! no agent answers, by the plugin (module `cni`) for the length of one command. Everything it
//! knows is in the registry, the pinned maps and the pods' namespaces, so that either can go on
//! where the other stopped. It is synchronous: one command takes a few milliseconds of system
//! calls.

mod namespace;
mod redirection;
mod report;

use std::{
    collections::HashSet,
    net::IpAddr,
    path::{Path, PathBuf},
};

use mesh_core::node::{Attachment, AttachmentId, IN_PLACE, RefusalReason, ValidAttachments};
use mesh_ebpf_common::quota::ADDRESSES_PER_POD;
use mesh_runtime::log::chain;

pub use namespace::NamespaceError;
pub(crate) use namespace::addresses;
pub use redirection::RedirectionError;
pub use report::by_verdict;

use crate::{
    ebpf::{self, EnrolledPod, Programs},
    redirect::{AnnotationError, PodRedirect, PodRef, RedirectSpec, Tier},
    registry::{Record, RecordedAttachment, Registry, RegistryError},
    sys::netns,
};

#[derive(Debug)]
pub struct Node {
    registry: Registry,
    /// For pods that come; those that are there keep theirs.
    tier: Tier,
    /// Present when the tier needs them, and also when pods of an earlier agent do.
    programs: Option<Programs>,
}

/// What happened to the pods that were found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Care {
    /// Pods that are as they should be.
    pub intact: usize,
    /// Pods whose redirection was incomplete and has been put right: who, and what was wrong.
    pub repaired: Vec<(PodRef, String)>,
    /// Pods that gave themselves other addresses since the last look.
    pub readdressed: Vec<PodRef>,
    /// Pods that are gone and have been forgotten.
    pub removed: Vec<PodRef>,
    /// What could not be put right, one sentence each.
    pub failures: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Annotation(#[from] AnnotationError),
    #[error("pod {pod} cannot be enrolled")]
    Namespace {
        pod: String,
        #[source]
        source: NamespaceError,
    },
    #[error(
        "pod {pod} runs in the node's own network namespace ({netns}); redirecting it would redirect the node"
    )]
    HostNetwork { pod: String, netns: PathBuf },
    #[error("pod {pod} has no address that others could reach it at")]
    NoAddress { pod: String },
    #[error(
        "the network plugins gave pod {pod} {count} addresses, and at most {ADDRESSES_PER_POD} can be redirected; attach it to fewer networks"
    )]
    TooManyAddresses { pod: String, count: usize },
    #[error(
        "pod {pod} has given itself more than {ADDRESSES_PER_POD} addresses; connections from the others are not redirected"
    )]
    IgnoredAddresses { pod: String },
    #[error("pod {pod} cannot be redirected (tier {tier})")]
    Apply {
        pod: String,
        tier: Tier,
        #[source]
        source: RedirectionError,
    },
    #[error("the redirection of pod {pod} (tier {tier}) cannot be removed")]
    Withdraw {
        pod: String,
        tier: Tier,
        #[source]
        source: RedirectionError,
    },
    #[error("pod {pod} is not enrolled")]
    NotEnrolled { pod: String },
    #[error("the redirection of pod {pod} (tier {tier}) is not complete")]
    Incomplete {
        pod: String,
        tier: Tier,
        #[source]
        source: RedirectionError,
    },
    #[error(
        "no mesh agent has set up this node since it started ({state_dir} has no record of its tier)"
    )]
    NeverRan { state_dir: PathBuf },
    #[error("the kernel programs cannot be used")]
    Programs(#[source] Box<ebpf::Error>),
}

impl Node {
    /// The agent's: it has chosen the tier and loaded the programs.
    pub fn new(registry: Registry, tier: Tier, programs: Option<Programs>) -> Self {
        Self {
            registry,
            tier,
            programs,
        }
    }

    /// The plugin's: opens what an agent left behind.
    pub fn left_behind(state_dir: &Path, pin_dir: &Path) -> Result<Self, NodeError> {
        let never_ran = || NodeError::NeverRan {
            state_dir: state_dir.to_owned(),
        };
        let registry = Registry::left_behind(state_dir)?.ok_or_else(never_ran)?;
        let tier = registry.node()?.ok_or_else(never_ran)?.tier;
        let programs = match Programs::open(pin_dir) {
            Ok(programs) => Some(programs),
            Err(error) if tier.uses_ebpf() => return Err(error.into()),
            Err(_) => None,
        };
        Ok(Self::new(registry, tier, programs))
    }

    /// Enrols a pod and returns its tier. Again, it brings the pod to what is asked now, and keeps
    /// the tier.
    pub fn add(&self, attachment: &Attachment) -> Result<Tier, NodeError> {
        let pod = &attachment.pod;
        let spec = RedirectSpec::from_annotations(pod, &attachment.annotations)?;
        let failed = |source| NodeError::Namespace {
            pod: pod.to_string(),
            source,
        };
        let cookie = namespace::cookie(&attachment.netns).map_err(failed)?;
        if is_host(cookie) {
            return Err(NodeError::HostNetwork {
                pod: pod.to_string(),
                netns: attachment.netns.clone(),
            });
        }
        let found = addresses(&attachment.netns).map_err(failed)?;
        let earlier = self.earlier(&attachment.id.container_id, cookie)?;
        let attachments = with_attachment(earlier.as_ref(), attachment);
        let given: HashSet<IpAddr> = given(&attachments).collect();
        if given.len() > ADDRESSES_PER_POD {
            return Err(NodeError::TooManyAddresses {
                pod: pod.to_string(),
                count: given.len(),
            });
        }
        let addresses = in_order(&attachments, &found);
        if addresses.is_empty() {
            return Err(NodeError::NoAddress {
                pod: pod.to_string(),
            });
        }
        let tier = earlier
            .as_ref()
            .map_or(self.tier, |record| record.redirect.tier);
        let record = Record {
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
                self.roll_back(&record, earlier.as_ref());
                Err(NodeError::Apply {
                    pod: pod.to_string(),
                    tier,
                    source,
                })
            }
        }
    }

    /// Forgets one attachment, and the pod with its last. What is not known is forgotten already.
    pub fn del(&self, id: &AttachmentId) -> Result<(), NodeError> {
        let Some(mut record) = self.registry.get(&id.container_id)? else {
            return Ok(());
        };
        record.attachments.retain(|attachment| {
            // One that was made without a CNI command knows no network.
            let is_same_network =
                [id.network.as_str(), IN_PLACE].contains(&attachment.network.as_str());
            !is_same_network || attachment.interface != id.interface
        });
        if record.attachments.is_empty() {
            self.forget(&record)
        } else {
            Ok(self.registry.put(&record)?)
        }
    }

    /// Is the pod enrolled, and completely?
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

    /// Forgets every attachment of the network that is not listed; returns how many.
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

    /// Looks after everything that is recorded: finishes deletions, forgets pods that are gone,
    /// completes what is incomplete.
    ///
    /// `thoroughly` looks at the tiers that cost processes too; the agent does so once, when it
    /// starts.
    pub fn look_after(&self, thoroughly: bool) -> Result<Care, NodeError> {
        let mut care = Care::default();
        self.finish_deletions(&mut care)?;
        let (records, damaged) = self.registry.records()?;
        care.failures
            .extend(damaged.iter().map(|error| chain(error)));
        // What cannot be read now reads as if no pod were known, and the repair of each says why.
        let enrolled = redirection::enrolled(self.programs.as_ref()).unwrap_or_default();
        for record in &records {
            self.look_after_pod(record, &enrolled, thoroughly, &mut care);
        }
        if let Some(programs) = &self.programs {
            let known: Vec<PodRedirect> =
                records.into_iter().map(|record| record.redirect).collect();
            if let Err(error) = programs.sweep(&known) {
                care.failures.push(chain(&error));
            }
        }
        Ok(care)
    }

    /// Takes the redirection from every pod and forgets them all. Returns what could not be undone.
    pub fn release_all(self) -> Result<Vec<String>, NodeError> {
        self.registry.close()?;
        let (records, _) = self.registry.records()?;
        let failures = records
            .iter()
            .filter_map(|record| self.forget(record).err())
            .map(|error| chain(&error))
            .collect();
        self.registry.erase()?;
        Ok(failures)
    }

    /// The record of the same pod from before. One whose sandbox id came back with another
    /// namespace is forgotten first.
    fn earlier(&self, container_id: &str, cookie: u64) -> Result<Option<Record>, NodeError> {
        match self.registry.get(container_id)? {
            Some(record) if record.redirect.cookie != cookie => {
                self.forget(&record)?;
                Ok(None)
            }
            other => Ok(other),
        }
    }

    /// After a failed enrolment: nothing of a new pod stays; a pod that was enrolled before keeps
    /// its earlier record, and the next sweep completes it.
    fn roll_back(&self, record: &Record, earlier: Option<&Record>) {
        let result = match earlier {
            Some(earlier) => self.registry.put(earlier).map_err(NodeError::from),
            None => self.forget(record),
        };
        if let Err(error) = result {
            tracing::warn!(
                pod = %record.redirect.pod,
                error = chain(&error),
                "An enrolment failed and could not be undone; the next sweep tries again"
            );
        }
    }

    /// Removes the redirection, then the record, so that an interrupted removal is known of.
    fn forget(&self, record: &Record) -> Result<(), NodeError> {
        let redirect = &record.redirect;
        redirection::withdraw(self.programs.as_ref(), redirect).map_err(|source| {
            NodeError::Withdraw {
                pod: redirect.pod.to_string(),
                tier: redirect.tier,
                source,
            }
        })?;
        Ok(self.registry.remove(&redirect.sandbox_id)?)
    }

    fn finish_deletions(&self, care: &mut Care) -> Result<(), NodeError> {
        for id in self.registry.buried()? {
            match self.del(&id) {
                Ok(()) => self.registry.unbury(&id)?,
                Err(error) => care.failures.push(chain(&error)),
            }
        }
        Ok(())
    }

    /// Tells the kernel programs of addresses that the pod gave itself or gave up; true when there
    /// were any. Until then a connection from a new address counts as one with a foreign source.
    /// Packet filters need no addresses.
    fn follow_addresses(&self, record: &Record) -> Result<bool, NodeError> {
        let known = &record.redirect;
        if !known.tier.uses_ebpf() {
            return Ok(false);
        }
        let found = addresses(&known.netns).map_err(|source| NodeError::Namespace {
            pod: known.pod.to_string(),
            source,
        })?;
        let addresses = in_order(&record.attachments, &found);
        if addresses == known.addresses || addresses.is_empty() {
            return match found.len() > ADDRESSES_PER_POD {
                true => Err(NodeError::IgnoredAddresses {
                    pod: known.pod.to_string(),
                }),
                false => Ok(false),
            };
        }
        let record = Record {
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

    fn look_after_pod(
        &self,
        record: &Record,
        enrolled: &[EnrolledPod],
        thoroughly: bool,
        care: &mut Care,
    ) {
        let redirect = &record.redirect;
        if namespace::is_gone(&redirect.netns, redirect.cookie) {
            match self.forget(record) {
                Ok(()) => care.removed.push(redirect.pod.clone()),
                Err(error) => care.failures.push(chain(&error)),
            }
            return;
        }
        match self.follow_addresses(record) {
            Ok(false) => {}
            Ok(true) => {
                care.readdressed.push(redirect.pod.clone());
                return;
            }
            Err(error @ NodeError::IgnoredAddresses { .. }) => care.failures.push(chain(&error)),
            Err(error) => {
                care.failures.push(chain(&error));
                return;
            }
        }
        if !thoroughly && !redirection::is_cheap_to_verify(redirect.tier) {
            care.intact += 1;
            return;
        }
        let Err(found) = redirection::verify(self.programs.as_ref(), enrolled, redirect) else {
            care.intact += 1;
            return;
        };
        match redirection::apply(self.programs.as_ref(), redirect) {
            Ok(()) => care.repaired.push((redirect.pod.clone(), chain(&found))),
            Err(source) => care.failures.push(chain(&NodeError::Apply {
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
    /// How the socket's answer classifies it.
    pub fn reason(&self) -> RefusalReason {
        match self {
            Self::Annotation(_)
            | Self::TooManyAddresses { .. }
            | Self::HostNetwork { .. }
            | Self::NoAddress { .. }
            | Self::Registry(RegistryError::ContainerId { .. }) => RefusalReason::Invalid,
            Self::NotEnrolled { .. } | Self::Incomplete { .. } => RefusalReason::NotEnrolled,
            Self::NeverRan { .. } => RefusalReason::TryAgain,
            Self::Registry(_)
            | Self::Namespace { .. }
            | Self::IgnoredAddresses { .. }
            | Self::Apply { .. }
            | Self::Withdraw { .. }
            | Self::Programs(_) => RefusalReason::Failed,
        }
    }
}

/// Both the agent and the plugin run in the node's own network namespace.
fn is_host(cookie: u64) -> bool {
    netns::current_cookie().is_ok_and(|own| own == cookie)
}

/// The pod's attachments with this one added or brought up to date.
fn with_attachment(earlier: Option<&Record>, attachment: &Attachment) -> Vec<RecordedAttachment> {
    let new = RecordedAttachment {
        network: attachment.id.network.clone(),
        interface: attachment.id.interface.clone(),
        addresses: attachment.addresses.clone(),
    };
    let mut attachments: Vec<RecordedAttachment> = earlier
        .map(|record| record.attachments.clone())
        .unwrap_or_default();
    let same = attachments
        .iter_mut()
        .find(|known| known.network == new.network && known.interface == new.interface);
    match same {
        Some(known) => *known = new,
        None => attachments.push(new),
    }
    attachments
}

/// The addresses that the network plugins gave to the pod.
fn given(attachments: &[RecordedAttachment]) -> impl Iterator<Item = IpAddr> {
    attachments
        .iter()
        .flat_map(|attachment| attachment.addresses.iter().copied())
}

/// A pod's addresses, those that the network plugins gave it first and in their order: the first of
/// a family is the one that connections are redirected to, and an application sees it as its own.
/// No more than a pod may have: one with NET_ADMIN gives itself any number.
fn in_order(attachments: &[RecordedAttachment], found: &[IpAddr]) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for address in given(attachments).chain(found.iter().copied()) {
        if addresses.len() == ADDRESSES_PER_POD {
            break;
        }
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_first_address_is_the_one_its_network_gave_it() {
        let addresses = |texts: &[&str]| -> Vec<IpAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let attachment = RecordedAttachment {
            network: "pods".into(),
            interface: "eth0".into(),
            addresses: addresses(&["192.168.7.9", "fd00::9"]),
        };
        let found = addresses(&["10.0.0.1", "192.168.7.9", "fd00::9"]);
        assert_eq!(
            in_order(&[attachment], &found),
            addresses(&["192.168.7.9", "fd00::9", "10.0.0.1"])
        );
        assert_eq!(in_order(&[], &found), found);
    }

    #[test]
    fn pod_that_gives_itself_addresses_keeps_those_of_its_network() {
        let own: IpAddr = "192.168.7.9".parse().unwrap();
        let attachment = RecordedAttachment {
            network: "pods".into(),
            interface: "eth0".into(),
            addresses: vec![own],
        };
        let found: Vec<IpAddr> = (0..200_u8).map(|last| [10, 0, 0, last].into()).collect();
        let addresses = in_order(&[attachment], &found);
        assert_eq!(addresses.len(), ADDRESSES_PER_POD);
        assert_eq!(addresses[0], own);
    }
}
