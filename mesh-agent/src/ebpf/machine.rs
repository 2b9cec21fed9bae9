//! The interface of the kernel programs for systemd units of a host without Kubernetes. As for
//! pods, all state is pinned, so that killing the agent affects no unit, also not one that is
//! restarted meanwhile.
//!
//! The caller states all units that should be enrolled, and [`UnitPrograms::apply`] makes the maps
//! agree: it enrols, changes, repairs and removes in one way. The programs are loaded while there
//! is a unit, and removed with the last one.

mod adopt;
mod hook;
mod kernel_types;
mod load;
mod members;
mod state;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use mesh_ebpf_common::address::Address;
use mesh_ebpf_common::layout::Role;
use mesh_ebpf_common::quota::CGROUP_NAMES_MAX;
use mesh_runtime::log::chain;

use self::adopt::Owners;
use self::load::Roots;
use self::members::Members;
use super::error::Error;
use super::loader::CgroupRoot;
use super::maps::{Maps, UnitMaps, keys_where, optional};
use super::object::Object;
use super::pins::Pins;
use super::{GuardCounters, Loaded, PodCounters, Programs, enrol, guard};
use crate::listening::ListeningSocket;
use crate::redirect::UnitRedirect;

pub use adopt::SharedPort;

/// Addresses of a host that are recorded.
pub const HOST_ADDRESSES_MAX: usize = 4_096;

/// The kernel programs of a machine, and where they are attached.
#[derive(Clone, Debug)]
pub struct UnitPrograms {
    programs: Programs,
    settings: Settings,
    /// The level of the hierarchy's root.
    level: u32,
}

/// Where the programs are pinned and attached.
#[derive(Clone, Debug)]
pub struct Settings {
    pub pin_dir: PathBuf,
    /// A cgroup above all units, which systemd never removes.
    pub unit_root: PathBuf,
    /// The parent of the proxies' cgroups.
    pub proxy_root: PathBuf,
}

/// What every unit of a host shares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The cookie of its network namespace.
    pub netns: u64,
    /// The preferred ones first.
    pub addresses: Vec<IpAddr>,
    pub listening: Vec<ListeningSocket>,
}

/// A unit that should be enrolled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredUnit {
    pub redirect: UnitRedirect,
    /// Before this, the unit's sockets and its proxy are observed and no connection is redirected.
    pub is_redirected: bool,
}

/// Findings and changes of [`UnitPrograms::apply`], besides the ones that it was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyReport {
    /// Cookies of units that were enrolled and are not desired.
    pub removed: Vec<u64>,
    /// Cookies of units whose connections are redirected from now on.
    pub redirected: Vec<u64>,
    /// Listeners of proxies that opened while the programs were not attached.
    pub listeners: usize,
    /// Ports of units that were adopted.
    pub adopted: usize,
    pub shared: Vec<SharedPort>,
    /// One sentence each.
    pub failures: Vec<String>,
}

/// A unit in the maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnrolledUnit {
    pub cookie: u64,
    pub is_redirected: bool,
    /// Whether its proxy listens in both directions.
    pub has_proxy: bool,
    /// Where its sockets listen for other hosts.
    pub listening: Vec<SocketAddr>,
    /// Sockets that could not be recorded, and are closed to other hosts.
    pub unrecorded: u64,
    /// Connections that went around the proxy and were severed.
    pub severed: u64,
}

/// Loads the programs, or adopts or replaces the pinned ones, and attaches them.
pub fn load_for_units(
    object: &Object,
    settings: &Settings,
) -> Result<(UnitPrograms, Loaded), Error> {
    let roots = Roots::open(&settings.unit_root, &settings.proxy_root)?;
    let pins = Pins::of_machine(&settings.pin_dir);
    pins.create()?;
    let lock = pins.lock()?;
    let pinned = pins.loaded_object()?;
    let is_same = pinned
        .as_ref()
        .is_some_and(|pinned| pinned.bytes() == object.bytes());
    let loaded = if is_same && load::is_attached(&pins, &roots)? {
        Loaded::Adopted
    } else {
        // Unpinned first and pinned last: an interrupted replacement starts over.
        pins.unpin_object()?;
        load::attach_all(object, &pins, &roots)?;
        enrol::reset_in_flight_counts(&pins)?;
        pins.pin_object(object)?;
        match pinned {
            None => Loaded::Fresh,
            Some(_) => Loaded::Replaced,
        }
    };
    let level = load::root_level(&pins, &roots)?;
    drop(lock);
    let programs = UnitPrograms {
        programs: Programs { pins },
        settings: settings.clone(),
        level,
    };
    Ok((programs, loaded))
}

/// Detaches and removes the programs of a machine. Ends the redirection of every unit.
pub fn unload_for_units(pin_dir: &Path) -> Result<(), Error> {
    Pins::of_machine(pin_dir).remove_all()?;
    // Fails while other files are in it.
    let _ = std::fs::remove_dir(pin_dir);
    Ok(())
}

/// Returns the root of the hierarchy of cgroups that a cgroup is in, as this process sees it.
pub fn hierarchy_root(cgroup: &Path) -> Result<PathBuf, Error> {
    let root = CgroupRoot::open(cgroup)?.of_node()?;
    Ok(root.path)
}

/// Checks that units can be enrolled together, without changing anything.
pub fn check_units(units: &[UnitRedirect]) -> Result<(), Error> {
    let members = Members::new(units, 0)?;
    if members.count() > CGROUP_NAMES_MAX {
        return Err(Error::Full("CGROUP_NAMES"));
    }
    Ok(())
}

impl UnitPrograms {
    /// Returns whether all programs are attached. Does not compare them, which takes longer.
    pub fn are_attached(&self) -> Result<bool, Error> {
        let pins = &self.programs.pins;
        let roots = Roots::open(&self.settings.unit_root, &self.settings.proxy_root)?;
        Ok(pins.has_object() && load::is_attached(pins, &roots)?)
    }

    /// Makes the maps agree with the units and the host. A unit that fails does not keep others
    /// from being enrolled. Nothing is removed if the units are not complete: a caller that could
    /// not read one of them must not expose it.
    pub fn apply(
        &self,
        units: &[DesiredUnit],
        is_complete: bool,
        host: &Host,
    ) -> Result<ApplyReport, Error> {
        let pins = &self.programs.pins;
        let _lock = pins.lock()?;
        let mut maps = Maps::open(pins)?;
        let mut unit_maps = UnitMaps::open(pins)?;
        let roots = Roots::open(&self.settings.unit_root, &self.settings.proxy_root)?;
        let mut report = ApplyReport::default();
        let desired: HashSet<u64> = units.iter().map(|unit| unit.redirect.cookie).collect();
        for cookie in state::cookies(pins, &maps, &unit_maps)? {
            if is_complete && !desired.contains(&cookie) {
                state::remove(pins, &mut maps, &mut unit_maps, cookie)?;
                report.removed.push(cookie);
            }
        }
        state::write_addresses(&mut maps, host)?;
        state::write_proxy_ports(&mut unit_maps, units.iter().map(|unit| &unit.redirect))?;
        for unit in units {
            state::observe(pins, &mut maps, &mut unit_maps, unit, host.netns)?;
        }
        let redirects: Vec<UnitRedirect> = units.iter().map(|unit| unit.redirect.clone()).collect();
        let members = Members::new(&redirects, self.level)?;
        if is_complete {
            members.remove_others(&mut unit_maps, &roots.hierarchy)?;
        }
        members.write(&mut unit_maps, &roots.hierarchy)?;
        let mut owners = Owners::default();
        for unit in &redirects {
            if let Err(error) = owners.add(unit, &roots.hierarchy) {
                report.failures.push(chain(&error));
            }
        }
        report.adopted = owners.write(&mut unit_maps, &host.listening, is_complete)?;
        report.shared = owners.shared(&unit_maps, &redirects, &host.listening)?;
        for unit in units {
            let proxy = roots.hierarchy.path.join(&unit.redirect.proxy_cgroup);
            match state::redirect(&mut maps, unit, host, &proxy) {
                Ok(redirected) => {
                    report.listeners += redirected.listeners;
                    let is_new = redirected.is_new;
                    report
                        .redirected
                        .extend(is_new.then_some(unit.redirect.cookie));
                }
                Err(error) => report.failures.push(chain(&error)),
            }
        }
        Ok(report)
    }

    pub fn units(&self) -> Result<Vec<EnrolledUnit>, Error> {
        let pins = &self.programs.pins;
        let maps = Maps::open(pins)?;
        let unit_maps = UnitMaps::open(pins)?;
        let mut listening: HashMap<u64, Vec<SocketAddr>> = HashMap::new();
        for key in keys_where("UNIT_PORTS", unit_maps.ports.keys(), |_| true)? {
            let port = optional(unit_maps.ports.get(&key, 0), "UNIT_PORTS")?;
            if let Some(port) = port.filter(|port| port.sockets > 0) {
                let of_unit = listening.entry(port.cookie).or_default();
                of_unit.push(socket_address(key.address, key.port));
            }
        }
        for key in keys_where("ADOPTED_PORTS", unit_maps.adopted.keys(), |_| true)? {
            if let Some(port) = optional(unit_maps.adopted.get(&key, 0), "ADOPTED_PORTS")? {
                let of_unit = listening.entry(port.cookie).or_default();
                of_unit.push(socket_address(key.address, key.port));
            }
        }
        let mut severed: HashMap<u64, u64> = HashMap::new();
        for counters in self.bypasses()? {
            severed.insert(counters.cookie, counters.dropped);
        }
        let mut units = Vec::new();
        for cookie in keys_where("UNITS", unit_maps.units.keys(), |_| true)? {
            let tracking = match &maps.port_tracking {
                Some(tracking) => optional(tracking.get(&cookie, 0), "PORT_TRACKING")?,
                None => None,
            };
            let listeners = maps.listeners_of(cookie)?;
            let has = |role: Role| listeners.iter().any(|key| key.role == role as u8);
            let mut addresses = listening.remove(&cookie).unwrap_or_default();
            addresses.sort();
            addresses.dedup();
            units.push(EnrolledUnit {
                cookie,
                is_redirected: optional(maps.pods.get(&cookie, 0), "PODS")?.is_some(),
                has_proxy: has(Role::Outbound) && has(Role::Inbound),
                listening: addresses,
                unrecorded: tracking.unwrap_or_default().lost.unsigned_abs(),
                severed: severed.remove(&cookie).unwrap_or_default(),
            });
        }
        Ok(units)
    }

    /// Returns the counters of every enrolled unit.
    pub fn counters(&self) -> Result<Vec<PodCounters>, Error> {
        self.programs.counters()
    }

    /// Returns the number of connections between connect and accept.
    pub fn in_flight(&self) -> Result<usize, Error> {
        self.programs.in_flight()
    }

    /// Returns the names of the attached programs.
    pub fn attached(&self) -> Result<Vec<&'static str>, Error> {
        load::attached(&self.programs.pins)
    }

    fn bypasses(&self) -> Result<Vec<GuardCounters>, Error> {
        guard::counters(&self.programs.pins)
    }
}

fn socket_address(address: Address, port: u32) -> SocketAddr {
    SocketAddr::new(address.into(), port as u16)
}
