//! Which ports of a pod are open: whether the programs have recorded every listening socket of a
//! pod from the first one on, which is what a refusal takes.

use std::fs::File;

use mesh_ebpf_common::layout::{FLAG_PORTS_KNOWN, PortTracking};
use mesh_runtime::log::chain;

use super::error::Error;
use super::hook::OPEN_PORTS;
use super::loader;
use super::maps::{Maps, keys_where, map_error, optional, remove_result};
use super::pins::{self, Pins};
use crate::sys::{listening, netns};

const NO_EXIST: u64 = 1;

/// Starts recording the listening sockets of a new pod. Returns [`FLAG_PORTS_KNOWN`] if none had
/// begun to listen before, and 0 otherwise: the ends of older listeners would not be noticed.
pub(super) fn track(pins: &Pins, maps: &mut Maps, cookie: u64, namespace: &File) -> u32 {
    match try_track(pins, maps, cookie, namespace) {
        Ok(true) => FLAG_PORTS_KNOWN,
        Ok(false) => 0,
        Err(error) => {
            // The proxy accepts connections to closed ports, and everything else works.
            tracing::warn!(
                cookie,
                error = chain(&error),
                "Connections to closed ports of a pod are not refused"
            );
            0
        }
    }
}

fn try_track(pins: &Pins, maps: &mut Maps, cookie: u64, namespace: &File) -> Result<bool, Error> {
    let is_attached = pins::open(&pins.link(OPEN_PORTS.program))?.is_some_and(loader::has_cgroup);
    let Some(tracking) = maps.port_tracking.as_mut().filter(|_| is_attached) else {
        return Ok(false);
    };
    tracking
        .insert(cookie, PortTracking::default(), NO_EXIST)
        .map_err(map_error("write to", "PORT_TRACKING"))?;
    // After the entry: a socket that the program did not see listens already.
    let is_any = netns::run_in(namespace, listening::is_any)?.map_err(Error::Listeners)?;
    Ok(!is_any)
}

/// Returns whether the programs know every open port of a pod with these flags.
pub(super) fn are_known(maps: &Maps, cookie: u64, flags: u32) -> Result<bool, Error> {
    let tracking = tracking(maps, cookie)?;
    Ok(flags & FLAG_PORTS_KNOWN != 0 && tracking.is_some_and(|tracking| tracking.lost == 0))
}

/// Returns how many connections to closed ports of a pod were refused.
pub(super) fn refused(maps: &Maps, cookie: u64) -> Result<u64, Error> {
    let tracking = tracking(maps, cookie)?.unwrap_or_default();
    Ok(tracking.refused.unsigned_abs())
}

fn tracking(maps: &Maps, cookie: u64) -> Result<Option<PortTracking>, Error> {
    match &maps.port_tracking {
        Some(tracking) => optional(tracking.get(&cookie, 0), "PORT_TRACKING"),
        None => Ok(None),
    }
}

/// Returns the cookies of pods with a record.
pub(super) fn cookies(maps: &Maps) -> Result<Vec<u64>, Error> {
    let mut cookies = Vec::new();
    if let Some(tracking) = &maps.port_tracking {
        cookies.extend(keys_where("PORT_TRACKING", tracking.keys(), |_| true)?);
    }
    if let Some(ports) = &maps.open_ports {
        let keys = keys_where("OPEN_PORTS", ports.keys(), |_| true)?;
        cookies.extend(keys.iter().map(|key| key.cookie));
    }
    Ok(cookies)
}

/// Removes the record of one pod, or of all. The ports of a pod without one are unknown for as long
/// as it runs.
pub(super) fn forget(maps: &mut Maps, only: Option<u64>) -> Result<(), Error> {
    let matches = |cookie: u64| only.is_none_or(|only| only == cookie);
    // First: without it, OPEN_PORTS does not grow.
    if let Some(tracking) = &mut maps.port_tracking {
        for cookie in keys_where("PORT_TRACKING", tracking.keys(), |key| matches(*key))? {
            remove_result(tracking.remove(&cookie), "PORT_TRACKING")?;
        }
    }
    if let Some(ports) = &mut maps.open_ports {
        for key in keys_where("OPEN_PORTS", ports.keys(), |key| matches(key.cookie))? {
            remove_result(ports.remove(&key), "OPEN_PORTS")?;
        }
    }
    Ok(())
}
