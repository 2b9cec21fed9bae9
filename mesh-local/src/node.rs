//! The daemon of a local node: what `meshctl local run` does.
//!
//! One loop owns everything: it reads the manifests, starts and stops pods so that what runs is
//! what they say, and whenever a pod's state changes publishes the whole picture (objects for the
//! controllers, rules and names for the machine). Pods are tasks that tell their state through a
//! watch channel; helpers (the agent, the DNS server) are processes kept running beside it.

use std::{collections::BTreeMap, fs, io, path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use mesh_core::node::Tier;
use mesh_k8s::inject::Values;
use mesh_runtime::{log::Format, signal::Termination};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use self::{
    control::{Answer, Request},
    helper::Helper,
    publish::Publisher,
};
use crate::{
    cgroup::{self, CgroupError},
    cni::Chain,
    container::stub::describe,
    control_plane::{self, Stage},
    file,
    host::{self, HostError},
    instance::Instance,
    manifest::{self, Key, Manifests, Problem},
    network::{self, NetworkError},
    objects::ObjectError,
    pki::{self, PkiError},
    pod::{Context, PodState},
    settings::{Settings, SettingsError},
    workload::{Workload, Workloads},
};

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
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Objects(#[from] ObjectError),
    #[error(transparent)]
    Manifests(#[from] manifest::ReadError),
    #[error(transparent)]
    Publish(#[from] publish::PublishError),
    #[error(transparent)]
    Agent(#[from] agent::AgentError),
    #[error("listen on {path}")]
    Listen {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("begin a session")]
    Session(#[source] io::Error),
    #[error(transparent)]
    Log(#[from] mesh_runtime::log::InitError),
    #[error("make the runtime")]
    Runtime(#[source] io::Error),
    #[error("listen for signals")]
    Signals(#[source] io::Error),
    #[error("no random numbers for a pod's uid")]
    Random(#[source] aws_lc_rs::error::Unspecified),
}

/// Container logs are cut when they are longer: they lie in `/run`, which is memory on most
/// machines.
const LONGEST_LOG: u64 = 64 * 1024 * 1024;
/// For so long the other pods wait for the control plane. It is ready within seconds; when it is
/// broken, pods that are not meshed shall run.
const CONTROL_PLANE_PATIENCE: Duration = Duration::from_secs(30);
const LOG_CHECK: Duration = Duration::from_secs(60);

/// The daemon's whole life, as `meshctl local run` begins it. An error is also left where `up`
/// looks for it.
pub fn main(instance: Instance) -> Result<(), NodeError> {
    let failure = instance.failure();
    let outcome = start(instance);
    if let Err(error) = &outcome {
        let message = describe(error);
        tracing::error!("{message}");
        if let Err(error) = file::write(&failure, message.as_bytes(), 0o644) {
            tracing::error!("write {}: {error}", failure.display());
        }
    }
    outcome
}

fn start(instance: Instance) -> Result<(), NodeError> {
    // A session of its own: the terminal that started the node may be closed.
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
        .block_on(Box::pin(run(instance)))
}

/// The node's own log is for whoever wonders what it did; there is little of it.
const LOG_FILTER: &str = "info";

/// Runs the node until it is told to stop. What it made stays for [`crate::clean`] to remove.
async fn run(instance: Instance) -> Result<(), NodeError> {
    let mut termination = Termination::listen().map_err(NodeError::Signals)?;
    let settings = Settings::read(&instance)?;
    let cgroup = instance.cgroup(&host::cgroup2()?);
    let own = cgroup.join("node");
    cgroup::make(&own)?;
    cgroup::join(&own)?;
    cgroup::make(&cgroup.join("pods"))?;
    network::set_up(&settings.network).await?;
    let authorities = pki::create(&instance.pki())?;
    let (mut requests, server) = control::listen(&instance)?;
    let dns = dns::start(&instance, &settings.network)?;
    let publisher = Publisher::new(&instance, &settings.network, dns)?;
    let mut tier = None;
    let mut agent = None;
    if settings.mesh {
        let helper = agent::start(&instance, &settings, &cgroup.join("pods"));
        tracing::info!("waiting for the agent");
        let answered = tokio::select! {
            status = agent::answered(&instance, &helper) => Some(status?),
            signal = termination.received() => {
                tracing::info!(signal, "told to stop before the agent answered");
                None
            }
            () = control::refuse_all(&mut requests) => None,
        };
        let Some(status) = answered else {
            drop(requests);
            server.finish().await;
            return Ok(());
        };
        tracing::info!(tier = %status.tier, reason = status.reason, "the agent redirects");
        tier = Some(status.tier);
        agent = Some(helper);
    }
    let values = settings
        .mesh
        .then(|| control_plane::values(&settings, &authorities.trust_anchors));
    let context = Arc::new(Context {
        chain: Chain::new(&instance, &settings),
        cgroup: cgroup.join("pods"),
        signer: authorities.token_signer,
        instance,
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
        unpublished: None,
    };
    node.read()?;
    node.reconcile()?;
    node.advance()?;
    let outcome = Box::pin(node.serve(&mut requests, &mut termination, agent)).await;
    drop(requests);
    server.finish().await;
    outcome
}

struct Node {
    context: Arc<Context>,
    /// The injector's; absent without a mesh.
    values: Option<Values>,
    tier: Option<Tier>,
    manifests: Arc<Manifests>,
    workloads: Workloads,
    entries: BTreeMap<Key, Entry>,
    /// The pods' tasks; each returns its key when the pod is gone.
    pods: JoinSet<Key>,
    /// Tell `changed` when a pod's state does.
    watchers: JoinSet<()>,
    changed: Arc<Notify>,
    /// Pods of later stages wait.
    stage: Stage,
    publisher: Publisher,
    /// What is wrong with the manifests, and with the Services among them.
    problems: Vec<Problem>,
    /// Why the machine or the controllers do not know how things are, if so.
    unpublished: Option<String>,
}

/// A pod that runs or is ending.
struct Entry {
    workload: Workload,
    state: watch::Receiver<PodState>,
    stop: CancellationToken,
    /// When it was told to stop.
    ending: Option<Time>,
}

impl Entry {
    fn end(&mut self) {
        self.stop.cancel();
        self.ending.get_or_insert_with(now);
    }
}

impl Node {
    async fn serve(
        mut self,
        requests: &mut mpsc::Receiver<(Request, oneshot::Sender<Answer>)>,
        termination: &mut Termination,
        agent: Option<Helper>,
    ) -> Result<(), NodeError> {
        let changed = Arc::clone(&self.changed);
        let mut patience = std::pin::pin!(tokio::time::sleep(CONTROL_PLANE_PATIENCE));
        let mut log_check = tokio::time::interval(LOG_CHECK);
        loop {
            tokio::select! {
                Some((request, answer)) = requests.recv() => {
                    if let Request::Stop = request {
                        tracing::info!("told to stop");
                        self.stop_all().await;
                        // The asker waits for this answer, or is gone.
                        let _ = answer.send(Answer::Stopped);
                        break;
                    }
                    // What is answered must be in force: a Service that is said to be ready can be
                    // called.
                    self.publish().await;
                    let _ = answer.send(self.answer(request));
                }
                () = changed.notified() => {
                    self.publish().await;
                    self.advance()?;
                }
                () = &mut patience, if self.stage < Stage::Others => {
                    tracing::warn!("the control plane is not ready; the other pods start all the same");
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
                _ = log_check.tick() => cut_logs(&self.context.instance),
                signal = termination.received() => {
                    tracing::info!(signal, "told to stop");
                    self.stop_all().await;
                    break;
                }
            }
        }
        // The agent goes after the pods, whose removal asks it.
        drop(agent);
        Ok(())
    }

    fn answer(&mut self, request: Request) -> Answer {
        match request {
            Request::Status => Answer::Status(Box::new(self.status())),
            Request::Apply => match self.read().and_then(|()| self.reconcile()) {
                Ok(()) => {
                    self.changed.notify_one();
                    Answer::Status(Box::new(self.status()))
                }
                Err(error) => Answer::Refused(describe(&error)),
            },
            Request::Target { pod, container } => match self.target(&pod, container.as_deref()) {
                Ok(target) => Answer::Target(Box::new(target)),
                Err(refusal) => Answer::Refused(refusal),
            },
            // Answered by the loop itself.
            Request::Stop => Answer::Stopped,
        }
    }
}

fn now() -> Time {
    Time(jiff::Timestamp::now())
}

/// Empties logs that have grown too long. Their writers append, so they go on at the beginning.
fn cut_logs(instance: &Instance) {
    let folders = fs::read_dir(instance.state().join("logs/pods"));
    let folders = folders.into_iter().flatten().flatten();
    for file in
        folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten().flatten())
    {
        let long = file.metadata().is_ok_and(|meta| meta.len() > LONGEST_LOG);
        if long
            && let Err(error) = fs::File::options()
                .write(true)
                .truncate(true)
                .open(file.path())
        {
            tracing::warn!("cut the log {}: {error}", file.path().display());
        }
    }
}
