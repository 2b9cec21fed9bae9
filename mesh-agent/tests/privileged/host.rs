//! A host with units: a network namespace, a cgroup for its units and one for their proxies. It is
//! removed when dropped. The cgroups of units are created and removed as systemd does.

use std::fs;
use std::path::{Path, PathBuf};

use aya::maps::{HashMap, Map, MapData};
use mesh_agent::ebpf::{self, DesiredUnit, Host, Loaded, Object, Settings, UnitPrograms};
use mesh_agent::listening::listening_sockets;
use mesh_agent::redirect::{RedirectSpec, UnitRedirect};
use mesh_agent::sys::netns;
use mesh_ebpf_common::counter::Counter;
use mesh_ebpf_common::unit::{UNIT_COOKIES, UnitConfig};
use mesh_test_support::machine::{self, Machine};
use mesh_test_support::network::Namespace;

use crate::actor::Actor;
use crate::env::{APP_UID, PROXY_UID, namespace, unit_object};
use crate::lifecycle::map_entries;

pub(super) struct TestHost {
    pub(super) machine: Machine,
    /// The cgroup above the units.
    pub(super) unit_root: PathBuf,
    pub(super) netns: Namespace,
    pub(super) units: Vec<DesiredUnit>,
}

impl TestHost {
    pub(super) fn new() -> Self {
        let machine = Machine::new();
        for slice in ["system.slice", "mesh.slice"] {
            fs::create_dir(machine.cgroup().join(slice)).unwrap();
        }
        Self {
            unit_root: machine.cgroup().join("system.slice"),
            machine,
            netns: namespace(),
            units: Vec::new(),
        }
    }

    /// Returns a host that has enrolled these units.
    pub(super) fn with_units(names: &[&str]) -> (Self, UnitPrograms) {
        let mut host = Self::new();
        for name in names {
            host.add(name);
        }
        let programs = host.load(&unit_object()).0;
        host.apply(&programs);
        (host, programs)
    }

    /// Adds a unit that is to be enrolled.
    pub(super) fn add(&mut self, name: &str) -> &mut DesiredUnit {
        let number = self.units.len() as u16;
        let first = 61_000 + 64 * number;
        let redirect = UnitRedirect {
            unit: format!("{name}.service"),
            cookie: UNIT_COOKIES | (u64::from(number) + 1),
            cgroups: vec![self.path_of(&format!("system.slice/{name}.service"))],
            proxy_cgroup: self.path_of(&format!("mesh.slice/mesh-proxy@{name}.service")),
            spec: RedirectSpec {
                proxy_uid: PROXY_UID,
                proxy_gid: None,
                inbound_port: first + 1,
                outbound_port: first,
                admin_port: first + 3,
                control_port: first + 2,
                skip_inbound: format!("{}-{},7000-7010", first + 2, first + 3)
                    .parse()
                    .unwrap(),
                skip_outbound: "4567-4568".parse().unwrap(),
                skip_subnets: vec!["198.19.0.0/16".parse().unwrap()],
                ipv6: true,
                inbound_fail_open: false,
            },
            redirect_ports: first + 4..=first + 63,
        };
        self.units.push(DesiredUnit {
            redirect,
            is_redirected: true,
        });
        self.units.last_mut().unwrap()
    }

    pub(super) fn settings(&self) -> Settings {
        Settings {
            pin_dir: self.pin_dir(),
            unit_root: self.unit_root.clone(),
            proxy_root: self.cgroup("mesh.slice"),
        }
    }

    pub(super) fn pin_dir(&self) -> PathBuf {
        self.machine.path("bpf/mesh")
    }

    pub(super) fn load(&self, object: &Object) -> (UnitPrograms, Loaded) {
        let settings = self.settings();
        let load = || ebpf::load_for_units(object, &settings);
        self.netns.enter(load).unwrap()
    }

    /// Enrols the units, as an agent does every few seconds.
    pub(super) fn apply(&self, programs: &UnitPrograms) -> ebpf::ApplyReport {
        let report = self.netns.enter(|| {
            let host = Host {
                netns: netns::current_cookie().unwrap(),
                addresses: vec![
                    "198.18.0.1".parse().unwrap(),
                    "fd6d:6573:68::1".parse().unwrap(),
                    "10.77.0.1".parse().unwrap(),
                ],
                listening: listening_sockets().unwrap(),
            };
            programs.apply(&self.units, true, &host).unwrap()
        });
        assert_eq!(report.failures, Vec::<String>::new());
        report
    }

    /// Connects the host with another machine, which has the address 10.77.0.2.
    pub(super) fn connect_outside(&self) -> Namespace {
        let outside = Namespace::new();
        self.netns.link("outside", &outside, "host");
        let ends = [(&self.netns, "outside", 1), (&outside, "host", 2)];
        for (namespace, interface, number) in ends {
            namespace.add_address([10, 77, 0, number].into(), 24, interface);
            namespace.ip(&format!("link set {interface} up"));
        }
        outside
    }

    /// Lets the programs take all handshakes for begun after the enrolment.
    pub(super) fn end_handshakes(&self) {
        let pin = self.pin_dir().join("machine-v1/maps/UNITS");
        let map = Map::from_map_data(MapData::from_pin(pin).unwrap()).unwrap();
        let mut map: HashMap<MapData, u64, UnitConfig> = HashMap::try_from(map).unwrap();
        let cookies: Vec<u64> = map.keys().collect::<Result<_, _>>().unwrap();
        for cookie in cookies {
            let config = map.get(&cookie, 0).unwrap();
            let config = UnitConfig {
                severs_from: 0,
                ..config
            };
            map.insert(cookie, config, 0).unwrap();
        }
    }

    /// Counts the entries of all maps, as [`map_entries`] does.
    pub(super) fn map_entries(&self) -> usize {
        map_entries(&self.pin_dir().join("machine-v1/maps"))
    }

    /// Returns the directory of a cgroup of the host, which may not exist.
    pub(super) fn cgroup(&self, path: &str) -> PathBuf {
        self.machine.cgroup().join(path)
    }

    /// Returns the path of a cgroup below the root of the hierarchy.
    pub(super) fn path_of(&self, path: &str) -> String {
        format!("{}/{path}", self.machine.name())
    }

    /// Starts a process in a cgroup of the host, which is created if it does not exist.
    pub(super) fn actor(&self, cgroup: &str, uid: u32) -> Actor {
        self.actor_in(&self.netns, cgroup, uid)
    }

    pub(super) fn actor_in(&self, netns: &Namespace, cgroup: &str, uid: u32) -> Actor {
        let cgroup = self.cgroup(cgroup);
        fs::create_dir_all(&cgroup).unwrap();
        Actor::start(&netns.path(), &cgroup, uid)
    }

    pub(super) fn unit(&self, name: &str) -> Actor {
        self.actor(&format!("system.slice/{name}.service"), APP_UID)
    }

    pub(super) fn proxy(&self, name: &str) -> Actor {
        self.actor(&format!("mesh.slice/mesh-proxy@{name}.service"), PROXY_UID)
    }

    /// Removes the cgroup of a unit after its processes, as systemd does when the unit stops.
    pub(super) fn stop(&self, cgroup: &str) {
        machine::remove_cgroup(&self.cgroup(cgroup)).unwrap();
    }

    pub(super) fn count(&self, programs: &UnitPrograms, unit: usize, counter: Counter) -> u64 {
        let cookie = self.units[unit].redirect.cookie;
        let counters = programs.counters().unwrap();
        let counters = counters.iter().find(|counters| counters.cookie == cookie);
        counters.expect("the unit is enrolled").get(counter)
    }
}

/// Returns the names of everything below the pin directory.
pub(super) fn pins(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(pins(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

impl Drop for TestHost {
    fn drop(&mut self) {
        let _ = ebpf::unload_for_units(&self.pin_dir());
    }
}
