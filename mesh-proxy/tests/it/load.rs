//! Load by packaged programs (nginx, nghttpd, h2load, wrk), through two proxies: no request fails,
//! also while an endpoint dies.

use mesh_test_support::campaign;
use mesh_test_support::command::are_installed;
use mesh_test_support::program::Program;
use tempfile::TempDir;

use crate::harness::{Mesh, Pod, eventually, policies};

/// The Service that the load goes to.
pub(super) const SERVICE: ([u8; 4], u16) = ([10, 96, 0, 1], 80);
pub(super) const PORT: u16 = 8080;

/// nginx, speaking HTTP/1.
pub(super) async fn nginx(pod: &Pod) -> (Program, TempDir) {
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
    std::fs::write(files.path().join("nginx.conf"), config).unwrap();
    let line = format!("nginx -c {folder}/nginx.conf -p {folder}");
    (pod.serve(PORT, line).await, files)
}

/// nghttpd, speaking HTTP/2 without TLS.
async fn nghttpd(pod: &Pod) -> (Program, TempDir) {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("index.html"), "hello").unwrap();
    let line = format!("nghttpd --no-tls -d {} {PORT}", files.path().display());
    (pod.serve(PORT, line).await, files)
}

pub(super) fn mesh() -> Option<Mesh> {
    are_installed(&["nginx", "nghttpd", "h2load", "wrk"]).then(Mesh::new)?
}

/// Sends the updates of `SERVICE` to `pods`.
pub(super) fn serve_by<'a>(mesh: &Mesh, pods: impl IntoIterator<Item = &'a Pod>) {
    let endpoints: Vec<_> = pods
        .into_iter()
        .map(|pod| policies::meshed(pod, PORT))
        .collect();
    mesh.control.service(SERVICE, "web", endpoints);
}

pub(super) fn assert_none_failed(report: &str, requests: u32) {
    let all = format!("{requests} succeeded, 0 failed, 0 errored, 0 timeout");
    assert!(report.contains(&all), "{report}");
    let codes = format!("status codes: {requests} 2xx, 0 3xx, 0 4xx, 0 5xx");
    assert!(report.contains(&codes), "{report}");
    campaign::measured(all);
}

#[tokio::test]
async fn http1_load_by_wrk_and_h2load() {
    let Some(mesh) = mesh() else { return };
    let server = mesh.pod("server").meshed().await;
    let client = mesh.pod("client").meshed().await;
    let _nginx = nginx(&server).await;
    serve_by(&mesh, [&server]);
    let report = client.run("wrk -t1 -c64 -d2s http://10.96.0.1/").await;
    assert!(report.contains("requests in"), "{report}");
    assert!(!report.contains("Non-2xx"), "{report}");
    assert!(!report.contains("Socket errors"), "{report}");
    let report = client
        .run("h2load --h1 -n 10000 -c 16 http://10.96.0.1/")
        .await;
    assert_none_failed(&report, 10_000);
    // One connection carried all requests, and it was TLS. Before its load wrk opens and closes a
    // connection without a byte, which the server sees too.
    let name = server.identity();
    let opened = client
        .metric(&["tcp_open_total", "peer=\"dst\"", &name])
        .await;
    assert_eq!(opened, 2.0);
}

#[tokio::test]
async fn http2_load_by_h2load() {
    let Some(mesh) = mesh() else { return };
    let server = mesh.pod("server").meshed().await;
    let client = mesh.pod("client").meshed().await;
    let _nghttpd = nghttpd(&server).await;
    serve_by(&mesh, [&server]);
    let report = client
        .run("h2load -n 20000 -c 8 -m 64 http://10.96.0.1/")
        .await;
    assert_none_failed(&report, 20_000);
    let report = client
        .run("h2load -n 400 -c 2 -m 200 -d /bin/true http://10.96.0.1/")
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

/// Enough that most are still to come when the victim dies, and few enough for a debug build on a
/// busy machine.
const REQUESTS: u32 = 12_000;

/// How many requests the victim has served when it dies.
const SERVED: f64 = 500.0;

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
    let mut running = client.launch(format!("h2load --h1 -n {REQUESTS} -c 16 http://10.96.0.1/"));
    let identity = third.identity();
    eventually("the victim serves", || async {
        client.metric(&["request_total", &identity]).await > SERVED
    })
    .await;
    drop(victim);
    if killed == Killed::Pod {
        drop(third);
    }
    assert!(running.exit_status().is_none(), "the load ended too early");
    // Discovery never says that the endpoint has gone: the proxies must do without.
    running.exited().await;
    assert_none_failed(&running.finish().1, REQUESTS);
}

#[tokio::test]
async fn an_application_dies_under_load_and_no_request_fails() {
    check_kill(Killed::Application).await;
}

#[tokio::test]
async fn a_pod_dies_under_load_and_no_request_fails() {
    check_kill(Killed::Pod).await;
}
