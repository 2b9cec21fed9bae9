//! Listening sockets of units that the programs did not see: from before the enrolment, or bound
//! by listen(2) itself. They are recorded by user space, which also notices when they have ended.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use mesh_ebpf_common::address::Address;
use mesh_ebpf_common::unit::{AdoptedPort, HostPort};
use mesh_ebpf_common::verdict;
use mesh_ebpf_common::verdict::unit::listener;

use super::super::error::Error;
use super::super::loader::CgroupRoot;
use super::super::maps::{UnitMaps, keys_where, map_error, optional, remove_result};
use super::members;
use crate::listening::ListeningSocket;
use crate::redirect::UnitRedirect;

const ANY: u64 = 0;

/// Which unit has which cgroups now.
#[derive(Debug, Default)]
pub(super) struct Owners {
    by_cgroup: HashMap<u64, AdoptedPort>,
}

/// A port of a unit where a process outside of the unit listens, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedPort {
    pub unit: String,
    pub address: IpAddr,
    pub port: u16,
}

impl Owners {
    pub(super) fn add(&mut self, unit: &UnitRedirect, root: &CgroupRoot) -> Result<(), Error> {
        for path in &unit.cgroups {
            let path = root.path.join(path);
            let Some(cgroup) = members::cgroup_id(&path)? else {
                continue;
            };
            let owner = AdoptedPort {
                cookie: unit.cookie,
                cgroup,
            };
            let tree = members::tree(&path)?;
            self.by_cgroup
                .extend(tree.into_iter().map(|id| (id, owner)));
        }
        Ok(())
    }

    /// Makes ADOPTED_PORTS agree with the sockets; returns how many ports were added. Ports of
    /// other units are removed if these are all.
    pub(super) fn write(
        &self,
        maps: &mut UnitMaps,
        sockets: &[ListeningSocket],
        is_complete: bool,
    ) -> Result<usize, Error> {
        let mut wanted: HashMap<HostPort, AdoptedPort> = HashMap::new();
        for socket in sockets {
            let address = Address::from(socket.address);
            let Some(owner) = self.by_cgroup.get(&socket.cgroup) else {
                continue;
            };
            let key = HostPort::new(address, socket.port);
            if verdict::is_recorded(None, &address, socket.port)
                && !is_observed(maps, &key, owner.cookie)?
            {
                wanted.insert(key, *owner);
            }
        }
        let stale = keys_where("ADOPTED_PORTS", maps.adopted.keys(), |key| {
            is_complete && !wanted.contains_key(key)
        })?;
        for key in stale {
            remove_result(maps.adopted.remove(&key), "ADOPTED_PORTS")?;
        }
        let mut added = 0;
        for (key, owner) in wanted {
            if optional(maps.adopted.get(&key, 0), "ADOPTED_PORTS")? != Some(owner) {
                maps.adopted
                    .insert(key, owner, ANY)
                    .map_err(map_error("write to", "ADOPTED_PORTS"))?;
                added += 1;
            }
        }
        Ok(added)
    }

    /// Returns the ports of units where other processes listen, too, on an address of the unit's
    /// sockets. Connections to them go to the unit's proxy.
    pub(super) fn shared(
        &self,
        maps: &UnitMaps,
        units: &[UnitRedirect],
        sockets: &[ListeningSocket],
    ) -> Result<Vec<SharedPort>, Error> {
        let mut shared = Vec::new();
        let mut seen = HashSet::new();
        for socket in sockets {
            let address = Address::from(socket.address);
            if address.is_loopback() {
                continue;
            }
            let found = listener(&address, |address| {
                owner(maps, &HostPort::new(*address, socket.port)).transpose()
            });
            let Some(cookie) = found.transpose()? else {
                continue;
            };
            let own = self.by_cgroup.get(&socket.cgroup);
            let is_own = own.is_some_and(|owner| owner.cookie == cookie);
            if let Some(unit) = units.iter().find(|unit| unit.cookie == cookie)
                && !is_own
                && seen.insert(HostPort::new(address, socket.port))
            {
                shared.push(SharedPort {
                    unit: unit.unit.clone(),
                    address: socket.address,
                    port: socket.port,
                });
            }
        }
        Ok(shared)
    }
}

/// Returns the unit that has sockets here.
fn owner(maps: &UnitMaps, key: &HostPort) -> Result<Option<u64>, Error> {
    let observed = optional(maps.ports.get(key, 0), "UNIT_PORTS")?;
    let observed = observed.filter(|port| port.sockets > 0);
    if let Some(port) = observed {
        return Ok(Some(port.cookie));
    }
    let adopted = optional(maps.adopted.get(key, 0), "ADOPTED_PORTS")?;
    Ok(adopted.map(|port| port.cookie))
}

/// Returns whether the programs count a socket of the unit here.
fn is_observed(maps: &UnitMaps, key: &HostPort, cookie: u64) -> Result<bool, Error> {
    let observed = optional(maps.ports.get(key, 0), "UNIT_PORTS")?;
    Ok(observed.is_some_and(|port| port.cookie == cookie && port.sockets > 0))
}
