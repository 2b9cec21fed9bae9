//! The table of cases.

use crate::harness::node::{APPLICATION, PROXY};
use crate::redirect::Case;
use crate::redirect::Expect::{Differs, Outbound, Same};
use crate::redirect::fixture::{
    APP, APP_SKIPPED, PORT, PORT2, PROXY_ADDRESSES, PROXY_V4_ADDRESSES, SKIPPED, SKIPPED_IN_RANGE,
};

/// Every case, in the order of the trap list.
pub(crate) fn all() -> Vec<Case> {
    [
        outbound(),
        socket_habits(),
        loopback(),
        inbound(),
        families(),
        ownership(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

const VIA_PROXY4: &str =
    "proxy 4140, original PEER4:7001 from OWN4, app sees peer PEER4:7001 self OWN4";
const VIA_PROXY6: &str =
    "proxy 4140, original PEER6:7001 from OWN6, app sees peer PEER6:7001 self OWN6";

/// Plain connections of each family, and traffic that is not redirected.
fn outbound() -> Vec<Case> {
    vec![
        Case {
            name: "IPv4",
            run: |s| s.connect(""),
            expect: Outbound(VIA_PROXY4),
        },
        Case {
            name: "IPv6 (trap 20)",
            run: |s| s.app(["connect", &s.peer6(PORT)]),
            expect: Outbound(VIA_PROXY6),
        },
        Case {
            name: "IPv4 through an IPv6 socket (trap 19)",
            run: |s| s.app(["connect", &s.mapped(PORT)]),
            expect: Outbound(VIA_PROXY4),
        },
        Case {
            name: "IPv6 only socket (trap 21)",
            run: |s| s.app(["connect", &s.peer6(PORT), "--v6only"]),
            expect: Outbound(VIA_PROXY6),
        },
        Case {
            name: "skipped port",
            run: |s| s.app(["connect", &s.peer4(SKIPPED)]),
            expect: Same("direct from OWN4, app sees peer PEER4:7100 self OWN4"),
        },
        Case {
            name: "port in a skipped range, IPv6",
            run: |s| s.app(["connect", &s.peer6(SKIPPED_IN_RANGE)]),
            expect: Same("direct from OWN6, app sees peer PEER6:7155 self OWN6"),
        },
        Case {
            name: "connected UDP (traps 7 and 8)",
            run: |s| {
                let server = s.peer.app(format!("udp serve 0.0.0.0:{PORT}"));
                server.next_event();
                s.app(["udp", "send", &s.peer4(PORT)])
            },
            expect: Same("answered by PEER4:7001"),
        },
        Case {
            name: "broadcast (trap 6)",
            run: |s| s.app("connect 255.255.255.255:7001"),
            expect: Same("ENETUNREACH"),
        },
        Case {
            name: "multicast (trap 6)",
            run: |s| s.app("connect 224.0.0.1:7001"),
            expect: Same("ENETUNREACH"),
        },
        Case {
            name: "socket options of other levels, reads above a page (trap 24)",
            run: |s| s.app(["options", &s.peer4(PORT)]),
            expect: Same(
                "SOL_SOCKET/80=ENOPROTOOPT; IPPROTO_TCP/80=ENOPROTOOPT; SOL_IP/81=ENOPROTOOPT; SO_ERROR=4 bytes; SO_TYPE=4 bytes; \
                 TCP_INFO in 64 KiB=1 bytes; TCP_CONGESTION in 64 KiB=16 bytes",
            ),
        },
    ]
}

/// Ways to connect.
fn socket_habits() -> Vec<Case> {
    vec![
        Case {
            name: "bound before connect (trap 9)",
            run: |s| s.connect(&format!("--bind {}", s.own4(33333))),
            expect: Same(VIA_PROXY4),
        },
        Case {
            name: "one source port on two addresses (trap 10)",
            run: |s| {
                let first = format!("{} {}", s.pod.v4, s.peer4(PORT));
                let second = format!("{} {}", s.pod.second, s.second(PORT2));
                s.app(format!("two-sources 33334 {first} {second}"))
            },
            expect: Same(
                "proxy 4140, original PEER4:7001 from OWN4; proxy 4140, original SECOND:7002 from OWN_SECOND",
            ),
        },
        Case {
            name: "bound to an address that is not the pod's (trap 11)",
            run: |s| s.connect(&format!("--transparent --bind {}:0", s.foreign)),
            expect: Differs {
                full: "direct from FOREIGN4, app sees peer PEER4:7001 self FOREIGN4",
                split: "direct from FOREIGN4, app sees peer PEER4:7001 self FOREIGN4",
                filter: "proxy 4140, original PEER4:7001 from FOREIGN4, app sees peer PEER4:7001 self FOREIGN4",
                because: "the kernel programs cannot tell whether such an address is routed to the pod; the guard counts its connections",
            },
        },
        Case {
            name: "bound to the pod's interface (trap 12)",
            run: |s| s.connect("--device eth0"),
            expect: Differs {
                full: VIA_PROXY4,
                split: "timed out",
                filter: "timed out",
                because: "a packet redirected to loopback cannot reach a socket bound to another interface",
            },
        },
        Case {
            name: "one source port reused immediately (trap 59)",
            run: |s| {
                let options = format!("--bind {}", s.own4(33336));
                format!("{}; {}", s.connect(&options), s.connect(&options))
            },
            expect: Same(
                "proxy 4140, original PEER4:7001 from OWN4, app sees peer PEER4:7001 self OWN4; \
                 proxy 4140, original PEER4:7001 from OWN4, app sees peer PEER4:7001 self OWN4",
            ),
        },
        Case {
            name: "non-blocking (trap 13)",
            run: |s| s.connect("--nonblocking"),
            expect: Outbound(VIA_PROXY4),
        },
        Case {
            name: "two connections of one socket (trap 14)",
            run: |s| s.connect(&format!("--again {}", s.peer4(PORT2))),
            expect: Outbound(
                "proxy 4140, original PEER4:7001 from OWN4, app sees peer PEER4:7001 self OWN4; \
                 proxy 4140, original PEER4:7002 from OWN4, app sees peer PEER4:7002 self OWN4",
            ),
        },
        Case {
            name: "TCP Fast Open by sendto (trap 15)",
            run: |s| s.connect("--fastopen"),
            expect: Outbound(VIA_PROXY4),
        },
        Case {
            name: "TCP Fast Open by option (trap 15)",
            run: |s| s.connect("--fastopen-connect"),
            expect: Outbound(VIA_PROXY4),
        },
        Case {
            name: "io_uring (trap 16)",
            run: |s| s.connect("--uring"),
            expect: Outbound(VIA_PROXY4),
        },
        Case {
            name: "io_uring with a kernel thread (trap 16)",
            run: |s| s.connect("--uring --sqpoll"),
            expect: Outbound(VIA_PROXY4),
        },
        Case {
            name: "MPTCP (trap 17)",
            run: |s| s.connect("--mptcp"),
            expect: Differs {
                full: "proxy 4140, original PEER4:7001 from OWN4, app sees peer OWN4:redirect self OWN4",
                split: "proxy 4140, original PEER4:7001 from 127.0.0.1, app sees peer 127.0.0.1:4140 self 127.0.0.1",
                filter: VIA_PROXY4,
                because: "the kernel shows the connect hook a subflow and the getpeername hook its parent",
            },
        },
    ]
}

/// Addresses of the pod itself.
fn loopback() -> Vec<Case> {
    let app = APP;
    debug_assert_eq!(app, 8001);
    vec![
        Case {
            name: "127.0.0.1 (trap 3)",
            run: |s| s.app("connect 127.0.0.1:8001"),
            expect: Same("app from 127.0.0.1, app sees peer 127.0.0.1:8001 self 127.0.0.1"),
        },
        Case {
            name: "127.5.5.5 (trap 3)",
            run: |s| s.app("connect 127.5.5.5:8001"),
            expect: Same("app from 127.0.0.1, app sees peer 127.5.5.5:8001 self 127.0.0.1"),
        },
        Case {
            name: "0.0.0.0 (trap 3)",
            run: |s| s.app("connect 0.0.0.0:8001"),
            expect: Same("app from 127.0.0.1, app sees peer 127.0.0.1:8001 self 127.0.0.1"),
        },
        Case {
            name: "[::1] (trap 3)",
            run: |s| s.app("connect [::1]:8001"),
            expect: Same("app from ::1, app sees peer ::1:8001 self ::1"),
        },
        Case {
            name: "[::] (trap 3)",
            run: |s| s.app("connect [::]:8001"),
            expect: Same("app from ::1, app sees peer ::1:8001 self ::1"),
        },
        Case {
            name: "mapped loopback (trap 3)",
            run: |s| s.app("connect [::ffff:127.0.0.1]:8001"),
            expect: Same("app from 127.0.0.1, app sees peer 127.0.0.1:8001 self 127.0.0.1"),
        },
        Case {
            name: "own IPv4 address (trap 4)",
            run: |s| s.app(["connect", &s.own4(APP)]),
            expect: Same("app from OWN4, app sees peer OWN4:8001 self OWN4"),
        },
        Case {
            name: "own IPv6 address (trap 4)",
            run: |s| s.app(["connect", &s.own6(APP)]),
            expect: Same("app from OWN6, app sees peer OWN6:8001 self OWN6"),
        },
        Case {
            name: "bound to loopback, to elsewhere (trap 12)",
            run: |s| s.connect("--device lo"),
            expect: Differs {
                full: "proxy 4140, original PEER4:7001 from 127.0.0.1, app sees peer PEER4:7001 self 127.0.0.1",
                split: "proxy 4140, original PEER4:7001 from 127.0.0.1, app sees peer PEER4:7001 self 127.0.0.1",
                filter: "timed out",
                because: "packets sent through loopback are not redirected, and no host responds there",
            },
        },
    ]
}

/// IPv6 with a proxy that does not listen on it.
fn families() -> Vec<Case> {
    vec![
        Case {
            name: "IPv4 of a pod for IPv4 only, both ways",
            run: |s| {
                let probe = s.v4_only().app(["connect", &s.peer4(PORT)]);
                let arrival = s.peer_app(["connect", &format!("{}:{APP}", s.v4_only().v4)]);
                format!("{}; {arrival}", s.describe(&probe.remaining_events()))
            },
            expect: Differs {
                full: "proxy 4140, original PEER4:7001 from V4ONLY4, app sees peer PEER4:7001 self V4ONLY4; \
                     proxy 4143, original V4ONLY4:8001 from PEER4, app sees peer V4ONLY4:8001 self PEER4",
                split: "proxy 4140, original PEER4:7001 from 127.0.0.1, app sees peer PEER4:7001 self 127.0.0.1; \
                     proxy 4143, original V4ONLY4:8001 from PEER4, app sees peer V4ONLY4:8001 self PEER4",
                filter: "proxy 4140, original PEER4:7001 from V4ONLY4, app sees peer PEER4:7001 self V4ONLY4; \
                     proxy 4143, original V4ONLY4:8001 from PEER4, app sees peer V4ONLY4:8001 self PEER4",
                because: "application and proxy are connected over loopback",
            },
        },
        Case {
            name: "IPv6 of a pod for IPv4 only, outbound",
            run: |s| {
                let probe = s.v4_only().app(["connect", &s.peer6(PORT)]);
                s.describe(&probe.remaining_events())
            },
            expect: Same("direct from V4ONLY6, app sees peer PEER6:7001 self V4ONLY6"),
        },
        Case {
            name: "IPv6 of a pod for IPv4 only, inbound",
            run: |s| s.peer_app(["connect", &format!("[{}]:{APP}", s.v4_only().v6)]),
            expect: Same("app from PEER6, app sees peer V4ONLY6:8001 self PEER6"),
        },
        Case {
            name: "redirected IPv6 without a listener is refused",
            run: |s| {
                s.stop_proxy();
                let proxy = s.pod.serve(PROXY, "--greet proxy", PROXY_V4_ADDRESSES);
                let outbound = s.app(["connect", &s.peer6(PORT)]);
                let inbound = s.peer_app(["connect", &s.own6(APP)]);
                drop(proxy);
                s.start_proxy();
                format!("{outbound}; {inbound}")
            },
            expect: Same("ECONNREFUSED; ECONNREFUSED"),
        },
    ]
}

/// Inbound connections.
/// The proxy accepts whether or not the application listens.
const STARTS_AND_STOPS: &str = concat!(
    "proxy 4143, original OWN4:8201 from PEER4, app sees peer OWN4:8201 self PEER4; ",
    "proxy 4143, original OWN4:8201 from PEER4, app sees peer OWN4:8201 self PEER4; ",
    "proxy 4143, original OWN4:8201 from PEER4, app sees peer OWN4:8201 self PEER4",
);

fn inbound() -> Vec<Case> {
    vec![
        Case {
            name: "inbound IPv4 (trap 23)",
            run: |s| s.arrive(APP),
            expect: Same(
                "proxy 4143, original OWN4:8001 from PEER4, app sees peer OWN4:8001 self PEER4",
            ),
        },
        Case {
            name: "inbound IPv6 (trap 23)",
            run: |s| s.peer_app(["connect", &s.own6(APP)]),
            expect: Same(
                "proxy 4143, original OWN6:8001 from PEER6, app sees peer OWN6:8001 self PEER6",
            ),
        },
        Case {
            name: "inbound, no listener",
            run: |s| s.arrive(9),
            expect: Differs {
                full: "ECONNREFUSED",
                split: "proxy 4143, original OWN4:9 from PEER4, app sees peer OWN4:9 self PEER4",
                filter: "proxy 4143, original OWN4:9 from PEER4, app sees peer OWN4:9 self PEER4",
                because: "the packet filter redirects before a socket is looked up, and the proxy accepts",
            },
        },
        Case {
            name: "inbound, no listener, IPv6",
            run: |s| s.peer_app(["connect", &s.own6(9)]),
            expect: Differs {
                full: "ECONNREFUSED",
                split: "proxy 4143, original OWN6:9 from PEER6, app sees peer OWN6:9 self PEER6",
                filter: "proxy 4143, original OWN6:9 from PEER6, app sees peer OWN6:9 self PEER6",
                because: "the packet filter redirects before a socket is looked up, and the proxy accepts",
            },
        },
        Case {
            name: "inbound, a listener that starts, stops, and is on loopback only",
            run: |s| {
                let serve = |address| s.pod.serve(APPLICATION, "--greet app", address);
                let local = serve("127.0.0.1:8201");
                let before = s.arrive(8201);
                drop(local);
                let open = serve("0.0.0.0:8201");
                let during = s.arrive(8201);
                drop(open);
                [before, during, s.arrive(8201)].join("; ")
            },
            expect: Differs {
                full: concat!(
                    "ECONNREFUSED; proxy 4143, original OWN4:8201 from PEER4, ",
                    "app sees peer OWN4:8201 self PEER4; ECONNREFUSED",
                ),
                split: STARTS_AND_STOPS,
                filter: STARTS_AND_STOPS,
                because: "the packet filter redirects before a socket is looked up, and the proxy accepts",
            },
        },
        Case {
            name: "inbound, skipped port",
            run: |s| s.arrive(APP_SKIPPED),
            expect: Same("app from PEER4, app sees peer OWN4:8100 self PEER4"),
        },
        Case {
            name: "inbound, skipped source",
            run: |s| s.describe(&s.exempt.app(["connect", &s.own4(APP)]).remaining_events()),
            expect: Same("app from EXEMPT4, app sees peer OWN4:8001 self EXEMPT4"),
        },
        Case {
            name: "inbound, skipped source, IPv6",
            run: |s| s.describe(&s.exempt.app(["connect", &s.own6(APP)]).remaining_events()),
            expect: Same("app from EXEMPT6, app sees peer OWN6:8001 self EXEMPT6"),
        },
        Case {
            name: "the inbound port itself",
            run: |s| s.arrive(4143),
            expect: Same(
                "proxy 4143, original OWN4:4143 from PEER4, app sees peer OWN4:4143 self PEER4",
            ),
        },
        Case {
            name: "the outbound port from outside",
            run: |s| s.arrive(4140),
            expect: Differs {
                full: "proxy 4143, original ENOENT from PEER4, app sees peer OWN4:4140 self PEER4",
                split: "proxy 4143, original OWN4:4140 from PEER4, app sees peer OWN4:4140 self PEER4",
                filter: "proxy 4143, original OWN4:4140 from PEER4, app sees peer OWN4:4140 self PEER4",
                because: "conntrack has an original destination; eBPF has none for a connection that no application of the pod made, and the proxy rejects it",
            },
        },
        Case {
            name: "port taken while a connection is open (trap 1)",
            run: |s| {
                // The stand-in proxy holds the connection, like a real proxy that waits for its
                // application.
                let app = s.pod.serve(APPLICATION, "--greet app", "0.0.0.0:8200");
                let held = s.peer.app(["connect", &s.own4(8200), "--stay"]);
                held.next_event();
                drop(app);
                let binds = ["0.0.0.0:8200", &s.own4(8200), "[::]:8200"];
                binds
                    .map(|addr| s.app(["bind", addr, "--listen"]))
                    .join(", ")
            },
            expect: Same("bound, bound, bound"),
        },
        Case {
            name: "a busy port stays busy (trap 2)",
            run: |s| s.app(format!("bind 0.0.0.0:{APP} --listen")),
            expect: Same("EADDRINUSE"),
        },
    ]
}

/// Identification of the proxy, and behaviour without it.
fn ownership() -> Vec<Case> {
    vec![
        Case {
            name: "the proxy's own connections",
            run: |s| s.as_proxy(["connect", &s.peer4(PORT)]),
            expect: Same("direct from OWN4, app sees peer PEER4:7001 self OWN4"),
        },
        Case {
            name: "the proxy's redirection check",
            run: |s| {
                let ask = |target: &str| s.as_proxy(["connect", target]);
                format!("{}; {}", ask("192.0.2.1:20001"), ask("[2001:db8::1]:20001"))
            },
            expect: Outbound(
                "proxy 4140, original 192.0.2.1:20001 from OWN4, app sees peer 192.0.2.1:20001 self OWN4; \
                 proxy 4140, original 2001:db8::1:20001 from OWN6, app sees peer 2001:db8::1:20001 self OWN6",
            ),
        },
        Case {
            name: "an application with the proxy's uid (trap 47)",
            run: |s| {
                let impostor = ("app", PROXY.1);
                let probe = s.pod.probe(impostor, "", ["connect", &s.peer4(PORT)]);
                s.describe(&probe.remaining_events())
            },
            expect: Differs {
                full: VIA_PROXY4,
                split: "proxy 4140, original PEER4:7001 from 127.0.0.1, app sees peer PEER4:7001 self 127.0.0.1",
                filter: "direct from OWN4, app sees peer PEER4:7001 self OWN4",
                because: "packet filters identify the proxy only by its user",
            },
        },
        Case {
            name: "a nested network namespace (trap 33)",
            run: |s| {
                let probe = s
                    .pod
                    .probe(APPLICATION, "--new-netns", "connect 127.0.0.1:1");
                s.describe(&probe.remaining_events())
            },
            expect: Same("ECONNREFUSED"),
        },
        Case {
            name: "no proxy: outbound (trap 30)",
            run: |s| {
                s.stop_proxy();
                s.connect("")
            },
            expect: Same("ECONNREFUSED"),
        },
        Case {
            name: "no proxy: inbound does not reach the application (trap 30)",
            run: |s| s.arrive(APP),
            expect: Same("ECONNREFUSED"),
        },
        Case {
            name: "an application on the proxy's ports gets nothing (trap 29)",
            run: |s| {
                let addresses = "0.0.0.0:4143 127.0.0.1:4140";
                let squatter = s.pod.serve(APPLICATION, "--greet squatter", addresses);
                let seen = s.both_ways();
                drop(squatter);
                seen
            },
            expect: Differs {
                full: "ECONNREFUSED; ECONNREFUSED",
                split: "squatter from 127.0.0.1, app sees peer PEER4:7001 self 127.0.0.1; squatter from PEER4, app sees peer OWN4:8001 self PEER4",
                filter: "squatter from OWN4, app sees peer PEER4:7001 self OWN4; squatter from PEER4, app sees peer OWN4:8001 self PEER4",
                because: "a packet filter redirects to a port, whatever process listens on it",
            },
        },
        Case {
            name: "a proxy with Multipath TCP listeners (trap 18)",
            run: |s| {
                let addresses = "127.0.0.1:4140 0.0.0.0:4143";
                let proxy = s.pod.serve(PROXY, "--mptcp --greet proxy", addresses);
                let seen = s.both_ways();
                drop(proxy);
                seen
            },
            expect: Differs {
                full: "ECONNREFUSED; ECONNREFUSED",
                split: "proxy 4140, original PEER4:7001 from 127.0.0.1, app sees peer PEER4:7001 self 127.0.0.1; proxy 4143, original OWN4:8001 from PEER4, app sees peer OWN4:8001 self PEER4",
                filter: "proxy 4140, original PEER4:7001 from OWN4, app sees peer PEER4:7001 self OWN4; proxy 4143, original OWN4:8001 from PEER4, app sees peer OWN4:8001 self PEER4",
                because: "kernels take no Multipath TCP socket into the map of listeners",
            },
        },
        Case {
            name: "the proxy restarted",
            run: |s| {
                s.start_proxy();
                s.connect("")
            },
            expect: Outbound(VIA_PROXY4),
        },
        Case {
            name: "hand-over between two proxies (trap 27)",
            run: |s| {
                let start = |name: &str| {
                    let options = format!("--reuseport --greet {name}");
                    s.pod.serve(PROXY, options, PROXY_ADDRESSES)
                };
                s.stop_proxy();
                let (first, second) = (start("first"), start("proxy"));
                drop(first);
                let seen = s.both_ways();
                drop(second);
                s.start_proxy();
                seen
            },
            expect: Outbound(
                "proxy 4140, original PEER4:7001 from OWN4, app sees peer PEER4:7001 self OWN4; \
                 proxy 4143, original OWN4:8001 from PEER4, app sees peer OWN4:8001 self PEER4",
            ),
        },
    ]
}
