//! Load by packaged programs (nginx, nghttpd, h2load, wrk), through two proxies: no request fails,
//! also while an endpoint dies.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use mesh_core::policy::outbound::OutboundPolicy;

use crate::harness::{Mesh, Pod, eventually, policies, within};

/// The Service that the load goes to.
const SERVICE: ([u8; 4], u16) = ([10, 96, 0, 1], 80);
const PORT: u16 = 8080;

/// A server process in a pod; dropping it kills it.
struct Process {
    child: Child,
    _files: tempfile::TempDir,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts `command` in the pod's network namespace.
async fn start(pod: &Pod, mut command: Command) -> Child {
    let spawned = async move {
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    };
    pod.spawn(spawned).await.unwrap()
}

async fn listening(pod: &Pod, child: Child, files: tempfile::TempDir) -> Process {
    let process = Process {
        child,
        _files: files,
    };
    eventually("the server listens", || async {
        pod.connect(([127, 0, 0, 1], PORT)).await.ok()
    })
    .await;
    process
}

/// nginx, speaking HTTP/1.
async fn nginx(pod: &Pod) -> Process {
    let files = tempfile::tempdir().unwrap();
    let folder = files.path().display();
    let config = format!(
        "daemon off; master_process off; pid {folder}/pid; error_log stderr crit;
         events {{ worker_connections 4096; }}
         http {{
           access_log off; keepalive_requests 1000;
           client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
           uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
           server {{ listen {PORT}; location / {{ return 200 \"{}\"; }} }}
         }}",
        pod.name
    );
    let path = files.path().join("nginx.conf");
    std::fs::write(&path, config).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-c").arg(&path).arg("-p").arg(files.path());
    let child = start(pod, command).await;
    listening(pod, child, files).await
}

/// nghttpd, speaking HTTP/2 without TLS.
async fn nghttpd(pod: &Pod) -> Process {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("index.html"), "hello").unwrap();
    let mut command = Command::new("nghttpd");
    command
        .arg("--no-tls")
        .arg("-d")
        .arg(files.path())
        .arg(PORT.to_string());
    let child = start(pod, command).await;
    listening(pod, child, files).await
}

/// Why these tests cannot run here, if so.
fn missing() -> Option<&'static str> {
    ["nginx", "nghttpd", "h2load", "wrk"]
        .into_iter()
        .find(|program| {
            let found = Command::new("sh")
                .args(["-c", "command -v \"$0\"", program])
                .output();
            !found.is_ok_and(|output| output.status.success())
        })
}

fn mesh() -> Option<Mesh> {
    if let Some(program) = missing() {
        println!("skipped: {program} is not installed");
        return None;
    }
    Mesh::new()
}

/// Sends what `SERVICE` is sent to `pods`.
fn serve_by<'a>(mesh: &Mesh, pods: impl IntoIterator<Item = &'a Pod>) {
    let policy: OutboundPolicy = policies::service("web", 80);
    mesh.control.outbound(SocketAddr::from(SERVICE), policy);
    let endpoints = pods
        .into_iter()
        .map(|pod| policies::meshed(pod, PORT))
        .collect();
    mesh.control
        .endpoints(&policies::authority("web", 80), endpoints);
}

/// Runs a load generator in the pod to its end and returns what it prints.
async fn load(pod: &Pod, program: &str, arguments: &str) -> String {
    let mut command = Command::new(program);
    command.args(arguments.split(' '));
    finish(start(pod, command).await).await
}

async fn finish(child: Child) -> String {
    let waited = tokio::task::spawn_blocking(|| child.wait_with_output());
    let output = within("the load ends", waited).await.unwrap().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn assert_none_failed(report: &str, requests: u32) {
    let all = format!("{requests} succeeded, 0 failed, 0 errored, 0 timeout");
    assert!(report.contains(&all), "{report}");
    let codes = format!("status codes: {requests} 2xx, 0 3xx, 0 4xx, 0 5xx");
    assert!(report.contains(&codes), "{report}");
}

#[tokio::test]
async fn http1_load_by_wrk_and_h2load() {
    let Some(mesh) = mesh() else { return };
    let server = mesh.pod("server").meshed().await;
    let client = mesh.pod("client").meshed().await;
    let _nginx = nginx(&server).await;
    serve_by(&mesh, [&server]);
    let report = load(&client, "wrk", "-t1 -c64 -d2s http://10.96.0.1/").await;
    assert!(report.contains("requests in"), "{report}");
    assert!(!report.contains("Non-2xx"), "{report}");
    assert!(!report.contains("Socket errors"), "{report}");
    let report = load(&client, "h2load", "--h1 -n 10000 -c 16 http://10.96.0.1/").await;
    assert_none_failed(&report, 10_000);
    // One connection carried it all, and it was TLS.
    let name = server.identity();
    let opened = client
        .metric(&["tcp_open_total", "peer=\"dst\"", &name])
        .await;
    assert_eq!(opened, 1.0);
}

#[tokio::test]
async fn http2_load_by_h2load() {
    let Some(mesh) = mesh() else { return };
    let server = mesh.pod("server").meshed().await;
    let client = mesh.pod("client").meshed().await;
    let _nghttpd = nghttpd(&server).await;
    serve_by(&mesh, [&server]);
    let report = load(&client, "h2load", "-n 20000 -c 8 -m 64 http://10.96.0.1/").await;
    assert_none_failed(&report, 20_000);
    let report = load(
        &client,
        "h2load",
        "-n 400 -c 2 -m 200 -d /bin/true http://10.96.0.1/",
    )
    .await;
    assert!(report.contains("400 done"), "{report}");
}

/// What ends in the middle of the load.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Killed {
    /// The application dies, its proxy lives on.
    Application,
    /// The whole pod.
    Pod,
}

async fn check_kill(killed: Killed) {
    let Some(mesh) = mesh() else { return };
    let (first, second, third) = (
        mesh.pod("first").meshed().await,
        mesh.pod("second").meshed().await,
        mesh.pod("third").meshed().await,
    );
    let client = mesh.pod("client").meshed().await;
    let _servers = (nginx(&first).await, nginx(&second).await);
    let victim = nginx(&third).await;
    serve_by(&mesh, [&first, &second, &third]);
    let mut command = Command::new("h2load");
    command.args("--h1 -n 40000 -c 16 http://10.96.0.1/".split(' '));
    let mut running = start(&client, command).await;
    let identity = third.identity();
    eventually("the victim serves", || async {
        let served = client.metric(&["request_total", &identity]).await;
        (served > 500.0).then_some(())
    })
    .await;
    drop(victim);
    if killed == Killed::Pod {
        drop(third);
    }
    assert!(
        running.try_wait().unwrap().is_none(),
        "the load ended too early"
    );
    // Discovery never says that the endpoint has gone: the proxies must do without.
    assert_none_failed(&finish(running).await, 40_000);
}

#[tokio::test]
async fn an_application_dies_under_load_and_no_request_fails() {
    check_kill(Killed::Application).await;
}

#[tokio::test]
async fn a_pod_dies_under_load_and_no_request_fails() {
    check_kill(Killed::Pod).await;
}
