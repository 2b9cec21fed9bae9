//! Keys and values of the maps for systemd units on a host without Kubernetes.
//!
//! A unit has a cookie, as a pod has, and the same entries under it: PODS, PROXIES, PORT_SKIPS and
//! so on. Units share the network namespace of their host, so that the namespace's own cookie is
//! the key of the host's addresses in ADDRESSES, and the maps of this module find a unit by the
//! cgroup of a process or by a port. A change of a layout here requires a new [`VERSION`].

use core::mem::offset_of;

use crate::address::Address;

/// The name of the pin directory of a machine's programs.
pub const VERSION: &str = "machine-v1";

/// Set in the cookie of every unit. The kernel numbers network namespaces from one, so that no
/// cookie of a namespace has it.
pub const UNIT_COOKIES: u64 = 1 << 63;

/// The bytes of a cgroup's name with its terminating zero. systemd limits names of units to 255.
pub const NAME_BYTES: usize = 256;

/// [`Member::role`]: a cgroup on the path to others. Names are looked up below it.
pub const ROLE_PATH: u32 = 1;
/// [`Member::role`]: an enrolled unit.
pub const ROLE_UNIT: u32 = 2;
/// [`Member::role`]: the proxy of an enrolled unit.
pub const ROLE_PROXY: u32 = 3;

/// [`ProxyPort::kind`]: the proxy's listener of outbound connections.
pub const PORT_OUTBOUND: u32 = 1;
/// [`ProxyPort::kind`]: the proxy's listener of inbound connections.
pub const PORT_INBOUND: u32 = 2;
/// [`ProxyPort::kind`]: a port that outbound connections are redirected to.
pub const PORT_REDIRECT: u32 = 3;

/// CGROUPS, by the id of a cgroup, and CGROUP_NAMES: the role of a cgroup in the mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Member {
    /// The cookie of a unit; for [`ROLE_PATH`] the number of the path, the parent in
    /// [`CgroupName`].
    pub subject: u64,
    /// [`ROLE_PATH`], [`ROLE_UNIT`] or [`ROLE_PROXY`]; a plain number, so that programs never read
    /// a value that its type does not have.
    pub role: u32,
    /// The depth of the cgroup below the root of the hierarchy.
    pub level: u32,
}

/// CGROUP_NAMES: a cgroup that is registered when it is created, by its name and its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CgroupName {
    /// [`Member::subject`] of the parent.
    pub parent: u64,
    /// The name, filled up with zeros.
    pub name: [u8; NAME_BYTES],
}

/// UNITS: what a unit has in addition to its [`PodConfig`](crate::layout::PodConfig).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct UnitConfig {
    /// The cookie of the host's network namespace. Sockets in others are left alone.
    pub netns: u64,
    /// From this time on, of the clock of `bpf_ktime_get_ns`, connections that reach the unit
    /// around its proxy are severed: handshakes from before the redirection have ended by then.
    pub severs_from: u64,
    /// The first of the ports that outbound connections are redirected to.
    pub redirect_first: u16,
    /// Their number.
    pub redirect_count: u16,
    /// Zero.
    pub pad: u32,
}

/// PROXY_PORTS, by the port: a port of the host that the proxy of a unit uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProxyPort {
    /// The cookie of the unit.
    pub cookie: u64,
    /// [`PORT_OUTBOUND`], [`PORT_INBOUND`] or [`PORT_REDIRECT`].
    pub kind: u32,
    /// Zero.
    pub pad: u32,
}

/// UNIT_PORTS and ADOPTED_PORTS: a port of the host with the address that it is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct HostPort {
    /// The address; unspecified, of the socket's family, for a socket that is bound to none.
    pub address: Address,
    /// The port.
    pub port: u32,
}

/// UNIT_PORTS: the unit whose sockets listen on a port, as the programs have recorded it. An entry
/// stays until the unit is removed, or another one listens there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct UnitPort {
    /// The cookie of the unit.
    pub cookie: u64,
    /// The number of its sockets.
    pub sockets: i64,
    /// The time when the entry was created: a socket from before that time is not counted.
    pub created: u64,
}

/// ADOPTED_PORTS: a port where a unit listens with a socket that the programs did not see, written
/// by user space. It ends with the unit's cgroup, or when user space finds it closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AdoptedPort {
    /// The cookie of the unit.
    pub cookie: u64,
    /// The id of the unit's cgroup.
    pub cgroup: u64,
}

/// UNIT_SOCKETS (socket storage): a socket that a process of a unit has bound, or one of a proxy
/// that connects to another unit of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct UnitSocket {
    /// The cookie of the unit; of a proxy's socket the other unit's.
    pub cookie: u64,
    /// [`UnitPort::created`].
    pub created: u64,
    /// The address of the [`HostPort`].
    pub address: Address,
    /// The port of the [`HostPort`]; 0 while the socket is not counted in UNIT_PORTS.
    pub port: u32,
    /// 1 for a proxy's socket that connects to the unit, otherwise 0.
    pub connects: u32,
}

impl Member {
    /// Returns whether the cgroup is the unit's with this cookie.
    #[inline(always)]
    pub const fn is_unit(&self, cookie: u64) -> bool {
        self.role == ROLE_UNIT && self.subject == cookie
    }
}

impl CgroupName {
    /// Returns the key of a name; `None` for one that no cgroup can have.
    pub fn new(parent: u64, name: &str) -> Option<CgroupName> {
        let bytes = name.as_bytes();
        if bytes.is_empty() || bytes.len() >= NAME_BYTES || bytes.contains(&0) {
            return None;
        }
        let mut key = CgroupName {
            parent,
            name: [0; NAME_BYTES],
        };
        key.name.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(key)
    }
}

impl HostPort {
    /// Returns the key of a port with an address.
    #[inline(always)]
    pub const fn new(address: Address, port: u16) -> HostPort {
        HostPort {
            address,
            port: port as u32,
        }
    }
}

const _: () = {
    assert!(size_of::<Member>() == 16);
    assert!(offset_of!(Member, role) == 8);
    assert!(offset_of!(Member, level) == 12);
    assert!(size_of::<CgroupName>() == 8 + NAME_BYTES);
    assert!(offset_of!(CgroupName, name) == 8);
    assert!(size_of::<UnitConfig>() == 24);
    assert!(offset_of!(UnitConfig, severs_from) == 8);
    assert!(offset_of!(UnitConfig, redirect_first) == 16);
    assert!(offset_of!(UnitConfig, redirect_count) == 18);
    assert!(offset_of!(UnitConfig, pad) == 20);
    assert!(size_of::<ProxyPort>() == 16);
    assert!(offset_of!(ProxyPort, kind) == 8);
    assert!(size_of::<HostPort>() == 20);
    assert!(offset_of!(HostPort, port) == 16);
    assert!(size_of::<UnitPort>() == 24);
    assert!(offset_of!(UnitPort, sockets) == 8);
    assert!(offset_of!(UnitPort, created) == 16);
    assert!(size_of::<AdoptedPort>() == 16);
    assert!(offset_of!(AdoptedPort, cgroup) == 8);
    assert!(size_of::<UnitSocket>() == 40);
    assert!(offset_of!(UnitSocket, address) == 16);
    assert!(offset_of!(UnitSocket, port) == 32);
    assert!(offset_of!(UnitSocket, connects) == 36);
};

#[cfg(feature = "user")]
mod user {
    //! Allows aya to copy these types to and from the kernel.

    use super::{AdoptedPort, CgroupName, HostPort, Member, ProxyPort, UnitConfig, UnitPort};

    macro_rules! plain_old_data {
        ($($name:ident),+) => {
            // SAFETY: `repr(C)`, integers only, and no padding (the assertions above sum every
            // byte).
            $(unsafe impl aya::Pod for $name {})+
        };
    }

    plain_old_data!(
        AdoptedPort,
        CgroupName,
        HostPort,
        Member,
        ProxyPort,
        UnitConfig,
        UnitPort
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_a_name_is_filled_up_and_refuses_impossible_names() {
        let key = CgroupName::new(7, "nginx.service").unwrap();
        assert_eq!(key.parent, 7);
        assert_eq!(&key.name[..14], b"nginx.service\0");
        assert!(key.name[14..].iter().all(|byte| *byte == 0));
        assert!(CgroupName::new(7, &"x".repeat(NAME_BYTES - 1)).is_some());
        for refused in ["", "a\0b", &"x".repeat(NAME_BYTES)] {
            assert_eq!(CgroupName::new(7, refused), None, "{refused:?}");
        }
    }
}
