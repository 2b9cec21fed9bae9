//! Exchanges through proxies in a simulated world, and that a seed repeats them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{io, thread};

use mesh_planted::{Bug, plant};
use mesh_simnet::{Conditions, Event, Listener, Network, Process, Role, Stream};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::spawn_local;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::*;

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 1));
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 1, 0, 2)), 8080);

/// Longer than all time limits of the proxy that an exchange can reach.
const TIME: Duration = Duration::from_secs(600);

/// What client and server do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exchange {
    /// Bytes without a protocol in both directions, and their ends.
    Raw,
    /// The server resets the connection after some bytes.
    Reset,
    /// Two requests of HTTP/1.1 on one connection.
    Http,
}

/// What the client has observed, and what has happened on the network.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    observed: String,
    hash: u64,
    events: Vec<Event>,
    open: usize,
}

fn exchange(seed: u64, conditions: &Conditions, position: Position, what: Exchange) -> Outcome {
    run(seed, async || {
        let network = Network::new(seed, conditions.clone(), true);
        let carrier = network.clone();
        let carrying = spawn_local(async move { carrier.run().await });
        let _carrying = AbortOnDropHandle::new(carrying);
        let settings = Settings {
            is_opaque: what != Exchange::Http,
            ..Settings::default()
        };
        let placement = place(&network, CLIENT, SERVER, position, &settings).unwrap();
        let server = network.process(SERVER.ip(), Role::Application);
        let listener = server.listen(SERVER.port()).unwrap();
        let serving = AbortOnDropHandle::new(spawn_local(serve(listener, what)));
        let client = network.process(CLIENT, Role::Application);
        let observed = match timeout(TIME, connect(client, what)).await {
            Ok(observed) => observed,
            Err(_elapsed) => "nothing, for too long".to_owned(),
        };
        drop(serving);
        placement.stop().await;
        // The connections to the control plane close.
        tokio::time::sleep(Duration::from_secs(1)).await;
        Outcome {
            observed,
            hash: network.trace(|trace| trace.hash()),
            events: network.trace(|trace| trace.events().to_vec()),
            open: network.open_connections(),
        }
    })
}

async fn serve(listener: Listener, what: Exchange) {
    loop {
        let mut stream = listener.accept().await.stream;
        spawn_local(async move {
            // The client may close first.
            let _ended = match what {
                Exchange::Raw => echo(&mut stream).await,
                Exchange::Reset => reset(stream).await,
                Exchange::Http => respond(&mut stream).await,
            };
        });
    }
}

async fn echo(stream: &mut Stream) -> io::Result<()> {
    let mut buffer = [0; 1000];
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return stream.shutdown().await;
        }
        stream.write_all(&buffer[..read]).await?;
    }
}

async fn reset(mut stream: Stream) -> io::Result<()> {
    stream.read_exact(&mut [0; 5]).await?;
    stream.write_all(b"in part").await?;
    // The bytes arrive first.
    tokio::time::sleep(Duration::from_secs(2)).await;
    stream.reset_on_close();
    Ok(())
}

async fn respond(stream: &mut Stream) -> io::Result<()> {
    let mut received = Vec::new();
    while stream.read_buf(&mut received).await? > 0 {
        while let Some(end) = received.windows(4).position(|it| it == b"\r\n\r\n") {
            received.drain(..end + 4);
            let body = "x".repeat(600);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(body.as_bytes()).await?;
        }
    }
    Ok(())
}

async fn connect(process: Process, what: Exchange) -> String {
    let mut stream = match process.connect(SERVER).await {
        Ok(stream) => stream,
        Err(error) => return format!("no connection: {error}"),
    };
    match what {
        Exchange::Raw => {
            let bytes: Vec<u8> = (0..2000_u32).map(|byte| byte as u8).collect();
            let (mut reading, mut writing) = tokio::io::split(stream);
            let sent = bytes.clone();
            let sending = spawn_local(async move {
                writing.write_all(&sent).await?;
                writing.shutdown().await
            });
            let mut received = Vec::new();
            let read = reading.read_to_end(&mut received).await;
            let sent = sending.await.unwrap();
            format!("{read:?}, {:?}, {}", sent.is_ok(), received == bytes)
        }
        Exchange::Reset => {
            if let Err(error) = stream.write_all(b"hello").await {
                return format!("not sent: {error}");
            }
            let mut received = Vec::new();
            let read = stream.read_to_end(&mut received).await;
            format!(
                "{:?}, {:?}",
                read.map_err(|error| error.kind()),
                String::from_utf8(received)
            )
        }
        Exchange::Http => {
            let mut observed = Vec::new();
            for path in ["/", "/again"] {
                let request = format!("GET {path} HTTP/1.1\r\nhost: server\r\n\r\n");
                match get(&mut stream, request.as_bytes()).await {
                    Ok(response) => observed.push(response),
                    Err(error) => observed.push(error.to_string()),
                }
            }
            observed.join("; ")
        }
    }
}

/// Returns the status line and the length of the body.
async fn get(stream: &mut Stream, request: &[u8]) -> io::Result<String> {
    stream.write_all(request).await?;
    let mut received = Vec::new();
    loop {
        if stream.read_buf(&mut received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some(end) = received.windows(4).position(|it| it == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&received[..end]).to_ascii_lowercase();
        let (body, is_whole) = match head.split("content-length: ").nth(1) {
            Some(rest) => {
                let length: usize = rest.lines().next().unwrap_or_default().parse().unwrap();
                let body = received.len() - end - 4;
                (body, body >= length)
            }
            None => (0, true),
        };
        if is_whole {
            let status = head.lines().next().unwrap_or_default();
            return Ok(format!("{status}, {body} bytes"));
        }
    }
}

#[test]
fn exchanges_are_the_same_at_all_positions() {
    for (what, observed) in [
        (Exchange::Raw, "Ok(2000), true, true"),
        (Exchange::Reset, "Err(ConnectionReset), Ok(\"in part\")"),
        (
            Exchange::Http,
            "http/1.1 200 ok, 600 bytes; http/1.1 200 ok, 600 bytes",
        ),
    ] {
        for position in Position::ALL {
            let outcome = exchange(1, &Conditions::IDEAL, position, what);
            let trace: Vec<String> = outcome.events.iter().map(ToString::to_string).collect();
            let trace = trace.join("\n");
            assert_eq!(outcome.observed, observed, "{what:?} {position:?}\n{trace}");
            assert_eq!(outcome.open, 0, "{what:?} {position:?}\n{trace}");
        }
    }
}

#[test]
fn planted_reset_that_becomes_an_end_is_found() {
    let _planted = plant(Bug::ResetIsEnd);
    let observed = |position| exchange(1, &Conditions::IDEAL, position, Exchange::Reset).observed;
    let direct = observed(Position::Direct);
    for position in [Position::Outbound, Position::Inbound, Position::Both] {
        assert_ne!(observed(position), direct, "{position:?}");
    }
}

/// The seeds that are run twice.
const SEEDS: u64 = 1000;

fn of_seed(seed: u64) -> (Conditions, Position, Exchange) {
    let conditions = Conditions::draw(&mut SmallRng::seed_from_u64(seed));
    let position = Position::ALL[1 + seed as usize % 3];
    let what = [Exchange::Raw, Exchange::Http, Exchange::Reset][seed as usize / 3 % 3];
    (conditions, position, what)
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let next = AtomicU64::new(0);
    let check = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEEDS {
                return;
            }
            let (conditions, position, what) = of_seed(seed);
            let [first, second] = [(); 2].map(|()| exchange(seed, &conditions, position, what));
            if first != second {
                let mut events = first.events.iter().zip(&second.events);
                let at = events.position(|(one, other)| one != other).unwrap_or(0);
                let around = |events: &[Event]| {
                    let around = events.iter().skip(at.saturating_sub(20)).take(30);
                    let around: Vec<String> = around.map(ToString::to_string).collect();
                    around.join("\n")
                };
                panic!(
                    "seed {seed}, {what:?} {position:?} {conditions:?}: event {at} differs\n{}\n\n{}\n{}\n{}",
                    around(&first.events),
                    around(&second.events),
                    first.observed,
                    second.observed,
                );
            }
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..threads {
            scope.spawn(check);
        }
    });
}

/// Set for the other process.
const OTHER: &str = "MESH_SIMULATION_OTHER_PROCESS";

#[test]
fn another_process_has_the_same_traces() {
    let hashes = || -> String {
        let hash = |seed| {
            let (conditions, position, what) = of_seed(seed);
            let hash = exchange(seed, &conditions, position, what).hash;
            format!("trace {seed} {hash:016x}\n")
        };
        (0..9).map(hash).collect()
    };
    if std::env::var_os(OTHER).is_some() {
        print!("\n{}", hashes());
        return;
    }
    let own = hashes();
    let name = "simulation::tests::another_process_has_the_same_traces";
    let other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(OTHER, "1")
        .output()
        .unwrap();
    let other = String::from_utf8(other.stdout).unwrap();
    let other: String = other
        .lines()
        .filter(|line| line.starts_with("trace "))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(own, other);
}
