//! The kernel programs as the rest of the agent sees them: load or adopt the pinned set, enrol and
//! un-enrol pods, read counters, sweep. `aya` and raw BPF system calls end here. The daemon calls
//! [`load`]; the CNI plugin calls [`Programs::open`] when the agent does not answer.
//!
//! Everything lives in pins below one directory of a bpffs, so a killed agent changes nothing for
//! running pods, and whoever opens the directory next goes on from there. A lock on the directory
//! keeps two of them from changing it at once.

mod ancestors;
mod enrol;
mod error;
mod guard;
mod hook;
mod listeners;
mod loader;
mod maps;
mod object;
mod pins;
mod plan;
mod sweep;

use std::{collections::HashMap, net::IpAddr, path::Path};

use mesh_ebpf_common::{
    counter::Counter,
    layout::{FLAG_INBOUND, PodStats},
};

use crate::redirect::{GuardMode, PodRedirect};

pub use ancestors::{Conflict, Hindrance, conflicts};
pub use error::Error;
pub use guard::GuardCounters;
pub use object::Object;
pub use sweep::Sweep;

use hook::HOOKS;
use loader::CgroupRoot;
use maps::{Maps, found, keys_where, map_error};
use pins::Pins;

/// The loaded and pinned set.
#[derive(Clone, Debug)]
pub struct Programs {
    pins: Pins,
}

/// How [`load`] came by the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// Nothing was pinned: loaded and attached.
    Fresh,
    /// The pinned programs are these very programs, attached where they belong: left alone.
    Adopted,
    /// Other programs, or the same ones with an attachment missing: brought up to date in place,
    /// link by link, without a gap.
    Replaced,
}

/// One enrolled pod as the maps describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnrolledPod {
    pub cookie: u64,
    pub addresses: Vec<IpAddr>,
    /// The cgroup id of the proxy, once one listened.
    pub proxy_cgroup: Option<u64>,
    /// Registered listeners of the proxy, both directions.
    pub listeners: usize,
    /// Whether inbound connections are steered (full tier).
    pub inbound: bool,
}

/// The counters of one enrolled pod, summed over the CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCounters {
    pub cookie: u64,
    counts: [u64; Counter::COUNT],
}

/// Loads the programs, or adopts or replaces what is pinned below `pin_dir`, and attaches them to
/// the cgroup that is the parent of the node's pods. Mounts a bpffs if there is none.
pub fn load(
    object: &Object,
    pin_dir: &Path,
    cgroup_root: &Path,
) -> Result<(Programs, Loaded), Error> {
    let root = CgroupRoot::open(cgroup_root)?;
    let pins = Pins::below(pin_dir);
    pins.create()?;
    let lock = pins.lock()?;
    let before = pins.loaded_object()?;
    let is_same = before
        .as_ref()
        .is_some_and(|before| before.bytes() == object.bytes());
    let loaded = if is_same && loader::is_attached(&pins, &root)? {
        Loaded::Adopted
    } else {
        // Forgotten first and remembered last: whoever is interrupted in between starts over.
        pins.forget_object()?;
        loader::attach_all(object, &pins, &root)?;
        for cookie in pins.steered()? {
            loader::replace_steer(object, &pins, cookie)?;
        }
        loader::replace_guards(object, &pins)?;
        enrol::count_anew(&pins)?;
        pins.remember_object(object)?;
        match before {
            None => Loaded::Fresh,
            Some(_) => Loaded::Replaced,
        }
    };
    drop(lock);
    Ok((Programs { pins }, loaded))
}

/// Detaches everything pinned below `pin_dir` and removes it. Redirection ends for every pod.
pub fn unload(pin_dir: &Path) -> Result<(), Error> {
    Pins::below(pin_dir).remove_all()
}

impl Programs {
    /// Opens what is pinned. Needs no object file: the pinned set holds its own.
    pub fn open(pin_dir: &Path) -> Result<Programs, Error> {
        let programs = Programs {
            pins: Pins::below(pin_dir),
        };
        programs.object()?;
        Ok(programs)
    }

    /// Starts redirecting a pod; enrolling it again replaces its settings. Returns how many
    /// listeners of its proxy were already open and have been registered.
    pub fn enrol(&self, pod: &PodRedirect) -> Result<usize, Error> {
        let _lock = self.pins.lock()?;
        enrol::enrol(&self.pins, &self.object()?, pod)
    }

    /// Stops redirecting and removes every trace; false when the pod was not enrolled. Connections
    /// that exist keep their path.
    pub fn unenrol(&self, cookie: u64) -> Result<bool, Error> {
        let _lock = self.pins.lock()?;
        enrol::remove(&self.pins, &mut Maps::open(&self.pins)?, cookie)
    }

    pub fn pods(&self) -> Result<Vec<EnrolledPod>, Error> {
        let maps = Maps::open(&self.pins)?;
        let cookies = keys_where("PODS", maps.pods.keys(), |_| true)?;
        // Each map is walked once, and not once for each pod.
        let mut addresses: HashMap<u64, Vec<IpAddr>> = HashMap::new();
        for key in keys_where("ADDRESSES", maps.addresses.keys(), |_| true)? {
            let of_pod = addresses.entry(key.cookie).or_default();
            of_pod.push(key.address.into());
        }
        let mut listeners: HashMap<u64, usize> = HashMap::new();
        for key in keys_where("LISTENERS", maps.listeners.keys(), |_| true)? {
            *listeners.entry(key.cookie).or_default() += 1;
        }
        let mut pods = Vec::with_capacity(cookies.len());
        for cookie in cookies {
            // Gone since the listing: not enrolled any more.
            let Some(config) = found(maps.pods.get(&cookie, 0), "PODS")? else {
                continue;
            };
            let proxy = found(maps.proxies.get(&cookie, 0), "PROXIES")?;
            pods.push(EnrolledPod {
                cookie,
                addresses: addresses.remove(&cookie).unwrap_or_default(),
                proxy_cgroup: proxy
                    .map(|proxy| proxy.cgroup)
                    .filter(|cgroup| *cgroup != 0),
                listeners: listeners.remove(&cookie).unwrap_or_default(),
                inbound: config.flags & FLAG_INBOUND != 0,
            });
        }
        Ok(pods)
    }

    pub fn counters(&self) -> Result<Vec<PodCounters>, Error> {
        let maps = Maps::open(&self.pins)?;
        maps.stats
            .iter()
            .map(|entry| {
                let (cookie, values) = entry.map_err(map_error("read", "STATS"))?;
                Ok(PodCounters::sum(cookie, &values))
            })
            .collect()
    }

    /// The names of the node's programs that are attached now; each pod's steering program comes on
    /// top.
    pub fn attached(&self) -> Result<Vec<&'static str>, Error> {
        let mut attached = Vec::new();
        for hook in HOOKS {
            let link = pins::open(&self.pins.link(hook.program))?;
            if link.is_some_and(loader::is_on_a_cgroup) {
                attached.push(hook.program);
            }
        }
        Ok(attached)
    }

    /// Connections between connect and accept: 0 on a node at rest.
    pub fn in_flight(&self) -> Result<usize, Error> {
        let maps = Maps::open(&self.pins)?;
        Ok(keys_where("IN_FLIGHT", maps.in_flight.keys(), |_| true)?.len())
    }

    /// Removes pods whose network namespace is gone and registers listeners that opened unseen.
    /// `known` are the pods the caller remembers.
    pub fn sweep(&self, known: &[PodRedirect]) -> Result<Sweep, Error> {
        let _lock = self.pins.lock()?;
        sweep::sweep(&self.pins, &self.object()?, known)
    }

    /// What happens to connection requests that leave a pod around its proxy. Pods that are
    /// enrolled already are guarded from the next sweep on; turning the guard off, or from counting
    /// to dropping and back, holds at once.
    pub fn set_guard(&self, mode: GuardMode) -> Result<(), Error> {
        let _lock = self.pins.lock()?;
        guard::set_mode(&self.pins, &self.object()?, mode)
    }

    pub fn guard(&self) -> Result<GuardMode, Error> {
        guard::mode(&self.pins)
    }

    /// What the guard saw, for the pods it guards.
    pub fn guard_counters(&self) -> Result<Vec<GuardCounters>, Error> {
        guard::counters(&self.pins)
    }

    fn object(&self) -> Result<Object, Error> {
        self.pins
            .loaded_object()?
            .ok_or_else(|| Error::NotPinned(self.pins.root().to_owned()))
    }
}

impl PodCounters {
    fn sum(cookie: u64, values: &[PodStats]) -> PodCounters {
        let mut counts = [0; Counter::COUNT];
        for value in values {
            for (sum, count) in counts.iter_mut().zip(value.counts) {
                *sum += count;
            }
        }
        PodCounters { cookie, counts }
    }

    pub fn of(&self, counter: Counter) -> u64 {
        self.counts[counter.index()]
    }
}
