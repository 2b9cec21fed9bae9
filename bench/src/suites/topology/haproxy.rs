//! HAProxy as a relay that adds or removes the mesh's TLS.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;

use crate::testbed::pod::{Container, Pod};
use crate::testbed::process::Process;
use crate::testbed::{DIRECTORY, Testbed};

const SETTINGS: &str = "\
global
    nbthread 1
    ssl-default-bind-options ssl-min-ver TLSv1.3
    ssl-default-server-options ssl-min-ver TLSv1.3
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
";

/// Starts HAProxy with these sections, and waits until it listens.
pub(super) fn start(
    testbed: &Testbed,
    (pod, container): (&Pod, Container<'_>),
    name: &str,
    sections: &str,
    listens_at: SocketAddr,
) -> anyhow::Result<Process> {
    let path = Path::new(DIRECTORY).join(format!("{name}.cfg"));
    fs::write(&path, [SETTINGS, sections].concat())?;
    let mut command = pod.command(container, "haproxy")?;
    command.arg("-db").arg("-f").arg(&path);
    let process = Process::start(name, &mut command)?;
    testbed
        .wait_ready(pod, listens_at, None)
        .with_context(|| process.command_and_log())?;
    Ok(process)
}
