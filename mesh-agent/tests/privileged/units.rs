//! Redirection of systemd units: which processes and ports are a unit's, over restarts of the unit,
//! its proxy and the agent; and that nothing else on the host changes.

mod programs;
mod restarts;

use std::fs;
use std::path::PathBuf;

use aya::maps::{HashMap, Map, MapData};
use mesh_agent::ebpf::{Loaded, check_units};
use mesh_agent::redirect::UnitRedirect;
use mesh_agent::sys::bpf::{self, AttachType};
use mesh_ebpf_common::counter::Counter;
use mesh_ebpf_common::quota::OPEN_PORTS_PER_POD;
use mesh_ebpf_common::unit::Member;
use mesh_test_support::eventually::eventually;

use crate::Case;
use crate::actor::{Actor, ActorCommand, ActorResponse, Id, refused, unreachable};
use crate::env::{APP_UID, PROXY_UID, namespace, unit_object};
use crate::host::TestHost;

pub(super) const CASES: &[Case] = &[
    (
        "a unit is redirected in both directions, and other services of the host are not",
        redirection,
    ),
    (
        "a unit that restarts without an agent is redirected from its first connection on",
        restarts::restart,
    ),
    (
        "a unit is followed over the end of the slices that it is in",
        restarts::ended_slices,
    ),
    (
        "cgroups of the same name elsewhere are not the unit's",
        same_name_elsewhere,
    ),
    (
        "processes in cgroups below the unit's are the unit's",
        below_unit,
    ),
    (
        "a unit's process in another network namespace is left alone",
        other_namespace,
    ),
    (
        "a process is the proxy by its cgroup and not by its uid",
        proxy_by_cgroup,
    ),
    (
        "a restarted proxy takes over without an agent",
        restarts::restarted_proxy,
    ),
    (
        "without a proxy a unit is closed in both directions",
        without_proxy,
    ),
    (
        "a unit is not redirected before it is to be, and its listeners are known then",
        restarts::observed_first,
    ),
    (
        "a listener from before the enrolment is steered until the agent finds it closed",
        restarts::older_listener,
    ),
    (
        "a listener from before the enrolment is not steered any more once its unit has ended",
        restarts::older_listener_of_ended_unit,
    ),
    (
        "a port that a unit has closed belongs to the service that listens next",
        restarts::closed_port,
    ),
    (
        "units of one host reach each other through their proxies",
        neighbours,
    ),
    (
        "a connection between units that is never accepted leaves nothing behind",
        unaccepted_neighbour,
    ),
    (
        "a connection that goes around the proxy is severed",
        severed,
    ),
    (
        "the programs of units leave the sockets of proxies below the same cgroup alone",
        common_root,
    ),
    (
        "a listener that an earlier enrolment counted does not count for the next one",
        restarts::enrolled_again,
    ),
    (
        "a listener beyond the quota of ports is closed to other hosts",
        too_many_ports,
    ),
    (
        "a proxy that listened before the programs were loaded is registered",
        restarts::older_proxy,
    ),
    (
        "a second load adopts the pinned programs of units",
        programs::adoption,
    ),
    (
        "replacing the programs of units under load fails no connection",
        programs::replacement,
    ),
    (
        "a unit that is withdrawn leaves no entry, and the last one no pin",
        programs::withdrawn,
    ),
    ("units that share a cgroup are refused", shared_cgroups),
];

const WEB: &str = "192.0.2.10:80";
const WEB_V6: &str = "[2001:db8::10]:80";
const OUTSIDE: &str = "198.18.0.2:0";
const OUTSIDE_V6: &str = "[fd6d:6573:68::2]:0";
const SERVICE: &str = "198.18.0.1:8080";
const ANY: &str = "0.0.0.0:8080";
/// On another machine than the unit's, see [`TestHost::connect_outside`].
const REMOTE: &str = "10.77.0.2:0";
const REMOTE_SERVICE: &str = "10.77.0.1:8080";

/// The proxy of a unit, with its listeners.
pub(super) struct Proxy {
    actor: Actor,
    outbound: Id,
    outbound_v6: Id,
    inbound: Id,
}

impl Proxy {
    /// Starts the proxy of the unit with this number.
    pub(super) fn start(host: &TestHost, name: &str, number: u16) -> Self {
        Self::listen(host.proxy(name), number)
    }

    fn listen(mut actor: Actor, number: u16) -> Self {
        let first = 61_000 + 64 * number;
        Self {
            outbound: actor.listen(&format!("127.0.0.1:{first}")),
            outbound_v6: actor.listen(&format!("[::1]:{first}")),
            inbound: actor.listen(&format!("[::]:{}", first + 1)),
            actor,
        }
    }

    /// Asserts that a connection from outside reaches this proxy, which learns the destination.
    pub(super) fn assert_steered(&mut self, client: &mut Actor, source: &str, target: &str) {
        client.connect_from(source, target).id();
        self.assert_accepts(self.inbound, target);
    }

    pub(super) fn accept_outbound(&mut self) {
        self.actor.accept(self.outbound).id();
    }

    fn assert_accepts(&mut self, listener: Id, target: &str) {
        let accepted = self.actor.accept(listener).id();
        let original = self.actor.original(accepted);
        assert_eq!(original, Some(target.parse().unwrap()));
    }

    pub(super) fn assert_redirects(&mut self, unit: &mut Actor, target: &str) {
        unit.connect(target).id();
        let listener = if target.starts_with('[') {
            self.outbound_v6
        } else {
            self.outbound
        };
        self.assert_accepts(listener, target);
    }
}

/// Asserts that a connection reaches the listener itself.
pub(super) fn assert_direct(
    client: &mut Actor,
    source: &str,
    target: &str,
    server: &mut Actor,
    listener: Id,
) {
    let client = client.connect_from(source, target);
    assert_eq!(server.accept(listener).peer(), client.local());
}

fn client(host: &TestHost) -> Actor {
    host.actor("client", APP_UID)
}

fn redirection() {
    let mut host = TestHost::new();
    // Without the mesh.
    let (mut web, mut other, mut client) = (host.unit("web"), host.unit("other"), client(&host));
    let listener = web.listen(ANY);
    assert_direct(&mut client, OUTSIDE, SERVICE, &mut web, listener);
    assert_eq!(web.connect(WEB), unreachable());
    web.close(listener);

    host.add("web");
    let programs = host.load(&unit_object()).0;
    assert_eq!(host.apply(&programs).redirected.len(), 1);
    let mut proxy = Proxy::start(&host, "web", 0);
    proxy.assert_redirects(&mut web, WEB);
    proxy.assert_redirects(&mut web, WEB_V6);
    web.listen(ANY);
    web.listen("[::]:8081");
    proxy.assert_steered(&mut client, OUTSIDE, SERVICE);
    proxy.assert_steered(&mut client, OUTSIDE, "198.18.0.1:8081");
    proxy.assert_steered(&mut client, OUTSIDE_V6, "[fd6d:6573:68::1]:8081");
    assert_eq!(proxy.actor.connect(WEB), unreachable(), "it is the proxy");
    proxy.assert_redirects_itself();

    // Another service, on ports beside the unit's.
    assert_eq!(other.connect(WEB), unreachable());
    assert_eq!(client.connect(WEB), unreachable());
    let listener = other.listen("0.0.0.0:8082");
    assert_direct(
        &mut client,
        OUTSIDE,
        "198.18.0.1:8082",
        &mut other,
        listener,
    );
    assert_eq!(client.connect_from(OUTSIDE, "198.18.0.1:8083"), refused());
    // The host's own clients of the unit.
    let listener = web.listen("0.0.0.0:8084");
    assert_direct(
        &mut other,
        "198.18.0.1:0",
        "198.18.0.1:8084",
        &mut web,
        listener,
    );
    assert_direct(
        &mut other,
        "127.0.0.1:0",
        "127.0.0.1:8084",
        &mut web,
        listener,
    );
    let mut worker = host.unit("web");
    assert_direct(
        &mut worker,
        "127.0.0.1:0",
        "127.0.0.1:8084",
        &mut web,
        listener,
    );

    // Skipped ports and sources.
    assert_eq!(web.connect("192.0.2.10:4567"), unreachable());
    let listener = web.listen("0.0.0.0:7000");
    assert_direct(&mut client, OUTSIDE, "198.18.0.1:7000", &mut web, listener);
    let listener = web.listen("0.0.0.0:8085");
    let skipped = "198.19.0.2:0";
    assert_direct(&mut client, skipped, "198.18.0.1:8085", &mut web, listener);

    assert_eq!(host.count(&programs, 0, Counter::OutboundRedirected), 3);
    assert_eq!(host.count(&programs, 0, Counter::InboundSteered), 3);
    assert_eq!(programs.in_flight().unwrap(), 0);
}

impl Proxy {
    /// The check address is redirected for the proxy, too.
    fn assert_redirects_itself(&mut self) {
        let check = "192.0.2.1:20001";
        self.actor.connect(check).id();
        self.assert_accepts(self.outbound, check);
    }
}

fn same_name_elsewhere() {
    let (host, _programs) = TestHost::with_units(&["web"]);
    for elsewhere in [
        "system.slice/other.slice/web.service",
        "web.service",
        "system.slice/web.service2",
        "system.slice/web.servic",
    ] {
        let mut other = host.actor(elsewhere, APP_UID);
        assert_eq!(other.connect(WEB), unreachable(), "{elsewhere}");
    }
    // Hierarchies of version 1 have ids of their own, which begin with the same numbers.
    let registered = || {
        let pin = host.pin_dir().join("machine-v1/maps/CGROUPS");
        let map = Map::from_map_data(MapData::from_pin(pin).unwrap()).unwrap();
        let map: HashMap<MapData, u64, Member> = HashMap::try_from(map).unwrap();
        map.keys().count()
    };
    let before = registered();
    let Some(pids) = cgroup1() else {
        println!("skipped: the rest of this case: no hierarchy of version 1 is mounted");
        return;
    };
    let top = pids.join(host.machine.name());
    let unit = top.join("system.slice/web.service");
    fs::create_dir_all(&unit).unwrap();
    let after = registered();
    for directory in unit.ancestors().take(3) {
        fs::remove_dir(directory).unwrap();
    }
    assert_eq!(after, before);
}

/// Returns the mount point of a hierarchy of cgroups of version 1.
fn cgroup1() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut mounts = mounts.lines().map(|line| line.split(' '));
    let is_pids = |line: &mut std::str::Split<'_, char>| {
        let (point, kind) = (line.nth(1)?, line.next()?);
        (kind == "cgroup" && point.ends_with("/pids")).then(|| point.into())
    };
    mounts.find_map(|mut line| is_pids(&mut line))
}

fn below_unit() {
    let (host, _programs) = TestHost::with_units(&["web"]);
    let mut proxy = Proxy::start(&host, "web", 0);
    let mut client = client(&host);
    for below in ["worker", "worker/deeper", ".control"] {
        let cgroup = format!("system.slice/web.service/{below}");
        let mut worker = host.actor(&cgroup, APP_UID);
        proxy.assert_redirects(&mut worker, WEB);
        worker.listen(ANY);
        proxy.assert_steered(&mut client, OUTSIDE, SERVICE);
    }
}

fn other_namespace() {
    let (host, programs) = TestHost::with_units(&["web"]);
    let _proxy = Proxy::start(&host, "web", 0);
    let elsewhere = namespace();
    let mut nested = host.actor_in(&elsewhere, "system.slice/web.service", APP_UID);
    assert_eq!(nested.connect(WEB), unreachable());
    let listener = nested.listen(ANY);
    let mut client = host.actor_in(&elsewhere, "client", APP_UID);
    assert_direct(&mut client, OUTSIDE, SERVICE, &mut nested, listener);
    assert_eq!(programs.units().unwrap()[0].listening, []);
    assert_eq!(host.count(&programs, 0, Counter::OutboundRedirected), 0);
}

fn proxy_by_cgroup() {
    let (host, programs) = TestHost::with_units(&["web"]);
    // It would be the proxy of a pod.
    let mut impostor = host.actor("mesh.slice/other.service", PROXY_UID);
    impostor.listen("127.0.0.1:61000");
    let mut web = host.unit("web");
    assert_eq!(web.connect(WEB), refused());
    drop(impostor);
    let mut proxy = host.proxy("web");
    assert_eq!(proxy.connect(WEB), unreachable(), "before it listens");
    let mut proxy = Proxy::listen(proxy, 0);
    proxy.assert_redirects(&mut web, WEB);

    let mut impostor = host.actor("system.slice/web.service", PROXY_UID);
    proxy.assert_redirects(&mut impostor, WEB);
    for port in [61_000, 61_001, 61_030] {
        let command = ActorCommand::Listen {
            address: format!("0.0.0.0:{port}").parse().unwrap(),
            share_port: true,
        };
        let denied = ActorResponse::Failed("PermissionDenied".into());
        assert_eq!(impostor.run(command), denied, "{port}");
    }
    // And of the impostor.
    assert_eq!(host.count(&programs, 0, Counter::ListenerRejected), 3 + 1);
}

fn without_proxy() {
    let mut host = TestHost::new();
    host.add("web");
    host.add("open").redirect.spec.inbound_fail_open = true;
    let programs = host.load(&unit_object()).0;
    host.apply(&programs);
    let (mut web, mut client) = (host.unit("web"), client(&host));
    web.listen(ANY);
    assert_eq!(web.connect(WEB), refused());
    assert_eq!(client.connect_from(OUTSIDE, SERVICE), refused());
    assert_eq!(host.count(&programs, 0, Counter::InboundRefused), 1);
    let mut open = host.unit("open");
    let listener = open.listen("0.0.0.0:8081");
    assert_direct(&mut client, OUTSIDE, "198.18.0.1:8081", &mut open, listener);
}

fn neighbours() {
    let (host, programs) = TestHost::with_units(&["web", "data"]);
    let mut web_proxy = Proxy::start(&host, "web", 0);
    let mut data_proxy = Proxy::start(&host, "data", 1);
    let (mut web, mut data) = (host.unit("web"), host.unit("data"));
    let listener = data.listen("0.0.0.0:5432");
    let target = "198.18.0.1:5432";
    web_proxy.assert_redirects(&mut web, target);
    let connection = web_proxy.actor.connect(target).id();
    data_proxy.assert_accepts(data_proxy.inbound, target);
    web_proxy.actor.close(connection);
    // To the unit's own port from its own proxy, and from itself.
    assert_direct(
        &mut data_proxy.actor,
        "198.18.0.1:0",
        target,
        &mut data,
        listener,
    );
    let mut same_unit = host.unit("data");
    assert_direct(&mut same_unit, "198.18.0.1:0", target, &mut data, listener);
    assert_eq!(programs.in_flight().unwrap(), 0);
}

/// The unit closes its port meanwhile, so that no one knows any more whose it was.
fn unaccepted_neighbour() {
    let (host, programs) = TestHost::with_units(&["web", "data"]);
    let mut web_proxy = Proxy::start(&host, "web", 0);
    let _data_proxy = Proxy::start(&host, "data", 1);
    let mut data = host.unit("data");
    let listener = data.listen("0.0.0.0:5432");
    // More than the queue of the listener has room for.
    let connections = ActorCommand::StartConnections {
        target: "198.18.0.1:5432".parse().unwrap(),
        count: 1_100,
    };
    assert_eq!(web_proxy.actor.run(connections), ActorResponse::Done);
    assert!(programs.in_flight().unwrap() > 0);
    data.close(listener);
    let closed = web_proxy.actor.run(ActorCommand::CloseStarted);
    assert_eq!(closed, ActorResponse::Done);
    assert_eq!(programs.in_flight().unwrap(), 0);
}

fn severed() {
    let (host, programs) = TestHost::with_units(&["web"]);
    let outside = host.connect_outside();
    let mut proxy = Proxy::start(&host, "web", 0);
    let mut web = host.unit("web");
    let mut client = host.actor_in(&outside, "client", APP_UID);
    let listener = web.listen(ANY);
    proxy.assert_steered(&mut client, REMOTE, REMOTE_SERVICE);
    detach_steering(&host);

    // A handshake may have begun before the redirection.
    assert_talks(&mut client, REMOTE, REMOTE_SERVICE, &mut web, listener);
    assert_eq!(programs.units().unwrap()[0].severed, 0);
    host.end_handshakes();
    let around = client.connect_from(REMOTE, REMOTE_SERVICE).id();
    let accepted = web.accept(listener).id();
    client.send(around, "secret");
    let received = web.run(ActorCommand::Receive { id: accepted });
    assert_eq!(received, ActorResponse::Failed("WouldBlock".into()));
    assert_eq!(programs.units().unwrap()[0].severed, 1);

    // The host's own clients, and services that are no units.
    let mut local = host.actor("client", APP_UID);
    assert_talks(
        &mut local,
        "10.77.0.1:0",
        REMOTE_SERVICE,
        &mut web,
        listener,
    );
    let skipped = web.listen("0.0.0.0:7000");
    assert_talks(&mut client, REMOTE, "10.77.0.1:7000", &mut web, skipped);
    let mut other = host.unit("other");
    let others = other.listen("0.0.0.0:8081");
    assert_talks(&mut client, REMOTE, "10.77.0.1:8081", &mut other, others);
    assert_eq!(programs.units().unwrap()[0].severed, 1);
    // The programs are attached again, and connections go through the proxy.
    assert_eq!(host.load(&unit_object()).1, Loaded::Replaced);
    proxy.assert_steered(&mut client, REMOTE, REMOTE_SERVICE);
}

/// Detaches the program that steers connections to proxies.
fn detach_steering(host: &TestHost) {
    fs::remove_file(host.pin_dir().join("machine-v1/links/mesh_unit_steer")).unwrap();
    // The kernel detaches a program a moment after the end of its pin.
    let netns = fs::File::open(host.netns.path()).unwrap();
    eventually("the end of the steering program", || {
        let attached = bpf::query(&netns, AttachType::SkLookup).unwrap();
        attached.programs.is_empty()
    });
}

/// Programs of units run for the sockets of proxies, too, if a cgroup above both is named.
fn common_root() {
    let mut host = TestHost::new();
    host.unit_root = host.machine.cgroup().to_owned();
    host.add("web");
    let programs = host.load(&unit_object()).0;
    host.apply(&programs);
    host.end_handshakes();
    let outside = host.connect_outside();
    let mut proxy = Proxy::start(&host, "web", 0);
    let mut web = host.unit("web");
    let mut client = host.actor_in(&outside, "client", APP_UID);
    web.listen(ANY);
    let connection = client.connect_from(REMOTE, REMOTE_SERVICE).id();
    let accepted = proxy.actor.accept(proxy.inbound).id();
    client.send(connection, "hello");
    let received = proxy.actor.run(ActorCommand::Receive { id: accepted });
    assert_eq!(received, ActorResponse::Text("hello".into()));
    proxy.assert_redirects(&mut web, WEB);
    let mut top = host.actor("web.slice/other.service", APP_UID);
    assert_eq!(top.connect(WEB), unreachable());
    assert_eq!(programs.units().unwrap()[0].severed, 0);
    assert_eq!(programs.in_flight().unwrap(), 0);
}

/// Asserts that a connection reaches the listener and carries data.
fn assert_talks(client: &mut Actor, source: &str, target: &str, server: &mut Actor, listener: Id) {
    let connection = client.connect_from(source, target).id();
    let accepted = server.accept(listener).id();
    client.send(connection, "hello");
    let received = server.run(ActorCommand::Receive { id: accepted });
    assert_eq!(received, ActorResponse::Text("hello".into()));
}

fn too_many_ports() {
    let (host, programs) = TestHost::with_units(&["web"]);
    let outside = host.connect_outside();
    let mut proxy = Proxy::start(&host, "web", 0);
    let mut web = host.unit("web");
    let mut client = host.actor_in(&outside, "client", APP_UID);
    for port in 0..OPEN_PORTS_PER_POD {
        web.listen(&format!("0.0.0.0:{}", 20_000 + port));
    }
    let last = 20_000 + OPEN_PORTS_PER_POD - 1;
    proxy.assert_steered(&mut client, REMOTE, &format!("10.77.0.1:{last}"));
    let listener = web.listen(ANY);
    // Neither around the proxy nor through it.
    assert_eq!(client.connect_from(REMOTE, REMOTE_SERVICE), refused());
    let mut local = host.actor("client", APP_UID);
    let loopback = "127.0.0.1:8080";
    assert_direct(&mut local, "127.0.0.1:0", loopback, &mut web, listener);
    assert_eq!(programs.units().unwrap()[0].unrecorded, 1);
}

fn shared_cgroups() {
    let mut host = TestHost::new();
    host.add("web");
    host.add("second");
    let redirects = |host: &TestHost| -> Vec<UnitRedirect> {
        let units = host.units.iter();
        units.map(|unit| unit.redirect.clone()).collect()
    };
    check_units(&redirects(&host)).unwrap();
    let web = host.units[0].redirect.cgroups[0].clone();
    for shared in [
        web.clone(),
        format!("{web}/below"),
        host.path_of("system.slice"),
        "../escape".to_owned(),
        "/absolute".to_owned(),
        String::new(),
        "x".repeat(256),
    ] {
        host.units[1].redirect.cgroups = vec![shared.clone()];
        assert!(check_units(&redirects(&host)).is_err(), "{shared}");
    }
}
