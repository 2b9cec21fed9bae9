//! The collector of spans: Jaeger in the server pod. The proxies send their spans over the mesh's
//! TLS, which HAProxy terminates, and the instrumented applications send theirs in clear text.

use std::net::Ipv4Addr;

use anyhow::Context;
use serde_json::Value;

use super::haproxy;
use crate::suites::tools::Tools;
use crate::testbed::pod::{Container, CpuRole, Pod};
use crate::testbed::process::Process;
use crate::testbed::{SERVER, Testbed};

const COLLECTOR: Container<'_> = Container::root("collector", CpuRole::Load);

/// OTLP over gRPC, and over HTTP.
const GRPC_PORT: u16 = 4317;
const HTTP_PORT: u16 = 4318;
const QUERY_PORT: u16 = 16686;

/// The ports that are not redirected.
pub(super) const PORTS: [u16; 2] = [GRPC_PORT, HTTP_PORT];

/// The variable of the proxies with the address for OTLP over gRPC, [`mesh_address`].
pub(super) const ADDRESS_VARIABLE: &str = "LINKERD2_PROXY_TRACE_COLLECTOR_SVC_ADDR";
/// The variable with the identity that the proxies expect there.
pub(super) const IDENTITY: (&str, &str) = ("LINKERD2_PROXY_TRACE_COLLECTOR_SVC_NAME", SERVER);

/// Starts Jaeger, which listens on the loopback address, and HAProxy in front of it.
pub(super) fn start(testbed: &Testbed, tools: &Tools, pod: &Pod) -> anyhow::Result<[Process; 2]> {
    let mut command = pod.command(COLLECTOR, tools.jaeger()?)?;
    let jaeger = Process::start("jaeger", &mut command)?;
    for port in [GRPC_PORT, HTTP_PORT, QUERY_PORT] {
        testbed
            .wait_ready(pod, (Ipv4Addr::LOCALHOST, port).into(), None)
            .with_context(|| jaeger.command_and_log())?;
    }
    let tls = haproxy::start(
        testbed,
        (pod, COLLECTOR),
        "collector-tls",
        &sections(testbed, pod.ip),
        (pod.ip, HTTP_PORT).into(),
    )?;
    Ok([jaeger, tls])
}

/// Returns the address for OTLP over gRPC, by the mesh's TLS.
pub(super) fn mesh_address(pod: &Pod) -> String {
    format!("{}:{GRPC_PORT}", pod.ip)
}

/// Returns the address for OTLP over HTTP.
pub(super) fn address(pod: &Pod) -> String {
    format!("{}:{HTTP_PORT}", pod.ip)
}

/// Returns the trace of this number as Jaeger's HTTP API has it, or null before its first span.
pub(super) fn trace(pod: &Pod, id: &str) -> anyhow::Result<Value> {
    let mut command = pod.command(COLLECTOR, "curl")?;
    command.arg("-sS");
    command.arg(format!("http://localhost:{QUERY_PORT}/api/traces/{id}"));
    let response = Process::start("jaeger-query", &mut command)?.output()?;
    let mut response: Value = serde_json::from_str(&response)
        .with_context(|| format!("parse the response of Jaeger: {response:?}"))?;
    let trace = response.pointer_mut("/data/0").map(Value::take);
    Ok(trace.unwrap_or_default())
}

/// HAProxy presents the server's certificate and requires one of the mesh.
fn sections(testbed: &Testbed, address: Ipv4Addr) -> String {
    let certificate = testbed.certificate("server");
    format!(
        "listen mesh
    bind {address}:{GRPC_PORT} ssl crt {} ca-file {} verify required alpn h2
    server jaeger 127.0.0.1:{GRPC_PORT}
listen applications
    bind {address}:{HTTP_PORT}
    server jaeger 127.0.0.1:{HTTP_PORT}
",
        certificate.combined.display(),
        certificate.anchor.display(),
    )
}
