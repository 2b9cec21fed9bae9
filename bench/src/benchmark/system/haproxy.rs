//! A pair of HAProxy proxies: one thread, HTTP/2 or TCP over mutual TLS 1.3 between the two.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::{IN, OUT};
use crate::benchmark::workload::Service;
use crate::testbed::pod::{Container, CpuRole, Pod, Pods};
use crate::testbed::process::Process;
use crate::testbed::{DIRECTORY, ProxyPair, ProxyProcesses, SERVER, Testbed};

const PROXY: Container<'_> = Container::root("haproxy", CpuRole::Proxy);

pub(super) fn start(testbed: &Testbed, pods: &Pods) -> anyhow::Result<ProxyProcesses> {
    let inbound = Process::start(
        "haproxy-server",
        &mut command(
            &pods.server,
            &inbound_configuration(testbed, pods.server.cpus.workers),
        )?,
    )?;
    let outbound = Process::start(
        "haproxy-client",
        &mut command(&pods.client, &outbound_configuration(testbed, pods))?,
    )?;
    for service in Service::ALL {
        for (pod, first, process) in [(&pods.server, IN, &inbound), (&pods.client, OUT, &outbound)]
        {
            let at = (Ipv4Addr::LOCALHOST, first + service.port());
            testbed
                .wait_ready(pod, at.into(), None)
                .with_context(|| process.command_and_log())?;
        }
    }
    Ok(ProxyPair { outbound, inbound })
}

/// Returns a command that starts the client's proxy again and reports the time until it accepts
/// connections.
pub(crate) fn timed_start(testbed: &Testbed, pods: &Pods) -> anyhow::Result<Command> {
    let configuration = write(&pods.client, &outbound_configuration(testbed, pods))?;
    let mut command = pods.client.command(PROXY, &testbed.programs.bench)?;
    let at = format!("127.0.0.1:{}", OUT + Service::Http1.port());
    command
        .args(["load", "ready", "--at", &at, "--", "haproxy", "-db", "-f"])
        .arg(configuration);
    Ok(command)
}

fn command(pod: &Pod, configuration: &str) -> anyhow::Result<Command> {
    let configuration = write(pod, configuration)?;
    let mut command = pod.command(PROXY, "haproxy")?;
    command.arg("-db").arg("-f").arg(configuration);
    Ok(command)
}

fn write(pod: &Pod, configuration: &str) -> anyhow::Result<std::path::PathBuf> {
    let path = Path::new(DIRECTORY).join(format!("{}-haproxy.cfg", pod.name));
    fs::write(&path, configuration)?;
    Ok(path)
}

fn general(workers: u32) -> String {
    format!(
        "global
    nbthread {workers}
    ssl-default-bind-options ssl-min-ver TLSv1.3
    ssl-default-server-options ssl-min-ver TLSv1.3
defaults
    mode http
    http-reuse always
    timeout connect 5s
    timeout client 1h
    timeout server 1h
"
    )
}

fn outbound_configuration(testbed: &Testbed, pods: &Pods) -> String {
    let certificate = testbed.certificate("client");
    let server = pods.server.ip;
    let mut text = general(pods.client.cpus.workers);
    for service in Service::ALL {
        let (name, port) = (service.name(), service.port());
        let bind = match service {
            Service::Http2 | Service::Grpc => " proto h2",
            _ => "",
        };
        let mode = if service.is_http() { "http" } else { "tcp" };
        let tls = match service {
            Service::Plain => String::new(),
            _ => format!(
                " ssl crt {} ca-file {} verify required verifyhost {SERVER} sni str({SERVER}){}{}",
                certificate.combined.display(),
                certificate.anchor.display(),
                if service.is_http() { " alpn h2" } else { "" },
                if service == Service::EchoFullHandshake {
                    " no-ssl-reuse"
                } else {
                    ""
                },
            ),
        };
        let to = IN + port;
        let at = OUT + port;
        // Writing to a string does not fail.
        let _written = write!(
            text,
            "frontend {name}
    mode {mode}
    bind 127.0.0.1:{at}{bind}
    default_backend {name}
backend {name}
    mode {mode}
    server server {server}:{to}{tls}
"
        );
    }
    text
}

fn inbound_configuration(testbed: &Testbed, workers: u32) -> String {
    let certificate = testbed.certificate("server");
    let mut text = general(workers);
    for service in Service::ALL {
        let (name, port) = (service.name(), service.port());
        let mode = if service.is_http() { "http" } else { "tcp" };
        let tls = match service {
            Service::Plain => String::new(),
            _ => format!(
                " ssl crt {} ca-file {} verify required{}{}",
                certificate.combined.display(),
                certificate.anchor.display(),
                if service.is_http() { " alpn h2" } else { "" },
                if service == Service::EchoFullHandshake {
                    " no-tls-tickets"
                } else {
                    ""
                },
            ),
        };
        let proto = match service {
            Service::Http2 | Service::Grpc => " proto h2",
            _ => "",
        };
        let at = IN + port;
        let _written = write!(
            text,
            "frontend {name}
    mode {mode}
    bind 0.0.0.0:{at}{tls}
    default_backend {name}
backend {name}
    mode {mode}
    server server 127.0.0.1:{port}{proto}
"
        );
    }
    text
}
