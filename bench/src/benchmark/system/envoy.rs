//! A pair of Envoy proxies: one worker, a minimal static configuration, HTTP/2 or TCP over mutual
//! TLS 1.3 between the two.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::{Value, json};

use super::{IN, OUT};
use crate::benchmark::tools;
use crate::benchmark::workload::Service;
use crate::testbed::pod::{Container, CpuRole, Pod, Pods};
use crate::testbed::process::Process;
use crate::testbed::{CLIENT, Certificate, DIRECTORY, ProxyPair, ProxyProcesses, SERVER, Testbed};

const PROXY: Container<'_> = Container::root("envoy", CpuRole::Proxy);

const ADMIN: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 9901);
/// Replaces Envoy's default limit of 1,024, which the workloads exceed.
const UNLIMITED: u32 = 1_000_000_000;

pub(super) fn start(testbed: &Testbed, pods: &Pods) -> anyhow::Result<ProxyProcesses> {
    let proxy = |pod: &Pod, configuration: &Value| {
        let mut command = pod.command(PROXY, tools::envoy()?)?;
        command.args(arguments(pod, &write(pod, configuration)?));
        Process::start(&format!("{}-envoy", pod.name), &mut command)
    };
    let proxies = ProxyPair {
        inbound: proxy(&pods.server, &inbound_configuration(testbed))?,
        outbound: proxy(
            &pods.client,
            &outbound_configuration(testbed, pods.server.ip),
        )?,
    };
    for (pod, process) in [
        (&pods.server, &proxies.inbound),
        (&pods.client, &proxies.outbound),
    ] {
        testbed
            .wait_ready(pod, ADMIN.into(), Some("/ready"))
            .with_context(|| process.command_and_log())?;
    }
    Ok(proxies)
}

/// Returns a command that starts the client's proxy again and reports the time until it is ready.
pub(crate) fn timed_start(testbed: &Testbed, pods: &Pods) -> anyhow::Result<Command> {
    let configuration = write(
        &pods.client,
        &outbound_configuration(testbed, pods.server.ip),
    )?;
    let mut command = pods.client.command(PROXY, &testbed.programs.bench)?;
    let at = format!("{}:{}", ADMIN.0, ADMIN.1);
    command
        .args(["load", "ready", "--at", &at, "--path", "/ready", "--"])
        .arg(tools::envoy()?)
        .args(arguments(&pods.client, &configuration));
    Ok(command)
}

fn arguments(pod: &Pod, configuration: &Path) -> [String; 7] {
    [
        "-c".to_owned(),
        configuration.display().to_string(),
        "--concurrency".to_owned(),
        pod.cpus.workers.to_string(),
        "--disable-hot-restart".to_owned(),
        "--log-level".to_owned(),
        "error".to_owned(),
    ]
}

fn write(pod: &Pod, configuration: &Value) -> anyhow::Result<PathBuf> {
    let path = Path::new(DIRECTORY).join(format!("{}-envoy.json", pod.name));
    fs::write(&path, serde_json::to_vec_pretty(configuration)?)?;
    Ok(path)
}

fn outbound_configuration(testbed: &Testbed, server: Ipv4Addr) -> Value {
    let certificate = testbed.certificate("client");
    let listeners = Service::ALL
        .map(|service| listener(service, Ipv4Addr::LOCALHOST, OUT + service.port(), None));
    let clusters = Service::ALL.map(|service| {
        let mut cluster = cluster(service, server, IN + service.port(), service.is_http());
        if service != Service::Plain {
            cluster["transport_socket"] = upstream_tls(service, &certificate);
        }
        cluster
    });
    bootstrap(&listeners, &clusters)
}

fn inbound_configuration(testbed: &Testbed) -> Value {
    let certificate = testbed.certificate("server");
    let listeners = Service::ALL.map(|service| {
        let tls = (service != Service::Plain).then(|| downstream_tls(service, &certificate));
        listener(service, Ipv4Addr::UNSPECIFIED, IN + service.port(), tls)
    });
    let clusters = Service::ALL.map(|service| {
        let http2 = matches!(service, Service::Http2 | Service::Grpc);
        cluster(service, Ipv4Addr::LOCALHOST, service.port(), http2)
    });
    bootstrap(&listeners, &clusters)
}

fn bootstrap(listeners: &[Value], clusters: &[Value]) -> Value {
    json!({
        "admin": { "address": address(ADMIN.0, ADMIN.1) },
        "static_resources": { "listeners": listeners, "clusters": clusters },
        // Envoy warns unless this limit is configured; it is larger than in any workload.
        "overload_manager": { "resource_monitors": [{
            "name": "envoy.resource_monitors.global_downstream_max_connections",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                "max_active_downstream_connections": UNLIMITED,
            },
        }] },
    })
}

fn listener(service: Service, ip: Ipv4Addr, port: u16, tls: Option<Value>) -> Value {
    let filter = if service.is_http() {
        json!({
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "stat_prefix": service.name(),
                "codec_type": "AUTO",
                // Neither mesh-proxy nor HAProxy generates request IDs.
                "generate_request_id": false,
                "route_config": { "virtual_hosts": [{
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{
                        "match": { "prefix": "/" },
                        "route": { "cluster": service.name(), "timeout": "0s" },
                    }],
                }] },
                "http_filters": [{
                    "name": "envoy.filters.http.router",
                    "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
                }],
            },
        })
    } else {
        json!({
            "name": "envoy.filters.network.tcp_proxy",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                "stat_prefix": service.name(),
                "cluster": service.name(),
            },
        })
    };
    let mut chain = json!({ "filters": [filter] });
    if let Some(tls) = tls {
        chain["transport_socket"] = tls;
    }
    json!({
        "name": service.name(),
        "address": address(ip, port),
        "filter_chains": [chain],
    })
}

fn cluster(service: Service, ip: Ipv4Addr, port: u16, http2: bool) -> Value {
    let mut cluster = json!({
        "name": service.name(),
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": { "thresholds": [{
            "max_connections": UNLIMITED,
            "max_pending_requests": UNLIMITED,
            "max_requests": UNLIMITED,
        }] },
        "load_assignment": {
            "cluster_name": service.name(),
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address(ip, port) } }] }],
        },
    });
    if http2 {
        cluster["typed_extension_protocol_options"] = json!({
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": { "http2_protocol_options": {} },
            },
        });
    }
    cluster
}

fn upstream_tls(service: Service, certificate: &Certificate) -> Value {
    let mut config = json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": common_tls(service, certificate, SERVER),
        "sni": SERVER,
    });
    if service == Service::EchoFullHandshake {
        config["max_session_keys"] = json!(0);
    }
    json!({ "name": "envoy.transport_sockets.tls", "typed_config": config })
}

fn downstream_tls(service: Service, certificate: &Certificate) -> Value {
    let mut config = json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": common_tls(service, certificate, CLIENT),
        "require_client_certificate": true,
    });
    if service == Service::EchoFullHandshake {
        config["disable_stateless_session_resumption"] = json!(true);
    }
    json!({ "name": "envoy.transport_sockets.tls", "typed_config": config })
}

fn common_tls(service: Service, certificate: &Certificate, peer: &str) -> Value {
    let mut common = json!({
        "tls_params": {
            "tls_minimum_protocol_version": "TLSv1_3",
            "tls_maximum_protocol_version": "TLSv1_3",
        },
        "tls_certificates": [{
            "certificate_chain": { "filename": certificate.chain },
            "private_key": { "filename": certificate.key },
        }],
        "validation_context": {
            "trusted_ca": { "filename": certificate.anchor },
            "match_typed_subject_alt_names": [{ "san_type": "DNS", "matcher": { "exact": peer } }],
        },
    });
    if service.is_http() {
        common["alpn_protocols"] = json!(["h2"]);
    }
    common
}

fn address(ip: Ipv4Addr, port: u16) -> Value {
    json!({ "socket_address": { "address": ip, "port_value": port } })
}
