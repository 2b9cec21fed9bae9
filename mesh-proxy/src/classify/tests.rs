//! Every plan with every event, on a paused clock, which advances only while both peers are silent.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use mesh_runtime::drain::{Part, channel};
use mesh_runtime::metrics::{Exemplars, Registry};
use tokio::net::TcpStream;

use self::Event::{
    ClientCloses, ClientSends, ProxyDrains, ServerSends, ServerUnreachable, Silence,
};
use super::*;
use crate::telemetry::Families;
use crate::telemetry::http::ResponseDurations;

/// With the policy's timeout.
const DETECT: ProtocolPlan = ProtocolPlan::Detect(Duration::from_secs(3));

/// With the configured timeout of 10 s.
const DETECT_VERSION: ProtocolPlan = ProtocolPlan::DetectVersion;

const GET: &[u8] = b"GET / HTTP/1.1\r\n";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PARTIAL: &[u8] = b"GET /";
const OTHER: &[u8] = b"\0hello";

/// The result of a classification, after how many milliseconds, with how many connections to the
/// server.
type Classified = (&'static str, u128, usize);

/// What happens on a connection, the latter two after a number of milliseconds. The server accepts
/// and is silent, unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Silence,
    ServerSends,
    ServerUnreachable,
    ClientCloses,
    ClientSends(u64, &'static [u8]),
    ProxyDrains(u64),
}

struct TestEnv {
    classifier: Classifier,
    registry: Registry,
    drain: Part,
}

fn addr(port: u16) -> SocketAddr {
    ([192, 0, 2, 1], port).into()
}

/// Returns a connection of the proxy and its peer. Unix sockets deliver without delay.
fn connection() -> (Io, UnixStream) {
    let (proxy, peer) = UnixStream::pair().unwrap();
    proxy.set_nonblocking(true).unwrap();
    let tcp = TcpStream::from_std(OwnedFd::from(proxy).into()).unwrap();
    (Io::plain(tcp), peer)
}

impl TestEnv {
    fn new() -> Self {
        let registry = Registry::new();
        let (_drain, watch) = channel();
        let drain = watch.part();
        let classifier = Classifier {
            direction: Direction::Inbound,
            timeout: Duration::from_secs(10),
            families: Families::new(&registry, Exemplars::Off, ResponseDurations::Off).detect,
            scratch: Rc::default(),
            drain: drain.watch(),
            server_first: ServerFirst::default(),
        };
        Self {
            classifier,
            registry,
            drain,
        }
    }

    /// Classifies a new connection.
    async fn classify(&self, plan: ProtocolPlan, event: Event) -> Classified {
        let (mut io, mut client) = connection();
        let labels = || Labels::new().with("server", "web");
        // The server's sockets, which stay open.
        let mut accepted = Vec::new();
        let dial = async || {
            let (io, mut server) = connection();
            if event == ServerSends {
                server.write_all(b"220 welcome\r\n").unwrap();
            }
            accepted.push(server);
            Some(if event == ServerUnreachable {
                Err(())
            } else {
                Ok(io)
            })
        };
        let start = Instant::now();
        let happens = async {
            match event {
                Silence | ServerSends | ServerUnreachable => {}
                ClientCloses => client.shutdown(Shutdown::Write).unwrap(),
                ClientSends(after, bytes) => {
                    sleep(Duration::from_millis(after)).await;
                    client.write_all(bytes).unwrap();
                }
                ProxyDrains(after) => {
                    sleep(Duration::from_millis(after)).await;
                    self.drain.drain();
                }
            }
        };
        let classifying = async {
            let classifier = &self.classifier;
            let classified = classifier.classify(&mut io, plan, addr(80), labels, None, dial);
            (classified.await.unwrap(), start.elapsed().as_millis())
        };
        let ((classified, millis), ()) = tokio::join!(classifying, happens);
        let name = match classified {
            Classification::Http(Protocol::Http1) => "HTTP/1",
            Classification::Http(Protocol::Http2) => "HTTP/2",
            Classification::Opaque(None) => "opaque",
            Classification::Opaque(Some(Ok(_))) => "opaque, connected",
            Classification::Opaque(Some(Err(_))) => "opaque, unreachable",
            Classification::Closed => "closed",
        };
        (name, millis, accepted.len())
    }

    /// The recorded result and its duration in seconds.
    fn recorded(&self) -> String {
        let text = String::from_utf8(self.registry.encode()).unwrap();
        let sample = |start: &str| {
            let sample = text.lines().find_map(|line| line.strip_prefix(start))?;
            sample.split_once(['"', ' '])
        };
        let result = sample("inbound_tcp_detect_http_results_total{server=\"web\",result=\"");
        let seconds = sample("inbound_tcp_detect_http_duration_seconds_sum{server=\"web\"}");
        match result.zip(seconds) {
            Some(((result, count), (_, seconds))) => {
                assert_eq!(count, "} 1");
                format!("{result} {seconds}")
            }
            None => String::new(),
        }
    }
}

/// By plan and event: the classification, and the recorded result with its duration in seconds.
#[rustfmt::skip] // a table
const TABLE: &[(ProtocolPlan, Event, Classified, &str)] = &[
    (ProtocolPlan::Opaque, Silence, ("opaque", 0, 0), ""),
    (ProtocolPlan::Opaque, ClientSends(0, GET), ("opaque", 0, 0), ""),
    (ProtocolPlan::Http(Protocol::Http1), Silence, ("HTTP/1", 0, 0), ""),
    (ProtocolPlan::Http(Protocol::Http2), ClientSends(0, GET), ("HTTP/2", 0, 0), ""),
    (DETECT, ClientSends(0, GET), ("HTTP/1", 0, 0), "http/1 0"),
    (DETECT, ClientSends(0, PREFACE), ("HTTP/2", 0, 0), "http/2 0"),
    (DETECT, ClientSends(0, OTHER), ("opaque", 0, 0), "not_http 0"),
    (DETECT, ClientSends(0, PARTIAL), ("opaque", 3000, 0), "read_timeout 3"),
    (DETECT, ClientSends(199, GET), ("HTTP/1", 199, 0), "http/1 0"),
    (DETECT, ClientSends(1000, GET), ("HTTP/1", 1000, 1), "http/1 0"),
    (DETECT, ClientSends(1000, OTHER), ("opaque, connected", 1000, 1), "not_http 0"),
    (DETECT, ClientSends(1000, PARTIAL), ("opaque, connected", 4000, 1), "read_timeout 3"),
    (DETECT, ClientCloses, ("opaque", 0, 0), "error 0"),
    (DETECT, ServerSends, ("opaque, connected", 200, 1), "not_http 0.2"),
    (DETECT, Silence, ("opaque, connected", 3000, 1), "read_timeout 3"),
    (DETECT, ServerUnreachable, ("opaque, unreachable", 200, 1), "not_http 0.2"),
    (DETECT, ProxyDrains(0), ("closed", 1000, 1), ""),
    (DETECT, ProxyDrains(2500), ("opaque, connected", 3000, 1), "read_timeout 3"),
    (DETECT_VERSION, ClientSends(0, GET), ("HTTP/1", 0, 0), "http/1 0"),
    (DETECT_VERSION, ClientSends(0, PREFACE), ("HTTP/2", 0, 0), "http/2 0"),
    (DETECT_VERSION, ClientSends(0, OTHER), ("HTTP/1", 0, 0), "not_http 0"),
    (DETECT_VERSION, ClientSends(0, PARTIAL), ("HTTP/1", 10_000, 0), "read_timeout 10"),
    (DETECT_VERSION, Silence, ("HTTP/1", 10_000, 0), "read_timeout 10"),
    (DETECT_VERSION, ClientCloses, ("closed", 0, 0), "error 0"),
    (DETECT_VERSION, ProxyDrains(0), ("closed", 1000, 0), ""),
];

#[tokio::test(start_paused = true)]
async fn plan_and_first_bytes_decide_classification() {
    for (plan, event, expected, recorded) in TABLE {
        let env = TestEnv::new();
        let classified = env.classify(*plan, *event).await;
        assert_eq!(classified, *expected, "{plan:?}, {event:?}");
        assert_eq!(env.recorded(), *recorded, "{plan:?}, {event:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn server_that_sent_first_is_dialled_immediately() {
    let env = TestEnv::new();
    for after in [200, 0] {
        let classified = env.classify(DETECT, ServerSends).await;
        assert_eq!(classified, ("opaque, connected", after, 1));
    }
    // The first byte still decides.
    let classified = env.classify(DETECT, ClientSends(100, GET)).await;
    assert_eq!(classified, ("HTTP/1", 100, 1));
}

#[test]
fn remembered_servers_are_bounded() {
    let servers = ServerFirst::default();
    for port in 0..=MAX_SERVER_FIRST as u16 {
        servers.insert(addr(port));
        assert_eq!(servers.dial_delay(addr(port)), Duration::ZERO);
        assert!(servers.0.borrow().len() <= MAX_SERVER_FIRST);
    }
    assert_eq!(servers.dial_delay(addr(0)), detect::SERVER_DIAL_DELAY);
}

#[tokio::test(start_paused = true)]
async fn silent_client_ends_tls_detection_earlier_during_drain() {
    for (drains, expected, millis) in [
        (false, TlsDetected::TimedOut, 10_000),
        (true, TlsDetected::Eof, 1_000),
    ] {
        let env = TestEnv::new();
        let (mut io, _client) = connection();
        if drains {
            env.drain.drain();
        }
        let start = Instant::now();
        assert_eq!(env.classifier.detect_tls(&mut io).await.unwrap(), expected);
        assert_eq!(start.elapsed().as_millis(), millis);
    }
}
