//! HTTP/2 clients that mean harm, with frames of their own making: each is a row that says what
//! must happen to it, and what it may cost. An honest client beside it, on another connection, is
//! served all the time.
//!
//! Every attack runs in a process of its own, because its memory is measured.

use std::process::Command;

use h2::Reason;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;

use self::beside::{Honest, answering};
use self::memory::Memory;
use super::*;
use crate::config::Http2Limits;

mod beside;
mod memory;

/// A row.
struct Attack {
    name: &'static str,
    /// What the client sends: once, and then over and over with a number that grows.
    opening: fn() -> Vec<u8>,
    unit: Option<fn(u32) -> Vec<u8>>,
    fate: Fate,
    /// What is counted.
    reason: &'static str,
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Ended before so many units were taken.
    Cut(u32),
    /// The same, after it was told to go elsewhere.
    Replaced(u32),
    /// Ended because the rest did not come.
    TimedOut,
    /// Stays, and costs no more than it may.
    Held,
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
/// The same with GET.
const GET: &[u8] = &[0x82, 0x86, 0x84, 0x01, 3, b'w', b'e', b'b'];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn greeting(settings: &[u8]) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, settings));
    bytes.extend(frame(SETTINGS, 1, 0, &[]));
    bytes
}

fn usual() -> Vec<u8> {
    greeting(&[])
}

/// With a request whose body is to come, on stream 1.
fn with_post() -> Vec<u8> {
    let mut bytes = usual();
    bytes.extend(frame(HEADERS, END_HEADERS, 1, POST));
    bytes
}

/// With a request that is reset for a stream error, on stream 1.
fn with_a_reset() -> Vec<u8> {
    let mut bytes = with_post();
    bytes.extend(frame(WINDOW_UPDATE, 0, 1, &[0; 4]));
    bytes
}

/// With a request whose head is to go on.
fn with_half_a_head() -> Vec<u8> {
    let mut bytes = usual();
    bytes.extend(frame(HEADERS, END_STREAM, 1, GET));
    bytes
}

/// The stream of the `n`th request.
fn stream(n: u32) -> u32 {
    2 * n + 1
}

/// Literal fields without indexing, of about `bytes`.
fn fields(bytes: usize) -> Vec<u8> {
    let field = [&[0, 1, b'x', 100][..], &[b'v'; 100]].concat();
    field.repeat(bytes / field.len())
}

const ATTACKS: &[Attack] = &[
    Attack {
        name: "rapid reset",
        opening: usual,
        unit: Some(|n| {
            let mut bytes = Vec::new();
            for n in 250 * n..250 * (n + 1) {
                bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream(n), GET));
                bytes.extend(frame(RST_STREAM, 0, stream(n), &[0, 0, 0, 8]));
            }
            bytes
        }),
        fate: Fate::Cut(20),
        reason: "flood",
    },
    Attack {
        name: "reset of streams that were seen",
        opening: usual,
        unit: Some(|n| {
            // The one that is reset came two batches ago.
            let mut bytes = frame(HEADERS, END_HEADERS, stream(n), POST);
            if let Some(before) = n.checked_sub(190) {
                bytes.extend(frame(RST_STREAM, 0, stream(before), &[0, 0, 0, 8]));
            }
            bytes
        }),
        fate: Fate::Replaced(5_000),
        reason: "resets",
    },
    Attack {
        name: "streams reset by mistakes of the client",
        opening: usual,
        unit: Some(|n| {
            let mut bytes = frame(HEADERS, END_HEADERS, stream(n), POST);
            bytes.extend(frame(WINDOW_UPDATE, 0, stream(n), &[0x7f, 255, 255, 255]));
            bytes
        }),
        fate: Fate::Replaced(250),
        reason: "mistakes",
    },
    Attack {
        name: "updates by nothing",
        opening: usual,
        unit: Some(|n| {
            let mut bytes = frame(HEADERS, END_HEADERS, stream(n), POST);
            bytes.extend(frame(WINDOW_UPDATE, 0, stream(n), &[0; 4]));
            bytes
        }),
        fate: Fate::Replaced(250),
        reason: "mistakes",
    },
    Attack {
        name: "data behind the end",
        opening: usual,
        unit: Some(|n| {
            let mut bytes = frame(HEADERS, END_HEADERS | END_STREAM, stream(n), GET);
            bytes.extend(frame(DATA, 0, stream(n), b"x"));
            bytes
        }),
        fate: Fate::Replaced(250),
        reason: "mistakes",
    },
    Attack {
        name: "ends of a stream that was reset",
        opening: with_a_reset,
        unit: Some(|_| frame(DATA, END_STREAM, 1, &[])),
        fate: Fate::Cut(3_000),
        reason: "idle_frames",
    },
    Attack {
        name: "trailers of a stream that was reset",
        opening: with_a_reset,
        unit: Some(|_| frame(HEADERS, END_HEADERS | END_STREAM, 1, &[])),
        fate: Fate::Cut(3_000),
        reason: "idle_frames",
    },
    Attack {
        name: "more streams than allowed",
        opening: usual,
        unit: Some(|n| frame(HEADERS, END_HEADERS, stream(n), POST)),
        fate: Fate::Replaced(3_000),
        reason: "mistakes",
    },
    Attack {
        name: "settings",
        opening: usual,
        unit: Some(|n| {
            frame(
                SETTINGS,
                0,
                0,
                &[&[0, 4][..], &(n + 1).to_be_bytes()].concat(),
            )
        }),
        fate: Fate::Cut(5_000),
        reason: "idle_frames",
    },
    Attack {
        name: "pings",
        opening: usual,
        unit: Some(|_| frame(PING, 0, 0, &[0; 8])),
        fate: Fate::Cut(5_000),
        reason: "idle_frames",
    },
    Attack {
        name: "priorities",
        opening: usual,
        unit: Some(|n| frame(PRIORITY, 0, stream(n), &[0, 0, 0, 0, 1])),
        fate: Fate::Cut(10_000),
        reason: "idle_frames",
    },
    Attack {
        name: "window updates",
        opening: usual,
        unit: Some(|_| frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
        fate: Fate::Cut(10_000),
        reason: "idle_frames",
    },
    Attack {
        name: "unknown frames",
        opening: usual,
        unit: Some(|_| frame(200, 0, 0, &[0; 100])),
        fate: Fate::Cut(10_000),
        reason: "idle_frames",
    },
    Attack {
        name: "empty data",
        opening: with_post,
        unit: Some(|_| frame(DATA, 0, 1, &[])),
        fate: Fate::Cut(5_000),
        reason: "idle_frames",
    },
    Attack {
        name: "empty continuations",
        opening: with_half_a_head,
        unit: Some(|_| frame(CONTINUATION, 0, 1, &[])),
        fate: Fate::Cut(5_000),
        reason: "flood",
    },
    Attack {
        name: "continuations",
        opening: with_half_a_head,
        unit: Some(|_| frame(CONTINUATION, 0, 1, &fields(16_000))),
        fate: Fate::Cut(200),
        reason: "flood",
    },
    Attack {
        name: "header lists that are far too large",
        opening: usual,
        unit: Some(|n| {
            let mut bytes = frame(HEADERS, END_STREAM, stream(n), GET);
            for _ in 0..99 {
                bytes.extend(frame(CONTINUATION, 0, stream(n), &fields(16_000)));
            }
            bytes.extend(frame(CONTINUATION, END_HEADERS, stream(n), &[]));
            bytes
        }),
        fate: Fate::Cut(10),
        reason: "flood",
    },
    Attack {
        name: "header lists that are small on the wire",
        opening: usual,
        unit: Some(|n| {
            // `accept-encoding: gzip, deflate`, by its index.
            let block = [GET, &[0x90; 4_000]].concat();
            frame(HEADERS, END_HEADERS | END_STREAM, stream(n), &block)
        }),
        // Each is refused, and nothing is kept of it.
        fate: Fate::Replaced(60),
        reason: "mistakes",
    },
    Attack {
        name: "header lists that say the same over and over",
        opening: usual,
        unit: Some(|n| {
            // Each block adds an entry of two kilobytes to the table and refers to it 90 times.
            let value = [&[0x40, 1, b'x', 0x7f, 0x81, 0x0f][..], &[b'v'; 2_048]].concat();
            let block = [GET, &value, &[0xbe; 90]].concat();
            frame(HEADERS, END_HEADERS | END_STREAM, stream(n), &block)
        }),
        fate: Fate::Replaced(60),
        reason: "mistakes",
    },
    Attack {
        name: "a window that stays shut",
        opening: || {
            let mut bytes = greeting(&[0, 4, 0, 0, 0, 0]);
            for n in 0..200 {
                bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream(n), GET));
            }
            bytes
        },
        unit: None,
        fate: Fate::Held,
        reason: "",
    },
    Attack {
        name: "a slow greeting",
        opening: || b"PRI * HTTP/2.0\r\n\r\nSM".to_vec(),
        unit: None,
        fate: Fate::TimedOut,
        reason: "head_time",
    },
    Attack {
        name: "no settings",
        opening: || b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        unit: None,
        fate: Fate::TimedOut,
        reason: "head_time",
    },
    Attack {
        name: "a head without an end",
        opening: with_half_a_head,
        unit: None,
        fate: Fate::TimedOut,
        reason: "head_time",
    },
    Attack {
        name: "half a frame of a head",
        opening: || {
            let mut bytes = with_post();
            bytes.extend(&frame(HEADERS, END_HEADERS, 3, POST)[..12]);
            bytes
        },
        unit: None,
        fate: Fate::TimedOut,
        reason: "head_time",
    },
];

/// What one attack may cost this process, in which client, proxy and server live together: floods
/// cost buffers, what is held costs a window for each stream.
const FLOOD_BYTES: u64 = 8 << 20;
const HELD_BYTES: u64 = 48 << 20;

/// What is sent at a time, in bytes: about a hundred small frames.
const BATCH: usize = 2048;

/// How many units of an attack that is held are sent.
const HELD_UNITS: u32 = 300;

const NAME: &str = "MESH_TEST_ATTACK";

#[test]
fn every_attack_is_held_and_honest_clients_are_served() {
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

/// Does nothing unless the test above calls it.
#[tokio::test]
async fn one_attack() {
    let Ok(name) = std::env::var(NAME) else {
        return;
    };
    let attack = ATTACKS.iter().find(|attack| attack.name == name).unwrap();
    run(async |drain| attack.check(&drain).await).await;
}

impl Attack {
    async fn check(&self, drain: &drain::Watch) {
        let limits = HttpLimits {
            head_time: match self.fate {
                Fate::TimedOut => Duration::from_millis(300),
                _ => HttpLimits::DEFAULT.head_time,
            },
            ..HttpLimits::DEFAULT
        };
        let server = answering().await;
        let registry = Registry::new();
        let proxy = hop_with(
            limits,
            &registry,
            server,
            Role::Only,
            Protocol::Http2,
            drain,
        )
        .await;
        let honest = Honest::new(proxy).await;
        honest.ask().await;
        let memory = Memory::mark();

        let tcp = TcpStream::connect(proxy).await.unwrap();
        let (reads, writes) = tcp.into_split();
        let (seen, sees) = watch::channel(Seen::default());
        tokio::task::spawn_local(listen(reads, seen));
        let (seen, units) = self.send(writes, sees, &honest).await;
        honest.ask().await;
        let limit = match self.fate {
            Fate::Held => {
                assert!(!seen.closed, "{seen:?}");
                HELD_BYTES
            }
            Fate::TimedOut => {
                assert!(seen.closed, "{seen:?}");
                FLOOD_BYTES
            }
            Fate::Cut(most) => {
                assert!(seen.closed && units <= most, "{seen:?} {units}");
                FLOOD_BYTES
            }
            Fate::Replaced(most) => {
                assert!(seen.closed && units <= most, "{seen:?} {units}");
                assert_eq!(seen.goaways.first(), Some(&Reason::NO_ERROR), "{seen:?}");
                FLOOD_BYTES
            }
        };
        // A connection that is closed with unread bytes is reset, and may take the reason with it.
        if let (Fate::Cut(_), Some(last)) = (self.fate, seen.goaways.last()) {
            assert_eq!(*last, Reason::ENHANCE_YOUR_CALM);
        }
        let grown = memory.grown();
        assert!(grown <= limit, "{} KiB", grown >> 10);
        let metrics = String::from_utf8(registry.encode()).unwrap();
        let counted = format!(
            "mesh_proxy_refused_total{{direction=\"inbound\",protocol=\"http/2\",reason=\"{}\"}}",
            self.reason
        );
        assert!(
            metrics.contains(&counted) != self.reason.is_empty(),
            "{metrics}"
        );
    }

    /// Sends as long as it is let, and asks honestly now and then. What came back, and how many
    /// units went out.
    async fn send(
        &self,
        mut writes: OwnedWriteHalf,
        mut sees: watch::Receiver<Seen>,
        honest: &Honest,
    ) -> (Seen, u32) {
        let (mut units, mut batches) = (0, 0);
        let mut open = writes.write_all(&(self.opening)()).await.is_ok();
        let most = match self.fate {
            Fate::Cut(most) | Fate::Replaced(most) => most + 1,
            Fate::Held => HELD_UNITS,
            Fate::TimedOut => 0,
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
            let is_paced = matches!(self.fate, Fate::Replaced(_));
            if is_paced {
                bytes.extend(frame(PING, 0, 0, &[0; 8]));
            }
            open = writes.write_all(&bytes).await.is_ok() && !sees.borrow().closed;
            if is_paced {
                // What has been read is handed on before anything else is.
                let done = |seen: &Seen| seen.pongs >= batches || seen.closed;
                open &= sees.wait_for(done).await.is_ok_and(|seen| !seen.closed);
            }
            if batches % 10 == 0 {
                honest.ask().await;
            }
            // The proxy, the server and the honest client live on this thread.
            tokio::task::yield_now().await;
        }
        if self.fate == Fate::Held {
            for _ in 0..5 {
                honest.ask().await;
            }
        } else {
            // Fails when it takes longer than tests may.
            let _gone = sees.wait_for(|seen| seen.closed).await;
        }
        let seen = sees.borrow().clone();
        (seen, units)
    }
}

/// What the proxy said.
#[derive(Clone, Debug, Default)]
struct Seen {
    goaways: Vec<Reason>,
    pongs: u32,
    closed: bool,
}

async fn listen(mut reads: OwnedReadHalf, seen: watch::Sender<Seen>) {
    loop {
        let mut head = [0; 9];
        if reads.read_exact(&mut head).await.is_err() {
            break;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        if reads.read_exact(&mut payload).await.is_err() {
            break;
        }
        if head[3] == GOAWAY {
            let code = u32::from_be_bytes(payload[4..8].try_into().unwrap());
            seen.send_modify(|seen| seen.goaways.push(code.into()));
        }
        if head[3] == PING && head[4] == 1 {
            seen.send_modify(|seen| seen.pongs += 1);
        }
    }
    seen.send_modify(|seen| seen.closed = true);
}

#[tokio::test]
async fn requests_with_too_many_fields_are_refused_and_the_connection_goes_on() {
    run(async |drain| {
        let server = answering().await;
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
            let (answer, _) = client.send_request(request, true).unwrap();
            assert_eq!(answer.await.unwrap().status(), status, "{fields}");
        }
    })
    .await;
}

/// Many requests at a time, small messages on a long stream, and clients that change their minds:
/// nothing of it is refused.
#[tokio::test]
async fn busy_clients_are_no_attack() {
    const STREAMS: usize = 64;
    const REQUESTS: usize = 20;
    const MESSAGES: usize = 3000;
    run(async |drain| {
        let registry = Registry::new();
        let limits = HttpLimits {
            http2: Http2Limits {
                // As little as can be configured.
                idle_frames: 100,
                ..HttpLimits::DEFAULT.http2
            },
            ..HttpLimits::DEFAULT
        };
        let server = answering().await;
        let role = Role::Only;
        let proxy = hop_with(limits, &registry, server, role, Protocol::Http2, &drain).await;
        let honest = Honest::new(proxy).await;
        let streams = (0..STREAMS).map(async |n| {
            for request in 0..REQUESTS {
                match (n + request) % 3 {
                    0 => honest.change_mind().await,
                    _ => honest.ask().await,
                }
            }
        });
        let chat = honest.chat(MESSAGES);
        futures_util::join!(futures_util::future::join_all(streams), chat);
        let metrics = String::from_utf8(registry.encode()).unwrap();
        assert!(!metrics.contains("reason="), "{metrics}");
    })
    .await;
}

/// The client never acknowledges the PING that follows the first GOAWAY.
#[tokio::test]
async fn idle_connection_is_closed_although_its_client_ignores_the_goaway_ping() {
    run(async |drain| {
        let limits = HttpLimits {
            idle: Some(Duration::from_millis(100)),
            head_time: Duration::from_millis(100),
            ..HttpLimits::DEFAULT
        };
        let registry = Registry::new();
        let server = answering().await;
        let role = Role::Only;
        let proxy = hop_with(limits, &registry, server, role, Protocol::Http2, &drain).await;
        let tcp = TcpStream::connect(proxy).await.unwrap();
        let (reads, mut writes) = tcp.into_split();
        let (seen, mut sees) = watch::channel(Seen::default());
        tokio::task::spawn_local(listen(reads, seen));
        writes.write_all(&usual()).await.unwrap();
        let seen = sees.wait_for(|seen| seen.closed).await.unwrap();
        assert_eq!(seen.goaways, [Reason::NO_ERROR, Reason::NO_ERROR]);
    })
    .await;
}

#[tokio::test]
async fn a_silent_connection_is_replaced_and_its_streams_stay() {
    run(async |drain| {
        let limits = HttpLimits {
            idle: Some(Duration::from_millis(200)),
            ..HttpLimits::DEFAULT
        };
        let registry = Registry::new();
        let server = answering().await;
        let proxy = hop_with(
            limits,
            &registry,
            server,
            Role::Only,
            Protocol::Http2,
            &drain,
        )
        .await;
        let tcp = TcpStream::connect(proxy).await.unwrap();
        let (reads, mut writes) = tcp.into_split();
        let (seen, mut sees) = watch::channel(Seen::default());
        tokio::task::spawn_local(listen(reads, seen));
        writes.write_all(&with_post()).await.unwrap();
        let seen = sees
            .wait_for(|seen| !seen.goaways.is_empty())
            .await
            .unwrap();
        assert_eq!(seen.goaways, [Reason::NO_ERROR]);
        assert!(!seen.closed);
    })
    .await;
}
