//! The entries of a unit in the maps. The programs observe a unit from its entry in UNITS on, and
//! redirect it from its entry in PODS on, which is written last and removed first.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use mesh_ebpf_common::address::Address;
use mesh_ebpf_common::layout::{AddressKey, FLAG_TRACED, PodConfig, PortTracking};
use mesh_ebpf_common::unit::{
    PORT_INBOUND, PORT_OUTBOUND, PORT_REDIRECT, ProxyPort, UNIT_COOKIES, UnitConfig,
};

use super::super::error::Error;
use super::super::maps::{Maps, UnitMaps, keys_where, map_error, optional, remove_result};
use super::super::pins::Pins;
use super::super::plan::Plan;
use super::super::{enrol, guard, listeners};
use super::{DesiredUnit, Host};
use crate::redirect::UnitRedirect;
use crate::sys::clock;

/// A connection whose handshake began before its unit was redirected reaches the unit directly. The
/// kernel gives a handshake up after 63 seconds by default.
const HANDSHAKE_TIME: Duration = Duration::from_secs(120);

const ANY: u64 = 0;
const NO_EXIST: u64 = 1;
const PRESENT: u8 = 1;

/// The result of [`redirect`].
pub(super) struct Redirected {
    /// Whether it was not before.
    pub(super) is_new: bool,
    /// Older listeners of the proxy that were registered.
    pub(super) listeners: usize,
}

/// Returns the cookies of all units that have any state.
pub(super) fn cookies(
    pins: &Pins,
    maps: &Maps,
    unit_maps: &UnitMaps,
) -> Result<HashSet<u64>, Error> {
    let mut cookies = HashSet::new();
    cookies.extend(keys_where("PODS", maps.pods.keys(), |_| true)?);
    cookies.extend(keys_where("PROXIES", maps.proxies.keys(), |_| true)?);
    cookies.extend(keys_where("STATS", maps.stats.keys(), |_| true)?);
    cookies.extend(keys_where("UNITS", unit_maps.units.keys(), |_| true)?);
    cookies.extend(guard::cookies(pins)?);
    cookies.retain(|cookie| cookie & UNIT_COOKIES != 0);
    Ok(cookies)
}

/// Removes a unit. Its names and cgroups are not its own entries; see [`super::members`].
pub(super) fn remove(
    pins: &Pins,
    maps: &mut Maps,
    unit_maps: &mut UnitMaps,
    cookie: u64,
) -> Result<(), Error> {
    remove_result(maps.pods.remove(&cookie), "PODS")?;
    for (port, found) in known_proxy_ports(unit_maps)? {
        if found.cookie == cookie {
            remove_result(unit_maps.proxy_ports.remove(&port), "PROXY_PORTS")?;
        }
    }
    enrol::remove_state(maps, cookie)?;
    guard::detach(pins, cookie)?;
    // After PORT_TRACKING: without it, UNIT_PORTS does not grow.
    for key in keys_where("UNIT_PORTS", unit_maps.ports.keys(), |_| true)? {
        let found = optional(unit_maps.ports.get(&key, 0), "UNIT_PORTS")?;
        if found.is_some_and(|found| found.cookie == cookie) {
            remove_result(unit_maps.ports.remove(&key), "UNIT_PORTS")?;
        }
    }
    remove_result(unit_maps.units.remove(&cookie), "UNITS")?;
    Ok(())
}

/// Makes ADDRESSES agree with the addresses of the host, which all units share.
pub(super) fn write_addresses(maps: &mut Maps, host: &Host) -> Result<(), Error> {
    let key = |address: &IpAddr| AddressKey {
        cookie: host.netns,
        address: Address::from(*address),
    };
    let wanted: Vec<AddressKey> = host.addresses.iter().map(key).collect();
    for key in &wanted {
        maps.addresses
            .insert(key, PRESENT, ANY)
            .map_err(map_error("write to", "ADDRESSES"))?;
    }
    let stale = keys_where("ADDRESSES", maps.addresses.keys(), |key| {
        !wanted.contains(key)
    })?;
    for key in stale {
        remove_result(maps.addresses.remove(&key), "ADDRESSES")?;
    }
    Ok(())
}

/// Writes what the programs need to observe a unit and its proxy.
pub(super) fn observe(
    pins: &Pins,
    maps: &mut Maps,
    unit_maps: &mut UnitMaps,
    unit: &DesiredUnit,
    netns: u64,
) -> Result<(), Error> {
    let redirect = &unit.redirect;
    let cookie = redirect.cookie;
    enrol::create_state(maps, cookie)?;
    guard::create_counters(pins, cookie)?;
    if let Some(tracking) = &mut maps.port_tracking
        && optional(tracking.get(&cookie, 0), "PORT_TRACKING")?.is_none()
    {
        tracking
            .insert(cookie, PortTracking::default(), NO_EXIST)
            .map_err(map_error("write to", "PORT_TRACKING"))?;
    }
    let known = optional(unit_maps.units.get(&cookie, 0), "UNITS")?;
    let was_redirected = optional(maps.pods.get(&cookie, 0), "PODS")?.is_some();
    let severs_from = match known {
        _ if !unit.is_redirected => u64::MAX,
        Some(known) if was_redirected => known.severs_from,
        _ => handshakes_end()?,
    };
    let ports = &redirect.redirect_ports;
    let (first, last) = (ports.start(), ports.end());
    let config = UnitConfig {
        netns,
        severs_from,
        redirect_first: *first,
        redirect_count: last.saturating_sub(*first).saturating_add(1),
        pad: 0,
    };
    if known == Some(config) {
        return Ok(());
    }
    unit_maps
        .units
        .insert(cookie, config, ANY)
        .map_err(map_error("write to", "UNITS"))
}

/// Registers listeners of the proxy that the programs did not see, and writes the settings. With
/// them the unit is redirected.
pub(super) fn redirect(
    maps: &mut Maps,
    unit: &DesiredUnit,
    host: &Host,
    proxy_cgroup: &Path,
) -> Result<Redirected, Error> {
    let cookie = unit.redirect.cookie;
    let plan = Plan::of_unit(&unit.redirect, &host.addresses);
    enrol::write_entries(maps, &plan)?;
    enrol::remove_entries(maps, cookie, Some(&plan))?;
    let listeners = listeners::register_of_unit(maps, cookie, &plan.config, proxy_cgroup)?;
    let previous = optional(maps.pods.get(&cookie, 0), "PODS")?;
    if !unit.is_redirected {
        remove_result(maps.pods.remove(&cookie), "PODS")?;
        return Ok(Redirected {
            is_new: false,
            listeners,
        });
    }
    // A trace continues while the settings change.
    let kept = previous.map_or(0, |previous| previous.flags & FLAG_TRACED);
    let config = PodConfig {
        flags: plan.config.flags | kept,
        ..plan.config
    };
    if previous != Some(config) {
        maps.pods
            .insert(cookie, config, ANY)
            .map_err(map_error("write to", "PODS"))?;
    }
    Ok(Redirected {
        is_new: previous.is_none(),
        listeners,
    })
}

fn proxy_ports(unit: &UnitRedirect) -> BTreeMap<u32, ProxyPort> {
    let redirect = unit.redirect_ports.clone();
    let mut kinds: BTreeMap<u16, u32> = redirect.map(|port| (port, PORT_REDIRECT)).collect();
    kinds.insert(unit.spec.outbound_port, PORT_OUTBOUND);
    kinds.insert(unit.spec.inbound_port, PORT_INBOUND);
    let entry = |(port, kind)| {
        let port_use = ProxyPort {
            cookie: unit.cookie,
            kind,
            pad: 0,
        };
        (u32::from(port), port_use)
    };
    kinds.into_iter().map(entry).collect()
}

/// Makes PROXY_PORTS agree with the units. Entries of others, which are not to be removed, stay.
pub(super) fn write_proxy_ports<'a>(
    unit_maps: &mut UnitMaps,
    units: impl Iterator<Item = &'a UnitRedirect> + Clone,
) -> Result<(), Error> {
    let known = known_proxy_ports(unit_maps)?;
    let cookies: HashSet<u64> = units.clone().map(|unit| unit.cookie).collect();
    let wanted: BTreeMap<u32, ProxyPort> = units.flat_map(proxy_ports).collect();
    for (port, found) in &known {
        if cookies.contains(&found.cookie) && !wanted.contains_key(port) {
            remove_result(unit_maps.proxy_ports.remove(port), "PROXY_PORTS")?;
        }
    }
    for (port, entry) in &wanted {
        if known.get(port) != Some(entry) {
            unit_maps
                .proxy_ports
                .insert(port, entry, ANY)
                .map_err(map_error("write to", "PROXY_PORTS"))?;
        }
    }
    Ok(())
}

fn known_proxy_ports(unit_maps: &UnitMaps) -> Result<BTreeMap<u32, ProxyPort>, Error> {
    let entries = unit_maps.proxy_ports.iter();
    let entries = entries.collect::<Result<_, _>>();
    entries.map_err(map_error("list", "PROXY_PORTS"))
}

/// Returns when every handshake that has begun until now has ended, in nanoseconds of the kernel
/// programs' clock.
fn handshakes_end() -> Result<u64, Error> {
    let now = clock::monotonic().map_err(Error::Clock)?;
    Ok((now + HANDSHAKE_TIME).as_nanos() as u64)
}
