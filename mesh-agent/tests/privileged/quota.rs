//! One pod cannot exhaust the resources of others.

use aya::maps::{LpmTrie, Map, MapData};
use mesh_agent::redirect::PortSet;
use mesh_ebpf_common::counter::Counter;
use mesh_ebpf_common::layout::PortSkipKey;
use mesh_ebpf_common::quota::{IN_FLIGHT_PER_POD, PORT_SKIPS_PER_POD};

use crate::Case;
use crate::actor::{ActorCommand, ActorResponse, unreachable};
use crate::env::{Pod, TestEnv, enrolled};

pub(super) const CASES: &[Case] = &[
    (
        "a pod that exhausts its quota of connections in flight loses only its own next ones",
        in_flight,
    ),
    (
        "a connection from another loopback address than 127.0.0.1 is not redirected",
        loopback_sources,
    ),
    (
        "the longest lists of ports leave entries for those of other pods",
        skipped_ports,
    ),
];

const WEB: &str = "192.0.2.10:80";
/// The backlog of the actors' listeners; the kernel queues one more.
const QUEUED: u32 = 1024 + 1;
const EXCESS: u32 = 200;

fn address(text: &str) -> std::net::SocketAddr {
    text.parse().unwrap()
}

/// The proxy does not accept: connections beyond its listener's queue stay in flight.
fn in_flight() {
    let quota = u32::try_from(IN_FLIGHT_PER_POD).unwrap();
    let env = TestEnv::new();
    let programs = env.programs();
    let (greedy, modest) = (env.pod(), env.pod());
    programs.enrol(&greedy.redirect).unwrap();
    programs.enrol(&modest.redirect).unwrap();
    let (mut proxy, mut app) = (greedy.proxy(), greedy.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    app.start_connections(WEB, QUEUED + quota + EXCESS);
    assert_eq!(programs.in_flight().unwrap(), quota as usize);
    let lost = u64::from(EXCESS);
    assert_eq!(greedy.count(Counter::OutboundUntracked), lost);

    reaches_its_proxy(&modest);
    assert_eq!(modest.count(Counter::OutboundUntracked), 0);

    // With capacity again, it behaves as any other pod.
    assert_eq!(app.run(ActorCommand::CloseStarted), ActorResponse::Done);
    assert_eq!(programs.in_flight().unwrap(), 0);
    proxy.close(outbound);
    let outbound = proxy.listen("127.0.0.1:4140");
    for _ in 0..3 {
        app.assert_redirected(WEB, &mut proxy, outbound);
    }
    assert_eq!(greedy.count(Counter::OutboundUntracked), lost);
    assert!(programs.unenrol(greedy.redirect.cookie).unwrap());
    assert!(programs.unenrol(modest.redirect.cookie).unwrap());
}

fn reaches_its_proxy(pod: &Pod) {
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    for _ in 0..3 {
        app.assert_redirected(WEB, &mut proxy, outbound);
    }
}

/// There are sixteen million such addresses, and without a mesh none reaches another host.
fn loopback_sources() {
    let (pod, _programs) = enrolled();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    app.connect_from("127.0.0.1:0", WEB).id();
    let accepted = proxy.accept(outbound);
    assert_eq!(proxy.original(accepted.id()), Some(address(WEB)));
    let refused = app.connect_from("127.0.0.2:0", WEB);
    assert!(matches!(refused, ActorResponse::Failed(_)), "{refused:?}");
    assert_eq!(pod.count(Counter::OutboundForeignSource), 1);
}

/// The ranges with the largest number of prefixes each.
fn skipped_ports() {
    let ranges = mesh_core::ports::MAX_RANGES as u32;
    let width = 65_536 / ranges;
    let worst: PortSet = (0..ranges)
        .map(|number| (number * width + 1) as u16..=((number + 1) * width - 2) as u16)
        .collect();
    worst.check_limit().unwrap();
    let env = TestEnv::new();
    let programs = env.programs();
    let (mut greedy, mut modest) = (env.pod(), env.pod());
    greedy.redirect.spec.skip_inbound = worst.clone();
    greedy.redirect.spec.skip_outbound = worst;
    programs.enrol(&greedy.redirect).unwrap();
    let taken = port_skips(&env);
    assert!(taken <= PORT_SKIPS_PER_POD, "{taken}");

    modest.redirect.spec.skip_outbound = "81".parse().unwrap();
    programs.enrol(&modest.redirect).unwrap();
    let mut app = modest.app();
    assert_eq!(app.connect("192.0.2.10:81"), unreachable(), "goes directly");
    reaches_its_proxy(&modest);
    // Enrolling again, and removing, removes entries of this pod only.
    greedy.redirect.spec.skip_inbound = "4190-4191".parse().unwrap();
    greedy.redirect.spec.skip_outbound = PortSet::default();
    programs.enrol(&greedy.redirect).unwrap();
    assert_eq!(port_skips(&env), 1 + port_skips_of(&modest));
    assert!(programs.unenrol(greedy.redirect.cookie).unwrap());
    assert_eq!(port_skips(&env), port_skips_of(&modest));
}

fn port_skips(env: &TestEnv) -> usize {
    let pin = env.pin_dir().join("v1/maps/PORT_SKIPS");
    let map = Map::from_map_data(MapData::from_pin(pin).unwrap()).unwrap();
    let trie: LpmTrie<MapData, PortSkipKey, u8> = LpmTrie::try_from(map).unwrap();
    trie.keys().count()
}

fn port_skips_of(pod: &Pod) -> usize {
    let spec = &pod.redirect.spec;
    [&spec.skip_inbound, &spec.skip_outbound]
        .into_iter()
        .flat_map(|ports| ports.ranges())
        .flat_map(|range| mesh_ebpf_common::prefix::port_prefixes(*range.start(), *range.end()))
        .count()
}
