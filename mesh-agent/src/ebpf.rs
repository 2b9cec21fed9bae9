//! The kernel programs as the rest of the agent sees them: load or adopt the pinned set, enrol and
//! un-enrol pods, read counters, sweep. `aya` and raw BPF system calls end here. The daemon calls
//! [`load`]; the CNI plugin calls [`Programs::open`] when the agent does not answer.
//!
//! Everything lives in pins below one directory of a bpffs, so a killed agent changes nothing for
//! running pods, and whoever opens the directory next goes on from there.

use std::path::{Path, PathBuf};

use mesh_ebpf_common::counter::Counter;
use thiserror::Error;

use crate::redirect::PodRedirect;

/// The compiled kernel programs (an ELF object).
pub struct Object {
    bytes: Vec<u8>,
}

/// The loaded and pinned set.
pub struct Programs {
    pin_dir: PathBuf,
}

/// How [`load`] came by the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// Nothing was pinned: loaded and attached.
    Fresh,
    /// The pinned programs are these very programs: left alone.
    Adopted,
    /// Older programs were replaced in place, link by link, without a gap.
    Replaced,
}

/// One enrolled pod as the maps describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnrolledPod {
    pub cookie: u64,
    pub addresses: Vec<std::net::IpAddr>,
    pub proxy_cgroup: Option<u64>,
    pub inbound: bool,
}

/// What one sweep removed or repaired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    pub pods_removed: usize,
    pub listeners_registered: usize,
}

#[derive(Debug, Error)]
pub enum Error {
    #[error("the eBPF tiers are unavailable: {0}")]
    NoObject(String),
    #[error("no kernel programs are pinned below {0}")]
    NotPinned(PathBuf),
}

/// Loads the programs, or adopts or replaces what is pinned below `pin_dir`, and attaches them to
/// the cgroup that is the parent of the node's pods.
pub fn load(
    _object: &Object,
    pin_dir: &Path,
    _cgroup_root: &Path,
) -> Result<(Programs, Loaded), Error> {
    Err(Error::NotPinned(pin_dir.to_owned()))
}

impl Object {
    /// The object at `path`, or the one built into this binary.
    pub fn open(path: Option<&Path>) -> Result<Object, Error> {
        Err(Error::NoObject(format!("{path:?}")))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Programs {
    /// Opens what is pinned, without an object and without loading the shared programs.
    pub fn open(pin_dir: &Path) -> Result<Programs, Error> {
        Err(Error::NotPinned(pin_dir.to_owned()))
    }

    /// Starts redirecting a pod. Enrolling it again replaces its settings. Returns how many
    /// listeners that were already open were registered.
    pub fn enrol(&self, _pod: &PodRedirect) -> Result<usize, Error> {
        Err(Error::NotPinned(self.pin_dir.clone()))
    }

    /// Stops redirecting and removes every trace; false when the pod was not enrolled.
    pub fn unenrol(&self, _cookie: u64) -> Result<bool, Error> {
        Err(Error::NotPinned(self.pin_dir.clone()))
    }

    pub fn pods(&self) -> Result<Vec<EnrolledPod>, Error> {
        Err(Error::NotPinned(self.pin_dir.clone()))
    }

    /// Counter values by pod, summed over the CPUs.
    pub fn counters(&self) -> Result<Vec<(u64, [(Counter, u64); Counter::COUNT])>, Error> {
        Err(Error::NotPinned(self.pin_dir.clone()))
    }

    /// Removes pods whose network namespace is gone and repairs what can be repaired.
    pub fn sweep(&self) -> Result<Sweep, Error> {
        Err(Error::NotPinned(self.pin_dir.clone()))
    }
}
