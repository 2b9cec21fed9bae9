//! One pod's redirection, whatever its tier: put in place, looked at, taken away. The only place
//! that says which mechanism a tier is made of.

use std::net::IpAddr;

use super::namespace::{self, NamespaceError};
use crate::{
    ebpf::{self, EnrolledPod, Programs},
    iptables::{self, IptablesError},
    nft::{NftError, Table},
    redirect::{PodRedirect, Tier},
    rules::{Directions, Rules},
};

#[derive(Debug, thiserror::Error)]
pub enum RedirectionError {
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error("eBPF redirection failed")]
    Ebpf(#[source] Box<ebpf::Error>),
    #[error("nftables redirection failed")]
    Nft(#[source] NftError),
    #[error("iptables redirection failed")]
    Iptables(#[source] IptablesError),
    #[error(
        "tier {0} needs the kernel programs, and none are pinned on this node; restart the mesh agent"
    )]
    NoPrograms(Tier),
    #[error("the kernel programs do not know the pod; the agent repairs this at its next sweep")]
    UnknownToPrograms,
    #[error(
        "the kernel programs do not know the pod's address {0}; the agent repairs this at its next sweep"
    )]
    UnknownAddress(IpAddr),
}

/// The packet filter that a tier uses, and for which directions.
#[derive(Clone, Copy)]
enum Filter {
    Nft(Directions),
    Iptables,
}

fn filter_of(tier: Tier) -> Option<Filter> {
    match tier {
        Tier::Full => None,
        Tier::Split => Some(Filter::Nft(Directions::InboundOnly)),
        Tier::Nft => Some(Filter::Nft(Directions::Both)),
        Tier::Iptables => Some(Filter::Iptables),
    }
}

/// Redirects the pod. Again, it replaces what the first time did, without a gap.
pub(super) fn apply(
    programs: Option<&Programs>,
    pod: &PodRedirect,
) -> Result<(), RedirectionError> {
    // The packet filter first: in the split tier a pod that is redirected outbound only would
    // accept clear text.
    match filter_of(pod.tier) {
        Some(Filter::Nft(directions)) => {
            let rules = Rules::new(&pod.spec, directions);
            inside(pod, || Table::open()?.replace(&rules))?.map_err(RedirectionError::Nft)?;
        }
        Some(Filter::Iptables) => {
            let rules = Rules::new(&pod.spec, Directions::Both);
            inside(pod, || iptables::replace(&rules))?.map_err(RedirectionError::Iptables)?;
        }
        None => {}
    }
    if pod.tier.uses_ebpf() {
        needed(programs, pod)?.enrol(pod).map_err(ebpf_error)?;
    }
    Ok(())
}

/// What the kernel programs know, read once for all pods that are looked at; nothing without
/// programs.
pub(super) fn enrolled(programs: Option<&Programs>) -> Result<Vec<EnrolledPod>, RedirectionError> {
    programs.map_or(Ok(Vec::new()), |programs| {
        programs.pods().map_err(ebpf_error)
    })
}

/// Is everything in place that [`apply`] puts there?
pub(super) fn verify(
    programs: Option<&Programs>,
    enrolled: &[EnrolledPod],
    pod: &PodRedirect,
) -> Result<(), RedirectionError> {
    match filter_of(pod.tier) {
        Some(Filter::Nft(directions)) => {
            let rules = Rules::new(&pod.spec, directions);
            inside(pod, || Table::open()?.verify(&rules))?.map_err(RedirectionError::Nft)?;
        }
        Some(Filter::Iptables) => {
            let rules = Rules::new(&pod.spec, Directions::Both);
            inside(pod, || iptables::verify(&rules))?.map_err(RedirectionError::Iptables)?;
        }
        None => {}
    }
    if pod.tier.uses_ebpf() {
        needed(programs, pod)?;
        verify_ebpf(enrolled, pod)?;
    }
    Ok(())
}

/// Removes the redirection. What is gone already, because it went with its namespace or was removed
/// before, is no error.
pub(super) fn withdraw(
    programs: Option<&Programs>,
    pod: &PodRedirect,
) -> Result<(), RedirectionError> {
    // Without programs on the node there is nothing of the pod in them.
    if let Some(programs) = programs.filter(|_| pod.tier.uses_ebpf()) {
        programs.unenrol(pod.cookie).map_err(ebpf_error)?;
    }
    let Some(filter) = filter_of(pod.tier) else {
        return Ok(());
    };
    // The rules of a namespace go with it.
    if namespace::is_gone(&pod.netns, pod.cookie) {
        return Ok(());
    }
    match filter {
        Filter::Nft(_) => inside(pod, || Table::open()?.remove())?.map_err(RedirectionError::Nft),
        Filter::Iptables => inside(pod, iptables::remove)?.map_err(RedirectionError::Iptables),
    }
}

/// Is looking at this tier cheap enough to do every few seconds for every pod? The iptables
/// programs take several processes for each.
pub(super) fn is_cheap_to_verify(tier: Tier) -> bool {
    !matches!(filter_of(tier), Some(Filter::Iptables))
}

fn verify_ebpf(enrolled: &[EnrolledPod], pod: &PodRedirect) -> Result<(), RedirectionError> {
    let found = enrolled
        .iter()
        .find(|enrolled| {
            enrolled.cookie == pod.cookie && enrolled.inbound == (pod.tier == Tier::Full)
        })
        .ok_or(RedirectionError::UnknownToPrograms)?;
    let knows = |address: &IpAddr| {
        let mut known = found.addresses.iter().map(IpAddr::to_canonical);
        known.any(|known| known == address.to_canonical())
    };
    match pod.addresses.iter().find(|address| !knows(address)) {
        Some(unknown) => Err(RedirectionError::UnknownAddress(*unknown)),
        None => Ok(()),
    }
}

fn ebpf_error(error: ebpf::Error) -> RedirectionError {
    RedirectionError::Ebpf(Box::new(error))
}

fn needed<'a>(
    programs: Option<&'a Programs>,
    pod: &PodRedirect,
) -> Result<&'a Programs, RedirectionError> {
    programs.ok_or(RedirectionError::NoPrograms(pod.tier))
}

fn inside<T: Send>(
    pod: &PodRedirect,
    work: impl FnOnce() -> T + Send,
) -> Result<T, RedirectionError> {
    Ok(namespace::inside(&pod.netns, work)?)
}
