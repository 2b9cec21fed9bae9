//! The interface of the kernel programs for the rest of the agent: load or adopt the pinned set,
//! enrol and remove pods, read counters, sweep. No other module uses `aya` or raw BPF system calls.
//! The daemon calls [`load`]; the CNI plugin calls [`Programs::open`] when the agent does not
//! respond.
//!
//! All state is pinned below one directory of a bpffs, so killing the agent affects no running pod,
//! and the next process that opens the directory continues with it. A lock on the directory
//! serialises changes.

mod conflicts;
mod enrol;
mod error;
mod guard;
mod hook;
mod listeners;
mod loader;
mod machine;
mod maps;
mod object;
mod open_ports;
mod pins;
mod plan;
mod sweep;
mod trace;

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

use mesh_ebpf_common::counter::Counter;
use mesh_ebpf_common::layout::{FLAG_INBOUND, FLAG_TRACED, PodConfig, PodStats};
use mesh_runtime::log::chain;

use crate::redirect::{GuardMode, PodRedirect, UnitRedirect};
use hook::{HOOKS, OPEN_PORTS};
use loader::CgroupRoot;
use maps::{Maps, keys_where, map_error, optional};
use pins::Pins;

pub use conflicts::{Conflict, ConflictKind, conflicts};
pub use error::Error;
pub use guard::GuardCounters;
pub use machine::{
    ApplyReport, DesiredUnit, EnrolledUnit, HOST_ADDRESSES_MAX, Host, Settings, SharedPort,
    UnitPrograms, check_units, hierarchy_root, load_for_units, unload_for_units,
};
pub use object::Object;
pub use sweep::SweepReport;
pub use trace::{TraceLog, TracedDecision};

#[derive(Clone, Debug)]
pub struct Programs {
    pins: Pins,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// Nothing was pinned: loaded and attached.
    Fresh,
    /// The pinned programs are the same and attached: nothing changed.
    Adopted,
    /// Other programs were pinned, or one was not attached: updated in place without a gap.
    Replaced,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnrolledPod {
    pub cookie: u64,
    pub addresses: Vec<IpAddr>,
    /// The proxy's cgroup id, once it has had a listener.
    pub proxy_cgroup: Option<u64>,
    /// Registered listeners of the proxy, both directions.
    pub listeners: usize,
    /// Whether inbound connections are steered (full tier).
    pub inbound: bool,
    /// Whether the programs report their decisions about it.
    pub traced: bool,
    /// Whether connections to its closed ports are refused.
    pub knows_ports: bool,
}

/// The counters of one enrolled pod, summed over the CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCounters {
    pub cookie: u64,
    counts: [u64; Counter::COUNT],
}

/// Loads the programs, or adopts or replaces those pinned below `pin_dir`, and attaches them to the
/// cgroup that is the parent of the node's pods. Mounts a bpffs if none is mounted.
pub fn load(
    object: &Object,
    pin_dir: &Path,
    cgroup_root: &Path,
) -> Result<(Programs, Loaded), Error> {
    let root = CgroupRoot::open(cgroup_root)?;
    let pins = Pins::new(pin_dir);
    pins.create()?;
    let lock = pins.lock()?;
    let pinned = pins.loaded_object()?;
    let is_same = pinned
        .as_ref()
        .is_some_and(|pinned| pinned.bytes() == object.bytes());
    let loaded = if is_same && loader::is_attached(&pins, &root)? {
        if !loader::observes_ports(&pins, &root)? && observe_ports(object, &pins, &root) {
            Loaded::Replaced
        } else {
            Loaded::Adopted
        }
    } else {
        // Unpinned first and pinned last: an interrupted replacement starts over.
        pins.unpin_object()?;
        // Before the connect hook: it redirects to ports that only its reader knows.
        for cookie in pins.steered_cookies()? {
            loader::replace_steer(object, &pins, cookie)?;
        }
        loader::attach_all(object, &pins, &root)?;
        observe_ports(object, &pins, &root);
        loader::replace_guards(object, &pins)?;
        enrol::reset_in_flight_counts(&pins)?;
        pins.pin_object(object)?;
        match pinned {
            None => Loaded::Fresh,
            Some(_) => Loaded::Replaced,
        }
    };
    drop(lock);
    Ok((Programs { pins }, loaded))
}

/// Attaches the program that observes listening sockets, or replaces it. Returns whether it is
/// attached, and logs why it is not: redirection does not depend on it.
fn observe_ports(object: &Object, pins: &Pins, root: &CgroupRoot) -> bool {
    let observed = try_observe_ports(object, pins, root);
    if let Err(error) = &observed {
        tracing::warn!(
            error = chain(error),
            "Connections to closed ports of pods are not refused"
        );
    }
    observed.is_ok()
}

/// If the program was not attached, sockets may have been missed, and the ports of all enrolled
/// pods become unknown.
fn try_observe_ports(object: &Object, pins: &Pins, root: &CgroupRoot) -> Result<(), Error> {
    if !loader::observes_ports(pins, root)? {
        open_ports::forget(&mut Maps::open(pins)?, None)?;
    }
    loader::observe_ports(object, pins, root)
}

/// Detaches and removes everything pinned below `pin_dir`. Ends the redirection of every pod.
pub fn unload(pin_dir: &Path) -> Result<(), Error> {
    Ok(Pins::new(pin_dir).remove_all()?)
}

/// Returns the settings of a systemd unit as the kernel programs have them, on a host with these
/// addresses.
pub(crate) fn config_of_unit(unit: &UnitRedirect, addresses: &[IpAddr]) -> PodConfig {
    plan::Plan::of_unit(unit, addresses).config
}

impl Programs {
    /// Opens the pinned set. Needs no object file: the set contains its own.
    pub fn open(pin_dir: &Path) -> Result<Programs, Error> {
        let programs = Programs {
            pins: Pins::new(pin_dir),
        };
        programs.object()?;
        Ok(programs)
    }

    /// Starts redirecting a pod; for an enrolled pod it replaces the settings. Returns how many
    /// open listeners of its proxy have been registered.
    pub fn enrol(&self, pod: &PodRedirect) -> Result<usize, Error> {
        let _lock = self.pins.lock()?;
        enrol::enrol(&self.pins, &self.object()?, pod)
    }

    /// Stops redirecting a pod and removes all of its state; returns false when the pod was not
    /// enrolled. Existing connections are unaffected.
    pub fn unenrol(&self, cookie: u64) -> Result<bool, Error> {
        let _lock = self.pins.lock()?;
        enrol::remove(&self.pins, &mut Maps::open(&self.pins)?, cookie)
    }

    pub fn pods(&self) -> Result<Vec<EnrolledPod>, Error> {
        let maps = Maps::open(&self.pins)?;
        let cookies = keys_where("PODS", maps.pods.keys(), |_| true)?;
        // Iterates each map once instead of once per pod.
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
            // Removed since the listing.
            let Some(config) = optional(maps.pods.get(&cookie, 0), "PODS")? else {
                continue;
            };
            let proxy = optional(maps.proxies.get(&cookie, 0), "PROXIES")?;
            pods.push(EnrolledPod {
                cookie,
                addresses: addresses.remove(&cookie).unwrap_or_default(),
                proxy_cgroup: proxy
                    .map(|proxy| proxy.cgroup)
                    .filter(|cgroup| *cgroup != 0),
                listeners: listeners.remove(&cookie).unwrap_or_default(),
                inbound: config.flags & FLAG_INBOUND != 0,
                traced: config.flags & FLAG_TRACED != 0,
                knows_ports: open_ports::are_known(&maps, cookie, config.flags)?,
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
                let refused = open_ports::refused(&maps, cookie)?;
                Ok(PodCounters::sum(cookie, &values, refused))
            })
            .collect()
    }

    /// Returns the names of the node's attached programs, without each pod's steering program.
    pub fn attached(&self) -> Result<Vec<&'static str>, Error> {
        let mut attached = Vec::new();
        for hook in HOOKS.into_iter().chain([OPEN_PORTS]) {
            let link = pins::open(&self.pins.link(hook.program))?;
            if link.is_some_and(loader::has_cgroup) {
                attached.push(hook.program);
            }
        }
        Ok(attached)
    }

    /// Returns the number of connections between connect and accept: 0 on an idle node.
    pub fn in_flight(&self) -> Result<usize, Error> {
        let maps = Maps::open(&self.pins)?;
        Ok(keys_where("IN_FLIGHT", maps.in_flight.keys(), |_| true)?.len())
    }

    /// Removes pods whose network namespace no longer exists, and registers listeners that opened
    /// while the programs were not attached. `known` are the pods in the caller's registry.
    pub fn sweep(&self, known: &[PodRedirect]) -> Result<SweepReport, Error> {
        let _lock = self.pins.lock()?;
        sweep::sweep(&self.pins, &self.object()?, known)
    }

    /// Sets what happens to connection requests that leave a pod around its proxy. Enrolled pods
    /// are guarded from the next sweep on; turning the guard off, or switching between counting and
    /// dropping, takes effect immediately.
    pub fn set_guard(&self, mode: GuardMode) -> Result<(), Error> {
        let _lock = self.pins.lock()?;
        guard::set_mode(&self.pins, &self.object()?, mode)
    }

    pub fn guard(&self) -> Result<GuardMode, Error> {
        guard::mode(&self.pins)
    }

    pub fn guard_counters(&self) -> Result<Vec<GuardCounters>, Error> {
        guard::counters(&self.pins)
    }

    /// Has the programs report their decisions about an enrolled pod.
    pub fn start_trace(&self, cookie: u64) -> Result<(), Error> {
        let _lock = self.pins.lock()?;
        trace::start(&self.pins, cookie)
    }

    pub fn stop_trace(&self, cookie: u64) -> Result<(), Error> {
        let _lock = self.pins.lock()?;
        trace::stop(&self.pins, cookie)
    }

    /// Ends every trace; returns how many pods had one.
    pub fn stop_all_traces(&self) -> Result<usize, Error> {
        let _lock = self.pins.lock()?;
        trace::stop_all(&self.pins)
    }

    /// Opens the log of the programs' decisions, which one reader may have open at a time.
    /// Decisions from before are discarded.
    pub fn trace_log(&self) -> Result<TraceLog, Error> {
        TraceLog::open(&self.pins)
    }

    fn object(&self) -> Result<Object, Error> {
        self.pins
            .loaded_object()?
            .ok_or_else(|| Error::NotPinned(self.pins.root().to_owned()))
    }
}

impl PodCounters {
    /// `refused` is the number of connections to closed ports, which is not among the values.
    fn sum(cookie: u64, values: &[PodStats], refused: u64) -> PodCounters {
        let mut counts = [0; Counter::COUNT];
        counts[Counter::InboundClosed.index()] = refused;
        for value in values {
            for (sum, count) in counts.iter_mut().zip(value.counts) {
                *sum += count;
            }
        }
        PodCounters { cookie, counts }
    }

    pub fn get(&self, counter: Counter) -> u64 {
        self.counts[counter.index()]
    }
}
