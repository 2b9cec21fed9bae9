//! The ports of the host that the proxies of units use: a block for each unit, above the default
//! range of ephemeral ports.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use mesh_core::annotation;
use mesh_ebpf_common::quota::UNITS_MAX;
use mesh_ebpf_common::verdict::REDIRECT_PORT_MIN;

use crate::listening::ListeningSocket;
use crate::redirect::{RedirectSpec, UnitRedirect};

/// Ports of one unit: four of its proxy's, the others for its redirected connections. Each could
/// have some 470 new connections a second, because a port that a client has closed first is not
/// used again for a minute; they share the load by destination.
const BLOCK: u16 = 64;
/// Ports of a block that are listened on.
const LISTENERS: u16 = 4;

const _: () = assert!(REDIRECT_PORT_MIN as usize + UNITS_MAX * BLOCK as usize <= 1 << 16);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortsError {
    #[error(
        "no block of ports is free for {unit}: {UNITS_MAX} units can be enrolled on a host, and each needs {BLOCK} ports from {REDIRECT_PORT_MIN} on where no other program listens"
    )]
    NoBlock { unit: String },
    #[error(
        "port {port} of {unit} is also a port of {other}; choose another with annotation {key}"
    )]
    Taken {
        unit: String,
        other: String,
        port: u16,
        key: &'static str,
    },
}

/// Returns the ports of a block: all of them.
fn block(number: u16) -> RangeInclusive<u16> {
    let first = REDIRECT_PORT_MIN + number * BLOCK;
    first..=first + (BLOCK - 1)
}

/// Returns the ports of the first block that no unit has and where no program listens.
pub(super) fn free_block(
    unit: &str,
    others: &[UnitRedirect],
    listening: &[ListeningSocket],
) -> Result<RangeInclusive<u16>, PortsError> {
    let is_taken = |ports: &RangeInclusive<u16>| {
        let of_unit = others.iter().any(|other| {
            let used = other.redirect_ports.clone();
            own_ports(&other.spec).any(|(_, port)| ports.contains(&port))
                || (ports.contains(used.start()) || ports.contains(used.end()))
        });
        of_unit || listening.iter().any(|socket| ports.contains(&socket.port))
    };
    (0..UNITS_MAX as u16)
        .map(block)
        .find(|ports| !is_taken(ports))
        .ok_or_else(|| PortsError::NoBlock {
            unit: unit.to_owned(),
        })
}

/// Adds the ports of a block that the annotations do not have.
pub(super) fn add_defaults(
    annotations: &mut BTreeMap<String, String>,
    block: &RangeInclusive<u16>,
) {
    let keys = [
        annotation::OUTBOUND_PORT,
        annotation::INBOUND_PORT,
        annotation::CONTROL_PORT,
        annotation::ADMIN_PORT,
    ];
    for (key, port) in keys.into_iter().zip(block.clone()) {
        annotations
            .entry(key.to_owned())
            .or_insert_with(|| port.to_string());
    }
}

/// Returns the ports of a block that connections are redirected to.
pub(super) fn redirect_ports(block: &RangeInclusive<u16>) -> RangeInclusive<u16> {
    block.start() + LISTENERS..=*block.end()
}

/// Returns the block that a unit has.
pub(super) fn block_of(unit: &UnitRedirect) -> RangeInclusive<u16> {
    unit.redirect_ports.start() - LISTENERS..=*unit.redirect_ports.end()
}

/// Checks that no other unit uses a port of this one.
pub(super) fn check(unit: &UnitRedirect, others: &[UnitRedirect]) -> Result<(), PortsError> {
    for (key, port) in own_ports(&unit.spec) {
        if unit.redirect_ports.contains(&port) {
            return Err(PortsError::Taken {
                unit: unit.unit.clone(),
                other: "its redirected connections".to_owned(),
                port,
                key,
            });
        }
        let uses = |other: &&UnitRedirect| {
            other.redirect_ports.contains(&port)
                || own_ports(&other.spec).any(|(_, used)| used == port)
        };
        if let Some(other) = others.iter().find(uses) {
            return Err(PortsError::Taken {
                unit: unit.unit.clone(),
                other: other.unit.clone(),
                port,
                key,
            });
        }
    }
    Ok(())
}

/// Returns where other processes than the proxy listen on the ports of a unit, so that the proxy
/// cannot. `proxy` is the proxy's cgroup, if it exists.
pub(super) fn foreign_listeners(
    unit: &UnitRedirect,
    proxy: Option<u64>,
    listening: &[ListeningSocket],
) -> Vec<SocketAddr> {
    let RedirectSpec {
        inbound_port,
        control_port,
        outbound_port,
        admin_port,
        ..
    } = unit.spec;
    // The proxy listens on all addresses of the host, or on loopback only.
    let is_taken = |socket: &&ListeningSocket| {
        [inbound_port, control_port].contains(&socket.port)
            || [outbound_port, admin_port].contains(&socket.port)
                && (socket.address.is_unspecified() || socket.address.is_loopback())
    };
    let others = listening
        .iter()
        .filter(|socket| Some(socket.cgroup) != proxy);
    let mut found: Vec<SocketAddr> = others
        .filter(is_taken)
        .map(|socket| (socket.address, socket.port).into())
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn own_ports(spec: &RedirectSpec) -> impl Iterator<Item = (&'static str, u16)> {
    [
        (annotation::OUTBOUND_PORT, spec.outbound_port),
        (annotation::INBOUND_PORT, spec.inbound_port),
        (annotation::CONTROL_PORT, spec.control_port),
        (annotation::ADMIN_PORT, spec.admin_port),
    ]
    .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(number: u16, annotations: &[(&str, &str)]) -> UnitRedirect {
        let name = format!("u{number}.service");
        let block = block(number);
        let mut annotations: BTreeMap<String, String> = annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        add_defaults(&mut annotations, &block);
        UnitRedirect {
            cookie: 1,
            cgroups: Vec::new(),
            proxy_cgroup: String::new(),
            spec: RedirectSpec::of_unit(&name, &annotations).unwrap(),
            redirect_ports: redirect_ports(&block),
            unit: name,
        }
    }

    fn listening(port: u16) -> ListeningSocket {
        ListeningSocket {
            address: "0.0.0.0".parse().unwrap(),
            port,
            cgroup: 1,
        }
    }

    #[test]
    fn listeners_of_others_are_those_on_addresses_of_the_proxy() {
        let at = |address: &str, cgroup: u64| {
            let address: SocketAddr = address.parse().unwrap();
            ListeningSocket {
                address: address.ip(),
                port: address.port(),
                cgroup,
            }
        };
        let unit = unit(0, &[]);
        let listening = [
            at("127.0.0.1:61000", 7),
            at("0.0.0.0:61001", 7),
            at("192.0.2.1:61000", 8),
            at("192.0.2.1:61001", 8),
            at("[::]:61003", 8),
            at("[::]:61003", 8),
            at("[::]:61004", 8),
        ];
        let found = |proxy: Option<u64>| {
            let found = foreign_listeners(&unit, proxy, &listening);
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(found(Some(7)), ["192.0.2.1:61001", "[::]:61003"]);
        assert_eq!(found(None).len(), 4);
    }

    #[test]
    fn blocks_are_given_in_order_without_those_in_use() {
        let free = |others: &[UnitRedirect], listening: &[ListeningSocket]| {
            free_block("x.service", others, listening)
        };
        assert_eq!(free(&[], &[]), Ok(61_000..=61_063));
        assert_eq!(free(&[unit(0, &[])], &[]), Ok(61_064..=61_127));
        assert_eq!(free(&[unit(1, &[])], &[]), Ok(61_000..=61_063));
        assert_eq!(free(&[], &[listening(61_063)]), Ok(61_064..=61_127));
        let chosen = unit(1, &[("config.linkerd.io/inbound-port", "61010")]);
        assert_eq!(free(&[chosen], &[]), Ok(61_128..=61_191));
        let all: Vec<UnitRedirect> = (0..UNITS_MAX as u16).map(|n| unit(n, &[])).collect();
        let error = free(&all, &[]).unwrap_err().to_string();
        assert!(error.contains("64 units"), "{error}");
    }

    #[test]
    fn unit_has_the_first_ports_of_its_block_unless_it_chooses_others() {
        let chosen = unit(2, &[("config.linkerd.io/inbound-port", "4143")]);
        let spec = &chosen.spec;
        assert_eq!((spec.outbound_port, spec.inbound_port), (61_128, 4143));
        assert_eq!((spec.control_port, spec.admin_port), (61_130, 61_131));
        assert_eq!(chosen.redirect_ports, 61_132..=61_191);
        assert_eq!(block_of(&chosen), block(2));
    }

    #[test]
    fn ports_of_two_units_differ() {
        let key = "config.linkerd.io/inbound-port";
        let checked = |port: &str, other: &UnitRedirect| {
            check(&unit(0, &[(key, port)]), std::slice::from_ref(other))
        };
        let other = unit(1, &[(key, "4143")]);
        assert_eq!(checked("4144", &other), Ok(()));
        for port in ["4143", "61064", "61100"] {
            let error = checked(port, &other).unwrap_err().to_string();
            let expected = format!("port {port} of u0.service is also a port of u1.service");
            assert!(error.starts_with(&expected), "{error}");
        }
        assert!(checked("61030", &other).is_err(), "its own redirect port");
    }
}
