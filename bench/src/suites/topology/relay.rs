//! A TLS client for h2spec: the mesh requires a server name and does not negotiate ALPN `h2`, while
//! `h2spec -t` sends no server name to an IP address and requires `h2`.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Context;

use super::CLIENT;
use crate::testbed::pod::Pods;
use crate::testbed::process::Process;
use crate::testbed::{DIRECTORY, SERVER, Testbed};

/// Starts a relay from a port of the client's loopback address to the same port of the server, with
/// the client's certificate.
pub(super) fn start(testbed: &Testbed, pods: &Pods, port: u16) -> anyhow::Result<Process> {
    let path = Path::new(DIRECTORY).join("relay.cfg");
    fs::write(&path, configuration(testbed, pods.server.ip, port))?;
    let mut command = pods.client.command(CLIENT, "haproxy")?;
    command.arg("-db").arg("-f").arg(&path);
    let process = Process::start("relay", &mut command)?;
    let at = (Ipv4Addr::LOCALHOST, port).into();
    testbed
        .wait_ready(&pods.client, at, None)
        .with_context(|| process.command_and_log())?;
    Ok(process)
}

fn configuration(testbed: &Testbed, server: Ipv4Addr, port: u16) -> String {
    let certificate = testbed.certificate("client");
    format!(
        "global
    nbthread 1
    ssl-default-server-options ssl-min-ver TLSv1.3
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
listen mesh
    bind 127.0.0.1:{port}
    server proxy {server}:{port} ssl crt {} ca-file {} verify required verifyhost {SERVER} sni str({SERVER})
",
        certificate.combined.display(),
        certificate.anchor.display(),
    )
}
