//! The self-test's application: connects in every way that an application may, listens as one does,
//! and compares what both sides observe with a connection without proxy.

mod inbound;
mod outbound;

use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::outcome::{CheckResult, Direction, Outcome};
use super::protocol::{IO_TIMEOUT, Report, Request, canonical};

pub(super) enum Problem {
    Failed(String),
    Unsupported(String),
}

type CheckFn = fn() -> Result<(), Problem>;

/// Runs every check and prints one line of JSON for each.
pub(super) fn run() -> io::Result<()> {
    let outbound = outbound::CHECKS
        .iter()
        .map(|check| (Direction::Outbound, check));
    let inbound = inbound::CHECKS
        .iter()
        .map(|check| (Direction::Inbound, check));
    let mut stdout = io::stdout();
    for (direction, (name, run_check)) in outbound.chain(inbound) {
        let outcome = match run_check() {
            Ok(()) => Outcome::Passed,
            Err(Problem::Failed(reason)) => Outcome::Failed(reason),
            Err(Problem::Unsupported(reason)) => Outcome::Unsupported(reason),
        };
        let result = CheckResult {
            name: (*name).to_owned(),
            direction,
            outcome,
        };
        serde_json::to_writer(&mut stdout, &result)?;
        stdout.write_all(b"\n")?;
    }
    stdout.flush()
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        Problem::Failed(error.to_string())
    }
}

/// Fails a check, with the expected and the found value.
fn expect<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: T,
    expected: T,
) -> Result<(), Problem> {
    if found == expected {
        return Ok(());
    }
    Err(Problem::Failed(format!(
        "{what} is {found:?} and should be {expected:?}"
    )))
}

fn tcp_socket(domain: Domain, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::STREAM, Some(protocol))?;
    socket.set_read_timeout(Some(IO_TIMEOUT))?;
    socket.set_write_timeout(Some(IO_TIMEOUT))?;
    Ok(socket)
}

fn socket_to(destination: SocketAddr) -> io::Result<Socket> {
    tcp_socket(Domain::for_address(destination), Protocol::TCP)
}

fn connect(socket: &Socket, destination: SocketAddr) -> io::Result<()> {
    socket.connect_timeout(&SockAddr::from(destination), IO_TIMEOUT)
}

/// Sends a request on a connected socket and reads the proxy's report.
fn send(socket: &Socket, request: Request) -> Result<Report, Problem> {
    let mut writer = socket;
    writer.write_all(&request.bytes())?;
    read_report(socket)
}

fn read_report(socket: &Socket) -> Result<Report, Problem> {
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line)?;
    serde_json::from_str(&line)
        .map_err(|error| Problem::Failed(format!("the proxy sent {line:?}: {error}")))
}

fn local_address(socket: &Socket) -> Result<SocketAddr, Problem> {
    internet_address(&socket.local_addr()?)
}

fn peer_address(socket: &Socket) -> Result<SocketAddr, Problem> {
    internet_address(&socket.peer_addr()?)
}

fn internet_address(address: &SockAddr) -> Result<SocketAddr, Problem> {
    address
        .as_socket()
        .map(canonical)
        .ok_or_else(|| Problem::Failed("the kernel returned no internet address".into()))
}

/// Checks that the application's listener accepts the connection of `client`.
fn expect_accepted(listener: &Socket, client: &Socket, otherwise: &str) -> Result<(), Problem> {
    listener.set_read_timeout(Some(IO_TIMEOUT))?;
    let accepted = listener.accept();
    let (_, peer) = accepted.map_err(|error| Problem::Failed(format!("{otherwise}: {error}")))?;
    expect(
        "the client",
        internet_address(&peer)?,
        local_address(client)?,
    )
}

/// Returns `::ffff:a.b.c.d`, the form of an IPv4 peer on an IPv6 socket.
fn mapped(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    SocketAddr::new(ip.into(), address.port())
}

/// Opens a listener without any socket option, as some applications do.
fn plain_listener(address: SocketAddr) -> io::Result<Socket> {
    let socket = socket_to(address)?;
    socket.bind(&address.into())?;
    socket.listen(1)?;
    Ok(socket)
}

const ANY_V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ANY_V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
