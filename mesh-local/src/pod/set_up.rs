//! Sets up a pod before its containers start: directory, cgroup, network, volumes, tokens and
//! container specifications.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use mesh_k8s::pod as accessors;
use mesh_runtime::log::chain;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{NodeContext, PodState, PodTask, SANDBOX_FILE, VOLUMES, is_sidecar, status};
use crate::cni::CniError;
use crate::container::data_sources::DataSources;
use crate::container::env::EnvError;
use crate::container::plan;
use crate::container::probe::Probes;
use crate::container::run::{Container, RestartPolicy};
use crate::container::volume::{self, PreparedVolume, TokenFile, VolumeError};
use crate::file::{self, FileError};
use crate::manifest::ObjectKey;
use crate::netns::{self, NetnsError};
use crate::token::{self, BoundPod, TokenRequest};
use crate::{cgroup, image};

#[derive(Debug, thiserror::Error)]
pub(super) enum PodError {
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error(transparent)]
    Cni(#[from] CniError),
    #[error("the CNI chain assigned no address to the pod")]
    NoAddress,
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("container {container}")]
    Env { container: String, source: EnvError },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Token(#[from] token::SignError),
}

/// A pod whose containers can start.
pub(super) struct PreparedPod {
    pub(super) containers: Vec<Container>,
    pub(super) tokens: Vec<TokenFile>,
}

pub(super) async fn set_up(
    task: &PodTask,
    state: &watch::Sender<PodState>,
) -> Result<PreparedPod, PodError> {
    let NodeContext {
        paths, settings, ..
    } = &*task.context;
    let directory = paths.pod(&task.uid);
    create_private(&paths.pods(), &directory)?;
    cgroup::create(&task.cgroup())?;
    let netns = task.netns();
    let ips = match &netns {
        None => settings.network.node_ips(),
        Some(path) => {
            netns::create(path)?;
            let sandbox = task.sandbox(path);
            write_json(&directory.join(SANDBOX_FILE), &sandbox)?;
            task.context.chain.add(&sandbox).await?
        }
    };
    let Some(first) = ips.first().copied() else {
        return Err(PodError::NoAddress);
    };
    state.send_modify(|state| state.ips.clone_from(&ips));
    let mut pod = task.pod.clone();
    pod.status = Some(status::addresses(&ips, &settings.network.node_ips()));
    let sources = DataSources::new(&task.manifests, &task.key.namespace);
    let (volumes, tokens) = volumes(task, &sources, &pod, &directory)?;
    for file in &tokens {
        write_token(task, file)?;
    }
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let containers = accessors::containers(spec).map(|container| {
        let image = container.image.as_deref().unwrap_or_default();
        let create_spec = plan::create_spec(&plan::PlanInputs {
            sources: &sources,
            pod: &pod,
            container,
            image: image::find(settings, image).as_ref(),
            volumes: &volumes,
            netns: netns.as_deref(),
            cgroup: &task.cgroup(),
            pod_directory: &directory,
            nameserver: settings.network.node_v4().into(),
        })
        .map_err(|source| PodError::Env {
            container: container.name.clone(),
            source,
        })?;
        let ObjectKey { namespace, name } = &task.key;
        Ok(Container {
            name: container.name.clone(),
            create_spec,
            probes: Probes::from_container(container, first),
            restart_policy: restart_policy(spec, &container.name),
            log: paths.container_log(namespace, name, &container.name),
            pod_directory: directory.clone(),
        })
    });
    Ok(PreparedPod {
        containers: containers.collect::<Result<_, PodError>>()?,
        tokens,
    })
}

fn volumes(
    task: &PodTask,
    sources: &DataSources<'_>,
    pod: &Pod,
    directory: &Path,
) -> Result<(BTreeMap<String, PreparedVolume>, Vec<TokenFile>), PodError> {
    let mut volumes = BTreeMap::new();
    let mut tokens = Vec::new();
    for volume in task
        .pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
    {
        let prepared = volume::prepare(sources, pod, volume, &directory.join(VOLUMES))?;
        tokens.extend(prepared.tokens.iter().cloned());
        volumes.insert(volume.name.clone(), prepared);
    }
    Ok((volumes, tokens))
}

/// Renews each token before it expires; never returns.
pub(super) async fn renew_tokens<T>(task: &PodTask, tokens: &[TokenFile]) -> T {
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
            tracing::error!(pod = %task.key, "Cannot renew the token: {}", chain(&error));
        }
        *at = Instant::now() + token::renew_after(file.lifetime);
    }
}

fn write_token(task: &PodTask, token_file: &TokenFile) -> Result<(), PodError> {
    let request = TokenRequest {
        account: ObjectKey::new(&task.key.namespace, accessors::service_account(&task.pod)),
        pod: Some(BoundPod {
            name: task.key.name.clone(),
            uid: task.uid.clone(),
        }),
        audience: token_file.audience.clone(),
        lifetime: token_file.lifetime,
    };
    let now = Timestamp::now().as_second();
    let token = token::sign(&task.context.signer, &request, now)?;
    let path = &token_file.path;
    // Containers run as other users than root. Only root can access the parent directory.
    file::write(path, token.as_bytes(), 0o644).map_err(file::failed("write", path))?;
    Ok(())
}

/// Returns the restart policy of a container. Sidecars are always restarted, and init containers
/// only after a failure.
fn restart_policy(spec: &PodSpec, name: &str) -> RestartPolicy {
    let init = spec.init_containers.iter().flatten();
    let is_init = init.clone().any(|container| container.name == name);
    if is_sidecar(spec, name) {
        return RestartPolicy::Always;
    }
    match (spec.restart_policy.as_deref(), is_init) {
        (Some("Never"), _) => RestartPolicy::Never,
        (Some("OnFailure"), _) | (_, true) => RestartPolicy::OnFailure,
        _ => RestartPolicy::Always,
    }
}

/// Creates the directory of a pod with access only for root, because it has tokens and Secrets.
fn create_private(parent: &Path, directory: &Path) -> Result<(), FileError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut private = fs::DirBuilder::new();
    private.recursive(true).mode(0o700);
    for directory in [parent, directory] {
        let created = private.create(directory);
        created.map_err(file::failed("write", directory))?;
    }
    Ok(())
}

fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), FileError> {
    let text = serde_json::to_vec(value).map_err(file::failed("write", path))?;
    file::write(path, &text, 0o600).map_err(file::failed("write", path))
}
