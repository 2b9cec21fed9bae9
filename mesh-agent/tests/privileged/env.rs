//! A small node: a bpffs, a pods' parent cgroup, and pods that are a network namespace with a
//! cgroup per container. It is removed when dropped.
//!
//! A pod's namespace has only a loopback interface. Some of its addresses are the pod's;
//! connections from the others appear to come from another machine.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use aya::maps::{HashMap, Map, MapData};
use mesh_agent::ebpf::{self, Loaded, Object, Programs};
use mesh_agent::redirect::{PodRedirect, PodRef, RedirectSpec, Tier};
use mesh_agent::sys::{loopback, netns};
use mesh_ebpf_common::address::Address;
use mesh_ebpf_common::counter::Counter;
use mesh_ebpf_common::layout::{FlowKey, OriginalDst};
use mesh_test_support::machine::Machine;
use mesh_test_support::network::Namespace;

use crate::actor::Actor;

pub(super) const PROXY_UID: u32 = 2102;
pub(super) const APP_UID: u32 = 1000;

/// The pod's addresses, and external ones.
const OWN_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd6d, 0x6573, 0x68, 0, 0, 0, 0, 1);
const OUTSIDE_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 2), Ipv4Addr::new(198, 19, 0, 2)];
const OUTSIDE_V6: Ipv6Addr = Ipv6Addr::new(0xfd6d, 0x6573, 0x68, 0, 0, 0, 0, 2);

pub(super) struct TestEnv {
    pub(super) machine: Machine,
}

pub(super) struct Pod {
    pub(super) env: Rc<TestEnv>,
    namespace: Namespace,
    pub(super) redirect: PodRedirect,
    cgroup: PathBuf,
}

/// Returns an enrolled pod of a new environment, and the programs.
pub(super) fn enrolled() -> (Pod, Programs) {
    let env = TestEnv::new();
    let programs = env.programs();
    let pod = env.pod();
    programs.enrol(&pod.redirect).unwrap();
    (pod, programs)
}

impl TestEnv {
    pub(super) fn new() -> Rc<Self> {
        Rc::new(Self {
            machine: Machine::new(),
        })
    }

    /// Returns a path that is not on a bpffs: loading mounts one there.
    pub(super) fn pin_dir(&self) -> PathBuf {
        self.machine.path("bpf/mesh")
    }

    pub(super) fn load(&self, object: &Object) -> (Programs, Loaded) {
        ebpf::load(object, &self.pin_dir(), self.machine.cgroup()).unwrap()
    }

    pub(super) fn programs(&self) -> Programs {
        self.load(&object()).0
    }

    /// Returns the same programs in an object file with other bytes.
    pub(super) fn other_object(&self) -> Object {
        other_object(&self.machine, &object())
    }

    /// Fills the table of connections in flight with entries of a pod that does not exist.
    pub(super) fn fill_in_flight(&self) {
        let mut table = self.in_flight();
        let entry = OriginalDst::default();
        for number in 0u32.. {
            let address = Address::from_v4(number);
            if table
                .insert(FlowKey::new(1, (address, 1), 4140, 4140), entry, 0)
                .is_err()
            {
                break;
            }
        }
    }

    pub(super) fn clear_in_flight(&self) {
        let mut table = self.in_flight();
        let keys: Vec<FlowKey> = table.keys().collect::<Result<_, _>>().unwrap();
        for key in keys {
            table.remove(&key).unwrap();
        }
    }

    fn in_flight(&self) -> HashMap<MapData, FlowKey, OriginalDst> {
        let pin = self.pin_dir().join("v1/maps/IN_FLIGHT");
        let map = Map::from_map_data(MapData::from_pin(pin).unwrap()).unwrap();
        HashMap::try_from(map).unwrap()
    }

    pub(super) fn pod(self: &Rc<Self>) -> Pod {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let namespace = namespace();
        let path = namespace.path();
        let cgroup = self.machine.cgroup().join(format!("pod{number}"));
        fs::create_dir(&cgroup).unwrap();
        let redirect = PodRedirect {
            pod: PodRef {
                namespace: "test".into(),
                name: format!("pod{number}"),
                uid: String::new(),
            },
            sandbox_id: format!("sandbox{number}"),
            cookie: netns::cookie_of(&path).unwrap(),
            netns: path,
            addresses: vec![OWN_V4.into(), OWN_V6.into()],
            spec: RedirectSpec {
                proxy_uid: PROXY_UID,
                proxy_gid: None,
                inbound_port: 4143,
                outbound_port: 4140,
                admin_port: 4191,
                control_port: 4190,
                skip_inbound: "4190-4191,7000-7010".parse().unwrap(),
                skip_outbound: "4567-4568".parse().unwrap(),
                skip_subnets: vec!["198.19.0.0/16".parse().unwrap()],
                ipv6: true,
                inbound_fail_open: false,
            },
            tier: Tier::Full,
        };
        Pod {
            env: self.clone(),
            namespace,
            redirect,
            cgroup,
        }
    }
}

impl Pod {
    pub(super) fn actor(&self, container: &str, uid: u32) -> Actor {
        self.actor_in(&self.namespace, container, uid)
    }

    /// Starts a process of one of the pod's containers in another network namespace.
    pub(super) fn actor_in(&self, netns: &Namespace, container: &str, uid: u32) -> Actor {
        let cgroup = self.cgroup.join(container);
        fs::create_dir_all(&cgroup).unwrap();
        Actor::start(&netns.path(), &cgroup, uid)
    }

    pub(super) fn proxy(&self) -> Actor {
        self.actor("proxy", PROXY_UID)
    }

    pub(super) fn app(&self) -> Actor {
        self.actor("app", APP_UID)
    }

    pub(super) fn count(&self, counter: Counter) -> u64 {
        let programs = Programs::open(&self.env.pin_dir()).unwrap();
        programs
            .counters()
            .unwrap()
            .iter()
            .find(|counters| counters.cookie == self.redirect.cookie)
            .expect("the pod is enrolled")
            .get(counter)
    }
}

pub(super) fn object() -> Object {
    Object::open(None).unwrap()
}

/// Returns the programs for systemd units.
pub(super) fn unit_object() -> Object {
    Object::open_for_units(None).unwrap()
}

/// Returns the same programs in an object file with other bytes.
pub(super) fn other_object(machine: &Machine, object: &Object) -> Object {
    let mut bytes = object.bytes().to_vec();
    bytes.extend(b"another build");
    let path = machine.path("other.o");
    fs::write(&path, bytes).unwrap();
    Object::open(Some(&path)).unwrap()
}

/// Creates a namespace with the pods' addresses and the others.
pub(super) fn namespace() -> Namespace {
    let namespace = Namespace::new();
    namespace.enter(|| {
        let [first, second] = OUTSIDE_V4;
        loopback::set_up(&[OWN_V4, first, second], &[OWN_V6, OUTSIDE_V6]).unwrap();
        // Allows the number of connections from one address to one port that a test needs.
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", "10000 65535").unwrap();
    });
    namespace
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        let _ = ebpf::unload(&self.pin_dir());
    }
}
