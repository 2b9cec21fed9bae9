//! A TLS client for h2spec: the mesh requires a server name and does not negotiate ALPN `h2`, while
//! `h2spec -t` sends no server name to an IP address and requires `h2`.

use std::net::Ipv4Addr;

use super::{CLIENT, haproxy};
use crate::testbed::pod::Pods;
use crate::testbed::process::Process;
use crate::testbed::{SERVER, Testbed};

/// Starts a relay from a port of the client's loopback address to the same port of the server, with
/// the client's certificate.
pub(super) fn start(testbed: &Testbed, pods: &Pods, port: u16) -> anyhow::Result<Process> {
    haproxy::start(
        testbed,
        (&pods.client, CLIENT),
        "relay",
        &section(testbed, pods.server.ip, port),
        (Ipv4Addr::LOCALHOST, port).into(),
    )
}

fn section(testbed: &Testbed, server: Ipv4Addr, port: u16) -> String {
    let certificate = testbed.certificate("client");
    format!(
        "listen mesh
    bind 127.0.0.1:{port}
    server proxy {server}:{port} ssl crt {} ca-file {} verify required verifyhost {SERVER} sni str({SERVER})
",
        certificate.combined.display(),
        certificate.anchor.display(),
    )
}
