//! Enrols the node's meshed pods in place that the plugin did not enrol: those that started before
//! the plugin was installed, and those that started while another program had removed it from the
//! CNI configuration. The proxies of such pods are not ready until their redirection check
//! succeeds.

use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use mesh_core::node::{Attachment, AttachmentId, IN_PLACE, PodStatus, Request, Response, Tier};
use mesh_runtime::log::chain;
use tokio::time::{Instant, sleep_until};

use super::Dependencies;
use super::connection::Availability;
use super::enrol_queue::EnrolQueue;
use super::events::Events;
use super::meshed_pod::MeshedPod;
use crate::sandbox::{Sandbox, SandboxFinder, SandboxPending};

/// The name that every runtime gives the interface of a pod's own network.
const INTERFACE: &str = "eth0";
/// Wake-up interval without any pod.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

struct InPlaceEnroller<'a> {
    deps: &'a Dependencies,
    events: Events,
    finder: SandboxFinder,
}

enum EnrolError {
    NotReady(String),
    Failed(String),
}

/// Never returns.
pub(super) async fn run(client: &Client, node: &str, deps: &Dependencies) {
    let of_node = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let pods: Api<Pod> = Api::all(client.clone());
    let mut stream = std::pin::pin!(watcher(pods, of_node).default_backoff());
    let mut availability =
        Availability::new(&deps.shared_status, "only the CNI plugin enrols pods");
    let mut queue = EnrolQueue::default();
    let enroller = InPlaceEnroller {
        deps,
        events: Events::new(client.clone(), node),
        finder: SandboxFinder::default(),
    };
    loop {
        let next = queue
            .next_due()
            .unwrap_or_else(|| Instant::now() + IDLE_TIMEOUT);
        tokio::select! {
            event = stream.next() => match event {
                Some(Ok(event)) => {
                    availability.report_success();
                    queue.apply(event, Instant::now());
                }
                Some(Err(error)) => availability.report_failure(&error),
                // The watcher restarts by itself and never ends.
                None => return,
            },
            () = sleep_until(next) => enroller.enrol_due(&mut queue).await,
        }
    }
}

impl InPlaceEnroller<'_> {
    async fn enrol_due(&self, queue: &mut EnrolQueue) {
        // Only a stopping agent sends another response.
        if let Response::Pods(enrolled) = self.deps.node_handle.call(Request::Pods).await {
            for pod in queue.due(Instant::now()) {
                self.enrol_pod(&pod, &enrolled, queue).await;
            }
        }
        let waiting = queue.waiting(Instant::now());
        self.deps.waiting.set(waiting.len());
        self.deps.shared_status.set_waiting(waiting);
    }

    async fn enrol_pod(&self, pod: &MeshedPod, enrolled: &[PodStatus], queue: &mut EnrolQueue) {
        if pod.is_enrolled_in(enrolled) {
            return queue.mark_enrolled(pod, Instant::now());
        }
        if queue.is_impostor(pod) {
            let reason = "its annotation kubernetes.io/config.mirror has the UID of another pod; delete and recreate it without the annotation";
            return self.fail(pod, reason.to_owned(), queue).await;
        }
        match self.enrol(pod).await {
            Ok(tier) => {
                queue.mark_enrolled(pod, Instant::now());
                self.events.publish_enrolled(pod, tier).await;
            }
            Err(EnrolError::NotReady(reason)) => queue.mark_waiting(pod, reason, Instant::now()),
            Err(EnrolError::Failed(reason)) => self.fail(pod, reason, queue).await,
        }
    }

    async fn fail(&self, pod: &MeshedPod, reason: String, queue: &mut EnrolQueue) {
        if queue.mark_failed(pod, reason.clone(), Instant::now()) {
            tracing::error!(pod = %pod.pod, reason, "A meshed pod cannot be enrolled in place");
            self.events.publish_failure(pod, &reason).await;
        }
    }

    async fn enrol(&self, pod: &MeshedPod) -> Result<Tier, EnrolError> {
        let sandbox = self.find(pod).await?;
        let attachment = Attachment {
            id: AttachmentId {
                container_id: sandbox.container_id,
                network: IN_PLACE.to_owned(),
                interface: INTERFACE.to_owned(),
            },
            netns: sandbox.netns,
            pod: pod.on_node(),
            addresses: pod.addresses.clone(),
            annotations: pod.annotations.clone(),
        };
        match self.deps.node_handle.enrol_in_place(attachment).await {
            Ok(enrolled) => Ok(enrolled.tier),
            Err(refusal) => Err(EnrolError::Failed(refusal.message)),
        }
    }

    async fn find(&self, pod: &MeshedPod) -> Result<Sandbox, EnrolError> {
        let (finder, uid, addresses) = (
            self.finder.clone(),
            pod.on_node().uid,
            pod.addresses.clone(),
        );
        let found = tokio::task::spawn_blocking(move || finder.find(&uid, &addresses)).await;
        match found {
            Ok(Ok(Ok(sandbox))) => Ok(sandbox),
            Ok(Ok(Err(pending))) => Err(EnrolError::NotReady(pending_reason(&pending))),
            Ok(Err(error)) => Err(EnrolError::Failed(chain(&error))),
            Err(error) => Err(EnrolError::Failed(error.to_string())),
        }
    }
}

fn pending_reason(pending: &SandboxPending) -> String {
    match pending {
        SandboxPending::NoProcess => {
            format!("{pending}; kubectl describe pod shows what blocks it")
        }
        _ => pending.to_string(),
    }
}
