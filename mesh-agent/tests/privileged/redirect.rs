//! Redirection by the programs: to the proxy, around it, and refused.

use std::net::SocketAddr;

use mesh_agent::redirect::Tier;
use mesh_ebpf_common::counter::Counter;

use crate::Case;
use crate::actor::{ActorCommand, refused, unreachable};
use crate::env::{APP_UID, TestEnv, enrolled, namespace};

pub(super) const CASES: &[Case] = &[
    (
        "both directions reach the proxy, and are counted",
        both_directions,
    ),
    ("without a proxy connections are refused", fails_closed),
    ("a pod may fail open", fails_open),
    ("skipped ports and subnets reach the application", skips),
    (
        "a socket bound to the loopback interface is redirected there",
        loopback_device,
    ),
    (
        "a nested network namespace is not redirected",
        nested_namespace,
    ),
    (
        "the split tier does not redirect inbound connections",
        split_tier,
    ),
    (
        "a connection made to the proxy itself has no original destination",
        direct_to_proxy,
    ),
];

const WEB: &str = "192.0.2.10:80";
const WEB_V6: &str = "[2001:db8::10]:80";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn both_directions() {
    let (pod, programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    let outbound_v6 = proxy.listen("[::1]:4140");
    let inbound = proxy.listen("[::]:4143");
    app.listen("[::]:8080");

    for (target, listener) in [(WEB, outbound), (WEB_V6, outbound_v6)] {
        let client = app.connect(target);
        assert_eq!(
            client.peer(),
            address(target),
            "the application sees its peer"
        );
        let accepted = proxy.accept(listener);
        assert_eq!(proxy.original(accepted.id()), Some(address(target)));
        assert_eq!(
            app.original(client.id()),
            None,
            "only the proxy's socket has an original destination"
        );
    }
    for (source, own) in [
        ("198.18.0.2:0", "198.18.0.1:8080"),
        ("[fd6d:6573:68::2]:0", "[fd6d:6573:68::1]:8080"),
    ] {
        app.connect_from(source, own);
        let accepted = proxy.accept(inbound);
        assert_eq!(proxy.original(accepted.id()), Some(address(own)));
    }
    // The proxy's own connections are not redirected, and fail in this namespace.
    assert_eq!(proxy.connect(WEB), unreachable());

    assert_eq!(pod.count(Counter::OutboundRedirected), 2);
    assert_eq!(pod.count(Counter::OutboundProxy), 1);
    assert_eq!(pod.count(Counter::InboundSteered), 2);
    assert_eq!(pod.count(Counter::InboundRefused), 0);
    let pods = programs.pods().unwrap();
    assert_eq!(pods.len(), 1);
    assert!(pods[0].proxy_cgroup.is_some());
    assert_eq!(pods[0].listeners, 3);
}

fn fails_closed() {
    let (pod, programs) = enrolled();
    let mut app = pod.app();
    app.listen("0.0.0.0:8080");
    assert_eq!(app.connect(WEB), refused());
    assert_eq!(app.connect(WEB_V6), refused());
    assert_eq!(
        app.connect_from("198.18.0.2:0", "198.18.0.1:8080"),
        refused()
    );
    assert_eq!(pod.count(Counter::OutboundRefused), 2);
    assert_eq!(pod.count(Counter::InboundRefused), 1);
    assert_eq!(
        programs.in_flight().unwrap(),
        0,
        "a refused connection leaves no entry"
    );
}

fn fails_open() {
    let env = TestEnv::new();
    let programs = env.programs();
    let mut pod = env.pod();
    pod.redirect.spec.inbound_fail_open = true;
    programs.enrol(&pod.redirect).unwrap();
    let mut app = pod.app();
    let listener = app.listen("0.0.0.0:8080");
    let client = app.connect_from("198.18.0.2:0", "198.18.0.1:8080");
    assert_eq!(app.accept(listener).peer(), client.local());
    assert_eq!(pod.count(Counter::InboundFailedOpen), 1);

    let mut proxy = pod.proxy();
    let inbound = proxy.listen("0.0.0.0:4143");
    let client = app.connect_from("198.18.0.2:0", "198.18.0.1:8080");
    assert_eq!(
        proxy.accept(inbound).peer(),
        client.local(),
        "the proxy accepts it"
    );
}

fn skips() {
    let (pod, programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    proxy.listen("127.0.0.1:4140");
    proxy.listen("0.0.0.0:4143");

    assert_eq!(
        app.connect("192.0.2.10:4568"),
        unreachable(),
        "goes directly"
    );
    assert_eq!(pod.count(Counter::OutboundSkippedPort), 1);

    let skipped = app.listen("0.0.0.0:7005");
    let client = app.connect_from("198.18.0.2:0", "198.18.0.1:7005");
    assert_eq!(app.accept(skipped).peer(), client.local());
    assert_eq!(pod.count(Counter::InboundSkippedPort), 1);

    let web = app.listen("0.0.0.0:8080");
    let client = app.connect_from("198.19.0.2:0", "198.18.0.1:8080");
    assert_eq!(app.accept(web).peer(), client.local());
    assert_eq!(pod.count(Counter::InboundSkippedSubnet), 1);
    assert_eq!(pod.count(Counter::InboundSteered), 0);

    // Enrolling again replaces the lists.
    let mut changed = pod.redirect.clone();
    changed.spec.skip_inbound = "4190-4191".parse().unwrap();
    changed.spec.skip_subnets.clear();
    programs.enrol(&changed).unwrap();
    app.connect_from("198.18.0.2:0", "198.18.0.1:7005");
    app.connect_from("198.19.0.2:0", "198.18.0.1:8080");
    assert_eq!(pod.count(Counter::InboundSteered), 2);
}

fn loopback_device() {
    let (pod, _programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.actor("app", 0));
    let outbound = proxy.listen("127.0.0.1:4140");
    let client = app.run(ActorCommand::Connect {
        target: address(WEB),
        source: None,
        device: Some("lo".into()),
    });
    assert_eq!(client.peer(), address(WEB));
    let accepted = proxy.accept(outbound);
    assert_eq!(proxy.original(accepted.id()), Some(address(WEB)));
}

fn nested_namespace() {
    let (pod, _programs) = enrolled();
    let nested = namespace();
    let mut app = pod.actor_in(&nested, "app", APP_UID);
    assert_eq!(app.connect(WEB), unreachable());
    assert_eq!(pod.count(Counter::OutboundRedirected), 0);
}

fn split_tier() {
    let env = TestEnv::new();
    let programs = env.programs();
    let mut pod = env.pod();
    pod.redirect.tier = Tier::Split;
    programs.enrol(&pod.redirect).unwrap();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    app.assert_redirected(WEB, &mut proxy, outbound);

    let web = app.listen("0.0.0.0:8080");
    let client = app.connect_from("198.18.0.2:0", "198.18.0.1:8080");
    assert_eq!(app.accept(web).peer(), client.local());
    assert!(programs.unenrol(pod.redirect.cookie).unwrap());
}

fn direct_to_proxy() {
    let (pod, _programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    for target in ["198.18.0.1:4140", "127.0.0.1:4140"] {
        assert_eq!(
            app.original_at(target, &mut proxy, outbound),
            None,
            "{target}"
        );
    }
}
