//! One pod's redirection in any tier: the only module that maps a tier to its mechanisms.

use std::net::IpAddr;

use super::namespace::{self, NamespaceError};
use crate::ebpf::{self, EnrolledPod, Programs};
use crate::iptables::{self, IptablesError};
use crate::nft::{NftError, Table};
use crate::redirect::{PodRedirect, Tier};
use crate::rules::{Directions, Rules};

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
    #[error(
        "the kernel programs' maps have no entry for the pod; the agent adds it at its next reconciliation"
    )]
    PodNotInMaps,
    #[error(
        "the kernel programs' maps lack the pod's address {0}; the agent adds it at its next reconciliation"
    )]
    AddressNotInMaps(IpAddr),
}

#[derive(Clone, Copy)]
enum PacketFilter {
    Nft(Directions),
    Iptables,
}

fn packet_filter(tier: Tier) -> Option<PacketFilter> {
    match tier {
        Tier::Full => None,
        Tier::Split => Some(PacketFilter::Nft(Directions::InboundOnly)),
        Tier::Nft => Some(PacketFilter::Nft(Directions::Both)),
        Tier::Iptables => Some(PacketFilter::Iptables),
    }
}

/// Redirects the pod. For a redirected pod it replaces the settings without a gap.
pub(super) fn apply(
    programs: Option<&Programs>,
    pod: &PodRedirect,
) -> Result<(), RedirectionError> {
    // The packet filter first: with outbound redirection only, a pod would accept clear text.
    with_packet_filter(pod, Table::replace, iptables::replace)?;
    if pod.tier.uses_ebpf() {
        require_programs(programs, pod)?
            .enrol(pod)
            .map_err(ebpf_error)?;
    }
    Ok(())
}

/// Returns the pods in the kernel programs' maps; empty without programs.
pub(super) fn enrolled(programs: Option<&Programs>) -> Result<Vec<EnrolledPod>, RedirectionError> {
    programs.map_or(Ok(Vec::new()), |programs| {
        programs.pods().map_err(ebpf_error)
    })
}

/// Checks that everything is in place that [`apply`] puts there.
pub(super) fn verify(
    programs: Option<&Programs>,
    enrolled: &[EnrolledPod],
    pod: &PodRedirect,
) -> Result<(), RedirectionError> {
    with_packet_filter(pod, Table::verify, iptables::verify)?;
    if pod.tier.uses_ebpf() {
        require_programs(programs, pod)?;
        verify_ebpf(enrolled, pod)?;
    }
    Ok(())
}

/// Removes the redirection. Missing parts are not an error.
pub(super) fn remove(
    programs: Option<&Programs>,
    pod: &PodRedirect,
) -> Result<(), RedirectionError> {
    // When no programs are on the node, they hold no state of the pod.
    if let Some(programs) = programs.filter(|_| pod.tier.uses_ebpf()) {
        programs.unenrol(pod.cookie).map_err(ebpf_error)?;
    }
    // Rules end with their namespace.
    if packet_filter(pod.tier).is_none() || namespace::is_gone(&pod.netns, pod.cookie) {
        return Ok(());
    }
    with_packet_filter(pod, |table, _| table.remove(), |_| iptables::remove())
}

/// Returns whether verifying this tier is cheap enough for every pod every few seconds. The
/// iptables programs start several processes for each.
pub(super) fn is_cheap_to_verify(tier: Tier) -> bool {
    !matches!(packet_filter(tier), Some(PacketFilter::Iptables))
}

fn verify_ebpf(enrolled: &[EnrolledPod], pod: &PodRedirect) -> Result<(), RedirectionError> {
    let found = enrolled
        .iter()
        .find(|enrolled| {
            enrolled.cookie == pod.cookie && enrolled.inbound == (pod.tier == Tier::Full)
        })
        .ok_or(RedirectionError::PodNotInMaps)?;
    let is_enrolled = |address: &IpAddr| {
        let mut known = found.addresses.iter().map(IpAddr::to_canonical);
        known.any(|known| known == address.to_canonical())
    };
    match pod.addresses.iter().find(|address| !is_enrolled(address)) {
        Some(unknown) => Err(RedirectionError::AddressNotInMaps(*unknown)),
        None => Ok(()),
    }
}

fn ebpf_error(error: ebpf::Error) -> RedirectionError {
    RedirectionError::Ebpf(Box::new(error))
}

fn require_programs<'a>(
    programs: Option<&'a Programs>,
    pod: &PodRedirect,
) -> Result<&'a Programs, RedirectionError> {
    programs.ok_or(RedirectionError::NoPrograms(pod.tier))
}

/// Runs what the pod's tier needs of `nft` and `iptables` in the pod's namespace.
fn with_packet_filter(
    pod: &PodRedirect,
    nft: impl FnOnce(&mut Table, &Rules) -> Result<(), NftError> + Send,
    iptables: impl FnOnce(&Rules) -> Result<(), IptablesError> + Send,
) -> Result<(), RedirectionError> {
    match packet_filter(pod.tier) {
        Some(PacketFilter::Nft(directions)) => {
            let rules = Rules::new(&pod.spec, directions);
            namespace::run_in(&pod.netns, || nft(&mut Table::open()?, &rules))?
                .map_err(RedirectionError::Nft)
        }
        Some(PacketFilter::Iptables) => {
            let rules = Rules::new(&pod.spec, Directions::Both);
            namespace::run_in(&pod.netns, || iptables(&rules))?.map_err(RedirectionError::Iptables)
        }
        None => Ok(()),
    }
}
