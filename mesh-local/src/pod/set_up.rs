//! Everything that stands before a pod's containers start: folder, cgroup, network, volumes,
//! tokens, and what to start.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use mesh_k8s::pod as accessors;
use tokio::{sync::watch, time::Instant};

use super::{Context, PodState, SANDBOX_FILE, Task, VOLUMES, is_sidecar, status};
use crate::{
    cgroup::{self, CgroupError},
    cni::CniError,
    container::{
        env::EnvError,
        plan,
        probe::Probes,
        run::{Container, Restart},
        volume::{self, Prepared, Sources, TokenFile, VolumeError},
    },
    file, image,
    manifest::Key,
    netns::{self, NetnsError},
    token::{self, TokenRequest},
};

#[derive(Debug, thiserror::Error)]
pub(super) enum PodError {
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

/// Everything that stands before the containers start.
pub(super) struct Ready {
    pub(super) containers: Vec<Container>,
    pub(super) tokens: Vec<TokenFile>,
}

pub(super) async fn set_up(
    task: &Task,
    state: &watch::Sender<PodState>,
) -> Result<Ready, PodError> {
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
pub(super) async fn keep_tokens<T>(task: &Task, tokens: &[TokenFile]) -> T {
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

/// A sidecar starts again whatever the pod's policy says; an init container never does after it
/// succeeded.
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
