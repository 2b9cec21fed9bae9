//! Checks of inbound steering, with clients that bind an address outside of the pod.

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::Socket;

use super::super::protocol::{
    INBOUND_PORT, OUTSIDE_V4, OUTSIDE_V6, OWN_V4, OWN_V6, REQUEST_SIZE, Report, Request,
    SKIPPED_PORT,
};
use super::{
    ANY_V4, ANY_V6, CheckFn, Problem, connect, expect, expect_accepted, local_address,
    plain_listener, send, socket_to,
};

const SERVICE_PORT: u16 = 8080;
const CLOSED_PORT: u16 = 8081;

pub(super) const CHECKS: [(&str, CheckFn); 7] = [
    ("steering IPv4", || {
        steered(OUTSIDE_V4.into(), OWN_V4.into())
    }),
    ("steering IPv6", || {
        steered(OUTSIDE_V6.into(), OWN_V6.into())
    }),
    ("skipped port reaches the application", skipped_port),
    (
        "application binds its port beside a steered connection",
        bind_occupied_port,
    ),
    ("readable bytes of a steered connection", readable),
    ("listeners closed and opened again", relisten),
    ("port without a listener is refused", closed_port),
];

fn connect_from(source: IpAddr, own: IpAddr, port: u16) -> Result<Socket, Problem> {
    let target = SocketAddr::new(own, port);
    let socket = socket_to(target)?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    connect(&socket, target)?;
    Ok(socket)
}

/// Opens the application's port: connections to a closed one are refused.
fn open_service() -> Result<Socket, Problem> {
    Ok(plain_listener(SocketAddr::new(ANY_V6, SERVICE_PORT))?)
}

fn steered(source: IpAddr, own: IpAddr) -> Result<(), Problem> {
    let _service = open_service()?;
    let socket = connect_from(source, own, SERVICE_PORT)?;
    let report = send(&socket, Request::Report)?;
    is_steered(&report, &socket, own)
}

/// Checks that the proxy observes the connection as the application would.
fn is_steered(report: &Report, socket: &Socket, own: IpAddr) -> Result<(), Problem> {
    let destination = SocketAddr::new(own, SERVICE_PORT);
    expect("the listener", report.listener, INBOUND_PORT)?;
    let original = report.original;
    expect("the original destination", original, Some(destination))?;
    let source = local_address(socket)?;
    expect("the source the proxy sees", report.peer, source)
}

fn skipped_port() -> Result<(), Problem> {
    let listener = plain_listener(SocketAddr::new(ANY_V4, SKIPPED_PORT))?;
    let client = connect_from(OUTSIDE_V4.into(), OWN_V4.into(), SKIPPED_PORT)?;
    let otherwise = "the application received no connection";
    expect_accepted(&listener, &client, otherwise)
}

/// The proxy's accepted socket uses the application's port; an application that starts now, without
/// SO_REUSEADDR, must be able to bind it anyway.
fn bind_occupied_port() -> Result<(), Problem> {
    let service = open_service()?;
    let socket = connect_from(OUTSIDE_V4.into(), OWN_V4.into(), SERVICE_PORT)?;
    let report = send(&socket, Request::Hold)?;
    is_steered(&report, &socket, OWN_V4.into())?;
    drop(service);
    for address in [ANY_V4, OWN_V4.into(), ANY_V6] {
        plain_listener(SocketAddr::new(address, SERVICE_PORT))
            .map_err(|error| Problem::Failed(format!("bind to {address}: {error}")))?;
    }
    Ok(())
}

/// On some kernels FIONREAD is wrong for established sockets in a sockmap.
fn readable() -> Result<(), Problem> {
    let _service = open_service()?;
    let socket = connect_from(OUTSIDE_V4.into(), OWN_V4.into(), SERVICE_PORT)?;
    let report = send(&socket, Request::Report)?;
    expect("the readable length", report.readable, REQUEST_SIZE)
}

fn relisten() -> Result<(), Problem> {
    let service = open_service()?;
    let socket = connect_from(OUTSIDE_V4.into(), OWN_V4.into(), SERVICE_PORT)?;
    send(&socket, Request::Relisten)?;
    drop(service);
    steered(OUTSIDE_V4.into(), OWN_V4.into())?;
    steered(OUTSIDE_V6.into(), OWN_V6.into())
}

/// Redirection works without it: the proxy then accepts the connection.
fn closed_port() -> Result<(), Problem> {
    let target = SocketAddr::new(OWN_V4.into(), CLOSED_PORT);
    let socket = socket_to(target)?;
    socket.bind(&SocketAddr::new(OUTSIDE_V4.into(), 0).into())?;
    match connect(&socket, target) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => Err(error.into()),
        Ok(()) => Err(Problem::Unsupported(
            "the proxy accepts connections to ports on which nothing listens".into(),
        )),
    }
}
