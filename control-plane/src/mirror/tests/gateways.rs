//! The addresses of gateways, and their probes, on a paused clock.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use mesh_runtime::metrics::Registry;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::super::gateway::{GatewayTask, Resolve, ResolveError};
use super::super::objects::Mirrors;
use super::super::probe::ProbeTask;
use super::super::publisher::Publisher;
use super::super::target::Target;
use super::world::{EAST, read, settings};

/// Names and their addresses; others cannot be resolved.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<HashMap<String, Vec<IpAddr>>>>);

impl Names {
    fn set(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|ip| ip.parse().unwrap());
        self.0.lock().insert(name.to_owned(), addresses.collect());
    }

    fn forget(&self, name: &str) {
        self.0.lock().remove(name);
    }
}

impl Resolve for Names {
    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let found = self.0.lock().get(name).cloned();
        found.ok_or(ResolveError::TimedOut)
    }
}

const PERIOD: Duration = Duration::from_secs(60);

/// The task of a gateway, or the one of its probes.
struct Running {
    targets: watch::Sender<Option<Arc<Target>>>,
    objects: watch::Receiver<Arc<Mirrors>>,
    registry: Registry,
    task: JoinHandle<()>,
}

fn target(gateway: &str) -> Option<Arc<Target>> {
    let spec = EAST.replace("gatewayAddress: 192.0.2.1", gateway);
    Some(Arc::new(Target::of_link(&read(&spec)).unwrap()))
}

fn resolving(names: &Names) -> Running {
    let (targets, received) = watch::channel(target("gatewayAddress: 'b.example,a.example'"));
    let (publisher, objects) = Publisher::new(Mirrors::new(settings(Some("east")), None));
    let registry = Registry::new();
    let task = GatewayTask::new(received, publisher, names.clone(), PERIOD, &registry);
    Running {
        targets,
        objects,
        registry,
        task: tokio::spawn(task.run()),
    }
}

impl Running {
    fn addresses(&self) -> Option<Vec<String>> {
        let mirrors = self.objects.borrow();
        let addresses = mirrors.gateway.addresses.as_deref()?;
        Some(addresses.iter().map(ToString::to_string).collect())
    }

    fn expect(&self, addresses: &[&str]) {
        assert_eq!(self.addresses().unwrap(), addresses);
    }

    fn has_metric(&self, line: &str) -> bool {
        let metrics = String::from_utf8(self.registry.encode()).unwrap();
        metrics.lines().any(|it| it == line)
    }
}

#[tokio::test(start_paused = true)]
async fn names_of_a_gateway_are_resolved_again_and_keep_their_last_addresses() {
    let names = Names::default();
    let running = resolving(&names);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(running.addresses(), None);
    // In the order of their texts, each once, and none that Endpoints cannot have.
    names.set("a.example", &["192.0.2.9", "192.0.2.10", "127.0.0.1"]);
    names.set("b.example", &["192.0.2.9", "2001:db8::1"]);
    sleep(PERIOD).await;
    running.expect(&["192.0.2.10", "192.0.2.9", "2001:db8::1"]);
    names.set("a.example", &["192.0.2.7"]);
    names.forget("b.example");
    sleep(PERIOD).await;
    running.expect(&["192.0.2.7", "192.0.2.9", "2001:db8::1"]);
    let repairs = "service_mirror_endpoint_repairs{target_cluster_name=\"east\"} 3";
    assert!(running.has_metric(repairs));
}

#[tokio::test(start_paused = true)]
async fn changed_gateway_is_resolved_at_once() {
    let names = Names::default();
    names.set("a.example", &["192.0.2.1"]);
    names.set("c.example", &["192.0.2.3"]);
    let running = resolving(&names);
    sleep(Duration::from_secs(1)).await;
    running.expect(&["192.0.2.1"]);
    let _before = running
        .targets
        .send_replace(target("gatewayAddress: c.example"));
    sleep(Duration::from_secs(1)).await;
    running.expect(&["192.0.2.3"]);
    let _before = running.targets.send_replace(target(""));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(running.addresses(), None);
    drop(running.targets);
    running.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn gateway_has_a_limited_number_of_addresses() {
    let names = Names::default();
    let many: Vec<String> = (0..100).map(|at| format!("192.0.2.{at}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    names.set("a.example", &many);
    let running = resolving(&names);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(running.addresses().unwrap().len(), 64);
}

/// A gateway whose responses the test chooses.
struct Gateway {
    port: u16,
    /// `None` never responds.
    response: Arc<Mutex<Option<String>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const ERROR: &str = "HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\n\r\n";

impl Gateway {
    async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let gateway = Self {
            port: listener.local_addr().unwrap().port(),
            response: Arc::default(),
            requests: Arc::default(),
        };
        let (response, requests) = (gateway.response.clone(), gateway.requests.clone());
        tokio::spawn(async move {
            let mut silent = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let length = stream.read(&mut request).await.unwrap_or_default();
                let text = String::from_utf8_lossy(&request[..length]).into_owned();
                requests.lock().push(text);
                let response = response.lock().clone();
                match response {
                    Some(response) => {
                        let _closed = stream.write_all(response.as_bytes()).await;
                    }
                    None => silent.push(stream),
                }
            }
        });
        gateway
    }

    fn respond(&self, response: &str) {
        *self.response.lock() = Some(response.to_owned());
    }

    fn probes(&self) -> Running {
        self.probes_with_timeout("5s")
    }

    fn probes_with_timeout(&self, timeout: &str) -> Running {
        let spec = EAST.replace(
            "port: '4191', period: 3s",
            &format!(
                "port: '{}', period: 10s, timeout: {timeout}, failureThreshold: '2'",
                self.port
            ),
        );
        let target = Target::of_link(&read(&spec)).unwrap();
        let (targets, received) = watch::channel(Some(Arc::new(target)));
        let (publisher, objects) = Publisher::new(Mirrors::new(settings(Some("east")), None));
        let registry = Registry::new();
        let names = Names::default();
        names.set("probe-east", &["127.0.0.1"]);
        let service = Some("probe-east".into());
        let task = ProbeTask::new(received, publisher, names, service, &registry);
        Running {
            targets,
            objects,
            registry,
            task: tokio::spawn(task.run()),
        }
    }
}

/// Waits until the gateway counts as alive or dead.
async fn expect_alive(running: &mut Running, alive: bool) {
    let waiting = running.objects.wait_for(|it| it.gateway.alive == alive);
    let waiting = tokio::time::timeout(Duration::from_secs(100), waiting);
    assert!(waiting.await.is_ok_and(|it| it.is_ok()), "{alive}");
}

#[tokio::test(start_paused = true)]
async fn gateway_is_dead_after_failures_in_a_row_and_alive_after_a_success() {
    let gateway = Gateway::start().await;
    gateway.respond(OK);
    let mut running = gateway.probes();
    sleep(Duration::from_secs(12)).await;
    let request = gateway.requests.lock()[0].clone();
    let host = format!("host: probe-east:{}\r\n", gateway.port);
    assert!(request.starts_with("GET /ready HTTP/1.1\r\n"), "{request}");
    assert!(request.contains(&host), "{request}");
    let of = "{target_cluster_name=\"east\"";
    assert!(running.has_metric(&format!("gateway_alive{of}}} 1")));
    assert!(running.has_metric(&format!("gateway_probes{of},probe_successful=\"true\"}} 1")));
    for response in [ERROR, "no HTTP\r\n\r\n", ""] {
        gateway.respond(response);
        expect_alive(&mut running, false).await;
        assert!(running.has_metric(&format!("gateway_alive{of}}} 0")));
        gateway.respond(OK);
        expect_alive(&mut running, true).await;
    }
    // Without a response it takes the timeout.
    *gateway.response.lock() = None;
    expect_alive(&mut running, false).await;
    // Another gateway counts as alive, and this cluster's metrics end with the Link.
    let _before = running.targets.send_replace(target(""));
    expect_alive(&mut running, true).await;
    assert!(running.has_metric(&format!("gateway_enabled{of}}} 0")));
    assert!(!running.has_metric(&format!("gateway_alive{of}}} 1")));
    drop(running.targets);
    running.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn gateway_without_a_response_is_dead_long_before_the_timeout_of_a_probe() {
    let gateway = Gateway::start().await;
    let mut running = gateway.probes_with_timeout("1000s");
    let begun = Instant::now();
    expect_alive(&mut running, false).await;
    let bound = Duration::from_secs(30);
    assert!(begun.elapsed() < bound + Duration::from_secs(1));
    // The probe still counts.
    let requests = gateway.requests.lock().len();
    assert_eq!(requests, 1);
}

#[tokio::test(start_paused = true)]
async fn one_failure_is_not_the_end_of_a_gateway() {
    let gateway = Gateway::start().await;
    let running = gateway.probes();
    let mut objects = running.objects.clone();
    let dead = tokio::spawn(async move { objects.wait_for(|it| !it.gateway.alive).await.is_ok() });
    for _ in 0..3 {
        for response in [ERROR, OK] {
            gateway.respond(response);
            let before = gateway.requests.lock().len();
            while gateway.requests.lock().len() == before {
                sleep(Duration::from_millis(500)).await;
            }
        }
    }
    assert!(!dead.is_finished());
    let failed = "gateway_probes{target_cluster_name=\"east\",probe_successful=\"false\"} 3";
    assert!(running.has_metric(failed));
}

#[tokio::test(start_paused = true)]
async fn response_beyond_the_limit_is_a_failed_probe() {
    let gateway = Gateway::start().await;
    let long = "a".repeat(20 << 10);
    gateway.respond(&OK.replace("content-length: 0", &format!("x: {long}")));
    let mut running = gateway.probes();
    expect_alive(&mut running, false).await;
}
