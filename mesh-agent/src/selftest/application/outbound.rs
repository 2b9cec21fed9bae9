//! Checks of outbound redirection: every form of connect(2).

use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;

use nix::sys::socket::{MsgFlags, SockaddrStorage, sendto};
use socket2::{Domain, Protocol, Socket};

use super::super::protocol::{
    OTHER_OWN_V4, OTHER_TARGET_V4, OUTBOUND_PORT, OWN_V4, OWN_V6, Request, SKIPPED_PORT, TARGET_V4,
    TARGET_V6, check_address,
};
use super::{
    ANY_V4, CheckFn, Problem, connect, expect, expect_accepted, local_address, mapped,
    peer_address, plain_listener, read_report, send, socket_to, tcp_socket,
};
use crate::sys::socket::{disconnect, tcp_info_length};

pub(super) const CHECKS: [(&str, CheckFn); 16] = [
    ("IPv4", || {
        redirected(&socket_to(TARGET_V4)?, TARGET_V4, OWN_V4.into())
    }),
    ("IPv6", || {
        redirected(&socket_to(TARGET_V6)?, TARGET_V6, OWN_V6.into())
    }),
    ("IPv4-mapped IPv6", v4_mapped),
    ("non-blocking connect", non_blocking),
    ("TCP Fast Open", fast_open),
    ("Multipath TCP", multipath),
    ("bound before connect", bound_before),
    ("one source port on two addresses", shared_source_port),
    ("disconnect and reconnect", reconnect),
    ("peer address IPv4", || peer_is_shown(TARGET_V4)),
    ("peer address IPv6", || peer_is_shown(TARGET_V6)),
    ("loopback stays direct", loopback),
    ("own address stays direct", own_address),
    ("skipped port stays direct", skipped_port),
    ("other socket options are left alone", other_options),
    ("the proxy's own connection to the check address", own_check),
];

/// Connects, and checks that both sides observe a direct connection to the target.
fn redirected(socket: &Socket, target: SocketAddr, source: IpAddr) -> Result<(), Problem> {
    connect(socket, target)?;
    is_redirected(socket, target, source)
}

fn is_redirected(socket: &Socket, target: SocketAddr, source: IpAddr) -> Result<(), Problem> {
    let report = send(socket, Request::Report)?;
    expect("the original destination", report.original, Some(target))?;
    expect("the listener", report.listener, OUTBOUND_PORT)?;
    let own = local_address(socket)?;
    expect("the source the application sees", own.ip(), source)?;
    expect("the source the proxy sees", report.peer, own)
}

fn v4_mapped() -> Result<(), Problem> {
    let socket = tcp_socket(Domain::IPV6, Protocol::TCP)?;
    connect(&socket, mapped(TARGET_V4))?;
    expect("the peer", peer_address(&socket)?, TARGET_V4)?;
    is_redirected(&socket, TARGET_V4, OWN_V4.into())
}

fn non_blocking() -> Result<(), Problem> {
    let socket = socket_to(TARGET_V4)?;
    socket.set_nonblocking(true)?;
    // On loopback the handshake may complete before the call returns.
    if let Err(error) = socket.connect(&TARGET_V4.into())
        && error.raw_os_error() != Some(libc::EINPROGRESS)
    {
        return Err(error.into());
    }
    socket.set_nonblocking(false)?;
    is_redirected(&socket, TARGET_V4, OWN_V4.into())
}

/// The hook must also run for data in the connecting call.
fn fast_open() -> Result<(), Problem> {
    let socket = socket_to(TARGET_V4)?;
    let sent = sendto(
        socket.as_raw_fd(),
        &Request::Report.bytes(),
        &SockaddrStorage::from(TARGET_V4),
        MsgFlags::from_bits_retain(libc::MSG_FASTOPEN),
    );
    match sent {
        Err(nix::errno::Errno::EOPNOTSUPP) => {
            return Err(Problem::Unsupported("TCP Fast Open is disabled".into()));
        }
        Err(errno) => return Err(io::Error::from(errno).into()),
        Ok(_) => {}
    }
    let report = read_report(&socket)?;
    expect("the original destination", report.original, Some(TARGET_V4))
}

fn multipath() -> Result<(), Problem> {
    match tcp_socket(Domain::IPV4, Protocol::MPTCP) {
        Ok(socket) => redirected(&socket, TARGET_V4, OWN_V4.into()),
        Err(error) => Err(Problem::Unsupported(format!("no Multipath TCP: {error}"))),
    }
}

fn bound_before() -> Result<(), Problem> {
    let socket = socket_to(TARGET_V4)?;
    socket.bind(&SocketAddr::from((OTHER_OWN_V4, 0)).into())?;
    redirected(&socket, TARGET_V4, OTHER_OWN_V4.into())
}

/// Connections with the same source port must keep their own original destination.
fn shared_source_port() -> Result<(), Problem> {
    let first = socket_to(TARGET_V4)?;
    first.bind(&SocketAddr::from((OWN_V4, 0)).into())?;
    let port = local_address(&first)?.port();
    let second = socket_to(OTHER_TARGET_V4)?;
    second.bind(&SocketAddr::from((OTHER_OWN_V4, port)).into())?;
    connect(&first, TARGET_V4)?;
    connect(&second, OTHER_TARGET_V4)?;
    is_redirected(&first, TARGET_V4, OWN_V4.into())?;
    is_redirected(&second, OTHER_TARGET_V4, OTHER_OWN_V4.into())
}

/// The original destination must belong to the second connect.
fn reconnect() -> Result<(), Problem> {
    let socket = socket_to(TARGET_V4)?;
    redirected(&socket, TARGET_V4, OWN_V4.into())?;
    disconnect(&socket)?;
    redirected(&socket, OTHER_TARGET_V4, OWN_V4.into())
}

fn peer_is_shown(target: SocketAddr) -> Result<(), Problem> {
    let socket = socket_to(target)?;
    connect(&socket, target)?;
    expect("the peer", peer_address(&socket)?, target)
}

/// Every form of the host's own address must reach the application itself.
fn loopback() -> Result<(), Problem> {
    let listener = plain_listener(SocketAddr::new(ANY_V4, 0))?;
    let port = local_address(&listener)?.port();
    for address in [
        Ipv4Addr::LOCALHOST,
        Ipv4Addr::UNSPECIFIED,
        Ipv4Addr::new(127, 7, 7, 7),
    ] {
        check_reaches(&listener, SocketAddr::from((address, port)))?;
    }
    Ok(())
}

fn own_address() -> Result<(), Problem> {
    let listener = plain_listener(SocketAddr::new(ANY_V4, 0))?;
    let port = local_address(&listener)?.port();
    check_reaches(&listener, SocketAddr::from((OWN_V4, port)))?;
    check_reaches(&listener, SocketAddr::from((OTHER_OWN_V4, port)))
}

/// Connects to the application's own listener and compares both ends.
fn check_reaches(listener: &Socket, address: SocketAddr) -> Result<(), Problem> {
    let mut client = socket_to(address)?;
    connect(&client, address)?;
    client.write_all(b"x")?;
    let otherwise = format!("{address} did not reach the application");
    expect_accepted(listener, &client, &otherwise)
}

/// The scratch namespace has no route, so a direct connection fails.
fn skipped_port() -> Result<(), Problem> {
    let target = SocketAddr::new(TARGET_V4.ip(), SKIPPED_PORT);
    match connect(&socket_to(target)?, target) {
        Err(error) if error.kind() == ErrorKind::NetworkUnreachable => Ok(()),
        Err(error) => Err(error.into()),
        Ok(()) => Err(Problem::Failed(format!("{target} was redirected"))),
    }
}

/// Checks the only connection of the proxy that is redirected.
fn own_check() -> Result<(), Problem> {
    let socket = socket_to(TARGET_V4)?;
    connect(&socket, TARGET_V4)?;
    let report = send(&socket, Request::Check)?;
    expect("the listener", report.listener, OUTBOUND_PORT)?;
    let check = Some(check_address());
    expect("the original destination", report.original, check)
}

/// The program behind SO_ORIGINAL_DST runs for every option, with at most one page of buffer.
fn other_options() -> Result<(), Problem> {
    const SMALL: u32 = 512;
    const SEVERAL_PAGES: u32 = 5 * 4096;
    let socket = socket_to(TARGET_V4)?;
    let [large, small] = [SEVERAL_PAGES, SMALL].map(|size| tcp_info_length(&socket, size));
    expect("the length read into a large buffer", large?, small?)
}
