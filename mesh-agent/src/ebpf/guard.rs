//! The user-space part of the guard: its mode, its links (one for each interface of a pod except
//! loopback) and its counters. See `mesh-ebpf/src/guard.rs`.
//!
//! The mode is in a pinned map, where the programs read it: a change applies to every pod
//! immediately, and the CNI plugin reads it without the agent. While the guard is off nothing is
//! attached.

use std::io;
use std::path::Path;

use aya::maps::PerCpuValues;
use mesh_ebpf_common::layout::{GUARD_COUNT, GUARD_DROP, GUARD_OFF, GuardStats};
use nix::net::if_::if_nameindex;

use super::error::Error;
use super::loader;
use super::maps::{GuardMaps, keys_where, map_error, remove_result};
use super::object::Object;
use super::pins::{self, Pins};
use crate::redirect::{GuardMode, PodRedirect};
use crate::sys::bpf::{self, LinkTarget};
use crate::sys::netns;

const NO_EXIST: u64 = 1;
const ANY: u64 = 0;

/// Limit of guarded interfaces per pod. Each costs a program and a pin, and a pod with NET_ADMIN
/// can create any number; its packets leave the pod through the interfaces that its network plugins
/// created, which were created first.
const MAX_INTERFACES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardCounters {
    pub cookie: u64,
    pub passed: u64,
    pub dropped: u64,
}

/// Returns the mode in effect. A set pinned by a version without guard has none.
pub(super) fn mode(pins: &Pins) -> Result<GuardMode, Error> {
    let Some(maps) = GuardMaps::open(pins)? else {
        return Ok(GuardMode::Off);
    };
    let number = maps.mode.get(&0, 0).map_err(map_error("read", "GUARD"))?;
    Ok(match number {
        GUARD_COUNT => GuardMode::Count,
        GUARD_DROP => GuardMode::Drop,
        _ => GuardMode::Off,
    })
}

/// Sets the mode. Turning the guard on first attaches the program to a scratch interface, so that a
/// kernel without support fails here.
pub(super) fn set_mode(pins: &Pins, object: &Object, mode: GuardMode) -> Result<(), Error> {
    let Some(mut maps) = GuardMaps::open(pins)? else {
        return match mode {
            GuardMode::Off => Ok(()),
            GuardMode::Count | GuardMode::Drop => Err(Error::NoGuard),
        };
    };
    let number = match mode {
        GuardMode::Off => GUARD_OFF,
        GuardMode::Count => GUARD_COUNT,
        GuardMode::Drop => GUARD_DROP,
    };
    if mode != GuardMode::Off {
        loader::try_guard(object, pins)?;
    }
    maps.mode
        .set(0, number, ANY)
        .map_err(map_error("write to", "GUARD"))?;
    if mode == GuardMode::Off {
        for pin in pins.guard_pins()? {
            pins::remove(&pins.guard_link(pin.cookie, pin.interface))?;
        }
    }
    Ok(())
}

/// Guards every unguarded interface of the pod, unless the guard is off; returns how many.
pub(super) fn attach(pins: &Pins, object: &Object, pod: &PodRedirect) -> Result<usize, Error> {
    if mode(pins)? == GuardMode::Off {
        return Ok(0);
    }
    create_counters(pins, pod.cookie)?;
    let mut unguarded = Vec::new();
    let mut guarded = 0;
    for interface in interfaces(&pod.netns)? {
        let path = pins.guard_link(pod.cookie, interface);
        match pins::open(&path)? {
            Some(link) if has_interface(&link) => {
                guarded += 1;
                continue;
            }
            Some(_) => {
                let _was_pinned = pins::remove(&path)?;
            }
            None => {}
        }
        unguarded.push(interface);
    }
    let capacity = MAX_INTERFACES.saturating_sub(guarded);
    let mut attached = 0;
    for interface in unguarded.iter().take(capacity) {
        attached += usize::from(loader::attach_guard(object, pins, pod, *interface)?);
    }
    if unguarded.len() > capacity {
        return Err(Error::TooManyInterfaces {
            pod: pod.pod.to_string(),
            most: MAX_INTERFACES,
        });
    }
    Ok(attached)
}

pub(super) fn detach(pins: &Pins, cookie: u64) -> Result<(), Error> {
    for pin in pins
        .guard_pins()?
        .into_iter()
        .filter(|pin| pin.cookie == cookie)
    {
        pins::remove(&pins.guard_link(cookie, pin.interface))?;
    }
    if let Some(mut maps) = GuardMaps::open(pins)? {
        remove_result(maps.stats.remove(&cookie), "GUARD_STATS")?;
    }
    Ok(())
}

pub(super) fn remove_dead_links(pins: &Pins) -> Result<(), Error> {
    for pin in pins.guard_pins()? {
        let path = pins.guard_link(pin.cookie, pin.interface);
        if let Some(link) = pins::open(&path)?
            && !has_interface(&link)
        {
            pins::remove(&path)?;
        }
    }
    Ok(())
}

pub(super) fn counters(pins: &Pins) -> Result<Vec<GuardCounters>, Error> {
    let Some(maps) = GuardMaps::open(pins)? else {
        return Ok(Vec::new());
    };
    maps.stats
        .iter()
        .map(|entry| {
            let (cookie, values) = entry.map_err(map_error("read", "GUARD_STATS"))?;
            Ok(GuardCounters {
                cookie,
                passed: values.iter().map(|value| value.passed).sum(),
                dropped: values.iter().map(|value| value.dropped).sum(),
            })
        })
        .collect()
}

/// Returns the cookies of pods with guard links or counters. Some may be orphans.
pub(super) fn cookies(pins: &Pins) -> Result<Vec<u64>, Error> {
    let mut cookies: Vec<u64> = pins.guard_pins()?.iter().map(|pin| pin.cookie).collect();
    if let Some(maps) = GuardMaps::open(pins)? {
        cookies.extend(keys_where("GUARD_STATS", maps.stats.keys(), |_| true)?);
    }
    Ok(cookies)
}

fn has_interface(link: impl std::os::fd::AsFd) -> bool {
    bpf::link_info(link)
        .is_ok_and(|info| matches!(info.target, LinkTarget::Interface { index } if index != 0))
}

pub(super) fn create_counters(pins: &Pins, cookie: u64) -> Result<(), Error> {
    let Some(mut maps) = GuardMaps::open(pins)? else {
        return Ok(());
    };
    if super::maps::optional(maps.stats.get(&cookie, 0), "GUARD_STATS")?.is_some() {
        return Ok(());
    }
    let cpus = aya::util::nr_cpus().map_err(|(_, source)| Error::Query {
        path: "/sys/devices/system/cpu/possible".into(),
        source,
    })?;
    PerCpuValues::try_from(vec![GuardStats::default(); cpus])
        .map_err(aya::maps::MapError::IoError)
        .and_then(|zeros| maps.stats.insert(cookie, zeros, NO_EXIST))
        .map_err(map_error("write to", "GUARD_STATS"))
}

/// Returns the pod's interfaces, without loopback, which carries redirected connections.
fn interfaces(path: &Path) -> Result<Vec<u32>, Error> {
    let listed = netns::run_in(netns::open(path)?, || {
        let interfaces = if_nameindex()?;
        let indexes = interfaces.iter().map(nix::net::if_::Interface::index);
        Ok::<_, nix::errno::Errno>(indexes.collect::<Vec<u32>>())
    })?;
    let mut indexes = listed.map_err(|errno| Error::Interfaces {
        netns: path.to_owned(),
        source: io::Error::from(errno),
    })?;
    indexes.retain(|index| *index != loader::LOOPBACK_INDEX);
    Ok(indexes)
}
