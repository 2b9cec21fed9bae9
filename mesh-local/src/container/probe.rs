//! Probes: is a container started, ready, alive?

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use http::{HeaderName, HeaderValue, Request, header::HOST};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, Probe};
use mesh_k8s::pod::probes::resolve_port;
use tokio::{net::TcpStream, sync::watch, time::Instant};

use super::{
    state::ContainerState,
    stub::{Join, Program, Task},
};
use crate::file;

/// The probes of one container.
#[derive(Clone, Debug)]
pub struct Probes {
    pub startup: Option<Check>,
    pub readiness: Option<Check>,
    pub liveness: Option<Check>,
}

#[derive(Clone, Debug)]
pub struct Check {
    action: Action,
    initial_delay: Duration,
    period: Duration,
    timeout: Duration,
    success_threshold: u32,
    failure_threshold: u32,
}

/// What a probe that runs in the container needs to get there.
#[derive(Clone, Debug)]
pub struct Inside {
    /// Without its command.
    pub program: Program,
    pub cgroup: PathBuf,
    pub pid: u32,
    /// When the container was started; initial delays count from here, as the kubelet counts them.
    pub since: Instant,
    /// Where the stub's task may be written.
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
    /// Reads a container's probes; `pod_ip` is where they go when they name no host.
    pub fn of(container: &Container, pod_ip: IpAddr) -> Self {
        let check = |probe: &Option<Probe>| Check::of(container, probe.as_ref()?, pod_ip);
        Self {
            startup: check(&container.startup_probe),
            readiness: check(&container.readiness_probe),
            liveness: check(&container.liveness_probe),
        }
    }

    /// Probes a running container and keeps its state. Returns, with the reason, when it must be
    /// restarted.
    pub async fn watch(&self, inside: &Inside, state: &watch::Sender<ContainerState>) -> String {
        if let Some(startup) = &self.startup
            && let Err(reason) = startup.until_passed(inside).await
        {
            return format!("startup probe failed: {reason}");
        }
        let ready_without_asking = self.readiness.is_none();
        state.send_modify(|state| {
            state.started = true;
            state.ready = ready_without_asking;
        });
        let readiness = async {
            match &self.readiness {
                None => std::future::pending().await,
                Some(check) => check.keep(inside, |ready| set_ready(state, ready)).await,
            }
        };
        let liveness = async {
            match &self.liveness {
                None => std::future::pending().await,
                Some(check) => check.until_failed(inside).await,
            }
        };
        tokio::select! {
            never = readiness => never,
            reason = liveness => format!("liveness probe failed: {reason}"),
        }
    }
}

impl Check {
    fn of(container: &Container, probe: &Probe, pod_ip: IpAddr) -> Option<Self> {
        let seconds = |value: Option<i32>, default: u64| {
            let value = value.and_then(|value| u64::try_from(value).ok());
            Duration::from_secs(value.unwrap_or(default))
        };
        let count = |value: Option<i32>, default: u32| {
            let value = value.and_then(|value| u32::try_from(value).ok());
            value.unwrap_or(default).max(1)
        };
        // Kubernetes' defaults.
        Some(Self {
            action: Action::of(container, probe, pod_ip)?,
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10).max(Duration::from_secs(1)),
            timeout: seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1)),
            success_threshold: count(probe.success_threshold, 1),
            failure_threshold: count(probe.failure_threshold, 3),
        })
    }

    /// Fails after as many failures in a row as the threshold allows.
    async fn until_passed(&self, inside: &Inside) -> Result<(), String> {
        tokio::time::sleep_until(inside.since + self.initial_delay).await;
        let mut failures = 0;
        loop {
            match self.once(inside).await {
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

    async fn until_failed(&self, inside: &Inside) -> String {
        tokio::time::sleep_until(inside.since + self.initial_delay).await;
        let mut failures = 0;
        loop {
            match self.once(inside).await {
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

    /// Tells each change of the verdict, for ever.
    async fn keep<T>(&self, inside: &Inside, tell: impl Fn(bool)) -> T {
        tokio::time::sleep_until(inside.since + self.initial_delay).await;
        let (mut successes, mut failures) = (0, 0);
        loop {
            if self.once(inside).await.is_ok() {
                (successes, failures) = (successes + 1, 0);
                if successes >= self.success_threshold {
                    tell(true);
                }
            } else {
                (successes, failures) = (0, failures + 1);
                if failures >= self.failure_threshold {
                    tell(false);
                }
            }
            tokio::time::sleep(self.period).await;
        }
    }

    async fn once(&self, inside: &Inside) -> Result<(), String> {
        match tokio::time::timeout(self.timeout, self.action.run(inside)).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(format!("no answer within {:?}", self.timeout)),
        }
    }
}

impl Action {
    fn of(container: &Container, probe: &Probe, pod_ip: IpAddr) -> Option<Self> {
        let address = |host: &Option<String>, port| {
            let host = host.as_ref().and_then(|host| host.parse().ok());
            let port = resolve_port(container, port)?;
            Some(SocketAddr::new(host.unwrap_or(pod_ip), port))
        };
        if let Some(action) = &probe.http_get {
            let headers = action.http_headers.iter().flatten();
            let headers = headers
                .filter_map(|header| Some((header.name.parse().ok()?, header.value.parse().ok()?)));
            let path = action.path.clone().unwrap_or_default();
            return Some(Self::Http {
                address: address(&action.host, &action.port)?,
                path: if path.starts_with('/') {
                    path
                } else {
                    format!("/{path}")
                },
                headers: headers.collect(),
            });
        }
        if let Some(action) = &probe.tcp_socket {
            return Some(Self::Tcp(address(&action.host, &action.port)?));
        }
        let action = probe.exec.as_ref()?;
        Some(Self::Exec(action.command.clone()?))
    }

    async fn run(&self, inside: &Inside) -> Result<(), String> {
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
            Self::Exec(command) => exec(command, inside).await,
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

/// The kubelet reads no more of an answer either.
const LONGEST_BODY: usize = 10 * 1024;

/// Any answer from 200 to 399 is a success.
async fn http(
    address: SocketAddr,
    path: &str,
    headers: &[(HeaderName, HeaderValue)],
) -> Result<(), String> {
    let describe = |error: &dyn std::fmt::Display| format!("GET http://{address}{path}: {error}");
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| describe(&error))?;
    let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| describe(&error))?;
    let mut request = Request::get(path)
        .header("user-agent", "kube-probe/mesh-local")
        .header("connection", "close");
    if !headers.iter().any(|(name, _)| name == HOST) {
        request = request.header(HOST, address.to_string());
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request
        .body(Empty::<Bytes>::new())
        .map_err(|error| describe(&error))?;
    let answer = async {
        let (head, body) = client.send_request(request).await?.into_parts();
        // Read to its end: a connection that is dropped before that is an error in the server's
        // log.
        let _ = Limited::new(body, LONGEST_BODY).collect().await;
        Ok::<_, hyper::Error>(head.status)
    };
    let (status, _closed) = tokio::join!(answer, connection);
    let status = status.map_err(|error| describe(&error))?;
    if status.is_success() || status.is_redirection() {
        Ok(())
    } else {
        Err(describe(&status))
    }
}

async fn exec(command: &[String], inside: &Inside) -> Result<(), String> {
    let task = Task::Join(Join {
        cgroup: inside.cgroup.clone(),
        pid: inside.pid,
        program: Program {
            command: command.to_vec(),
            ..inside.program.clone()
        },
    });
    let text = serde_json::to_vec(&task).map_err(|error| error.to_string())?;
    file::write(&inside.task_file, &text, 0o600).map_err(|error| error.to_string())?;
    let mut child = super::run::stub_command(&inside.task_file)
        .map_err(|error| error.to_string())?
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| error.to_string())?;
    let status = child.wait().await.map_err(|error| error.to_string())?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{}: {status}", command.join(" ")))
    }
}
