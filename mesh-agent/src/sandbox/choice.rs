//! Which of the namespaces that a pod's processes were found in is the pod's. Pure.
//!
//! A privileged process may be passing through the namespace of another pod at the moment of the
//! look (istio/istio#55139). Enrolling that one would redirect the other pod's connections to a
//! proxy that it does not have.

use std::{fmt, net::IpAddr};

use super::{Identity, processes::Process};

/// A network namespace that processes of the pod are in; never the node's.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) identity: Identity,
    /// The sandbox's own process is there before all others.
    pub(super) oldest: Process,
    pub(super) addresses: Vec<IpAddr>,
}

/// Why there is no answer now; a later look may find one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotYet {
    NoProcess,
    NoAddress,
    /// No namespace has one of the addresses that the API server knows.
    OtherAddress(Vec<IpAddr>),
    Ambiguous,
}

impl Candidate {
    pub(super) fn add(&mut self, process: Process) {
        if process.started < self.oldest.started {
            self.oldest = process;
        }
    }

    fn has_one_of(&self, addresses: &[IpAddr]) -> bool {
        self.addresses.iter().any(|found| addresses.contains(found))
    }
}

/// The namespace that has an address of the pod. Before the API server knows any, which is a second
/// or two after the pod's first process, the only one that all of the pod's processes agree on.
pub(super) fn choose(candidates: Vec<Candidate>, known: &[IpAddr]) -> Result<Candidate, NotYet> {
    if candidates.is_empty() {
        return Err(NotYet::NoProcess);
    }
    let is_one = candidates.len() == 1;
    let mut candidates = candidates.into_iter();
    if !known.is_empty() {
        return candidates
            .find(|candidate| candidate.has_one_of(known))
            .ok_or_else(|| NotYet::OtherAddress(known.to_vec()));
    }
    match candidates.next() {
        Some(_) if !is_one => Err(NotYet::Ambiguous),
        Some(only) if !only.addresses.is_empty() => Ok(only),
        _ => Err(NotYet::NoAddress),
    }
}

impl fmt::Display for NotYet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess => f.write_str("none of its processes runs on this node yet"),
            Self::NoAddress => f.write_str("its network namespace has no address yet"),
            Self::OtherAddress(known) => {
                let known: Vec<String> = known.iter().map(IpAddr::to_string).collect();
                write!(
                    f,
                    "none of its processes is in a network namespace with its address {}",
                    known.join(" or ")
                )
            }
            Self::Ambiguous => f.write_str(
                "its processes are in several network namespaces, and its address is not known yet",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(inode: u64, addresses: &[&str]) -> Candidate {
        Candidate {
            identity: Identity(1, inode),
            oldest: Process {
                pid: 10,
                started: 100,
                container_id: None,
            },
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    fn chosen(candidates: Vec<Candidate>, known: &[&str]) -> Result<u64, NotYet> {
        let known: Vec<IpAddr> = known.iter().map(|text| text.parse().unwrap()).collect();
        choose(candidates, &known).map(|chosen| chosen.identity.1)
    }

    #[test]
    fn only_a_namespace_with_an_address_of_the_pod_is_taken() {
        let own = || candidate(1, &["10.0.0.1", "fd00::1"]);
        let foreign = || candidate(2, &["10.0.0.2"]);
        assert_eq!(chosen(vec![foreign(), own()], &["10.0.0.1"]), Ok(1));
        assert_eq!(chosen(vec![own()], &["fd00::1"]), Ok(1));
        let refused = Err(NotYet::OtherAddress(vec!["10.0.0.1".parse().unwrap()]));
        assert_eq!(chosen(vec![foreign()], &["10.0.0.1"]), refused);
    }

    #[test]
    fn without_a_known_address_all_processes_must_agree() {
        assert_eq!(chosen(vec![candidate(1, &["10.0.0.1"])], &[]), Ok(1));
        let two = vec![candidate(1, &["10.0.0.1"]), candidate(2, &["10.0.0.2"])];
        assert_eq!(chosen(two, &[]), Err(NotYet::Ambiguous));
        assert_eq!(chosen(vec![candidate(1, &[])], &[]), Err(NotYet::NoAddress));
        assert_eq!(chosen(vec![], &[]), Err(NotYet::NoProcess));
    }
}
