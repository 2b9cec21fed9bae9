//! Events on Services of the target cluster that are not mirrored, for the users who export them.
//!
//! They are events of the core group, which the accounts that Linkerd makes for links may create.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use mesh_cluster::api_server::{Leadership, Rate, RateLimiter, explain};
use mesh_k8s::kinds::core::{Event, EventSource, ObjectReference};
use mesh_k8s::kinds::{ObjectMeta, Time};
use mesh_objects::model::Name;
use mesh_runtime::drain;
use mesh_runtime::metrics::{CounterFamily, Labels, Registry};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::connection::{Connections, TargetClient};
use super::objects::Mirrors;
use super::planned::Problem;
use super::records::RemoteService;
use super::status::{Verdict, verdict};
use super::written::FIELD_MANAGER;

/// Posts an event when a problem appears or changes.
pub(crate) struct Reporter {
    objects: watch::Receiver<Arc<Mirrors>>,
    leadership: Leadership,
    client: TargetClient,
    /// The problems that events were posted for, by the kind of mirror.
    posted: BTreeMap<(&'static str, Name), Problem>,
    limiter: RateLimiter,
    results: CounterFamily,
}

/// Linkerd's reason.
const REASON: &str = "ServiceMirroringSkipped";

/// After a change, what becomes of a Service is known when it was written.
const DELAY: Duration = Duration::from_secs(2);

/// Refusals of writes are no change of the objects.
const INTERVAL: Duration = Duration::from_secs(30);

/// Events are stored in etcd for an hour, so their rate is limited. The ones of a missing namespace
/// with more Services follow slowly.
const RATE: Rate = Rate {
    per_second: 1.0,
    burst: 50,
};

const TIMEOUT: Duration = Duration::from_secs(10);

impl Reporter {
    pub(crate) fn new(
        objects: watch::Receiver<Arc<Mirrors>>,
        leadership: Leadership,
        connections: &Connections,
        registry: &Registry,
    ) -> Self {
        Self {
            objects,
            leadership,
            client: connections.client(),
            posted: BTreeMap::new(),
            limiter: RateLimiter::new(RATE),
            results: registry.counter_family(
                "kubernetes_events_total",
                "Events about objects of the cluster, by what became of them",
            ),
        }
    }

    /// Runs until the drain.
    pub(crate) async fn run(mut self, drain: drain::Watch) {
        loop {
            let round = async {
                self.report().await;
                // Without a sender the process ends.
                let _elapsed = timeout(INTERVAL, self.objects.changed()).await;
                sleep(DELAY).await;
            };
            tokio::select! {
                biased;
                () = drain.draining() => return,
                () = round => {}
            }
        }
    }

    async fn report(&mut self) {
        let mirrors = self.objects.borrow_and_update().clone();
        let problems = problems(&mirrors);
        self.posted.retain(|key, _| problems.contains_key(key));
        for (key, problem) in problems {
            if !self.leadership.lasts(Duration::ZERO) {
                return;
            }
            if self.posted.get(&key) == Some(&problem) {
                continue;
            }
            let client = self.client.lock().clone();
            let service = service(&mirrors, &key.1);
            let (Some(client), Some(service)) = (client, service) else {
                continue;
            };
            self.limiter.acquire_within(Duration::MAX).await;
            let event = event(&mirrors, &key.1, service, &problem);
            self.post(client, event).await;
            self.posted.insert(key, problem);
        }
    }

    /// Best effort: an event that cannot be written is counted.
    async fn post(&self, client: Client, event: Event) {
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let events: Api<Event> = Api::namespaced(client, &namespace);
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let result = match timeout(TIMEOUT, events.create(&params, &event)).await {
            Ok(Ok(_event)) => "written",
            Ok(Err(error)) => {
                let error = explain(&error);
                tracing::debug!(error, "Cannot write an event in the target cluster");
                "failed"
            }
            Err(_elapsed) => "failed",
        };
        let labels = Labels::new().with("result", result);
        self.results.with(&labels).inc();
    }
}

fn problems(mirrors: &Mirrors) -> BTreeMap<(&'static str, Name), Problem> {
    let plan = mirrors.plan();
    let mirrored = plan.mirrored.iter().map(|it| ("mirror", it));
    let federated = plan.federated.iter().map(|it| ("federated", it));
    let all = mirrored.chain(federated);
    let problems = all.filter_map(|(kind, (name, outcome))| match verdict(mirrors, outcome)? {
        Verdict::Failed(problem) => Some(((kind, name.clone()), problem)),
        Verdict::Mirrored(..) => None,
    });
    problems.collect()
}

fn service<'a>(mirrors: &'a Mirrors, name: &Name) -> Option<&'a RemoteService> {
    let remote = mirrors.remote.as_ref()?;
    remote.services.get(name).map(|service| &**service)
}

fn event(mirrors: &Mirrors, name: &Name, service: &RemoteService, problem: &Problem) -> Event {
    let cluster = mirrors.target.as_ref().and_then(|it| it.cluster.clone());
    let component = format!(
        "linkerd-service-mirror-{}",
        cluster.as_deref().unwrap_or_default()
    );
    let now = Time(Timestamp::now());
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{:016x}", name.name, rand::random::<u64>())),
            namespace: Some(name.namespace.to_string()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Service".to_owned()),
            name: Some(name.name.to_string()),
            namespace: Some(name.namespace.to_string()),
            uid: Some(service.uid.to_string()),
            resource_version: Some(service.version.to_string()),
            ..ObjectReference::default()
        },
        reason: Some(REASON.to_owned()),
        message: Some(format!("Skipped mirroring: {}", problem.message)),
        type_: Some("Normal".to_owned()),
        source: Some(EventSource {
            component: Some(component.trim_end_matches('-').to_owned()),
            host: None,
        }),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        count: Some(1),
        ..Event::default()
    }
}
