//! Enrols the node's meshed pods that nobody enrolled: those that were there before the plugin was,
//! and those that started while another program had taken it out of the CNI configuration. The
//! proxies of such pods wait, not ready, until their own question arrives redirected.

use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use mesh_core::node::{Answer, Attachment, AttachmentId, IN_PLACE, PodStatus, Request, Tier};
use mesh_runtime::log::chain;
use tokio::time::{Instant, sleep_until};

use super::{
    Surroundings, connection::Availability, events::Events, meshed_pod::MeshedPod, wanted::Wanted,
};
use crate::sandbox::{NotYet, Places, Sandbox};

/// What every runtime calls the interface of a pod's own network.
const INTERFACE: &str = "eth0";
/// Without any pod there is nothing to wake up for.
const LONG: Duration = Duration::from_secs(3600);

struct Repair<'a> {
    around: &'a Surroundings,
    events: Events,
    places: Places,
}

/// Why a pod is not enrolled after a look.
enum Miss {
    NotYet(String),
    Failed(String),
}

/// Never returns.
pub(super) async fn run(client: &Client, node: &str, around: &Surroundings) {
    let of_node = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let pods: Api<Pod> = Api::all(client.clone());
    let mut stream = std::pin::pin!(watcher(pods, of_node).default_backoff());
    let mut availability = Availability::new(&around.findings, "only the CNI plugin enrols pods");
    let mut wanted = Wanted::default();
    let repair = Repair {
        around,
        events: Events::new(client.clone(), node),
        places: Places::default(),
    };
    loop {
        let next = wanted.next().unwrap_or_else(|| Instant::now() + LONG);
        tokio::select! {
            event = stream.next() => match event {
                Some(Ok(event)) => {
                    availability.found();
                    wanted.apply(event, Instant::now());
                }
                Some(Err(error)) => availability.lost(&error),
                // The watcher begins again by itself and never ends.
                None => return,
            },
            () = sleep_until(next) => repair.look_at_due(&mut wanted).await,
        }
    }
}

impl Repair<'_> {
    async fn look_at_due(&self, wanted: &mut Wanted) {
        // As another answer than a list is only given by an agent that stops.
        if let Answer::Pods(enrolled) = self.around.caretaker.ask(Request::Pods).await {
            for pod in wanted.due(Instant::now()) {
                self.look_at(&pod, &enrolled, wanted).await;
            }
        }
        let waiting = wanted.waiting(Instant::now());
        self.around.waiting.set(waiting.len());
        self.around.findings.set_waiting(waiting);
    }

    async fn look_at(&self, pod: &MeshedPod, enrolled: &[PodStatus], wanted: &mut Wanted) {
        if pod.is_among(enrolled) {
            return wanted.is_enrolled(pod, Instant::now());
        }
        match self.enrol(pod).await {
            Ok(tier) => {
                wanted.is_enrolled(pod, Instant::now());
                self.events.repaired(pod, tier).await;
            }
            Err(Miss::NotYet(reason)) => wanted.waits(pod, reason, Instant::now()),
            Err(Miss::Failed(reason)) => {
                if wanted.has_failed(pod, reason.clone(), Instant::now()) {
                    tracing::error!(pod = %pod.pod, reason, "A meshed pod cannot be enrolled in place");
                    self.events.failed(pod, &reason).await;
                }
            }
        }
    }

    async fn enrol(&self, pod: &MeshedPod) -> Result<Tier, Miss> {
        let sandbox = self.find(pod).await?;
        let attachment = Attachment {
            id: AttachmentId {
                container_id: sandbox.container_id,
                network: IN_PLACE.to_owned(),
                interface: INTERFACE.to_owned(),
            },
            netns: sandbox.netns,
            pod: pod.pod.clone(),
            addresses: pod.addresses.clone(),
            annotations: pod.annotations.clone(),
        };
        match self.around.caretaker.enrol_in_place(attachment).await {
            Ok(enrolled) => Ok(enrolled.tier),
            Err(refusal) => Err(Miss::Failed(refusal.message)),
        }
    }

    async fn find(&self, pod: &MeshedPod) -> Result<Sandbox, Miss> {
        let (places, uid, addresses) = (
            self.places.clone(),
            pod.pod.uid.clone(),
            pod.addresses.clone(),
        );
        let found = tokio::task::spawn_blocking(move || places.find(&uid, &addresses)).await;
        match found {
            Ok(Ok(Ok(sandbox))) => Ok(sandbox),
            Ok(Ok(Err(not_yet))) => Err(Miss::NotYet(not_yet_sentence(&not_yet))),
            Ok(Err(error)) => Err(Miss::Failed(chain(&error))),
            Err(error) => Err(Miss::Failed(error.to_string())),
        }
    }
}

fn not_yet_sentence(not_yet: &NotYet) -> String {
    match not_yet {
        NotYet::NoProcess => {
            format!("{not_yet}; kubectl describe pod says what holds it up")
        }
        _ => not_yet.to_string(),
    }
}
