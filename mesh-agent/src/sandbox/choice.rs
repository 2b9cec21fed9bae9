//! Selects the pod's network namespace among those of its processes. Pure.
//!
//! A privileged process of the pod may be in the namespace of another pod temporarily
//! (istio/istio#55139). Enrolling that one would redirect the other pod's connections to a proxy
//! that it does not have.

use std::fmt;
use std::net::IpAddr;

use super::NetnsId;
use super::processes::Process;

/// A network namespace that processes of the pod are in; never the node's.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) netns_id: NetnsId,
    /// The sandbox's own process is the oldest.
    pub(super) oldest: Process,
    pub(super) addresses: Vec<IpAddr>,
}

/// Why the sandbox cannot be determined yet; the caller retries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxPending {
    NoProcess,
    NoAddress,
    /// No namespace has one of the addresses in the pod's status.
    AddressMismatch(Vec<IpAddr>),
    Ambiguous,
}

impl Candidate {
    pub(super) fn add(&mut self, process: Process) {
        if process.started < self.oldest.started {
            self.oldest = process;
        }
    }

    fn has_any_address(&self, addresses: &[IpAddr]) -> bool {
        self.addresses.iter().any(|found| addresses.contains(found))
    }
}

/// Returns the namespace that has an address of the pod. Before the pod's status has addresses,
/// which takes a second or two after the pod's first process, returns the only namespace of all the
/// pod's processes.
pub(super) fn choose(
    candidates: Vec<Candidate>,
    known: &[IpAddr],
) -> Result<Candidate, SandboxPending> {
    if candidates.is_empty() {
        return Err(SandboxPending::NoProcess);
    }
    let is_one = candidates.len() == 1;
    let mut candidates = candidates.into_iter();
    if !known.is_empty() {
        return candidates
            .find(|candidate| candidate.has_any_address(known))
            .ok_or_else(|| SandboxPending::AddressMismatch(known.to_vec()));
    }
    match candidates.next() {
        Some(_) if !is_one => Err(SandboxPending::Ambiguous),
        Some(only) if !only.addresses.is_empty() => Ok(only),
        _ => Err(SandboxPending::NoAddress),
    }
}

impl fmt::Display for SandboxPending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess => f.write_str("none of its processes runs on this node yet"),
            Self::NoAddress => f.write_str("its network namespace has no address yet"),
            Self::AddressMismatch(known) => {
                let known: Vec<String> = known.iter().map(IpAddr::to_string).collect();
                write!(
                    f,
                    "none of its processes is in a network namespace with its address {}",
                    known.join(" or ")
                )
            }
            Self::Ambiguous => f.write_str(
                "its processes are in several network namespaces, and its status has no address yet",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(inode: u64, addresses: &[&str]) -> Candidate {
        Candidate {
            netns_id: NetnsId(1, inode),
            oldest: Process {
                pid: 10,
                started: 100,
                container_id: None,
            },
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    fn chosen(candidates: Vec<Candidate>, known: &[&str]) -> Result<u64, SandboxPending> {
        let known: Vec<IpAddr> = known.iter().map(|text| text.parse().unwrap()).collect();
        choose(candidates, &known).map(|chosen| chosen.netns_id.1)
    }

    #[test]
    fn namespace_with_pod_address_is_selected() {
        let own = || candidate(1, &["10.0.0.1", "fd00::1"]);
        let foreign = || candidate(2, &["10.0.0.2"]);
        assert_eq!(chosen(vec![foreign(), own()], &["10.0.0.1"]), Ok(1));
        assert_eq!(chosen(vec![own()], &["fd00::1"]), Ok(1));
        let refused = Err(SandboxPending::AddressMismatch(vec![
            "10.0.0.1".parse().unwrap(),
        ]));
        assert_eq!(chosen(vec![foreign()], &["10.0.0.1"]), refused);
    }

    #[test]
    fn without_pod_addresses_namespace_must_be_unambiguous() {
        assert_eq!(chosen(vec![candidate(1, &["10.0.0.1"])], &[]), Ok(1));
        let two = vec![candidate(1, &["10.0.0.1"]), candidate(2, &["10.0.0.2"])];
        assert_eq!(chosen(two, &[]), Err(SandboxPending::Ambiguous));
        let unaddressed = chosen(vec![candidate(1, &[])], &[]);
        assert_eq!(unaddressed, Err(SandboxPending::NoAddress));
        assert_eq!(chosen(vec![], &[]), Err(SandboxPending::NoProcess));
    }
}
