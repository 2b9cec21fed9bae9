//! Clean-up and repair, run periodically by the daemon: removes pods that ended without a CNI DEL
//! and entries of interrupted enrolments or removals, and registers listeners that opened while the
//! programs were not attached.

use std::collections::HashSet;
use std::io::ErrorKind;

use mesh_ebpf_common::layout::{FLAG_INBOUND, PodConfig};

use super::error::Error;
use super::maps::{Maps, keys_where, optional};
use super::object::Object;
use super::pins::{self, Pins};
use super::{enrol, guard, listeners, loader, open_ports};
use crate::redirect::PodRedirect;
use crate::sys::bpf::{self, LinkTarget};
use crate::sys::netns::{self, NetnsError};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    pub removed: Vec<u64>,
    /// Incomplete pods of interrupted enrolments or removals.
    pub orphans: usize,
    pub listeners: usize,
    /// Interfaces that were created since the last sweep, or since the guard was turned on.
    pub guarded: usize,
}

pub(super) fn sweep(
    pins: &Pins,
    object: &Object,
    known: &[PodRedirect],
) -> Result<SweepReport, Error> {
    let mut maps = Maps::open(pins)?;
    let mut result = SweepReport::default();
    let cookies = keys_where("PODS", maps.pods.keys(), |_| true)?;
    let dead_pods: HashSet<u64> = loader::remove_dead_links(pins)?.into_iter().collect();
    for cookie in &cookies {
        if dead_pods.contains(cookie) || is_netns_gone(*cookie, known) {
            enrol::remove(pins, &mut maps, *cookie)?;
            result.removed.push(*cookie);
        }
    }
    for cookie in orphans(pins, &maps)? {
        enrol::remove(pins, &mut maps, cookie)?;
        result.orphans += 1;
    }
    guard::remove_dead_links(pins)?;
    // One pod's failure must not prevent the repair of others; it is reported at the end.
    let mut failure = None;
    for cookie in cookies {
        let Some(config) = optional(maps.pods.get(&cookie, 0), "PODS")? else {
            continue;
        };
        if let Some(inode) = netns_inode(pins, cookie, &config, known)? {
            match listeners::register(&mut maps, cookie, &config, inode) {
                Ok(registered) => result.listeners += registered,
                Err(error) => failure = Some(error),
            }
        }
        if let Some(pod) = known.iter().find(|pod| pod.cookie == cookie) {
            match guard::attach(pins, object, pod) {
                Ok(guarded) => result.guarded += guarded,
                Err(error) => failure = Some(error),
            }
        }
    }
    failure.map_or(Ok(result), Err)
}

/// Returns whether a recorded pod's network namespace no longer exists at its path. Serves pods
/// without a steering link, whose state shows the same. False when in doubt.
fn is_netns_gone(cookie: u64, known: &[PodRedirect]) -> bool {
    let Some(pod) = known.iter().find(|pod| pod.cookie == cookie) else {
        return false;
    };
    match netns::cookie_of(&pod.netns) {
        Ok(found) => found != cookie,
        Err(NetnsError::Open { source, .. }) => source.kind() == ErrorKind::NotFound,
        // A path that was a mount point is now an ordinary file.
        Err(NetnsError::Enter(source)) => source.kind() == ErrorKind::InvalidInput,
        Err(_) => false,
    }
}

/// Returns cookies that have state but no entry in PODS.
fn orphans(pins: &Pins, maps: &Maps) -> Result<HashSet<u64>, Error> {
    let mut cookies: HashSet<u64> = pins.steered_cookies()?.into_iter().collect();
    cookies.extend(keys_where("PROXIES", maps.proxies.keys(), |_| true)?);
    cookies.extend(keys_where("STATS", maps.stats.keys(), |_| true)?);
    cookies.extend(guard::cookies(pins)?);
    cookies.extend(open_ports::cookies(maps)?);
    for pod in keys_where("PODS", maps.pods.keys(), |_| true)? {
        cookies.remove(&pod);
    }
    Ok(cookies)
}

/// Returns the inode of the pod's network namespace, from its steering link or its record.
fn netns_inode(
    pins: &Pins,
    cookie: u64,
    config: &PodConfig,
    known: &[PodRedirect],
) -> Result<Option<u64>, Error> {
    if config.flags & FLAG_INBOUND != 0 {
        let Some(link) = pins::open(&pins.steer_link(cookie))? else {
            return Ok(None);
        };
        return Ok(match bpf::link_info(link).map(|info| info.target) {
            Ok(LinkTarget::Netns { inode }) => Some(u64::from(inode)),
            _ => None,
        });
    }
    let pod = known.iter().find(|pod| pod.cookie == cookie);
    Ok(pod.and_then(|pod| {
        use std::os::unix::fs::MetadataExt;
        let namespace = std::fs::metadata(&pod.netns).ok()?;
        Some(namespace.ino())
    }))
}
