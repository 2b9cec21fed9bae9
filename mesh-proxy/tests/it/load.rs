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

/// An application that pods run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Server {
    Nginx,
    Nghttpd,
}

impl Server {
    async fn start(self, pod: &Pod) -> (Program, TempDir) {
        match self {
            Self::Nginx => nginx(pod).await,
            Self::Nghttpd => nghttpd(pod).await,
        }
    }
}

/// The victim dies when it has served this part of the requests: most are still to come.
const SERVED: u32 = 24;

/// Kills one of three servers while h2load sends `requests` requests.
///
/// A request that is lost on a connection that the server has not responded on before is not sent
/// again (docs/adr/0211): `clients` must need no new connection to the victim when it dies.
async fn check_kill(killed: Killed, server: Server, clients: &str, requests: u32) {
    let Some(mesh) = mesh() else { return };
    let mut pods = Vec::new();
    for name in ["first", "second", "third"] {
        let pod = mesh.pod(name).meshed().await;
        pods.push((server.start(&pod).await, pod));
    }
    let client = mesh.pod("client").meshed().await;
    serve_by(&mesh, pods.iter().map(|(_, pod)| pod));
    let load = format!("h2load {clients} -n {requests} http://10.96.0.1/");
    let mut running = client.launch(load);
    // One that is slow at first may get few requests.
    let busy = eventually("a pod serves", async || {
        for (at, (_, pod)) in pods.iter().enumerate() {
            let served = client.metric(&["request_total", &pod.identity()]).await;
            if served > f64::from(requests / SERVED) {
                return Some(at);
            }
        }
        None
    })
    .await;
    let (program, pod) = pods.swap_remove(busy);
    let victim = match killed {
        Killed::Application => {
            drop(program);
            Some(pod)
        }
        // The proxy first: it would still answer for an application that is gone.
        Killed::Pod => {
            drop(pod);
            drop(program);
            None
        }
    };
    assert!(running.exit_status().is_none(), "the load ended too early");
    // Discovery never says that the endpoint has gone: the proxies must do without.
    running.exited().await;
    assert_none_failed(&running.finish().1, requests);
    drop(victim);
}

/// One client has one request in flight, on the connection of the one before.
#[tokio::test]
async fn an_application_dies_under_load_and_no_request_fails() {
    check_kill(Killed::Application, Server::Nginx, "--h1 -c 1", 3_000).await;
}

/// All requests of HTTP/2 share the connection to the application.
#[tokio::test]
async fn an_http2_application_dies_under_load_and_no_request_fails() {
    check_kill(Killed::Application, Server::Nghttpd, "-c 16 -m 1", 12_000).await;
}

/// All requests share the connection to the victim's proxy.
#[tokio::test]
async fn a_pod_dies_under_load_and_no_request_fails() {
    check_kill(Killed::Pod, Server::Nginx, "--h1 -c 16", 12_000).await;
}
