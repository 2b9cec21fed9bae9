//! One pod from start to end: cgroup, network, volumes, containers, and all of it removed again.
//!
//! The order is the kubelet's: the pod's cgroup, its network namespace, the CNI chain, then containers. Init containers run one after the other; those that
//! stay (sidecars) only have to have started before the next. When the pod is stopped its containers end before its sidecars.

use std::{
    collections::BTreeMap,
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use mesh_k8s::pod as accessors;
use nix::mount::{MntFlags, umount2};
use tokio::{sync::watch, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    cgroup::{self, CgroupError},
    cni::{Chain, CniError, PortMapping, Sandbox},
    container::{
        env::EnvError,
        plan,
        probe::Probes,
        run::{self, Container, Restart},
        state::ContainerState,
        volume::{self, Prepared, Sources, TokenFile, VolumeError},
    },
    digest, file, image,
    instance::Instance,
    manifest::{Key, Manifests},
    netns::{self, NetnsError},
    pki::TokenSigner,
    settings::Settings,
    token::{self, TokenRequest},
};

pub mod status;

/// What every pod of a node shares.
pub struct Context {
    pub instance: Instance,
    pub settings: Settings,
    pub chain: Chain,
    /// The parent of all pods' cgroups.
    pub cgroup: PathBuf,
    pub signer: TokenSigner,
}

/// A pod that is to run.
#[derive(Clone)]
pub struct Task {
    pub context: Arc<Context>,
    pub key: Key,
    pub uid: String,
    /// With uid and node name.
    pub pod: Pod,
    /// As they were when the pod was started; ConfigMaps and Secrets are read from them.
    pub manifests: Arc<Manifests>,
}

/// What the pod is doing, as its task tells the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodState {
    pub started: Option<Timestamp>,
    pub ips: Vec<IpAddr>,
    /// In the order of the pod's spec, init containers first.
    pub containers: BTreeMap<String, ContainerState>,
    /// Why the pod is not getting on, if it is not.
    pub message: String,
    pub terminating: bool,
    pub outcome: Option<Outcome>,
}

/// How a pod ended whose containers are not started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Succeeded,
    Failed,
}

#[derive(Debug, thiserror::Error)]
enum PodError {
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error(transparent)]
    Cni(#[from] CniError),
    #[error("the CNI chain gave the pod no address")]
    NoAddress,
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("container {container}")]
    Env {
        container: String,
        #[source]
        source: EnvError,
    },
    #[error("write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Token(#[from] token::SignError),
}

/// Between two attempts to set a pod up.
const RETRY: Duration = Duration::from_secs(3);
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// What sidecars get when the containers have used up the pod's grace period, as in Kubernetes.
const SIDECAR_GRACE: Duration = Duration::from_secs(2);

/// Runs the pod until it is told to stop, and removes it.
pub async fn run(task: Task, state: watch::Sender<PodState>, stop: CancellationToken) {
    state.send_modify(|state| state.started = Some(Timestamp::now()));
    let ready = loop {
        if stop.is_cancelled() {
            break None;
        }
        match set_up(&task, &state).await {
            Ok(ready) => break Some(ready),
            Err(error) => {
                let message = crate::container::stub::describe(&error);
                tracing::error!(pod = %task.key, "cannot set the pod up: {message}");
                state.send_modify(|state| state.message = message);
                tear_down(&task).await;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = stop.cancelled() => {}
        }
    };
    if let Some(ready) = ready {
        state.send_modify(|state| state.message.clear());
        let renewal = keep_tokens(&task, &ready.tokens);
        tokio::select! {
            () = run_containers(&task, ready.containers, &state, &stop) => {}
            never = renewal => never,
        }
    }
    state.send_modify(|state| state.terminating = true);
    tear_down(&task).await;
}

/// Everything that stands before the containers start.
struct Ready {
    containers: Vec<Container>,
    tokens: Vec<TokenFile>,
}

async fn set_up(task: &Task, state: &watch::Sender<PodState>) -> Result<Ready, PodError> {
    let Context {
        instance, settings, ..
    } = &*task.context;
    let folder = instance.pod(&task.uid);
    make_private(&instance.pods(), &folder)?;
    cgroup::make(&task.cgroup())?;
    let netns = task.netns();
    let ips = match &netns {
        None => settings.network.node_ips(),
        Some(path) => {
            netns::make(path)?;
            let sandbox = task.sandbox(path);
            write_json(&folder.join(SANDBOX_FILE), &sandbox)?;
            task.context.chain.add(&sandbox).await?
        }
    };
    let Some(first) = ips.first().copied() else {
        return Err(PodError::NoAddress);
    };
    state.send_modify(|state| state.ips.clone_from(&ips));
    let mut pod = task.pod.clone();
    pod.status = Some(status::addresses(&ips, &settings.network.node_ips()));
    let sources = Sources::new(&task.manifests, &task.key.namespace);
    let (volumes, tokens) = volumes(task, &sources, &pod, &folder)?;
    for file in &tokens {
        write_token(task, file)?;
    }
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let containers = accessors::containers(spec).map(|container| {
        let image = container.image.as_deref().unwrap_or_default();
        let start = plan::start(&plan::Given {
            sources: &sources,
            pod: &pod,
            container,
            image: image::find(settings, image).as_ref(),
            volumes: &volumes,
            netns: netns.as_deref(),
            cgroup: &task.cgroup(),
            folder: &folder,
            nameserver: settings.network.node_v4().into(),
        })
        .map_err(|source| PodError::Env {
            container: container.name.clone(),
            source,
        })?;
        let Key { namespace, name } = &task.key;
        Ok(Container {
            name: container.name.clone(),
            start,
            probes: Probes::of(container, first),
            restart: restart(spec, &container.name),
            log: instance.container_log(namespace, name, &container.name),
            folder: folder.clone(),
        })
    });
    Ok(Ready {
        containers: containers.collect::<Result<_, PodError>>()?,
        tokens,
    })
}

/// How the CNI chain was called, in the pod's folder.
pub const SANDBOX_FILE: &str = "sandbox.json";

/// Starts the containers in their order, and returns when the pod was told to stop and all of them have ended.
async fn run_containers(
    task: &Task,
    containers: Vec<Container>,
    state: &watch::Sender<PodState>,
    stop: &CancellationToken,
) {
    let empty = PodSpec::default();
    let spec = task.pod.spec.as_ref().unwrap_or(&empty);
    let initial = spec.init_containers.as_ref().map_or(0, Vec::len);
    let mut group = Group::new(state);
    let mut failed = false;
    for (index, container) in containers.into_iter().enumerate() {
        if stop.is_cancelled() || failed {
            break;
        }
        let is_init = index < initial;
        let sidecar = is_init && is_sidecar(spec, &container.name);
        let mut watched = group.start(container, sidecar);
        if !is_init {
            continue;
        }
        let passed = |state: &ContainerState| state.ended().is_some() || (sidecar && state.started);
        tokio::select! {
            Ok(state) = watched.wait_for(passed) => {
                failed = !sidecar && state.ended().is_none_or(|ended| ended.code != 0);
            }
            () = stop.cancelled() => {}
        }
    }
    let outcome = tokio::select! {
        clean = group.ended() => if clean && !failed { Outcome::Succeeded } else { Outcome::Failed },
        () = stop.cancelled() => {
            let grace = spec.termination_grace_period_seconds;
            let grace = grace.and_then(|seconds| u64::try_from(seconds).ok());
            let grace = grace.map_or(DEFAULT_GRACE, Duration::from_secs);
            state.send_modify(|state| state.terminating = true);
            group.stop(Instant::now() + grace).await;
            return;
        }
    };
    group.stop(Instant::now() + DEFAULT_GRACE).await;
    state.send_modify(|state| state.outcome = Some(outcome));
    stop.cancelled().await;
}

/// The running containers of a pod.
struct Group<'a> {
    state: &'a watch::Sender<PodState>,
    stop_apps: watch::Sender<Option<Instant>>,
    stop_sidecars: watch::Sender<Option<Instant>>,
    apps: JoinSet<()>,
    sidecars: JoinSet<()>,
    /// Copy what containers tell into the pod's state.
    tellers: JoinSet<()>,
    watched: Vec<watch::Receiver<ContainerState>>,
}

impl<'a> Group<'a> {
    fn new(state: &'a watch::Sender<PodState>) -> Self {
        Self {
            state,
            stop_apps: watch::Sender::new(None),
            stop_sidecars: watch::Sender::new(None),
            apps: JoinSet::new(),
            sidecars: JoinSet::new(),
            tellers: JoinSet::new(),
            watched: Vec::new(),
        }
    }

    fn start(&mut self, container: Container, sidecar: bool) -> watch::Receiver<ContainerState> {
        let (sender, receiver) = watch::channel(ContainerState::default());
        let mut told = receiver.clone();
        let pod = self.state.clone();
        let name = container.name.clone();
        self.tellers.spawn(async move {
            while told.changed().await.is_ok() {
                let container = told.borrow_and_update().clone();
                pod.send_modify(|pod| {
                    pod.containers.insert(name.clone(), container);
                });
            }
        });
        let (tasks, stop) = if sidecar {
            (&mut self.sidecars, &self.stop_sidecars)
        } else {
            self.watched.push(receiver.clone());
            (&mut self.apps, &self.stop_apps)
        };
        let stop = stop.subscribe();
        tasks.spawn(async move { run::run(&container, &sender, stop).await });
        receiver
    }

    /// Waits until every container but the sidecars is over; true when each ended well.
    async fn ended(&mut self) -> bool {
        while self.apps.join_next().await.is_some() {}
        self.watched.iter().all(|state| {
            let state = state.borrow();
            state.ended().is_some_and(|ended| ended.code == 0)
        })
    }

    async fn stop(mut self, deadline: Instant) {
        self.stop_apps.send_replace(Some(deadline));
        while self.apps.join_next().await.is_some() {}
        let deadline = deadline.max(Instant::now() + SIDECAR_GRACE);
        self.stop_sidecars.send_replace(Some(deadline));
        while self.sidecars.join_next().await.is_some() {}
        while self.tellers.join_next().await.is_some() {}
    }
}

/// Removes what the pod had on the machine. What cannot be removed is logged, and cleared with the node at the latest.
async fn tear_down(task: &Task) {
    let warn = |error: &dyn std::error::Error| {
        let message = crate::container::stub::describe(error);
        tracing::warn!(pod = %task.key, "left behind for now: {message}");
    };
    if let Err(error) = cgroup::remove(&task.cgroup()).await {
        warn(&error);
    }
    if let Some(netns) = task.netns() {
        if netns.exists()
            && let Err(error) = task.context.chain.delete(&task.sandbox(&netns)).await
        {
            warn(&error);
        }
        if let Err(error) = netns::remove(&netns) {
            warn(&error);
        }
    }
    if let Err(error) = remove_folder(&task.context.instance.pod(&task.uid)) {
        warn(&error);
    }
}

/// Removes a pod's folder with the file systems mounted in its volumes.
pub fn remove_folder(folder: &Path) -> io::Result<()> {
    if let Ok(volumes) = fs::read_dir(folder.join(VOLUMES)) {
        for volume in volumes {
            match umount2(&volume?.path(), MntFlags::MNT_DETACH) {
                // Most volumes are plain folders.
                Ok(()) | Err(nix::Error::EINVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

const VOLUMES: &str = "volumes";

impl Task {
    fn cgroup(&self) -> PathBuf {
        self.context.cgroup.join(format!("pod{}", self.uid))
    }

    /// Nothing for a pod in the host's network.
    fn netns(&self) -> Option<PathBuf> {
        let Key { namespace, name } = &self.key;
        let own = !accessors::is_host_network(&self.pod);
        own.then(|| self.context.instance.netns(namespace, name))
    }

    fn sandbox(&self, netns: &Path) -> Sandbox {
        let spec = self.pod.spec.iter();
        let ports = spec.flat_map(accessors::ports::declared);
        let mapped = ports.filter_map(|(_, port)| {
            Some(PortMapping {
                host_port: accessors::ports::number(port.host_port?)?,
                container_port: accessors::ports::number(port.container_port)?,
                protocol: port.protocol.as_deref().unwrap_or("TCP").to_lowercase(),
            })
        });
        Sandbox {
            // A sandbox has an id of its own; with one sandbox in a pod's life the uid's digest will do.
            container_id: digest::of_text(&self.uid),
            netns: netns.to_owned(),
            namespace: self.key.namespace.clone(),
            name: self.key.name.clone(),
            uid: self.uid.clone(),
            annotations: self.pod.metadata.annotations.clone().unwrap_or_default(),
            port_mappings: mapped.collect(),
        }
    }
}

fn volumes(
    task: &Task,
    sources: &Sources<'_>,
    pod: &Pod,
    folder: &Path,
) -> Result<(BTreeMap<String, Prepared>, Vec<TokenFile>), PodError> {
    let mut volumes = BTreeMap::new();
    let mut tokens = Vec::new();
    for volume in task
        .pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
    {
        let prepared = volume::prepare(sources, pod, volume, &folder.join(VOLUMES))?;
        tokens.extend(prepared.tokens.iter().cloned());
        volumes.insert(volume.name.clone(), prepared);
    }
    Ok((volumes, tokens))
}

/// Renews each token before it expires, for as long as the pod runs.
async fn keep_tokens<T>(task: &Task, tokens: &[TokenFile]) -> T {
    let mut due: Vec<(Instant, &TokenFile)> = tokens
        .iter()
        .map(|file| (Instant::now() + token::renew_after(file.lifetime), file))
        .collect();
    loop {
        let Some((at, file)) = due.iter_mut().min_by_key(|(at, _)| *at) else {
            return std::future::pending().await;
        };
        tokio::time::sleep_until(*at).await;
        if let Err(error) = write_token(task, file) {
            tracing::error!(pod = %task.key, "renew the token: {}", crate::container::stub::describe(&error));
        }
        *at = Instant::now() + token::renew_after(file.lifetime);
    }
}

fn write_token(task: &Task, token_file: &TokenFile) -> Result<(), PodError> {
    let request = TokenRequest {
        pod: task.key.clone(),
        pod_uid: task.uid.clone(),
        service_account: accessors::service_account(&task.pod).to_owned(),
        audience: token_file.audience.clone(),
        lifetime: token_file.lifetime,
    };
    let now = Timestamp::now().as_second();
    let token = token::sign(&task.context.signer, &request, now)?;
    let path = &token_file.path;
    // The container's user is not root, and nobody outside the pod reaches the folder.
    file::write(path, token.as_bytes(), 0o644).map_err(write_error(path))
}

/// A sidecar starts again whatever the pod's policy says; an init container never does after it succeeded.
fn restart(spec: &PodSpec, name: &str) -> Restart {
    let init = spec.init_containers.iter().flatten();
    let is_init = init.clone().any(|container| container.name == name);
    if is_sidecar(spec, name) {
        return Restart::Always;
    }
    match (spec.restart_policy.as_deref(), is_init) {
        (Some("Never"), _) => Restart::Never,
        (Some("OnFailure"), _) | (_, true) => Restart::OnFailure,
        _ => Restart::Always,
    }
}

fn is_sidecar(spec: &PodSpec, name: &str) -> bool {
    let mut init = spec.init_containers.iter().flatten();
    init.any(|container| {
        container.name == name && container.restart_policy.as_deref() == Some("Always")
    })
}

/// The parent of all pods' folders is for root only: tokens and Secrets are in it.
fn make_private(parent: &Path, folder: &Path) -> Result<(), PodError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut private = fs::DirBuilder::new();
    private.recursive(true).mode(0o700);
    private.create(parent).map_err(write_error(parent))?;
    private.create(folder).map_err(write_error(folder))
}

fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), PodError> {
    let text = serde_json::to_vec(value).map_err(|error| PodError::Write {
        path: path.to_owned(),
        source: error.into(),
    })?;
    file::write(path, &text, 0o600).map_err(write_error(path))
}

fn write_error(path: &Path) -> impl Fn(io::Error) -> PodError + '_ {
    move |source| PodError::Write {
        path: path.to_owned(),
        source,
    }
}
