//! Who is taken for the proxy, and who is not.

use mesh_ebpf_common::counter::Counter;

use crate::{
    Case,
    actor::{Answer, Order},
    world::{PROXY_UID, World},
};

pub(super) const CASES: &[Case] = &[
    ("the proxy's uid alone exempts nobody", uid_alone),
    (
        "a proxy that dials before it listens is the proxy from its first connection on",
        early_proxy,
    ),
    (
        "a restarted proxy dials before it listens, and no process without its uid does",
        early_restarted_proxy,
    ),
    (
        "another container with the proxy's uid cannot join the proxy's port",
        intruder,
    ),
    (
        "an application that listens on a proxy port first is not registered",
        application_first,
    ),
    (
        "a Multipath TCP listener of the proxy is rejected, and that is counted",
        multipath_listener,
    ),
    (
        "a restarted proxy in a new cgroup takes over",
        restarted_proxy,
    ),
    (
        "listeners older than the enrolment are registered",
        older_listeners,
    ),
    (
        "a sweep registers a listener whose group lost its registered members",
        lost_listeners,
    ),
];

const WEB: &str = "192.0.2.10:80";
const OUTSIDE: &str = "198.18.0.2:0";
const SERVICE: &str = "198.18.0.1:8080";

fn refused() -> Answer {
    Answer::Failed("ConnectionRefused".into())
}

fn unreachable() -> Answer {
    Answer::Failed("NetworkUnreachable".into())
}

fn uid_alone() {
    let world = World::new();
    let programs = world.programs();
    let pod = world.pod();
    programs.enrol(&pod.redirect).unwrap();
    let mut impostor = pod.actor("app", PROXY_UID);
    let mut proxy = pod.proxy();
    let outbound = proxy.listen("127.0.0.1:4140");
    impostor.connect(WEB);
    let accepted = proxy.accept(outbound);
    assert_eq!(proxy.original(accepted.id()), Some(WEB.parse().unwrap()));
    assert_eq!(pod.count(Counter::OutboundProxy), 0);
}

/// As linkerd2-proxy does. Unreachable is where its connections go in this namespace when they are
/// not redirected.
fn early_proxy() {
    let world = World::new();
    let programs = world.programs();
    let pod = world.pod();
    programs.enrol(&pod.redirect).unwrap();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    assert_eq!(proxy.connect(WEB), unreachable());
    assert_eq!(app.connect(WEB), refused(), "has another uid");
    assert_eq!(programs.pods().unwrap()[0].proxy_cgroup, None, "not yet");
    proxy.listen("0.0.0.0:4143");
    assert_eq!(proxy.connect(WEB), unreachable());
    assert!(programs.pods().unwrap()[0].proxy_cgroup.is_some());
    assert_eq!(pod.count(Counter::OutboundProxy), 2);

    // The uid alone counts for nothing now.
    let mut impostor = pod.actor("app", PROXY_UID);
    assert_eq!(impostor.connect(WEB), refused());
    proxy.listen("127.0.0.1:4140");
    impostor.connect(WEB).id();
    assert_eq!(pod.count(Counter::OutboundProxy), 2);
}

fn early_restarted_proxy() {
    let world = World::new();
    let programs = world.programs();
    let pod = world.pod();
    programs.enrol(&pod.redirect).unwrap();
    // Another process of the uid dials first, and the proxy is the proxy all the same.
    let mut impostor = pod.actor("app", PROXY_UID);
    assert_eq!(impostor.connect(WEB), unreachable());
    let mut first = pod.actor("proxy-1", PROXY_UID);
    assert_eq!(first.connect(WEB), unreachable());
    first.listen("127.0.0.1:4140");
    assert_eq!(first.connect(WEB), unreachable());
    let before = programs.pods().unwrap()[0].proxy_cgroup;
    drop(first);

    let (mut second, mut app) = (pod.actor("proxy-2", PROXY_UID), pod.app());
    assert_eq!(second.connect(WEB), unreachable());
    assert_eq!(app.connect(WEB), refused());
    let outbound = second.listen("127.0.0.1:4140");
    assert_ne!(programs.pods().unwrap()[0].proxy_cgroup, before);
    assert_eq!(second.connect(WEB), unreachable());
    impostor.connect(WEB).id();
    let accepted = second.accept(outbound);
    assert_eq!(second.original(accepted.id()), Some(WEB.parse().unwrap()));
}

fn intruder() {
    let world = World::new();
    let programs = world.programs();
    let pod = world.pod();
    programs.enrol(&pod.redirect).unwrap();
    let mut proxy = pod.proxy();
    proxy.listen_shared("0.0.0.0:4143");
    let cgroup = programs.pods().unwrap()[0].proxy_cgroup;
    let mut impostor = pod.actor("app", PROXY_UID);
    let order = Order::Listen {
        address: "0.0.0.0:4143".parse().unwrap(),
        share_port: true,
    };
    assert_eq!(
        impostor.order(order),
        Answer::Failed("PermissionDenied".into())
    );
    assert_eq!(pod.count(Counter::ListenerRejected), 1);
    let pods = programs.pods().unwrap();
    assert_eq!(pods[0].listeners, 1);
    assert_eq!(pods[0].proxy_cgroup, cgroup);
}

fn application_first() {
    let world = World::new();
    let programs = world.programs();
    let pod = world.pod();
    programs.enrol(&pod.redirect).unwrap();
    let mut app = pod.app();
    app.listen("0.0.0.0:4143");
    app.listen("127.0.0.1:4140");
    assert_eq!(pod.count(Counter::ListenerRejected), 2);
    assert_eq!(app.connect(WEB), refused());
    assert_eq!(app.connect_from(OUTSIDE, SERVICE), refused());
    assert_eq!(programs.pods().unwrap()[0].proxy_cgroup, None);
}

/// Trap 18.
fn multipath_listener() {
    let world = World::new();
    let programs = world.programs();
    let pod = world.pod();
    programs.enrol(&pod.redirect).unwrap();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    proxy.listen_multipath("127.0.0.1:4140");
    assert_eq!(pod.count(Counter::ListenerRejected), 1);
    assert_eq!(programs.pods().unwrap()[0].listeners, 0);
    assert_eq!(app.connect(WEB), refused(), "closed, not open");
}

fn restarted_proxy() {
    let world = World::new();
    let programs = world.programs();
    let pod = world.pod();
    programs.enrol(&pod.redirect).unwrap();
    let mut app = pod.app();
    let mut first = pod.actor("proxy-1", PROXY_UID);
    first.listen("127.0.0.1:4140");
    first.listen("0.0.0.0:4143");
    let before = programs.pods().unwrap()[0].proxy_cgroup;
    drop(first);
    assert_eq!(app.connect_from(OUTSIDE, SERVICE), refused());

    let mut second = pod.actor("proxy-2", PROXY_UID);
    let outbound = second.listen("127.0.0.1:4140");
    let inbound = second.listen("0.0.0.0:4143");
    assert_ne!(programs.pods().unwrap()[0].proxy_cgroup, before);
    app.connect(WEB);
    let accepted = second.accept(outbound);
    assert_eq!(second.original(accepted.id()), Some(WEB.parse().unwrap()));
    app.connect_from(OUTSIDE, SERVICE);
    second.accept(inbound).id();
    assert_eq!(second.connect(WEB), unreachable(), "it is the proxy now");
}

fn older_listeners() {
    let world = World::new();
    let programs = world.programs();
    let pod = world.pod();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    let inbound = proxy.listen("[::]:4143");
    // Not the proxy's, for all that it is on a proxy's port.
    app.listen("[::1]:4140");
    assert_eq!(programs.enrol(&pod.redirect).unwrap(), 2);
    app.connect(WEB);
    let accepted = proxy.accept(outbound);
    assert_eq!(proxy.original(accepted.id()), Some(WEB.parse().unwrap()));
    app.connect_from(OUTSIDE, SERVICE);
    proxy.accept(inbound).id();
    assert_eq!(proxy.connect(WEB), unreachable(), "its cgroup was learnt");

    // A successor is recognised although nobody saw the old listeners opening.
    drop(proxy);
    let mut successor = pod.actor("proxy-2", PROXY_UID);
    let outbound = successor.listen("127.0.0.1:4140");
    successor.listen("[::]:4143");
    app.connect(WEB);
    successor.accept(outbound).id();
}

fn lost_listeners() {
    let world = World::new();
    let programs = world.programs();
    let pod = world.pod();
    programs.enrol(&pod.redirect).unwrap();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    proxy.listen("127.0.0.1:4140");
    let group: Vec<_> = (0..6)
        .map(|_| proxy.listen_shared("0.0.0.0:4143"))
        .collect();
    assert_eq!(programs.pods().unwrap()[0].listeners, 1 + 4, "four slots");
    for listener in &group[..3] {
        proxy.close(*listener);
    }
    app.connect_from(OUTSIDE, SERVICE).id();
    proxy.close(group[3]);
    assert_eq!(app.connect_from(OUTSIDE, SERVICE), refused());
    assert_eq!(programs.sweep(&[]).unwrap().listeners, 2);
    app.connect_from(OUTSIDE, SERVICE).id();
}
