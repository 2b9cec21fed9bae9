//! The pods that every case of the table uses, and the description of their observations.

use std::cell::RefCell;
use std::net::IpAddr;

use serde_json::Value;

use crate::harness::node::{Node, Pod};
use crate::harness::process::{Process, run};

/// Ports of the peer, an ordinary pod: an ordinary one, a second one, one that the meshed pod
/// skips, one inside a skipped range.
pub(crate) const PORT: u16 = 7001;
pub(crate) const PORT2: u16 = 7002;
pub(crate) const SKIPPED: u16 = 7100;
pub(crate) const SKIPPED_IN_RANGE: u16 = 7155;
/// Ports of the application in the meshed pod: an ordinary one, and one that is skipped.
pub(crate) const APP: u16 = 8001;
pub(crate) const APP_SKIPPED: u16 = 8100;

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
    pub(crate) proxy: RefCell<Option<Process>>,
    _servers: Vec<Process>,
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
        let ports = [PORT, PORT2, SKIPPED, SKIPPED_IN_RANGE];
        let servers = vec![
            serve(
                &peer,
                "app",
                0,
                &["--greet", "direct"],
                &ports
                    .iter()
                    .flat_map(|port| both(*port))
                    .collect::<Vec<_>>(),
            ),
            serve(
                &pod,
                "app",
                0,
                &["--greet", "app"],
                &[APP, APP_SKIPPED]
                    .iter()
                    .flat_map(|port| both(*port))
                    .collect::<Vec<_>>(),
            ),
        ];
        let foreign = route_foreign(&pod);
        let fixture = Self {
            pod,
            peer,
            exempt,
            foreign,
            proxy: RefCell::new(None),
            _servers: servers,
        };
        fixture.start_proxy();
        fixture
    }

    /// Starts the stand-in proxy as the injected container would: its own cgroup, uid 2102.
    pub(crate) fn start_proxy(&self) {
        let addresses =
            ["127.0.0.1:4140", "[::1]:4140", "0.0.0.0:4143", "[::]:4143"].map(str::to_owned);
        *self.proxy.borrow_mut() = Some(serve(
            &self.pod,
            "linkerd-proxy",
            2102,
            &["--greet", "proxy"],
            &addresses,
        ));
    }

    pub(crate) fn stop_proxy(&self) {
        *self.proxy.borrow_mut() = None;
    }

    /// Runs a probe in the meshed pod and describes its events.
    pub(crate) fn app(&self, args: &[&str]) -> String {
        self.describe(&self.pod.app(args).remaining_events())
    }

    /// Runs a probe in the peer and describes its events.
    pub(crate) fn peer_app(&self, args: &[&str]) -> String {
        self.describe(&self.peer.app(args).remaining_events())
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
        let name = names
            .iter()
            .find(|(known, _)| *known == ip)
            .map_or_else(|| ip.to_string(), |(_, name)| (*name).to_owned());
        if with_port {
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
    let prefix = format!("{foreign}/32");
    run("ip", &["route", "add", &prefix, "via", &pod.v4.to_string()]).expect("a route");
    pod.run("ip", &["route", "add", "local", &prefix, "dev", "lo"])
        .expect("a route in the pod");
    foreign
}

/// Returns the wildcard addresses of both families.
fn both(port: u16) -> [String; 2] {
    [format!("0.0.0.0:{port}"), format!("[::]:{port}")]
}

/// Starts a listening probe and waits until it listens on every address.
pub(crate) fn serve(
    pod: &Pod<'_>,
    container: &str,
    uid: u32,
    options: &[&str],
    addresses: &[String],
) -> Process {
    let mut args = vec!["listen"];
    args.extend_from_slice(options);
    args.extend(addresses.iter().map(String::as_str));
    let server = pod.probe_as(container, uid, &args);
    for address in addresses {
        let event = server.next_event();
        assert!(
            event.get("listening").is_some(),
            "listening on {address}: {event}"
        );
    }
    server
}
