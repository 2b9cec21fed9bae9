//! Writes a pod into the maps and removes it. The entry in PODS activates the pod: it is written
//! last and removed first, so that the programs never see an incomplete pod.

use std::collections::HashSet;
use std::fs::File;
use std::hash::Hash;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use aya::maps::PerCpuValues;
use aya::maps::lpm_trie::Key;
use mesh_ebpf_common::counter::Counter;
use mesh_ebpf_common::layout::{
    FLAG_INBOUND, FLAG_PORTS_KNOWN, FLAG_TRACED, PodConfig, PodStats, ProxyState,
};
use mesh_runtime::log::chain;

use super::error::Error;
use super::maps::{Maps, keys_where, map_error, optional, remove_result};
use super::object::Object;
use super::pins::{self, Pins};
use super::plan::Plan;
use super::{guard, listeners, loader, open_ports};
use crate::redirect::PodRedirect;
use crate::sys::{netns, process};

const NO_EXIST: u64 = 1;
const ANY: u64 = 0;
/// The value in maps that are used as sets.
const PRESENT: u8 = 1;

/// Enrols a pod, or updates an enrolled one to these settings. Returns how many already open
/// listeners were registered.
pub(super) fn enrol(pins: &Pins, object: &Object, pod: &PodRedirect) -> Result<usize, Error> {
    let namespace = check_netns(&pod.netns, pod.cookie)?;
    let uid = proxy_uid(&namespace, pod)?;
    let plan = Plan::new(pod, uid)?;
    let mut maps = Maps::open(pins)?;
    let is_new = optional(maps.pods.get(&pod.cookie, 0), "PODS")?.is_none();
    let result = write(pins, &mut maps, object, pod, &plan, &namespace);
    if result.is_err() && is_new {
        // The first error is reported; the sweep retries what remains.
        let _ = remove(pins, &mut maps, pod.cookie);
    }
    result
}

/// Opens the pod's namespace, after checking that it has the cookie and is not the host's.
fn check_netns(path: &Path, cookie: u64) -> Result<File, Error> {
    let found = netns::cookie_of(path)?;
    if found != cookie {
        return Err(Error::NetnsMismatch {
            netns: path.to_owned(),
            expected: cookie,
            found,
        });
    }
    if is_host_netns(cookie)? {
        return Err(Error::HostNetwork(path.to_owned()));
    }
    Ok(netns::open(path)?)
}

/// Compares with two namespaces: this process's, which is the host's for an agent with host
/// networking, and the one of process 1, which is the host's or the container's. The latter may not
/// be readable; then the first comparison decides.
fn is_host_netns(cookie: u64) -> Result<bool, Error> {
    if netns::current_cookie()? == cookie {
        return Ok(true);
    }
    Ok(netns::cookie_of(Path::new("/proc/1/ns/net")).is_ok_and(|host| host == cookie))
}

fn proxy_uid(namespace: &File, pod: &PodRedirect) -> Result<u32, Error> {
    let uid = pod.spec.proxy_uid;
    process::initial_uid(namespace, uid)
        .map_err(|source| Error::ProxyUid {
            uid,
            netns: pod.netns.clone(),
            source,
        })?
        .ok_or_else(|| Error::UnmappedProxyUid {
            uid,
            netns: pod.netns.clone(),
        })
}

fn write(
    pins: &Pins,
    maps: &mut Maps,
    object: &Object,
    pod: &PodRedirect,
    plan: &Plan,
    namespace: &File,
) -> Result<usize, Error> {
    let cookie = pod.cookie;
    create_state(maps, cookie)?;
    write_entries(maps, plan)?;
    if plan.config.flags & FLAG_INBOUND != 0 {
        loader::attach_steer(object, pins, cookie, &pod.netns)?;
    }
    let inode = namespace
        .metadata()
        .map_err(|source| netns::NetnsError::Open {
            path: pod.netns.clone(),
            source,
        })?
        .ino();
    let mut registered = listeners::register(maps, cookie, &plan.config, inode)?;
    let kept = match optional(maps.pods.get(&cookie, 0), "PODS")? {
        // A trace continues while the settings change.
        Some(previous) => previous.flags & (FLAG_TRACED | FLAG_PORTS_KNOWN),
        None if plan.config.flags & FLAG_INBOUND != 0 => {
            open_ports::track(pins, maps, cookie, namespace)
        }
        None => 0,
    };
    let config = PodConfig {
        flags: plan.config.flags | kept,
        ..plan.config
    };
    maps.pods
        .insert(cookie, config, ANY)
        .map_err(map_error("write to", "PODS"))?;
    // Entries of an earlier enrolment.
    remove_entries(maps, cookie, Some(plan))?;
    if let Err(error) = guard::attach(pins, object, pod) {
        // The guard is a second line of defence; the sweep retries and reports.
        tracing::warn!(pod = %pod.pod, error = chain(&error), "Pod is not guarded yet");
    }
    // Again: a listener may have opened between the first registration and the entry in PODS.
    registered += listeners::register(maps, cookie, &plan.config, inode)?;
    Ok(registered)
}

/// Writes the addresses, skipped ports and skipped subnets.
pub(super) fn write_entries(maps: &mut Maps, plan: &Plan) -> Result<(), Error> {
    for key in &plan.addresses {
        maps.addresses
            .insert(key, PRESENT, ANY)
            .map_err(map_error("write to", "ADDRESSES"))?;
    }
    for key in &plan.port_skips {
        maps.port_skips
            .insert(key, PRESENT, ANY)
            .map_err(map_error("write to", "PORT_SKIPS"))?;
    }
    for key in &plan.subnet_skips {
        maps.subnet_skips
            .insert(key, PRESENT, ANY)
            .map_err(map_error("write to", "SUBNET_SKIPS"))?;
    }
    Ok(())
}

/// Creates the entries that the programs write to. Enrolling a pod again keeps them.
pub(super) fn create_state(maps: &mut Maps, cookie: u64) -> Result<(), Error> {
    if optional(maps.proxies.get(&cookie, 0), "PROXIES")?.is_none() {
        maps.proxies
            .insert(cookie, ProxyState::default(), NO_EXIST)
            .map_err(map_error("write to", "PROXIES"))?;
    }
    if optional(maps.stats.get(&cookie, 0), "STATS")?.is_none() {
        let zero = PodStats {
            counts: [0; Counter::IN_STATS],
        };
        let cpus = aya::util::nr_cpus().map_err(|(_, source)| Error::Query {
            path: "/sys/devices/system/cpu/possible".into(),
            source,
        })?;
        PerCpuValues::try_from(vec![zero; cpus])
            .map_err(aya::maps::MapError::IoError)
            .and_then(|zeros| maps.stats.insert(cookie, zeros, NO_EXIST))
            .map_err(map_error("write to", "STATS"))?;
    }
    Ok(())
}

/// Removes the pod's addresses, skipped ports and skipped subnets that `kept` does not have.
pub(super) fn remove_entries(
    maps: &mut Maps,
    cookie: u64,
    kept: Option<&Plan>,
) -> Result<(), Error> {
    let stale = keys_where("ADDRESSES", maps.addresses.keys(), |key| {
        key.cookie == cookie && kept.is_none_or(|plan| !plan.addresses.contains(key))
    })?;
    for key in stale {
        remove_result(maps.addresses.remove(&key), "ADDRESSES")?;
    }
    let ports = prefix_set(kept.map(|plan| &*plan.port_skips));
    let stale = keys_where("PORT_SKIPS", maps.port_skips.keys(), |key| {
        key.data().cookie == cookie.to_ne_bytes() && !ports.contains(&prefix(key))
    })?;
    for key in stale {
        remove_result(maps.port_skips.remove(&key), "PORT_SKIPS")?;
    }
    let subnets = prefix_set(kept.map(|plan| &*plan.subnet_skips));
    let stale = keys_where("SUBNET_SKIPS", maps.subnet_skips.keys(), |key| {
        key.data().cookie == cookie.to_ne_bytes() && !subnets.contains(&prefix(key))
    })?;
    for key in stale {
        remove_result(maps.subnet_skips.remove(&key), "SUBNET_SKIPS")?;
    }
    Ok(())
}

/// Resets each pod's count of connections in flight after the programs were replaced: programs that
/// did not count would have left it too high. Connections in flight at this moment are not counted,
/// so a pod may once exceed its quota by that number.
pub(super) fn reset_in_flight_counts(pins: &Pins) -> Result<(), Error> {
    let Some(mut counts) = Maps::open(pins)?.in_flight_counts else {
        return Ok(());
    };
    for cookie in keys_where("IN_FLIGHT_COUNTS", counts.keys(), |_| true)? {
        remove_result(counts.remove(&cookie), "IN_FLIGHT_COUNTS")?;
    }
    Ok(())
}

/// Converts a prefix into a hashable value.
fn prefix<K: aya::Pod>(key: &Key<K>) -> (u32, K) {
    (key.prefix_len(), key.data())
}

fn prefix_set<K: aya::Pod + Eq + Hash>(keys: Option<&[Key<K>]>) -> HashSet<(u32, K)> {
    keys.into_iter().flatten().map(prefix).collect()
}

/// Removes all remaining state of a pod; returns false when it was not enrolled.
pub(super) fn remove(pins: &Pins, maps: &mut Maps, cookie: u64) -> Result<bool, Error> {
    let was_enrolled = remove_result(maps.pods.remove(&cookie), "PODS")?;
    pins::remove(&pins.steer_link(cookie))?;
    guard::detach(pins, cookie)?;
    remove_state(maps, cookie)?;
    Ok(was_enrolled)
}

/// Removes the entries of a pod or unit that is not in PODS any more.
pub(super) fn remove_state(maps: &mut Maps, cookie: u64) -> Result<(), Error> {
    for key in maps.listeners_of(cookie)? {
        remove_result(maps.listeners.remove(&key), "LISTENERS")?;
    }
    remove_result(maps.proxies.remove(&cookie), "PROXIES")?;
    remove_result(maps.stats.remove(&cookie), "STATS")?;
    if let Some(traces) = &mut maps.traces {
        remove_result(traces.remove(&cookie), "TRACES")?;
    }
    open_ports::forget(maps, Some(cookie))?;
    remove_entries(maps, cookie, None)?;
    // The count first: without it and the entry in PODS, IN_FLIGHT does not grow.
    if let Some(counts) = &mut maps.in_flight_counts {
        remove_result(counts.remove(&cookie), "IN_FLIGHT_COUNTS")?;
    }
    let keys = keys_where("IN_FLIGHT", maps.in_flight.keys(), |key| {
        key.cookie == cookie
    })?;
    for key in keys {
        remove_result(maps.in_flight.remove(&key), "IN_FLIGHT")?;
    }
    Ok(())
}
