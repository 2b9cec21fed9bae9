//! The daemon of a local node, which `meshctl local run` runs. One loop owns the state of the node.
//! It reads the manifests, reconciles the running pods with them, and publishes objects for the
//! controllers and rules and names for the machine whenever the state of a pod changes. Pods are
//! tasks that report their state through a watch channel. Helpers (the agent and the DNS server)
//! are supervised processes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use mesh_core::node::Tier;
use mesh_k8s::inject::Values;
use mesh_runtime::log::{Format, chain};
use mesh_runtime::signal::Termination;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::control::{Request, Response};
use self::helper::Helper;
use self::publish::Publisher;
use crate::cgroup;
use crate::cni::CniChain;
use crate::control_plane::{self, Stage};
use crate::file::{self, FileError};
use crate::host::{self, HostError};
use crate::manifest::{Manifests, ObjectKey, Problem};
use crate::network::{self, NetworkError};
use crate::node_paths::NodePaths;
use crate::objects::ObjectError;
use crate::pki::{self, PkiError};
use crate::pod::{NodeContext, PodState};
use crate::settings::{Settings, SettingsError};
use crate::workload::{Workload, Workloads};

mod agent;
pub mod control;
mod dns;
mod helper;
mod publish;
mod reconcile;
mod view;

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Objects(#[from] ObjectError),
    #[error(transparent)]
    Publish(#[from] publish::PublishError),
    #[error(transparent)]
    Agent(#[from] agent::AgentError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("begin a session")]
    Session(#[source] io::Error),
    #[error(transparent)]
    Log(#[from] mesh_runtime::log::InitError),
    #[error("create the runtime")]
    Runtime(#[source] io::Error),
    #[error("listen for signals")]
    Signals(#[source] io::Error),
    #[error("generate the uid of a pod")]
    Random(#[source] aws_lc_rs::error::Unspecified),
}

/// Size limit of container logs. They are in `/run`, which is in memory on most machines.
const MAX_LOG_BYTES: u64 = 64 * 1024 * 1024;
/// Time that other pods wait for the control plane, which is ready within seconds. If it fails,
/// unmeshed pods run anyway.
const CONTROL_PLANE_TIMEOUT: Duration = Duration::from_secs(30);
const LOG_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Runs the daemon. An error is also written to the file that `up` reads.
pub fn main(paths: NodePaths) -> Result<(), NodeError> {
    let failure = paths.failure();
    let outcome = start(paths);
    if let Err(error) = &outcome {
        let message = chain(error);
        tracing::error!("{message}");
        if let Err(error) = file::write(&failure, message.as_bytes(), 0o644) {
            tracing::error!("write {}: {error}", failure.display());
        }
    }
    outcome
}

fn start(paths: NodePaths) -> Result<(), NodeError> {
    // The daemon leaves the session of its terminal, which may be closed.
    nix::unistd::setsid().map_err(|error| NodeError::Session(error.into()))?;
    mesh_runtime::log::init(mesh_runtime::log::Settings {
        filter: LOG_FILTER,
        format: Format::Plain,
        aliases: &[],
    })?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(NodeError::Runtime)?
        .block_on(Box::pin(run(paths)))
}

/// The log filter of the daemon, which logs little.
const LOG_FILTER: &str = "info";

/// Runs the node until it receives a stop request or a signal. [`crate::clean`] removes what the
/// node created.
async fn run(paths: NodePaths) -> Result<(), NodeError> {
    let mut termination = Termination::listen().map_err(NodeError::Signals)?;
    let settings = Settings::read(&paths)?;
    let cgroup = paths.cgroup(&host::cgroup2()?);
    let own = cgroup.join("node");
    cgroup::create(&own)?;
    cgroup::join(&own)?;
    cgroup::create(&cgroup.join("pods"))?;
    network::set_up(&settings.network).await?;
    let pki_material = pki::create(&paths.pki())?;
    let (mut requests, server) = control::listen(&paths)?;
    let dns = dns::start(&paths, &settings.network).map_err(publish::PublishError::from)?;
    let publisher = Publisher::new(&paths, &settings.network, dns)?;
    let mut tier = None;
    let mut agent = None;
    if settings.mesh {
        let helper = agent::start(&paths, &settings, &cgroup.join("pods"));
        tracing::info!("Waiting for the agent");
        let status = tokio::select! {
            status = agent::wait_until_ready(&paths, &helper) => Some(status?),
            signal = termination.received() => {
                tracing::info!(signal, "Stopping before the agent was ready");
                None
            }
            () = control::refuse_all(&mut requests) => None,
        };
        let Some(status) = status else {
            drop(requests);
            server.finish().await;
            return Ok(());
        };
        tracing::info!(tier = %status.tier, reason = status.reason, "The agent is ready");
        tier = Some(status.tier);
        agent = Some(helper);
    }
    let values = settings
        .mesh
        .then(|| control_plane::values(&settings, &pki_material.trust_anchors));
    let context = Arc::new(NodeContext {
        chain: CniChain::new(&paths, &settings),
        cgroup: cgroup.join("pods"),
        signer: pki_material.token_signer,
        paths,
        settings,
    });
    let mut node = Node {
        context,
        values,
        tier,
        manifests: Arc::default(),
        workloads: Workloads::default(),
        entries: BTreeMap::new(),
        pods: JoinSet::new(),
        watchers: JoinSet::new(),
        changed: Arc::new(Notify::new()),
        stage: Stage::Identity,
        publisher,
        problems: Vec::new(),
        publish_error: None,
    };
    node.read_manifests()?;
    node.reconcile()?;
    node.advance()?;
    let outcome = Box::pin(node.serve(&mut requests, &mut termination, agent)).await;
    drop(requests);
    server.finish().await;
    outcome
}

struct Node {
    context: Arc<NodeContext>,
    /// The values of the injector; `None` without a mesh.
    values: Option<Values>,
    tier: Option<Tier>,
    manifests: Arc<Manifests>,
    workloads: Workloads,
    entries: BTreeMap<ObjectKey, Entry>,
    /// The tasks of the pods; each returns its key when the pod has been removed.
    pods: JoinSet<ObjectKey>,
    /// Tasks that notify `changed` when the state of a pod changes.
    watchers: JoinSet<()>,
    changed: Arc<Notify>,
    /// The current stage; pods of later stages wait.
    stage: Stage,
    publisher: Publisher,
    /// Problems of manifests and Services.
    problems: Vec<Problem>,
    /// The error of the last publication, if it failed.
    publish_error: Option<String>,
}

/// A running or terminating pod.
struct Entry {
    workload: Workload,
    state: watch::Receiver<PodState>,
    token: CancellationToken,
    /// When the pod was stopped.
    stopped_at: Option<Time>,
}

impl Entry {
    fn stop(&mut self) {
        self.token.cancel();
        self.stopped_at.get_or_insert_with(now);
    }
}

impl Node {
    async fn serve(
        mut self,
        requests: &mut mpsc::Receiver<(Request, oneshot::Sender<Response>)>,
        termination: &mut Termination,
        agent: Option<Helper>,
    ) -> Result<(), NodeError> {
        let changed = Arc::clone(&self.changed);
        let mut control_plane_timeout = std::pin::pin!(tokio::time::sleep(CONTROL_PLANE_TIMEOUT));
        let mut log_check = tokio::time::interval(LOG_CHECK_INTERVAL);
        loop {
            tokio::select! {
                Some((request, response)) = requests.recv() => {
                    if let Request::Stop = request {
                        tracing::info!("Stopping on request");
                        self.stop_all().await;
                        // The send fails if the client has disconnected.
                        let _ = response.send(Response::Stopped);
                        break;
                    }
                    // Publish first, so that a Service is usable when the client learns that it is
                    // ready.
                    self.publish().await;
                    let _ = response.send(self.respond(request));
                }
                () = changed.notified() => {
                    self.publish().await;
                    self.advance()?;
                }
                () = &mut control_plane_timeout, if self.stage < Stage::Others => {
                    tracing::warn!("The control plane is not ready; starting the other pods anyway");
                    self.stage = Stage::Others;
                    self.reconcile()?;
                }
                Some(ended) = self.pods.join_next() => {
                    if let Ok(key) = ended {
                        self.entries.remove(&key);
                    }
                    self.reconcile()?;
                    self.changed.notify_one();
                }
                Some(_) = self.watchers.join_next() => {}
                _ = log_check.tick() => truncate_logs(&self.context.paths),
                signal = termination.received() => {
                    tracing::info!(signal, "Stopping on signal");
                    self.stop_all().await;
                    break;
                }
            }
        }
        // The agent stops after the pods, because their removal requires it.
        drop(agent);
        Ok(())
    }

    fn respond(&mut self, request: Request) -> Response {
        match request {
            Request::Status => Response::Status(Box::new(self.status())),
            Request::Apply => match self.read_manifests().and_then(|()| self.reconcile()) {
                Ok(()) => {
                    self.changed.notify_one();
                    Response::Status(Box::new(self.status()))
                }
                Err(error) => Response::Refused(chain(&error)),
            },
            Request::Target { pod, container } => match self.target(&pod, container.as_deref()) {
                Ok(target) => Response::Target(Box::new(target)),
                Err(refusal) => Response::Refused(refusal),
            },
            Request::Observer => match self.observer() {
                Ok(observer) => Response::Observer(Box::new(observer)),
                Err(refusal) => Response::Refused(refusal),
            },
            // The loop handles this request.
            Request::Stop => Response::Stopped,
        }
    }
}

fn now() -> Time {
    Time(jiff::Timestamp::now())
}

/// Truncates logs that exceed the size limit. Their writers use O_APPEND and continue at the
/// beginning.
fn truncate_logs(paths: &NodePaths) {
    let directories = fs::read_dir(paths.state().join("logs/pods"));
    let directories = directories.into_iter().flatten().flatten();
    for file in directories.flat_map(|directory| {
        fs::read_dir(directory.path())
            .into_iter()
            .flatten()
            .flatten()
    }) {
        let long = file.metadata().is_ok_and(|meta| meta.len() > MAX_LOG_BYTES);
        if long
            && let Err(error) = fs::File::options()
                .write(true)
                .truncate(true)
                .open(file.path())
        {
            tracing::warn!("Cannot truncate the log {}: {error}", file.path().display());
        }
    }
}
