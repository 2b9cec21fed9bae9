//! Startup, readiness and liveness probes.

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use http::header::HOST;
use http::{HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, Probe};
use mesh_k8s::pod::probes::{request_target, resolve_port};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

use super::shim::{self, ExecSpec, Program, ShimTask};
use super::state::ContainerState;
use crate::file;

/// The probes of one container.
#[derive(Clone, Debug)]
pub struct Probes {
    pub startup: Option<ProbeCheck>,
    pub readiness: Option<ProbeCheck>,
    pub liveness: Option<ProbeCheck>,
}

#[derive(Clone, Debug)]
pub struct ProbeCheck {
    action: Action,
    initial_delay: Duration,
    period: Duration,
    timeout: Duration,
    success_threshold: u32,
    failure_threshold: u32,
}

/// The running container, as far as exec probes need it.
#[derive(Clone, Debug)]
pub struct ExecTarget {
    /// The program of the container. The command of the probe replaces its command.
    pub program: Program,
    pub cgroup: PathBuf,
    pub pid: u32,
    /// When the container started, which initial delays are relative to, as in the kubelet.
    pub since: Instant,
    /// The file for the task of the shim.
    pub task_file: PathBuf,
}

#[derive(Clone, Debug)]
enum Action {
    Http {
        address: SocketAddr,
        path: String,
        headers: Vec<(HeaderName, HeaderValue)>,
    },
    Tcp(SocketAddr),
    Exec(Vec<String>),
}

impl Probes {
    /// Reads the probes of a container; `pod_ip` is their default host.
    pub fn from_container(container: &Container, pod_ip: IpAddr) -> Self {
        let check =
            |probe: &Option<Probe>| ProbeCheck::from_probe(container, probe.as_ref()?, pod_ip);
        Self {
            startup: check(&container.startup_probe),
            readiness: check(&container.readiness_probe),
            liveness: check(&container.liveness_probe),
        }
    }

    /// Probes a running container and updates its state. Returns the reason when the container must
    /// be restarted.
    pub async fn watch(
        &self,
        target: &ExecTarget,
        state: &watch::Sender<ContainerState>,
    ) -> String {
        if let Some(startup) = &self.startup
            && let Err(reason) = startup.wait_until_passed(target).await
        {
            return format!("startup probe failed: {reason}");
        }
        let has_no_readiness_probe = self.readiness.is_none();
        state.send_modify(|state| {
            state.started = true;
            state.ready = has_no_readiness_probe;
        });
        let readiness = async {
            match &self.readiness {
                None => std::future::pending().await,
                Some(check) => check.monitor(target, |ready| set_ready(state, ready)).await,
            }
        };
        let liveness = async {
            match &self.liveness {
                None => std::future::pending().await,
                Some(check) => check.wait_until_failed(target).await,
            }
        };
        tokio::select! {
            never = readiness => never,
            reason = liveness => format!("liveness probe failed: {reason}"),
        }
    }
}

impl ProbeCheck {
    fn from_probe(container: &Container, probe: &Probe, pod_ip: IpAddr) -> Option<Self> {
        let seconds = |value: Option<i32>, default: u64| {
            let value = value.and_then(|value| u64::try_from(value).ok());
            Duration::from_secs(value.unwrap_or(default))
        };
        let count = |value: Option<i32>, default: u32| {
            let value = value.and_then(|value| u32::try_from(value).ok());
            value.unwrap_or(default).max(1)
        };
        // The defaults of Kubernetes.
        Some(Self {
            action: Action::from_probe(container, probe, pod_ip)?,
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10).max(Duration::from_secs(1)),
            timeout: seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1)),
            success_threshold: count(probe.success_threshold, 1),
            failure_threshold: count(probe.failure_threshold, 3),
        })
    }

    /// Waits until the probe succeeds. Fails when the number of consecutive failures reaches the
    /// threshold.
    async fn wait_until_passed(&self, target: &ExecTarget) -> Result<(), String> {
        tokio::time::sleep_until(target.since + self.initial_delay).await;
        let mut failures = 0;
        loop {
            match self.run_once(target).await {
                Ok(()) => return Ok(()),
                Err(reason) => {
                    failures += 1;
                    if failures >= self.failure_threshold {
                        return Err(reason);
                    }
                }
            }
            tokio::time::sleep(self.period).await;
        }
    }

    async fn wait_until_failed(&self, target: &ExecTarget) -> String {
        tokio::time::sleep_until(target.since + self.initial_delay).await;
        let mut failures = 0;
        loop {
            match self.run_once(target).await {
                Ok(()) => failures = 0,
                Err(reason) => {
                    failures += 1;
                    if failures >= self.failure_threshold {
                        return reason;
                    }
                }
            }
            tokio::time::sleep(self.period).await;
        }
    }

    /// Calls `set_ready` with the result whenever a threshold is reached; never returns.
    async fn monitor<T>(&self, target: &ExecTarget, set_ready: impl Fn(bool)) -> T {
        tokio::time::sleep_until(target.since + self.initial_delay).await;
        let (mut successes, mut failures) = (0, 0);
        loop {
            if self.run_once(target).await.is_ok() {
                (successes, failures) = (successes + 1, 0);
                if successes >= self.success_threshold {
                    set_ready(true);
                }
            } else {
                (successes, failures) = (0, failures + 1);
                if failures >= self.failure_threshold {
                    set_ready(false);
                }
            }
            tokio::time::sleep(self.period).await;
        }
    }

    async fn run_once(&self, target: &ExecTarget) -> Result<(), String> {
        match tokio::time::timeout(self.timeout, self.action.run(target)).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(format!("no response within {:?}", self.timeout)),
        }
    }
}

impl Action {
    fn from_probe(container: &Container, probe: &Probe, pod_ip: IpAddr) -> Option<Self> {
        let address = |host: &Option<String>, port| {
            let host = host.as_ref().and_then(|host| host.parse().ok());
            let port = resolve_port(container, port)?;
            Some(SocketAddr::new(host.unwrap_or(pod_ip), port))
        };
        if let Some(action) = &probe.http_get {
            let headers = action.http_headers.iter().flatten();
            let headers = headers
                .filter_map(|header| Some((header.name.parse().ok()?, header.value.parse().ok()?)));
            return Some(Self::Http {
                address: address(&action.host, &action.port)?,
                path: request_target(action.path.as_deref().unwrap_or_default())?,
                headers: headers.collect(),
            });
        }
        if let Some(action) = &probe.tcp_socket {
            return Some(Self::Tcp(address(&action.host, &action.port)?));
        }
        let action = probe.exec.as_ref()?;
        Some(Self::Exec(action.command.clone()?))
    }

    async fn run(&self, target: &ExecTarget) -> Result<(), String> {
        match self {
            Self::Http {
                address,
                path,
                headers,
            } => http(*address, path, headers).await,
            Self::Tcp(address) => match TcpStream::connect(address).await {
                Ok(_) => Ok(()),
                Err(error) => Err(format!("connect to {address}: {error}")),
            },
            Self::Exec(command) => exec(command, target).await,
        }
    }
}

fn set_ready(state: &watch::Sender<ContainerState>, ready: bool) {
    state.send_if_modified(|state| {
        let changed = state.ready != ready;
        state.ready = ready;
        changed
    });
}

/// Maximum number of body bytes to read, as in the kubelet.
const MAX_BODY_BYTES: usize = 10 * 1024;

/// Sends a GET request. Status codes from 200 to 399 are a success.
async fn http(
    address: SocketAddr,
    path: &str,
    headers: &[(HeaderName, HeaderValue)],
) -> Result<(), String> {
    let describe = |problem: String| format!("GET http://{address}{path}: {problem}");
    let status = get(address, path, headers).await;
    let status = status.map_err(|error| describe(error.to_string()))?;
    if status.is_success() || status.is_redirection() {
        Ok(())
    } else {
        Err(describe(status.to_string()))
    }
}

async fn get(
    address: SocketAddr,
    path: &str,
    headers: &[(HeaderName, HeaderValue)],
) -> Result<StatusCode, Box<dyn Error + Send + Sync>> {
    let stream = TokioIo::new(TcpStream::connect(address).await?);
    let (mut client, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let mut request = Request::get(path)
        .header("user-agent", "kube-probe/mesh-local")
        .header("connection", "close");
    if !headers.iter().any(|(name, _)| name == HOST) {
        request = request.header(HOST, address.to_string());
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.body(Empty::<Bytes>::new())?;
    let response = async {
        let (parts, body) = client.send_request(request).await?.into_parts();
        // The body is read completely, because some servers log an error if the connection closes
        // early.
        let _ = Limited::new(body, MAX_BODY_BYTES).collect().await;
        Ok(parts.status)
    };
    tokio::join!(response, connection).0
}

async fn exec(command: &[String], target: &ExecTarget) -> Result<(), String> {
    let task = ShimTask::Exec(ExecSpec {
        cgroup: target.cgroup.clone(),
        pid: target.pid,
        program: Program {
            command: command.to_vec(),
            ..target.program.clone()
        },
    });
    let text = serde_json::to_vec(&task).map_err(|error| error.to_string())?;
    let status = async {
        file::write(&target.task_file, &text, 0o600)?;
        shim::command(&target.task_file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .status()
            .await
    };
    let status = status.await.map_err(|error: io::Error| error.to_string())?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{}: {status}", command.join(" ")))
    }
}
