//! Selects the pod's network namespace among the namespaces of its processes. Pure.
//!
//! A privileged process of the pod may be in the namespace of another pod temporarily
//! (istio/istio#55139). Enrolling that one would redirect the other pod's connections to a proxy
//! that it does not have. The addresses in the pod's status, which only the kubelet reports,
//! decide: nothing is chosen without them.

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
    /// The pod's status has no address yet.
    NoAddress,
    /// No namespace has one of the addresses in the pod's status.
    AddressMismatch(Vec<IpAddr>),
    /// Several namespaces have one.
    Ambiguous(Vec<IpAddr>),
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

/// Returns the only namespace that has an address of the pod's status.
pub(super) fn choose(
    candidates: Vec<Candidate>,
    reported: &[IpAddr],
) -> Result<Candidate, SandboxPending> {
    if candidates.is_empty() {
        return Err(SandboxPending::NoProcess);
    }
    if reported.is_empty() {
        return Err(SandboxPending::NoAddress);
    }
    let mut matching = candidates
        .into_iter()
        .filter(|candidate| candidate.has_any_address(reported));
    match (matching.next(), matching.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(SandboxPending::AddressMismatch(reported.to_vec())),
        (Some(_), Some(_)) => Err(SandboxPending::Ambiguous(reported.to_vec())),
    }
}

impl fmt::Display for SandboxPending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess => f.write_str("none of its processes runs on this node yet"),
            Self::NoAddress => f.write_str("its status has no address yet"),
            Self::AddressMismatch(reported) => write!(
                f,
                "none of its processes is in a network namespace with its address {}",
                list(reported)
            ),
            Self::Ambiguous(reported) => write!(
                f,
                "its processes are in several network namespaces with its address {}, one of which belongs to another pod",
                list(reported)
            ),
        }
    }
}

fn list(addresses: &[IpAddr]) -> String {
    let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    addresses.join(" or ")
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
    fn nothing_is_chosen_without_reported_address() {
        let unreported = |candidates| chosen(candidates, &[]);
        let own = || candidate(1, &["10.0.0.1"]);
        assert_eq!(unreported(vec![own()]), Err(SandboxPending::NoAddress));
        assert_eq!(unreported(vec![]), Err(SandboxPending::NoProcess));
        let unaddressed = chosen(vec![candidate(1, &[])], &["10.0.0.1"]);
        let mismatch = SandboxPending::AddressMismatch(vec!["10.0.0.1".parse().unwrap()]);
        assert_eq!(unaddressed, Err(mismatch));
    }

    #[test]
    fn nothing_is_chosen_while_two_namespaces_have_the_address() {
        let two = vec![candidate(1, &["10.0.0.1"]), candidate(2, &["10.0.0.1"])];
        let ambiguous = SandboxPending::Ambiguous(vec!["10.0.0.1".parse().unwrap()]);
        assert_eq!(chosen(two, &["10.0.0.1"]), Err(ambiguous));
    }
}
