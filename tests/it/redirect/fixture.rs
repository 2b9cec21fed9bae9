//! The pods that every case of the table uses, and the description of their observations.

use std::cell::{OnceCell, RefCell};
use std::net::IpAddr;

use mesh_test_support::command::{Words, run};
use mesh_test_support::program::Program;
use serde_json::Value;

use crate::harness::node::{APPLICATION, Node, PROXY, Pod};

/// Ports of the peer, an ordinary pod: an ordinary one, a second one, one that the meshed pod
/// skips, one inside a skipped range.
pub(crate) const PORT: u16 = 7001;
pub(crate) const PORT2: u16 = 7002;
pub(crate) const SKIPPED: u16 = 7100;
pub(crate) const SKIPPED_IN_RANGE: u16 = 7155;
/// Ports of the application in the meshed pod: an ordinary one, and one that is skipped.
pub(crate) const APP: u16 = 8001;
pub(crate) const APP_SKIPPED: u16 = 8100;
/// The first port that the full tier redirects to (`mesh_ebpf_common::verdict`).
const REDIRECT_PORT_MIN: u16 = 61_000;
/// The addresses that a proxy listens on without IPv6.
pub(crate) const PROXY_V4_ADDRESSES: &str = "127.0.0.1:4140 0.0.0.0:4143";
/// The addresses that a proxy listens on.
pub(crate) const PROXY_ADDRESSES: &str = "127.0.0.1:4140 [::1]:4140 0.0.0.0:4143 [::]:4143";

pub(crate) struct RedirectFixture<'n> {
    /// The enrolled pod, with a stand-in proxy on 4140 and 4143 and an application.
    pub(crate) pod: Pod<'n>,
    /// Outside the mesh; its connections to the meshed pod are redirected.
    pub(crate) peer: Pod<'n>,
    /// Outside the mesh, with an address that the meshed pod skips.
    pub(crate) exempt: Pod<'n>,
    /// An address that is routed to the meshed pod but not assigned to an interface, as with
    /// transparent proxies.
    pub(crate) foreign: IpAddr,
    /// The stand-in proxy; a case may restart it.
    pub(crate) proxy: RefCell<Option<Program>>,
    _servers: Vec<Program>,
    node: &'n Node,
    v4_only: OnceCell<(Pod<'n>, [Program; 2])>,
}

impl<'n> RedirectFixture<'n> {
    pub(crate) fn build(node: &'n Node) -> Self {
        let peer = node.plain_pod("peer");
        let exempt = node.plain_pod("exempt");
        let pod = node.meshed_pod(
            "app",
            &[
                ("config.linkerd.io/skip-outbound-ports", "7100,7150-7160"),
                ("config.linkerd.io/skip-inbound-ports", "8100"),
                (
                    "config.linkerd.io/skip-subnets",
                    &format!("{}/32,{}/128", exempt.v4, exempt.v6),
                ),
            ],
        );
        let ports = [PORT, PORT2, SKIPPED, SKIPPED_IN_RANGE].map(both).join(" ");
        let apps = [APP, APP_SKIPPED].map(both).join(" ");
        let servers = vec![
            peer.serve(APPLICATION, "--greet direct", ports),
            pod.serve(APPLICATION, "--greet app", apps),
        ];
        let foreign = route_foreign(&pod);
        let fixture = Self {
            pod,
            peer,
            exempt,
            foreign,
            proxy: RefCell::new(None),
            _servers: servers,
            node,
            v4_only: OnceCell::new(),
        };
        fixture.start_proxy();
        fixture
    }

    /// A pod that is enrolled for IPv4 only, with a stand-in proxy that listens on IPv4 and an
    /// application.
    pub(crate) fn v4_only(&self) -> &Pod<'n> {
        let (pod, _) = self.v4_only.get_or_init(|| {
            let families = [("linkerd.io/redirected-ip-families", "ipv4")];
            let pod = self.node.meshed_pod("v4-only", &families);
            let servers = [
                pod.serve(APPLICATION, "--greet app", both(APP)),
                pod.serve(PROXY, "--greet proxy", PROXY_V4_ADDRESSES),
            ];
            (pod, servers)
        });
        pod
    }

    /// Starts the stand-in proxy as the injected container would: its own cgroup, uid 2102.
    pub(crate) fn start_proxy(&self) {
        let proxy = self.pod.serve(PROXY, "--greet proxy", PROXY_ADDRESSES);
        *self.proxy.borrow_mut() = Some(proxy);
    }

    pub(crate) fn stop_proxy(&self) {
        *self.proxy.borrow_mut() = None;
    }

    /// Runs a probe in the meshed pod and describes its events.
    pub(crate) fn app(&self, probe: impl Words) -> String {
        self.describe(&self.pod.app(probe).remaining_events())
    }

    /// Runs a probe in the place of the proxy and describes its events.
    pub(crate) fn as_proxy(&self, probe: impl Words) -> String {
        self.describe(&self.pod.proxy(probe).remaining_events())
    }

    /// Runs a probe in the peer and describes its events.
    pub(crate) fn peer_app(&self, probe: impl Words) -> String {
        self.describe(&self.peer.app(probe).remaining_events())
    }

    /// Connects from the meshed pod to the peer with these options of the probe.
    pub(crate) fn connect(&self, options: &str) -> String {
        self.app(format!("connect {} {options}", self.peer4(PORT)))
    }

    /// Connects from the peer to an IPv4 address of the meshed pod.
    pub(crate) fn arrive(&self, port: u16) -> String {
        self.peer_app(["connect", &self.own4(port)])
    }

    /// Connects in both directions.
    pub(crate) fn both_ways(&self) -> String {
        format!("{}; {}", self.connect(""), self.arrive(APP))
    }

    pub(crate) fn peer4(&self, port: u16) -> String {
        format!("{}:{port}", self.peer.v4)
    }

    pub(crate) fn peer6(&self, port: u16) -> String {
        format!("[{}]:{port}", self.peer.v6)
    }

    /// The peer at its second address.
    pub(crate) fn second(&self, port: u16) -> String {
        format!("{}:{port}", self.peer.second)
    }

    pub(crate) fn own4(&self, port: u16) -> String {
        format!("{}:{port}", self.pod.v4)
    }

    pub(crate) fn own6(&self, port: u16) -> String {
        format!("[{}]:{port}", self.pod.v6)
    }

    pub(crate) fn mapped(&self, port: u16) -> String {
        format!("[::ffff:{}]:{port}", self.peer.v4)
    }

    /// Describes the events of a probe as in the table, with addresses replaced by their role.
    pub(crate) fn describe(&self, events: &[Value]) -> String {
        let words: Vec<String> = events.iter().map(|event| self.word(event)).collect();
        words.join("; ")
    }

    fn word(&self, event: &Value) -> String {
        if let Some(greeting) = event.get("greeting") {
            let mut word = self.greeting(greeting);
            if let Some(peer) = event.get("getpeername") {
                word += &format!(
                    ", app sees peer {} self {}",
                    self.role(peer, true),
                    self.role(&event["getsockname"], false)
                );
            }
            return word;
        }
        let field = |name: &str| event.get(name).and_then(Value::as_str);
        if let Some(failed) = field("failed").or(field("error")) {
            return failed.to_owned();
        }
        if let Some(bind) = field("bind") {
            return bind.to_owned();
        }
        if let Some(udp) = field("udp") {
            return format!("{udp} by {}", self.role(&event["getpeername"], true));
        }
        if let (Some(option), Some(answer)) = (field("option"), field("answer")) {
            return format!("{option}={answer}");
        }
        event.to_string()
    }

    fn greeting(&self, greeting: &Value) -> String {
        let who = greeting["reached"].as_str().unwrap_or("?");
        let bound = greeting["bound"]
            .as_str()
            .and_then(|bound| bound.rsplit(':').next())
            .unwrap_or("?");
        let from = self.role(&greeting["peer"], false);
        match who {
            "proxy" => format!(
                "proxy {bound}, original {} from {from}",
                self.role(&greeting["original"], true)
            ),
            other => format!("{other} from {from}"),
        }
    }

    /// Returns the role of an address, with the port if requested.
    fn role(&self, address: &Value, with_port: bool) -> String {
        let text = address.as_str().unwrap_or("?");
        let Ok(address) = text.parse::<std::net::SocketAddr>() else {
            return text.to_owned();
        };
        let ip = address.ip().to_canonical();
        let names = [
            (self.pod.v4, "OWN4"),
            (self.pod.second, "OWN_SECOND"),
            (self.pod.v6, "OWN6"),
            (self.peer.v4, "PEER4"),
            (self.peer.second, "SECOND"),
            (self.peer.v6, "PEER6"),
            (self.foreign, "FOREIGN4"),
            (self.exempt.v4, "EXEMPT4"),
            (self.exempt.v6, "EXEMPT6"),
        ];
        let v4_only = self.v4_only.get().map(|(pod, _)| pod);
        let v4_only = v4_only.map(|pod| [(pod.v4, "V4ONLY4"), (pod.v6, "V4ONLY6")]);
        let mut names = names.into_iter().chain(v4_only.into_iter().flatten());
        let name = names.find(|(known, _)| *known == ip);
        let name = name.map_or_else(|| ip.to_string(), |(_, name)| name.to_owned());
        if with_port && name == "OWN4" && address.port() >= REDIRECT_PORT_MIN {
            format!("{name}:redirect")
        } else if with_port {
            format!("{name}:{}", address.port())
        } else {
            name
        }
    }
}

/// Routes an address to the pod, and makes it local there. The routes are removed with the bridge
/// and the pod.
fn route_foreign(pod: &Pod<'_>) -> IpAddr {
    let (_, node) = pod.subnet();
    let foreign = IpAddr::from([10, 242, node, 1]);
    run(format!("ip route add {foreign} via {}", pod.v4));
    pod.namespace
        .ip(&format!("route add local {foreign} dev lo"));
    foreign
}

/// Returns the wildcard addresses of both families.
pub(crate) fn both(port: u16) -> String {
    format!("0.0.0.0:{port} [::]:{port}")
}
