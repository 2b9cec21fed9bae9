//! The servers behind the proxies.

use std::fs;
use std::path::Path;

use crate::benchmark::workload::{BODIES, Service, body_path};
use crate::testbed::pod::{Container, CpuRole, Pod};
use crate::testbed::process::Process;
use crate::testbed::{DIRECTORY, Testbed};

const APPLICATION: Container<'_> = Container::root("app", CpuRole::Load);

/// Size of a response body, unless the path asks for another one: small, as most are.
const BODY: usize = 100;

/// Starts all applications and waits until they listen.
pub(super) fn start(testbed: &Testbed, pod: &Pod) -> anyhow::Result<Vec<Process>> {
    let configuration = Path::new(DIRECTORY).join(format!("{}-nginx.conf", pod.name));
    fs::write(&configuration, nginx(&pod.name))?;
    for size in BODIES {
        let path = Path::new(DIRECTORY).join(&body_path(size)[1..]);
        fs::create_dir_all(path.parent().unwrap_or(&path))?;
        fs::write(path, "x".repeat(size))?;
    }
    let process = |name: &str, command: &mut std::process::Command| {
        Process::start(&format!("{}-{name}", pod.name), command)
    };
    let anywhere = |service: Service| format!("0.0.0.0:{}", service.port());
    let mut running = vec![process(
        "nginx",
        pod.command(APPLICATION, "nginx")?
            .arg("-c")
            .arg(&configuration),
    )?];
    for service in [Service::Bulk, Service::Plain] {
        let mut iperf3 = pod.command(APPLICATION, "iperf3")?;
        iperf3.args(["--server", "--port", &service.port().to_string()]);
        running.push(process(&format!("iperf3-{}", service.name()), &mut iperf3)?);
    }
    running.push(process(
        "serve",
        pod.command(APPLICATION, &testbed.programs.bench)?
            .arg("serve")
            .args(["--echo", &anywhere(Service::Echo)])
            .args(["--echo", &anywhere(Service::EchoFullHandshake)])
            .args(["--grpc", &anywhere(Service::Grpc)]),
    )?);
    for service in Service::ALL {
        testbed.wait_ready(pod, ([127, 0, 0, 1], service.port()).into(), None)?;
    }
    Ok(running)
}

/// One process without access log, since nginx is not measured; connections and streams are
/// practically unlimited, so that nginx closes none.
fn nginx(pod: &str) -> String {
    let body = "x".repeat(BODY);
    let (http1, http2) = (Service::Http1.port(), Service::Http2.port());
    format!(
        "daemon off; master_process off; user root; error_log stderr error; pid {DIRECTORY}/{pod}-nginx.pid;
events {{ worker_connections 65536; }}
http {{
    access_log off; default_type text/plain; keepalive_timeout 1h; keepalive_requests 1000000000;
    http2_max_concurrent_streams 10000; tcp_nodelay on;
    server {{
        listen {http1} backlog=4096;
        location / {{ return 200 \"{body}\"; }}
        # Files have no other methods than GET.
        location /bodies/ {{ root {DIRECTORY}; error_page 405 =200 $uri; client_body_buffer_size 128k; }}
    }}
    server {{
        listen {http2} http2 backlog=4096;
        location / {{ return 200 \"{body}\"; }}
        location /grpc {{ default_type application/grpc; add_trailer grpc-status 0; return 200 \"{body}\"; }}
    }}
}}
"
    )
}
