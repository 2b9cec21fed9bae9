//! Which process is recognised as the proxy, and which is not.

use mesh_ebpf_common::counter::Counter;

use crate::Case;
use crate::actor::{ActorCommand, ActorResponse, refused, unreachable};
use crate::env::{PROXY_UID, TestEnv, enrolled};

pub(super) const CASES: &[Case] = &[
    (
        "the proxy's uid alone does not exempt from redirection",
        uid_alone,
    ),
    (
        "a proxy that connects before it listens is recognised from its first connection",
        early_proxy,
    ),
    (
        "a restarted proxy connects before it listens, and no process without its uid does",
        early_restarted_proxy,
    ),
    (
        "another container with the proxy's uid cannot join the proxy's port",
        other_container,
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
/// Where the application listens for it.
const ANY: &str = "0.0.0.0:8080";

fn uid_alone() {
    let (pod, _programs) = enrolled();
    let mut impostor = pod.actor("app", PROXY_UID);
    let mut proxy = pod.proxy();
    let outbound = proxy.listen("127.0.0.1:4140");
    impostor.assert_redirected(WEB, &mut proxy, outbound);
    assert_eq!(pod.count(Counter::OutboundProxy), 0);
}

/// As linkerd2-proxy does. Connections that are not redirected fail as unreachable.
fn early_proxy() {
    let (pod, programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    assert_eq!(proxy.connect(WEB), unreachable());
    assert_eq!(app.connect(WEB), refused(), "has another uid");
    assert_eq!(programs.pods().unwrap()[0].proxy_cgroup, None, "not yet");
    proxy.listen("0.0.0.0:4143");
    assert_eq!(proxy.connect(WEB), unreachable());
    assert!(programs.pods().unwrap()[0].proxy_cgroup.is_some());
    assert_eq!(pod.count(Counter::OutboundProxy), 2);

    // The uid alone has no effect now.
    let mut impostor = pod.actor("app", PROXY_UID);
    assert_eq!(impostor.connect(WEB), refused());
    proxy.listen("127.0.0.1:4140");
    impostor.connect(WEB).id();
    assert_eq!(pod.count(Counter::OutboundProxy), 2);
}

fn early_restarted_proxy() {
    let (pod, programs) = enrolled();
    // Another process of the uid connects first, and the proxy is recognised anyway.
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
    impostor.assert_redirected(WEB, &mut second, outbound);
}

fn other_container() {
    let (pod, programs) = enrolled();
    let mut proxy = pod.proxy();
    proxy.listen_shared("0.0.0.0:4143");
    let cgroup = programs.pods().unwrap()[0].proxy_cgroup;
    let mut impostor = pod.actor("app", PROXY_UID);
    let command = ActorCommand::Listen {
        address: "0.0.0.0:4143".parse().unwrap(),
        share_port: true,
    };
    assert_eq!(
        impostor.run(command),
        ActorResponse::Failed("PermissionDenied".into())
    );
    assert_eq!(pod.count(Counter::ListenerRejected), 1);
    let pods = programs.pods().unwrap();
    assert_eq!(pods[0].listeners, 1);
    assert_eq!(pods[0].proxy_cgroup, cgroup);
}

fn application_first() {
    let (pod, programs) = enrolled();
    let mut app = pod.app();
    app.listen("0.0.0.0:4143");
    app.listen("127.0.0.1:4140");
    app.listen(ANY);
    assert_eq!(pod.count(Counter::ListenerRejected), 2);
    assert_eq!(app.connect(WEB), refused());
    assert_eq!(app.connect_from(OUTSIDE, SERVICE), refused());
    assert_eq!(programs.pods().unwrap()[0].proxy_cgroup, None);
}

/// The program rejects listeners that are not plain TCP sockets.
fn multipath_listener() {
    let (pod, programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    proxy.listen_multipath("127.0.0.1:4140");
    assert_eq!(pod.count(Counter::ListenerRejected), 1);
    assert_eq!(programs.pods().unwrap()[0].listeners, 0);
    assert_eq!(app.connect(WEB), refused(), "closed, not open");
}

fn restarted_proxy() {
    let (pod, programs) = enrolled();
    let mut app = pod.app();
    app.listen(ANY);
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
    app.assert_redirected(WEB, &mut second, outbound);
    app.connect_from(OUTSIDE, SERVICE);
    second.accept(inbound).id();
    assert_eq!(second.connect(WEB), unreachable(), "it is the proxy now");
}

fn older_listeners() {
    let env = TestEnv::new();
    let programs = env.programs();
    let pod = env.pod();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    let inbound = proxy.listen("[::]:4143");
    // Not the proxy's, although it is on a proxy port.
    app.listen("[::1]:4140");
    assert_eq!(programs.enrol(&pod.redirect).unwrap(), 2);
    app.assert_redirected(WEB, &mut proxy, outbound);
    app.connect_from(OUTSIDE, SERVICE);
    proxy.accept(inbound).id();
    assert_eq!(proxy.connect(WEB), unreachable(), "its cgroup is recorded");

    // A successor is recognised although the programs did not observe the old listeners opening.
    drop(proxy);
    let mut successor = pod.actor("proxy-2", PROXY_UID);
    let outbound = successor.listen("127.0.0.1:4140");
    successor.listen("[::]:4143");
    app.connect(WEB);
    successor.accept(outbound).id();
}

fn lost_listeners() {
    let (pod, programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    app.listen(ANY);
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
