//! Clean-up and repair, run now and then by the daemon: pods whose end nobody announced, entries
//! of an enrolment or removal that was interrupted, and listeners that opened unseen.

use std::{collections::HashSet, io::ErrorKind};

use mesh_ebpf_common::layout::{FLAG_INBOUND, PodConfig};

use super::{
    enrol,
    error::Error,
    guard, listeners, loader,
    maps::{Maps, found, keys_where},
    object::Object,
    pins::{self, Pins},
};
use crate::{
    redirect::PodRedirect,
    sys::{
        bpf::{self, LinkTarget},
        netns::{self, NetnsError},
    },
};

/// What one sweep removed or repaired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Pods whose network namespace is gone.
    pub removed: Vec<u64>,
    /// Leftovers of interrupted work.
    pub orphans: usize,
    pub listeners: usize,
    /// Interfaces that appeared since the last sweep, or since the guard was turned on.
    pub guarded: usize,
}

pub(super) fn sweep(pins: &Pins, object: &Object, known: &[PodRedirect]) -> Result<Sweep, Error> {
    let mut maps = Maps::open(pins)?;
    let mut done = Sweep::default();
    let cookies = keys_where("PODS", maps.pods.keys(), |_| true)?;
    let zombies: HashSet<u64> = loader::remove_zombies(pins)?.into_iter().collect();
    for cookie in &cookies {
        if zombies.contains(cookie) || is_gone(*cookie, known) {
            enrol::remove(pins, &mut maps, *cookie)?;
            done.removed.push(*cookie);
        }
    }
    for cookie in orphans(pins, &maps)? {
        enrol::remove(pins, &mut maps, cookie)?;
        done.orphans += 1;
    }
    guard::remove_zombies(pins)?;
    // One pod's failure must not keep the others from being looked after; it is reported at the
    // end.
    let mut failure = None;
    for cookie in cookies {
        let Some(config) = found(maps.pods.get(&cookie, 0), "PODS")? else {
            continue;
        };
        if let Some(inode) = netns_inode(pins, cookie, &config, known)? {
            match listeners::register(&mut maps, cookie, &config, inode) {
                Ok(registered) => done.listeners += registered,
                Err(error) => failure = Some(error),
            }
        }
        if let Some(pod) = known.iter().find(|pod| pod.cookie == cookie) {
            match guard::attach(pins, object, pod) {
                Ok(guarded) => done.guarded += guarded,
                Err(error) => failure = Some(error),
            }
        }
    }
    failure.map_or(Ok(done), Err)
}

/// Is the network namespace of a remembered pod no longer where it was? For pods with a steering
/// link the link itself says so; this serves those without. In doubt it is still there.
fn is_gone(cookie: u64, known: &[PodRedirect]) -> bool {
    let Some(pod) = known.iter().find(|pod| pod.cookie == cookie) else {
        return false;
    };
    match netns::cookie_of(&pod.netns) {
        Ok(found) => found != cookie,
        Err(NetnsError::Open { source, .. }) => source.kind() == ErrorKind::NotFound,
        // What is left of a mount point is an ordinary file, which nobody can enter.
        Err(NetnsError::Enter(source)) => source.kind() == ErrorKind::InvalidInput,
        Err(_) => false,
    }
}

/// Cookies with state but without the entry that makes them pods.
fn orphans(pins: &Pins, maps: &Maps) -> Result<HashSet<u64>, Error> {
    let mut cookies: HashSet<u64> = pins.steered()?.into_iter().collect();
    cookies.extend(keys_where("PROXIES", maps.proxies.keys(), |_| true)?);
    cookies.extend(keys_where("STATS", maps.stats.keys(), |_| true)?);
    cookies.extend(guard::known(pins)?);
    for pod in keys_where("PODS", maps.pods.keys(), |_| true)? {
        cookies.remove(&pod);
    }
    Ok(cookies)
}

/// Where the pod's processes are to be looked for: its steering link knows, or the caller.
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
