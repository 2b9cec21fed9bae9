//! Checks of inbound steering. The client side is bound to an address that is not the pod's, so the
//! connection arrives as one from outside.

use std::net::{IpAddr, SocketAddr};

use socket2::Socket;

use super::{
    super::protocol::{
        INBOUND_PORT, OUTSIDE_V4, OUTSIDE_V6, OWN_V4, OWN_V6, PATIENCE, REQUEST_SIZE, Report,
        Request, SKIPPED_PORT,
    },
    ANY_V4, ANY_V6, Problem, Trial, ask, connect, expect, local_address, plain_listener, socket_to,
};

/// A port where an application would serve.
const SERVICE_PORT: u16 = 8080;

pub(super) const TRIALS: [(&str, Trial); 6] = [
    ("steering IPv4", || {
        steered(OUTSIDE_V4.into(), OWN_V4.into())
    }),
    ("steering IPv6", || {
        steered(OUTSIDE_V6.into(), OWN_V6.into())
    }),
    ("skipped port reaches the application", skipped_port),
    (
        "application binds its port beside a steered connection",
        bind_beside,
    ),
    ("readable bytes of a steered connection", readable),
    ("listeners closed and opened again", relisten),
];

/// Connects from outside to the pod.
fn arrive(source: IpAddr, own: IpAddr, port: u16) -> Result<Socket, Problem> {
    let target = SocketAddr::new(own, port);
    let socket = socket_to(target)?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    connect(&socket, target)?;
    Ok(socket)
}

fn steered(source: IpAddr, own: IpAddr) -> Result<(), Problem> {
    let socket = arrive(source, own, SERVICE_PORT)?;
    let report = ask(&socket, Request::Report)?;
    is_steered(&report, &socket, own)
}

/// The proxy must see the connection as the application would have.
fn is_steered(report: &Report, socket: &Socket, own: IpAddr) -> Result<(), Problem> {
    let destination = SocketAddr::new(own, SERVICE_PORT);
    expect("the listener", report.listener, INBOUND_PORT)?;
    expect(
        "the original destination",
        report.original,
        Some(destination),
    )?;
    expect(
        "the source the proxy sees",
        report.peer,
        local_address(socket)?,
    )
}

fn skipped_port() -> Result<(), Problem> {
    let listener = plain_listener(SocketAddr::new(ANY_V4, SKIPPED_PORT))?;
    listener.set_read_timeout(Some(PATIENCE))?;
    let client = arrive(OUTSIDE_V4.into(), OWN_V4.into(), SKIPPED_PORT)?;
    let (_, peer) = listener
        .accept()
        .map_err(|error| Problem::Failed(format!("the application got nothing: {error}")))?;
    expect(
        "the client",
        super::internet_address(&peer)?,
        local_address(&client)?,
    )
}

/// The proxy's accepted socket holds the application's port; an application that starts now,
/// without SO_REUSEADDR, must get it all the same.
fn bind_beside() -> Result<(), Problem> {
    let socket = arrive(OUTSIDE_V4.into(), OWN_V4.into(), SERVICE_PORT)?;
    let report = ask(&socket, Request::Hold)?;
    is_steered(&report, &socket, OWN_V4.into())?;
    for address in [ANY_V4, OWN_V4.into(), ANY_V6] {
        plain_listener(SocketAddr::new(address, SERVICE_PORT))
            .map_err(|error| Problem::Failed(format!("bind to {address}: {error}")))?;
    }
    Ok(())
}

/// Membership of an established socket in a sockmap makes FIONREAD lie on some kernels; ours must
/// not be in one.
fn readable() -> Result<(), Problem> {
    let socket = arrive(OUTSIDE_V4.into(), OWN_V4.into(), SERVICE_PORT)?;
    let report = ask(&socket, Request::Report)?;
    expect("the readable length", report.readable, REQUEST_SIZE)
}

fn relisten() -> Result<(), Problem> {
    let socket = arrive(OUTSIDE_V4.into(), OWN_V4.into(), SERVICE_PORT)?;
    ask(&socket, Request::Relisten)?;
    steered(OUTSIDE_V4.into(), OWN_V4.into())?;
    steered(OUTSIDE_V6.into(), OWN_V6.into())
}
