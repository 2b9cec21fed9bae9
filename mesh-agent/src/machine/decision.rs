//! The decisions of the kernel programs about connections of units, for `meshctl machine why`: by
//! the same function, on the host, with the settings and addresses that the programs have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use mesh_core::machine::{UnitConnection, UnitState, UnitStatus};
use mesh_core::redirection::{Hook, RedirectionEvent};
use mesh_ebpf_common::address::Address;
use mesh_ebpf_common::counter::Counter;
use mesh_ebpf_common::verdict::{ConnectAttempt, Outbound, unit};

use super::{Machine, MachineError, addresses};
use crate::ebpf;
use crate::redirect::UnitRedirect;

impl Machine {
    /// Returns the decision about a connection of a redirected unit.
    pub fn decide(&self, connection: &UnitConnection) -> Result<RedirectionEvent, MachineError> {
        let absent = || MachineError::NotRedirected(connection.unit.clone());
        let (records, _) = self.records.all()?;
        let mut records = records.into_iter().map(|record| record.redirect);
        let redirect = records.find(|redirect| redirect.unit == connection.unit);
        let redirect = redirect.ok_or_else(absent)?;
        let (of_unit, others): (Vec<_>, Vec<_>) = self
            .units()?
            .into_iter()
            .partition(|status| status.unit == connection.unit);
        let status = of_unit.first().ok_or_else(absent)?;
        if status.state != UnitState::Redirected {
            return Err(absent());
        }
        let host = addresses::of_host()?;
        Ok(decide(
            &redirect,
            &host,
            &others,
            status.proxy_listens,
            connection.destination,
        ))
    }
}

fn decide(
    redirect: &UnitRedirect,
    host: &[IpAddr],
    others: &[UnitStatus],
    proxy_listens: bool,
    destination: SocketAddr,
) -> RedirectionEvent {
    let attempt = ConnectAttempt {
        destination: Address::from(destination.ip()),
        port: destination.port(),
        source: Address::UNSPECIFIED,
        on_loopback: false,
        by_proxy: false,
    };
    let verdict = unit::outbound(
        &ebpf::config_of_unit(redirect, host),
        &attempt,
        |address| host.iter().any(|own| Address::from(*own).same(address)),
        |port| redirect.spec.skip_outbound.contains(port),
        || others.iter().any(|other| listens(other, destination)),
    );
    let (counter, redirected_to) = match verdict {
        Outbound::Direct(counter) => (counter, None),
        Outbound::Redirect(_) if !proxy_listens => (Counter::OutboundRefused, None),
        Outbound::Redirect(_) => {
            let loopback = match destination {
                SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
                SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::LOCALHOST),
            };
            let listener = SocketAddr::new(loopback, redirect.spec.outbound_port);
            (Counter::OutboundRedirected, Some(listener))
        }
    };
    RedirectionEvent {
        monotonic_ns: 0,
        hook: Hook::Connect,
        verdict: counter.name(),
        source: None,
        destination,
        redirected_to,
    }
}

/// Whether a unit or its proxy listens on the address.
fn listens(unit: &UnitStatus, destination: SocketAddr) -> bool {
    let mut listening = unit.listening.iter();
    destination.port() == unit.ports.inbound
        || listening.any(|socket| {
            let ip = socket.ip();
            socket.port() == destination.port() && (ip.is_unspecified() || ip == destination.ip())
        })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mesh_core::machine::UnitPorts;

    use super::*;
    use crate::redirect::RedirectSpec;

    fn redirect() -> UnitRedirect {
        let annotations = [
            ("config.linkerd.io/outbound-port", "61000"),
            ("config.linkerd.io/skip-outbound-ports", "25"),
            ("linkerd.io/redirected-ip-families", "ipv4"),
        ];
        let annotations: BTreeMap<String, String> = annotations
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        UnitRedirect {
            unit: "web.service".to_owned(),
            cookie: 1,
            cgroups: Vec::new(),
            proxy_cgroup: String::new(),
            spec: RedirectSpec::of_unit("web.service", &annotations).unwrap(),
            redirect_ports: 61_004..=61_063,
        }
    }

    fn other() -> UnitStatus {
        UnitStatus {
            unit: "db.service".to_owned(),
            state: UnitState::Redirected,
            cgroups: Vec::new(),
            running: true,
            proxy_cgroup: String::new(),
            proxy_listens: true,
            ports: UnitPorts {
                inbound: 61_065,
                outbound: 61_064,
                admin: 61_067,
                control: 61_066,
                redirect_first: 61_068,
                redirect_last: 61_127,
            },
            listening: vec!["0.0.0.0:5432".parse().unwrap()],
            connections: BTreeMap::new(),
            warnings: Vec::new(),
            identity: None,
            annotations: BTreeMap::new(),
            environment_file: None,
            foreign_listeners: Vec::new(),
        }
    }

    #[test]
    fn decision_is_the_one_of_the_kernel_programs() {
        let host: [IpAddr; 2] = ["192.0.2.5".parse().unwrap(), "2001:db8::5".parse().unwrap()];
        let decided = |destination: &str, proxy_listens: bool| {
            let destination = destination.parse().unwrap();
            let event = decide(&redirect(), &host, &[other()], proxy_listens, destination);
            assert_eq!(
                (event.hook, event.destination),
                (Hook::Connect, destination)
            );
            (event.verdict, event.redirected_to)
        };
        let listener = Some("127.0.0.1:61000".parse().unwrap());
        for (destination, verdict, to) in [
            ("198.51.100.7:80", "outbound-redirected", listener),
            ("198.51.100.7:25", "outbound-skipped-port", None),
            ("[2001:db8::7]:80", "outbound-no-address", None),
            ("127.0.0.1:80", "outbound-local", None),
            ("192.0.2.5:80", "outbound-local", None),
            // Another unit listens there.
            ("192.0.2.5:5432", "outbound-redirected", listener),
            ("192.0.2.5:61065", "outbound-redirected", listener),
            ("127.0.0.1:5432", "outbound-local", None),
            ("224.0.0.1:80", "outbound-unroutable", None),
        ] {
            let found = decided(destination, true);
            assert_eq!(found, (verdict.to_owned(), to), "{destination}");
        }
        let refused = ("outbound-refused".to_owned(), None);
        assert_eq!(decided("198.51.100.7:80", false), refused);
    }
}
