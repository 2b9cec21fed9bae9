//! States of a pod's containers.

use mesh_k8s::kinds::Pod;
use mesh_k8s::kinds::core::{
    Container, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
};
use mesh_k8s::pod;

/// Returns whether the container may have a process that responds to requests. A container that
/// waits for its image or a restart has none; a local node reports no container states.
pub(crate) fn can_respond(pod: &Pod, container: &str) -> bool {
    let own = container_statuses(pod).find(|status| status.name == container);
    let state = own.and_then(|status| status.state.as_ref());
    state.is_none_or(|state| state.running.is_some())
}

/// Returns the states of all containers, init containers first.
pub(crate) fn container_statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let main = status.and_then(|status| status.container_statuses.as_ref());
    init.into_iter().flatten().chain(main.into_iter().flatten())
}

/// Returns the container of the pod's spec.
pub(crate) fn container_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let mut containers = pod.spec.iter().flat_map(pod::containers);
    containers.find(|container| container.name == name)
}

/// Returns why the container does not run yet.
pub(crate) fn waiting(container: &ContainerStatus) -> Option<&ContainerStateWaiting> {
    container.state.as_ref()?.waiting.as_ref()
}

/// Returns how the container ended before it was restarted.
pub(crate) fn last_end(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    container.last_state.as_ref()?.terminated.as_ref()
}

/// Returns the Unix time when a running container started.
pub(crate) fn running_since(container: &ContainerStatus) -> Option<u64> {
    let running = container.state.as_ref()?.running.as_ref()?;
    u64::try_from(running.started_at.as_ref()?.0.as_second()).ok()
}
