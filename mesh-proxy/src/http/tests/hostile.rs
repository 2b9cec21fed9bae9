//! Attacks by HTTP/2 clients that write their own frames. Each row of [`ATTACKS`] says how the
//! proxy must react and how much memory it may use. Meanwhile an honest client on another
//! connection is served.
//!
//! Every attack runs in its own process, so that its memory can be measured.

use std::process::Command;

use h2::Reason;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

use self::Outcome::{Closed, Drained};
use self::memory::Memory;
use self::peers::{HonestClient, RESPONSE_SIZE, start_server};
use super::*;
use crate::config::DEFAULT_STREAM_WINDOW;
use crate::config::limits::Http2Limits;

mod memory;
mod peers;

#[derive(Clone, Copy)]
struct Attack {
    name: &'static str,
    /// What the client sends first, and then repeatedly with an increasing number.
    opening: fn() -> Vec<u8>,
    unit: Option<fn(u32) -> Vec<u8>>,
    outcome: Outcome,
    /// The expected `reason` label of `mesh_proxy_refused_total`; empty if nothing is counted.
    reason: &'static str,
}

impl Attack {
    /// Units after the preface.
    const fn units(
        name: &'static str,
        outcome: Outcome,
        reason: &'static str,
        unit: fn(u32) -> Vec<u8>,
    ) -> Self {
        Self {
            name,
            opening: preface_and_settings,
            unit: Some(unit),
            outcome,
            reason,
        }
    }

    /// Instead of only the preface.
    const fn after(self, opening: fn() -> Vec<u8>) -> Self {
        Self { opening, ..self }
    }

    /// Only the beginning of an input whose rest never arrives.
    const fn incomplete(name: &'static str, opening: fn() -> Vec<u8>) -> Self {
        Self {
            name,
            opening,
            unit: None,
            outcome: Outcome::TimedOut,
            reason: "head_time",
        }
    }
}

/// The expected reaction of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The connection is closed before it has accepted this many units.
    Closed(u32),
    /// The same, after a GOAWAY that starts a graceful shutdown.
    Drained(u32),
    /// The connection is closed because the rest of the input does not arrive in time.
    TimedOut,
    /// The connection stays open within its memory limit.
    Open,
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// `POST http://web/`, by indices of the static table.
const POST: &[u8] = &[0x83, 0x86, 0x84, 0x01, 3, b'w', b'e', b'b'];
/// `GET http://web/`.
const GET: &[u8] = &[0x82, 0x86, 0x84, 0x01, 3, b'w', b'e', b'b'];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn preface(settings: &[u8]) -> Vec<u8> {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let frames = [frame(SETTINGS, 0, 0, settings), frame(SETTINGS, 1, 0, &[])];
    [preface, frames.concat()].concat()
}

fn preface_and_settings() -> Vec<u8> {
    preface(&[])
}

/// With a request on stream 1 whose body has not been sent.
fn with_post() -> Vec<u8> {
    [preface(&[]), frame(HEADERS, END_HEADERS, 1, POST)].concat()
}

/// With a request on stream 1 that the proxy resets because of a stream error.
fn with_reset_stream() -> Vec<u8> {
    [with_post(), frame(WINDOW_UPDATE, 0, 1, &[0; 4])].concat()
}

/// With a request on stream 1 whose field block is incomplete.
fn with_partial_field_block() -> Vec<u8> {
    [preface(&[]), frame(HEADERS, END_STREAM, 1, GET)].concat()
}

/// The stream id of the `n`th request.
fn stream(n: u32) -> u32 {
    2 * n + 1
}

/// Literal fields without indexing, of about `bytes` bytes.
fn fields(bytes: usize) -> Vec<u8> {
    let field = [&[0, 1, b'x', 100][..], &[b'v'; 100]].concat();
    field.repeat(bytes / field.len())
}

/// Reasons for closing connections.
const IDLE: &str = "idle_frames";
const MISTAKES: &str = "mistakes";

const ATTACKS: &[Attack] = &[
    Attack::units("rapid reset", Closed(20), "flood", |n| {
        let pair = |n| {
            let request = frame(HEADERS, END_HEADERS | END_STREAM, stream(n), GET);
            [request, frame(RST_STREAM, 0, stream(n), &[0, 0, 0, 8])].concat()
        };
        (250 * n..250 * (n + 1)).flat_map(pair).collect()
    }),
    Attack::units(
        "resets of accepted streams",
        Drained(5_000),
        "resets",
        |n| {
            // The handler has already accepted the stream that is reset.
            let mut bytes = frame(HEADERS, END_HEADERS, stream(n), POST);
            if let Some(before) = n.checked_sub(190) {
                bytes.extend(frame(RST_STREAM, 0, stream(before), &[0, 0, 0, 8]));
            }
            bytes
        },
    ),
    Attack::units(
        "streams reset because of window overflow",
        Drained(250),
        MISTAKES,
        |n| {
            let request = frame(HEADERS, END_HEADERS, stream(n), POST);
            let overflow = [0x7f, 255, 255, 255];
            [request, frame(WINDOW_UPDATE, 0, stream(n), &overflow)].concat()
        },
    ),
    Attack::units("zero window updates", Drained(250), MISTAKES, |n| {
        let request = frame(HEADERS, END_HEADERS, stream(n), POST);
        [request, frame(WINDOW_UPDATE, 0, stream(n), &[0; 4])].concat()
    }),
    Attack::units("data after end of stream", Drained(250), MISTAKES, |n| {
        let request = frame(HEADERS, END_HEADERS | END_STREAM, stream(n), GET);
        [request, frame(DATA, 0, stream(n), b"x")].concat()
    }),
    Attack::units("empty data on a reset stream", Closed(3_000), IDLE, |_| {
        frame(DATA, END_STREAM, 1, &[])
    })
    .after(with_reset_stream),
    Attack::units("trailers on a reset stream", Closed(3_000), IDLE, |_| {
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &[])
    })
    .after(with_reset_stream),
    Attack::units("more streams than allowed", Drained(3_000), MISTAKES, |n| {
        frame(HEADERS, END_HEADERS, stream(n), POST)
    }),
    Attack::units("settings", Closed(5_000), IDLE, |n| {
        let window = [&[0, 4][..], &(n + 1).to_be_bytes()].concat();
        frame(SETTINGS, 0, 0, &window)
    }),
    Attack::units("pings", Closed(5_000), IDLE, |_| frame(PING, 0, 0, &[0; 8])),
    Attack::units("priorities", Closed(10_000), IDLE, |n| {
        frame(PRIORITY, 0, stream(n), &[0, 0, 0, 0, 1])
    }),
    Attack::units("window updates", Closed(10_000), IDLE, |_| {
        frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])
    }),
    Attack::units("unknown frames", Closed(10_000), IDLE, |_| {
        frame(200, 0, 0, &[0; 100])
    }),
    Attack::units("empty data", Closed(5_000), IDLE, |_| {
        frame(DATA, 0, 1, &[])
    })
    .after(with_post),
    Attack::units("empty continuations", Closed(5_000), "flood", |_| {
        frame(CONTINUATION, 0, 1, &[])
    })
    .after(with_partial_field_block),
    Attack::units("continuations", Closed(200), "flood", |_| {
        frame(CONTINUATION, 0, 1, &fields(16_000))
    })
    .after(with_partial_field_block),
    Attack::units(
        "header lists far above the limit",
        Closed(10),
        "flood",
        |n| {
            let mut bytes = frame(HEADERS, END_STREAM, stream(n), GET);
            bytes.extend(frame(CONTINUATION, 0, stream(n), &fields(16_000)).repeat(99));
            bytes.extend(frame(CONTINUATION, END_HEADERS, stream(n), &[]));
            bytes
        },
    ),
    // Each is rejected without being stored.
    Attack::units(
        "highly compressed header lists",
        Drained(60),
        MISTAKES,
        |n| {
            // `accept-encoding: gzip, deflate`, by its index.
            let block = [GET, &[0x90; 4_000]].concat();
            frame(HEADERS, END_HEADERS | END_STREAM, stream(n), &block)
        },
    ),
    Attack::units(
        "header lists of repeated table references",
        Drained(60),
        MISTAKES,
        |n| {
            // Each block adds an entry of two kilobytes to the dynamic table and refers to it 90
            // times.
            let value = [&[0x40, 1, b'x', 0x7f, 0x81, 0x0f][..], &[b'v'; 2_048]].concat();
            let block = [GET, &value, &[0xbe; 90]].concat();
            frame(HEADERS, END_HEADERS | END_STREAM, stream(n), &block)
        },
    ),
    Attack {
        name: "a window of zero",
        opening: || {
            let request = |n| frame(HEADERS, END_HEADERS | END_STREAM, stream(n), GET);
            let preface = preface(&[0, 4, 0, 0, 0, 0]);
            preface
                .into_iter()
                .chain((0..200).flat_map(request))
                .collect()
        },
        unit: None,
        outcome: Outcome::Open,
        reason: "",
    },
    Attack::incomplete("an incomplete preface", || {
        b"PRI * HTTP/2.0\r\n\r\nSM".to_vec()
    }),
    Attack::incomplete("no settings", || {
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()
    }),
    Attack::incomplete("an incomplete field block", with_partial_field_block),
    Attack::incomplete("an incomplete HEADERS frame", || {
        let mut bytes = with_post();
        bytes.extend(&frame(HEADERS, END_HEADERS, 3, POST)[..12]);
        bytes
    }),
];

/// The memory that one attack may use in this process, which contains client, proxy and server:
/// floods use buffers, each of 200 open streams a window of the proxy and the server's response.
const FLOOD_BYTES: u64 = 8 << 20;
const OPEN_BYTES: u64 = 200 * (DEFAULT_STREAM_WINDOW as u64 + RESPONSE_SIZE as u64) + FLOOD_BYTES;

/// Bytes per write: about a hundred small frames.
const BATCH: usize = 2048;

/// Units that are sent in an attack on a connection that stays open.
const OPEN_UNITS: u32 = 300;

const NAME: &str = "MESH_TEST_ATTACK";

#[test]
fn attacks_are_contained_and_honest_client_is_served() {
    let program = std::env::current_exe().unwrap();
    for attack in ATTACKS {
        let output = Command::new(&program)
            .args(["--exact", "http::tests::hostile::one_attack", "--nocapture"])
            .env(NAME, attack.name)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}: {}",
            attack.name,
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Does nothing unless the test above sets the environment variable.
#[test]
fn one_attack() {
    let Ok(name) = std::env::var(NAME) else {
        return;
    };
    let attack = ATTACKS.iter().find(|attack| attack.name == name).unwrap();
    run(async |drain| attack.check(&drain).await);
}

impl Attack {
    async fn check(&self, drain: &drain::Watch) {
        let limits = HttpLimits {
            head_time: match self.outcome {
                Outcome::TimedOut => Duration::from_millis(300),
                _ => HttpLimits::DEFAULT.head_time,
            },
            ..HttpLimits::DEFAULT
        };
        let registry = Registry::new();
        let proxy = start_proxy(limits, &registry, drain).await;
        let honest = HonestClient::new(proxy).await;
        honest.request_once().await;
        let memory = Memory::mark();

        let (writes, observed) = attacker(proxy).await;
        let (seen, units) = self.send(writes, observed, &honest).await;
        honest.request_once().await;
        let limit = match self.outcome {
            Outcome::Open => {
                assert!(!seen.closed, "{seen:?}");
                OPEN_BYTES
            }
            Outcome::TimedOut => {
                assert!(seen.closed, "{seen:?}");
                FLOOD_BYTES
            }
            Closed(most) => {
                assert!(seen.closed && units <= most, "{seen:?} {units}");
                FLOOD_BYTES
            }
            Drained(most) => {
                assert!(seen.closed && units <= most, "{seen:?} {units}");
                assert_eq!(seen.goaways.first(), Some(&Reason::NO_ERROR), "{seen:?}");
                FLOOD_BYTES
            }
        };
        // A connection that is closed with unread bytes is reset, which may drop the GOAWAY.
        if let (Closed(_), Some(last)) = (self.outcome, seen.goaways.last()) {
            assert_eq!(*last, Reason::ENHANCE_YOUR_CALM);
        }
        let peak_growth = memory.peak_growth();
        assert!(peak_growth <= limit, "{} KiB", peak_growth >> 10);
        let metrics = metrics(&registry);
        let counted = format!(
            "mesh_proxy_refused_total{{direction=\"inbound\",protocol=\"http/2\",reason=\"{}\"}}",
            self.reason
        );
        let is_counted = metrics.contains(&counted);
        assert_eq!(is_counted, !self.reason.is_empty(), "{metrics}");
    }

    /// Sends units until the connection is closed or the limit is exceeded, with periodic requests
    /// of the honest client. Returns the bytes received, and the number of units sent.
    async fn send(
        &self,
        mut writes: OwnedWriteHalf,
        mut observed: watch::Receiver<Observed>,
        honest: &HonestClient,
    ) -> (Observed, u32) {
        let (mut units, mut batches) = (0, 0);
        let mut open = writes.write_all(&(self.opening)()).await.is_ok();
        let most = match self.outcome {
            Closed(most) | Drained(most) => most + 1,
            Outcome::Open => OPEN_UNITS,
            Outcome::TimedOut => 0,
        };
        while let Some(unit) = self.unit
            && open
            && units < most
        {
            let mut bytes = Vec::new();
            while bytes.len() < BATCH {
                bytes.extend(unit(units));
                units += 1;
            }
            batches += 1;
            let is_paced = matches!(self.outcome, Drained(_));
            if is_paced {
                bytes.extend(frame(PING, 0, 0, &[0; 8]));
            }
            open = writes.write_all(&bytes).await.is_ok() && !observed.borrow().closed;
            if is_paced {
                // The proxy acknowledges the PING after it has processed the frames before it.
                let done = |seen: &Observed| seen.ping_acks >= batches || seen.closed;
                open &= observed.wait_for(done).await.is_ok_and(|seen| !seen.closed);
            }
            if batches % 10 == 0 {
                honest.request_once().await;
            }
            // The proxy, the server and the honest client run on this thread.
            tokio::task::yield_now().await;
        }
        if self.outcome == Outcome::Open {
            for _ in 0..5 {
                honest.request_once().await;
            }
        } else {
            // The test's time limit applies.
            let _gone = observed.wait_for(|seen| seen.closed).await;
        }
        let seen = observed.borrow().clone();
        (seen, units)
    }
}

/// What the attacker has received.
#[derive(Clone, Debug, Default)]
struct Observed {
    goaways: Vec<Reason>,
    ping_acks: u32,
    closed: bool,
}

/// Starts a proxy in front of a server.
async fn start_proxy(limits: HttpLimits, registry: &Registry, drain: &drain::Watch) -> SocketAddr {
    let server = start_server().await;
    limited_hop(limits, registry, server, Protocol::Http2, drain).await
}

/// Connects an attacker, which records what it receives.
async fn attacker(proxy: SocketAddr) -> (OwnedWriteHalf, watch::Receiver<Observed>) {
    let tcp = TcpStream::connect(proxy).await.unwrap();
    let (reads, writes) = tcp.into_split();
    let (seen, observed) = watch::channel(Observed::default());
    tokio::task::spawn_local(record_frames(reads, seen));
    (writes, observed)
}

async fn record_frames(mut reads: OwnedReadHalf, seen: watch::Sender<Observed>) {
    loop {
        let mut header = [0; 9];
        if reads.read_exact(&mut header).await.is_err() {
            break;
        }
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let mut payload = vec![0; length as usize];
        if reads.read_exact(&mut payload).await.is_err() {
            break;
        }
        if header[3] == GOAWAY {
            let code = u32::from_be_bytes(payload[4..8].try_into().unwrap());
            seen.send_modify(|seen| seen.goaways.push(code.into()));
        }
        if header[3] == PING && header[4] == 1 {
            seen.send_modify(|seen| seen.ping_acks += 1);
        }
    }
    seen.send_modify(|seen| seen.closed = true);
}

#[test]
fn requests_with_too_many_fields_get_431_and_connection_stays() {
    run(async |drain| {
        let server = start_server().await;
        let proxy = hop(server, Role::Only, Protocol::Http2, &drain).await;
        let tcp = TcpStream::connect(proxy).await.unwrap();
        let (client, connection) = h2::client::handshake(tcp).await.unwrap();
        tokio::task::spawn_local(connection);
        for (fields, status) in [(90, 200), (101, 431), (3000, 431), (90, 200)] {
            let mut request = http::Request::get("http://web/").body(()).unwrap();
            let value = http::HeaderValue::from_static("1");
            let name = http::HeaderName::from_static("x");
            for _ in 0..fields {
                request.headers_mut().append(name.clone(), value.clone());
            }
            let mut client = client.clone().ready().await.unwrap();
            let (response_future, _) = client.send_request(request, true).unwrap();
            assert_eq!(response_future.await.unwrap().status(), status, "{fields}");
        }
    });
}

/// Concurrent requests, small messages on a long stream, and cancelled requests must not exceed any
/// limit.
#[test]
fn busy_client_exceeds_no_limit() {
    const STREAMS: usize = 64;
    const REQUESTS: usize = 20;
    const MESSAGES: usize = 3000;
    run(async |drain| {
        let registry = Registry::new();
        let limits = HttpLimits {
            http2: Http2Limits {
                // The lowest value that can be configured.
                idle_frames: 100,
                ..HttpLimits::DEFAULT.http2
            },
            ..HttpLimits::DEFAULT
        };
        let proxy = start_proxy(limits, &registry, &drain).await;
        let honest = HonestClient::new(proxy).await;
        let streams = (0..STREAMS).map(async |n| {
            for request in 0..REQUESTS {
                match (n + request) % 3 {
                    0 => honest.cancel_request().await,
                    _ => honest.request_once().await,
                }
            }
        });
        let exchange_messages = honest.exchange_messages(MESSAGES);
        futures_util::join!(futures_util::future::join_all(streams), exchange_messages);
        let metrics = metrics(&registry);
        assert!(!metrics.contains("reason="), "{metrics}");
    });
}

/// The client never acknowledges the PING that follows the first GOAWAY.
#[test]
fn idle_connection_is_closed_if_client_ignores_goaway_ping() {
    run(async |drain| {
        let limits = HttpLimits {
            idle: Some(Duration::from_millis(100)),
            head_time: Duration::from_millis(100),
            ..HttpLimits::DEFAULT
        };
        let registry = Registry::new();
        let proxy = start_proxy(limits, &registry, &drain).await;
        let (mut writes, mut observed) = attacker(proxy).await;
        writes.write_all(&preface_and_settings()).await.unwrap();
        let seen = observed.wait_for(|seen| seen.closed).await.unwrap();
        assert_eq!(seen.goaways, [Reason::NO_ERROR, Reason::NO_ERROR]);
    });
}

#[test]
fn inactive_connection_gets_goaway_and_keeps_streams() {
    run(async |drain| {
        let limits = HttpLimits {
            idle: Some(Duration::from_millis(200)),
            ..HttpLimits::DEFAULT
        };
        let registry = Registry::new();
        let proxy = start_proxy(limits, &registry, &drain).await;
        let (mut writes, mut observed) = attacker(proxy).await;
        writes.write_all(&with_post()).await.unwrap();
        let has_goaway = |seen: &Observed| !seen.goaways.is_empty();
        let seen = observed.wait_for(has_goaway).await.unwrap();
        assert_eq!(seen.goaways, [Reason::NO_ERROR]);
        assert!(!seen.closed);
    });
}
