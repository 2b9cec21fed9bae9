//! Ports without a listener: refused as without the mesh, and open if in doubt.

use std::fs;

use aya::maps::{HashMap, Map, MapData};
use mesh_agent::ebpf::Loaded;
use mesh_ebpf_common::address::Address;
use mesh_ebpf_common::counter::Counter;
use mesh_ebpf_common::layout::PortKey;
use mesh_ebpf_common::quota::OPEN_PORTS_PER_POD;
use mesh_test_support::machine::Machine;

use crate::Case;
use crate::actor::{Actor, ActorCommand, ActorResponse, Id, refused};
use crate::env::{APP_UID, Pod, TestEnv, enrolled, object};

pub(super) const CASES: &[Case] = &[
    (
        "ports are open and closed as without the mesh",
        as_without_the_mesh,
    ),
    (
        "a closed port is refused, and counted, while the proxy listens",
        counted,
    ),
    (
        "the ports of the proxy and skipped ports stay as they are",
        proxy_ports,
    ),
    (
        "a listener of a process outside of the pod's cgroup opens its port",
        foreign_process,
    ),
    ("a listener on IPv6 only leaves IPv4 to the proxy", v6_only),
    (
        "a pod that listened before its enrolment has no closed ports",
        older_listener,
    ),
    (
        "a pod that exceeds its quota of ports has no closed ports",
        quota,
    ),
    ("a full table of ports refuses no connection", full_table),
    (
        "ports stay known when the agent restarts or replaces the programs",
        restarted_agent,
    ),
    (
        "a pod whose listeners may have been missed has no closed ports",
        gap,
    ),
];

const SOURCES: [(&str, &str); 2] = [
    ("198.18.0.2:0", "198.18.0.1"),
    ("[fd6d:6573:68::2]:0", "[fd6d:6573:68::1]"),
];

/// Connects from outside of the pod, over IPv4 and IPv6; returns whether each is accepted.
fn arrives(client: &mut Actor, port: u16) -> [bool; 2] {
    SOURCES.map(
        |(source, own)| match client.connect_from(source, &format!("{own}:{port}")) {
            ActorResponse::Socket { id, .. } => {
                client.close(id);
                true
            }
            response => {
                assert_eq!(response, refused());
                false
            }
        },
    )
}

const NONE: [bool; 2] = [false; 2];
const V4: [bool; 2] = [true, false];
const V6: [bool; 2] = [false, true];
const BOTH: [bool; 2] = [true; 2];

/// What a pod's application does with its sockets, and which families reach it then.
fn expectations(pod: &Pod) -> Vec<(&'static str, [bool; 2], [bool; 2])> {
    let mut app = pod.app();
    let mut client = pod.app();
    let mut rows = Vec::new();
    let mut see = |what, client: &mut Actor, port, expected| {
        rows.push((what, expected, arrives(client, port)));
    };
    see("nothing has listened", &mut client, 8080, NONE);

    let listener = app.listen("0.0.0.0:8080");
    see("listens on IPv4", &mut client, 8080, V4);
    see("another port", &mut client, 8081, NONE);
    app.close_quietly(listener);
    see("closed", &mut client, 8080, NONE);

    let listener = app.listen("[::]:8080");
    see("listens on both", &mut client, 8080, BOTH);
    app.run(ActorCommand::Relisten { id: listener });
    see("listens twice", &mut client, 8080, BOTH);
    app.run(ActorCommand::Shutdown { id: listener });
    see("shut down", &mut client, 8080, NONE);
    app.run(ActorCommand::Relisten { id: listener });
    see("listens again", &mut client, 8080, BOTH);
    app.close_quietly(listener);
    see("closed after listening again", &mut client, 8080, NONE);

    let shared: Vec<Id> = (0..3).map(|_| app.listen_shared("0.0.0.0:8080")).collect();
    app.close_quietly(shared[0]);
    app.close_quietly(shared[1]);
    see("one of a group is left", &mut client, 8080, V4);
    app.close_quietly(shared[2]);
    see("none of a group is left", &mut client, 8080, NONE);

    for (address, expected) in [
        ("127.0.0.1:8082", NONE),
        ("[::1]:8082", NONE),
        ("198.18.0.2:8083", NONE),
        ("198.18.0.1:8084", V4),
        ("[fd6d:6573:68::1]:8085", V6),
        ("[::ffff:198.18.0.1]:8086", V4),
    ] {
        let port = address.rsplit(':').next().unwrap().parse().unwrap();
        let listener = app.listen(address);
        see("listens on one address", &mut client, port, expected);
        app.close_quietly(listener);
        see("closed on one address", &mut client, port, NONE);
    }

    let ActorResponse::Socket { id, local, .. } = app.run(ActorCommand::Listen {
        address: "0.0.0.0:0".parse().unwrap(),
        share_port: false,
    }) else {
        panic!("no listener");
    };
    see(
        "a port of the kernel's choice",
        &mut client,
        local.port(),
        V4,
    );
    app.close_quietly(id);
    see("closed on that port", &mut client, local.port(), NONE);

    let multipath = app.listen_multipath("0.0.0.0:8087");
    see("listens for Multipath TCP", &mut client, 8087, V4);
    app.close_quietly(multipath);
    see("closed for Multipath TCP", &mut client, 8087, NONE);

    app.listen("[::]:8088");
    app.listen_multipath("[::]:8089");
    drop(app);
    see("the process was killed", &mut client, 8088, NONE);
    see("the process was killed, MPTCP", &mut client, 8089, NONE);
    rows
}

fn as_without_the_mesh() {
    let env = TestEnv::new();
    let programs = env.programs();
    let (plain, meshed) = (env.pod(), env.pod());
    programs.enrol(&meshed.redirect).unwrap();
    assert!(programs.pods().unwrap()[0].knows_ports);
    let mut proxy = meshed.proxy();
    proxy.listen("[::]:4143");
    for pod in [&plain, &meshed] {
        for (what, expected, found) in expectations(pod) {
            let name = &pod.redirect.pod.name;
            assert_eq!(found, expected, "{name}: {what}");
        }
    }
    // The proxy accepted all of the others.
    assert_eq!(meshed.count(Counter::InboundRefused), 0);
    assert!(meshed.count(Counter::InboundSteered) > 10);
    assert!(programs.pods().unwrap()[0].knows_ports);
}

fn counted() {
    let (pod, _programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let inbound = proxy.listen("0.0.0.0:4143");
    for _ in 0..3 {
        assert_eq!(
            app.connect_from("198.18.0.2:0", "198.18.0.1:8080"),
            refused()
        );
    }
    assert_eq!(pod.count(Counter::InboundClosed), 3);
    assert_eq!(pod.count(Counter::InboundSteered), 0);

    app.listen("0.0.0.0:8080");
    let client = app.connect_from("198.18.0.2:0", "198.18.0.1:8080");
    let accepted = proxy.accept(inbound);
    assert_eq!(accepted.peer(), client.local());
    assert_eq!(pod.count(Counter::InboundSteered), 1);
    // Without its proxy the port is refused for that reason.
    drop(proxy);
    assert_eq!(
        app.connect_from("198.18.0.2:0", "198.18.0.1:8080"),
        refused()
    );
    assert_eq!(pod.count(Counter::InboundRefused), 1);
    assert_eq!(pod.count(Counter::InboundClosed), 3);
}

fn proxy_ports() {
    let (pod, _programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let inbound = proxy.listen("[::]:4143");
    for port in [4143, 4140] {
        assert_eq!(arrives(&mut app, port), BOTH, "{port}");
        proxy.accept(inbound).id();
        proxy.accept(inbound).id();
    }
    // Skipped, and nothing listens: the kernel's own answer.
    assert_eq!(arrives(&mut app, 7005), NONE);
    app.listen("[::]:7005");
    assert_eq!(arrives(&mut app, 7005), BOTH);
    assert_eq!(pod.count(Counter::InboundSkippedPort), 4);
    assert_eq!(pod.count(Counter::InboundClosed), 0);
}

/// As a debugger does, or a service whose socket another process created.
fn foreign_process() {
    let (pod, _programs) = enrolled();
    let (mut proxy, mut client) = (pod.proxy(), pod.app());
    proxy.listen("[::]:4143");
    let elsewhere = Machine::new();
    let mut foreign = Actor::start(&pod.redirect.netns, elsewhere.cgroup(), APP_UID);
    assert_eq!(arrives(&mut client, 8080), NONE);
    let listener = foreign.listen("[::]:8080");
    assert_eq!(arrives(&mut client, 8080), BOTH);
    foreign.close_quietly(listener);
    assert_eq!(arrives(&mut client, 8080), NONE);
}

fn v6_only() {
    let (pod, _programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    proxy.listen("[::]:4143");
    let address = "[::]:8080".parse().unwrap();
    let listener = app.run(ActorCommand::ListenV6Only { address }).id();
    assert_eq!(arrives(&mut app, 8080), BOTH);
    app.close_quietly(listener);
    assert_eq!(arrives(&mut app, 8080), NONE);
}

fn older_listener() {
    let env = TestEnv::new();
    let programs = env.programs();
    let pod = env.pod();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let listener = app.listen("127.0.0.1:9000");
    programs.enrol(&pod.redirect).unwrap();
    assert!(!programs.pods().unwrap()[0].knows_ports);
    proxy.listen("[::]:4143");
    assert_eq!(arrives(&mut app, 8080), BOTH);
    // Nor after another enrolment without it.
    app.close_quietly(listener);
    programs.enrol(&pod.redirect).unwrap();
    assert!(!programs.pods().unwrap()[0].knows_ports);
    assert_eq!(arrives(&mut app, 8080), BOTH);
}

fn quota() {
    let env = TestEnv::new();
    let programs = env.programs();
    let (greedy, modest) = (env.pod(), env.pod());
    for pod in [&greedy, &modest] {
        programs.enrol(&pod.redirect).unwrap();
    }
    let (mut proxy, mut app) = (greedy.proxy(), greedy.app());
    proxy.listen("[::]:4143");
    for port in 0..OPEN_PORTS_PER_POD {
        let listener = app.listen(&format!("0.0.0.0:{}", 20_000 + port));
        app.close_quietly(listener);
    }
    assert_eq!(arrives(&mut app, 8080), NONE);
    // A port that has an entry takes no further one.
    let listener = app.listen("0.0.0.0:20000");
    assert_eq!(arrives(&mut app, 20_000), V4);
    app.close_quietly(listener);
    assert_eq!(arrives(&mut app, 20_000), NONE);
    app.listen("0.0.0.0:8080");
    for port in [8080, 20_000, 8081] {
        assert_eq!(arrives(&mut app, port), BOTH, "{port}");
    }
    refuses_closed_ports(&modest);
    assert!(programs.unenrol(greedy.redirect.cookie).unwrap());
    assert_eq!(open_ports(&env).keys().count(), 1, "that of the other pod");
}

fn refuses_closed_ports(pod: &Pod) {
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    proxy.listen("[::]:4143");
    assert_eq!(arrives(&mut app, 8080), NONE);
    app.listen("[::]:8080");
    assert_eq!(arrives(&mut app, 8080), BOTH);
}

fn open_ports(env: &TestEnv) -> HashMap<MapData, PortKey, i64> {
    let pin = env.pin_dir().join("v1/maps/OPEN_PORTS");
    let map = Map::from_map_data(MapData::from_pin(pin).unwrap()).unwrap();
    HashMap::try_from(map).unwrap()
}

fn full_table() {
    let (pod, programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    proxy.listen("[::]:4143");
    let mut table = open_ports(&pod.env);
    for number in 0u32.. {
        let key = PortKey::new(1, Address::from_v4(number), 1);
        if table.insert(key, 1, 0).is_err() {
            break;
        }
    }
    assert_eq!(arrives(&mut app, 8080), NONE);
    app.listen("0.0.0.0:8080");
    assert_eq!(arrives(&mut app, 8080), BOTH, "the proxy decides");
    assert!(!programs.pods().unwrap()[0].knows_ports);
    // The entries belong to no pod.
    assert_eq!(programs.sweep(&[]).unwrap().orphans, 1);
    assert_eq!(table.keys().count(), 0);
}

fn restarted_agent() {
    let (pod, programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    proxy.listen("[::]:4143");
    let old = app.listen("[::]:8080");
    drop(programs);
    for (object, loaded) in [
        (object(), Loaded::Adopted),
        (pod.env.other_object(), Loaded::Replaced),
    ] {
        let (programs, found) = pod.env.load(&object);
        assert_eq!(found, loaded);
        // The agent enrols again at its start.
        programs.enrol(&pod.redirect).unwrap();
        assert!(programs.pods().unwrap()[0].knows_ports);
        assert_eq!(arrives(&mut app, 8080), BOTH);
        assert_eq!(arrives(&mut app, 8081), NONE);
    }
    app.listen("[::]:8081");
    app.close_quietly(old);
    assert_eq!(arrives(&mut app, 8080), NONE);
    assert_eq!(arrives(&mut app, 8081), BOTH);
}

fn gap() {
    let (pod, programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    proxy.listen("[::]:4143");
    assert_eq!(arrives(&mut app, 8080), NONE);
    let link = pod.env.pin_dir().join("v1/links/mesh_open_ports");
    fs::remove_file(link).unwrap();
    app.listen("[::]:8080");
    assert_eq!(pod.env.load(&object()).1, Loaded::Replaced);
    assert_eq!(pod.env.load(&object()).1, Loaded::Adopted);
    programs.enrol(&pod.redirect).unwrap();
    assert!(!programs.pods().unwrap()[0].knows_ports);
    assert_eq!(arrives(&mut app, 8080), BOTH);
    assert_eq!(arrives(&mut app, 8081), BOTH);
    // New pods are not affected.
    let second = pod.env.pod();
    programs.enrol(&second.redirect).unwrap();
    refuses_closed_ports(&second);
}
