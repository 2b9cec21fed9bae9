//! The daemon of a local node: what `meshctl local run` does.
//!
//! One loop owns everything: it reads the manifests, starts and stops pods so that what runs is what they say, and whenever a pod's state changes publishes the
//! whole picture (objects for the controllers, rules and names for the machine). Pods are tasks that tell their state through a watch channel; helpers (the
//! agent, the DNS server) are processes kept running beside it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

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
    control::{Answer, NodeStatus, Request, Target},
    helper::Helper,
    publish::Publisher,
};
use crate::{
    cgroup::{self, CgroupError},
    cni::Chain,
    container::stub::describe,
    control_plane::{self, Stage},
    digest, file,
    host::{self, HostError},
    image,
    instance::Instance,
    manifest::{self, Key, Manifests, Problem},
    network::{self, NetworkError},
    objects::ObjectError,
    pki::{self, PkiError},
    pod::{self, Context, PodState, Task, status},
    settings::{Settings, SettingsError},
    workload::{self, Known, Workload, Workloads},
};

mod agent;
pub mod control;
mod dns;
mod helper;
mod publish;

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

/// Container logs are cut when they are longer: they lie in `/run`, which is memory on most machines.
const LONGEST_LOG: u64 = 64 * 1024 * 1024;
/// For so long the other pods wait for the control plane. It is ready within seconds; when it is broken, pods that are not meshed shall run.
const CONTROL_PLANE_PATIENCE: Duration = Duration::from_secs(30);
const LOG_CHECK: Duration = Duration::from_secs(60);

/// The daemon's whole life, as `meshctl local run` begins it. An error is also left where `up` looks for it.
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
    let outcome = node.serve(&mut requests, &mut termination, agent).await;
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
                    // What is answered must be in force: a Service that is said to be ready can be called.
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

    /// Reads the folder anew and computes what must run.
    fn read(&mut self) -> Result<(), NodeError> {
        let Context {
            settings, instance, ..
        } = &*self.context;
        let mut manifests = manifest::read_folder(&settings.manifests)?;
        if let Some(values) = &self.values {
            control_plane::add(&mut manifests, instance, settings, values);
        }
        let has_image = |image: &str| image::find(settings, image).is_some();
        let known = Known {
            has_image: &has_image,
        };
        self.workloads = workload::compute(&manifests, self.values.as_ref(), &known);
        for warning in &self.workloads.warnings {
            tracing::warn!("{warning}");
        }
        self.problems = manifests.problems.clone();
        self.problems
            .extend(self.workloads.problems.iter().cloned());
        for problem in &self.problems {
            tracing::error!("{problem}");
        }
        self.manifests = Arc::new(manifests);
        Ok(())
    }

    /// Stops pods that are no longer wanted as they are, and starts those that are missing. A pod that is replaced starts when its predecessor is gone.
    fn reconcile(&mut self) -> Result<(), NodeError> {
        for (key, entry) in &mut self.entries {
            let wanted = self.workloads.pods.get(key);
            if wanted.is_none_or(|wanted| wanted.digest != entry.workload.digest) {
                entry.end();
            }
        }
        let missing: Vec<Key> = self
            .workloads
            .pods
            .keys()
            .filter(|key| !self.entries.contains_key(*key))
            .cloned()
            .collect();
        for key in missing {
            let due = control_plane::stage(&key) <= self.stage;
            if due && let Some(workload) = self.workloads.pods.get(&key).cloned() {
                self.start(key, workload)?;
            }
        }
        Ok(())
    }

    /// Goes on to the next stage when every pod of those before is ready.
    fn advance(&mut self) -> Result<(), NodeError> {
        while self.stage < Stage::Others {
            let mut started = self
                .workloads
                .pods
                .keys()
                .filter(|key| control_plane::stage(key) <= self.stage);
            let ready = |key: &Key| {
                self.entries.get(key).is_some_and(|entry| {
                    status::is_ready(&entry.workload.pod, &entry.state.borrow())
                })
            };
            if !started.all(ready) {
                break;
            }
            self.stage = self.stage.next();
            self.reconcile()?;
        }
        Ok(())
    }

    fn start(&mut self, key: Key, workload: Workload) -> Result<(), NodeError> {
        let uid = digest::random_uuid().map_err(NodeError::Random)?;
        let mut pod = workload.pod.clone();
        pod.metadata.uid = Some(uid.clone());
        pod.metadata.creation_timestamp = Some(now());
        if let Some(spec) = &mut pod.spec {
            spec.node_name = Some(self.context.instance.name().to_string());
        }
        tracing::info!(pod = %key, uid, "start");
        let task = Task {
            context: Arc::clone(&self.context),
            key: key.clone(),
            uid,
            pod: pod.clone(),
            manifests: Arc::clone(&self.manifests),
        };
        let (sender, state) = watch::channel(PodState::default());
        let stop = CancellationToken::new();
        let entry = Entry {
            workload: Workload {
                pod,
                digest: workload.digest,
            },
            state: state.clone(),
            stop: stop.clone(),
            ending: None,
        };
        self.entries.insert(key.clone(), entry);
        self.pods.spawn(async move {
            Box::pin(pod::run(task, sender, stop)).await;
            key
        });
        let changed = Arc::clone(&self.changed);
        let mut watched = state;
        self.watchers.spawn(async move {
            while watched.changed().await.is_ok() {
                changed.notify_one();
            }
        });
        Ok(())
    }

    /// Tells the controllers and the machine how things are. What fails is logged and tried again with the next change.
    async fn publish(&mut self) {
        let hosts = self.context.settings.network.node_ips();
        let pods = self.entries.iter().map(|(key, entry)| {
            let state = entry.state.borrow();
            let mut pod = entry.workload.pod.clone();
            pod.status = Some(status::status(&pod, &state, &hosts));
            pod.metadata.deletion_timestamp.clone_from(&entry.ending);
            (key.clone(), (pod, entry.ending.is_some()))
        });
        let pods: BTreeMap<_, _> = pods.collect();
        let node = self.context.instance.name().as_str();
        let published = self
            .publisher
            .publish(
                node,
                &self.manifests,
                &self.workloads,
                &pods,
                self.values.as_ref(),
            )
            .await;
        match published {
            Ok(service_problems) => {
                self.problems
                    .retain(|problem| !problem.is_about("Service "));
                self.problems.extend(service_problems);
                self.unpublished = None;
            }
            Err(error) => {
                let message = describe(&error);
                tracing::error!("{message}");
                self.unpublished = Some(message);
            }
        }
    }

    fn status(&self) -> NodeStatus {
        let pods = self.entries.values().map(|entry| {
            let mut summary = status::summary(&entry.workload.pod, &entry.state.borrow());
            if entry.ending.is_some() {
                "Terminating".clone_into(&mut summary.status);
                summary.ready = false;
            }
            summary
        });
        let pods: Vec<_> = pods.collect();
        let wanted: BTreeSet<&Key> = self.workloads.pods.keys().collect();
        let running: BTreeSet<&Key> = self.entries.keys().collect();
        NodeStatus {
            name: self.context.instance.name().to_string(),
            manifests: self.context.settings.manifests.clone(),
            mesh: self.values.is_some(),
            tier: self.tier,
            ready: wanted == running
                && pods.iter().all(|pod| pod.ready)
                && self.unpublished.is_none(),
            services: self.publisher.services(),
            warnings: [&self.workloads.warnings[..], self.unpublished.as_slice()].concat(),
            problems: self.problems.clone(),
            pods,
        }
    }

    /// What `exec` must join.
    fn target(&self, pod: &Key, container: Option<&str>) -> Result<Target, String> {
        let Some(entry) = self.entries.get(pod) else {
            return Err(format!(
                "there is no pod {pod}; `meshctl local status` lists the pods"
            ));
        };
        let spec = entry.workload.pod.spec.clone().unwrap_or_default();
        let name = match container {
            Some(name) => name.to_owned(),
            None => spec
                .containers
                .first()
                .map(|c| c.name.clone())
                .unwrap_or_default(),
        };
        if !mesh_k8s::pod::containers(&spec).any(|container| container.name == name) {
            let names: Vec<&str> = mesh_k8s::pod::containers(&spec)
                .map(|c| c.name.as_str())
                .collect();
            return Err(format!(
                "pod {pod} has no container {name:?}; it has {}",
                names.join(", ")
            ));
        }
        let state = entry.state.borrow();
        let pid = state.containers.get(&name).and_then(|state| state.pid());
        let Some(pid) = pid else {
            return Err(format!("container {name} of pod {pod} does not run"));
        };
        let uid = entry
            .workload
            .pod
            .metadata
            .uid
            .as_deref()
            .unwrap_or_default();
        Ok(Target {
            pid,
            task: self.context.instance.pod(uid).join(format!("{name}.json")),
            container: name,
        })
    }

    /// Ends every pod, in the reverse order of their start: proxies talk to the control plane until they end.
    async fn stop_all(&mut self) {
        for stage in [Stage::Others, Stage::ControlPlane, Stage::Identity] {
            let mut stopped = BTreeSet::new();
            for (key, entry) in &mut self.entries {
                if control_plane::stage(key) == stage {
                    entry.end();
                    stopped.insert(key.clone());
                }
            }
            self.publish().await;
            while !stopped.is_empty() {
                match self.pods.join_next().await {
                    Some(Ok(key)) => {
                        stopped.remove(&key);
                        self.entries.remove(&key);
                    }
                    Some(Err(_)) => {}
                    None => break,
                }
            }
        }
        self.publish().await;
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
