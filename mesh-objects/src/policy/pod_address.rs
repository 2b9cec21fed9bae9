//! Which pod has an address. Profiles describe the pod to clients that connect to it.

use std::net::SocketAddr;

use crate::model::{Name, Phase, PodRecord};

/// Two pods have one address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pods {0} and {1} both have the address {2}")]
pub struct AmbiguousPod(pub Name, pub Name, pub SocketAddr);

/// Returns the pod at an address, with its own address and port: by a pod address, else by a host
/// port. `candidates` are the pods that have the address, or whose host has it.
///
/// # Errors
///
/// Several pods have the address.
pub fn pod_at<'a>(
    candidates: impl Iterator<Item = &'a PodRecord> + Clone,
    addr: SocketAddr,
) -> Result<Option<(&'a PodRecord, SocketAddr)>, AmbiguousPod> {
    let own = |pod: &PodRecord| (!pod.host_network && pod.ips.contains(&addr.ip())).then_some(addr);
    if let Some(found) = unique_pod(candidates.clone(), addr, own)? {
        return Ok(Some(found));
    }
    unique_pod(candidates, addr, |pod| {
        let port = pod.container_port_at_host(addr)?;
        Some(SocketAddr::new(pod.ip_of_family(addr.ip())?, port))
    })
}

/// Returns the pod if `own` returns an address for one pod only. A terminating pod keeps its
/// address, and its proxy requires TLS, until its containers have terminated; other pods take
/// precedence.
fn unique_pod<'a>(
    candidates: impl Iterator<Item = &'a PodRecord> + Clone,
    addr: SocketAddr,
    own: impl Fn(&PodRecord) -> Option<SocketAddr>,
) -> Result<Option<(&'a PodRecord, SocketAddr)>, AmbiguousPod> {
    for terminating in [false, true] {
        let mut found = candidates
            .clone()
            .filter(|pod| pod.phase != Phase::Terminated && pod.terminating == terminating)
            .filter_map(|pod| own(pod).map(|own| (pod, own)));
        match (found.next(), found.next()) {
            (Some((one, _)), Some((other, _))) => {
                return Err(AmbiguousPod(one.name.clone(), other.name.clone(), addr));
            }
            (Some(one), None) => return Ok(Some(one)),
            (None, _) => {}
        }
    }
    Ok(None)
}
