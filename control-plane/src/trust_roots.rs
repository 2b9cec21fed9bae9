//! Copies of the trust anchors in each namespace with meshed pods, where proxies mount them to
//! receive new anchors while they run.
//!
//! Every replica of the identity service writes the same copies by server-side apply, and only if
//! they differ, so the replicas need no leader. Copies are not deleted here, because a namespace
//! without meshed pods may get one at any time. A ClusterRole of the chart owns them, so they are
//! deleted with it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client};
use mesh_core::annotation::CONTROL_PLANE_NS;
use mesh_k8s::kinds::OwnerReference;
use mesh_runtime::metrics::{Counter, Labels, Registry};
use tokio::sync::watch;
use tokio::time::Instant;

use self::pending::PendingNamespaces;
use crate::cluster::{Backoff, explain, watch_objects};

mod pending;

/// The namespace of the original, and the owner of the copies.
pub(crate) struct Settings {
    pub(crate) control_namespace: String,
    /// A ClusterRole.
    pub(crate) owner: Option<String>,
}

/// Keeps the copies equal to the current anchors.
pub(crate) struct Publisher {
    client: Client,
    settings: Settings,
    anchors: watch::Receiver<Arc<[u8]>>,
    pending: PendingNamespaces,
    written: Counter,
    failed: Counter,
}

/// An event of a watch.
enum WatchEvent {
    Namespace(Event<PartialObjectMeta<Namespace>>),
    Pod(Event<PartialObjectMeta<Pod>>),
    Copy(Event<ConfigMap>),
}

/// The ConfigMap and its key, with Linkerd's names.
const NAME: &str = "linkerd-identity-trust-roots";
const KEY: &str = "ca-bundle.crt";

/// The field manager of server-side apply.
const FIELD_MANAGER: &str = "linkerd-identity";

/// How long events are collected before copies are compared, so that a rollout costs little.
const SETTLE: Duration = Duration::from_millis(100);

/// The delay after a failed write. It is not urgent: proxies start with the anchors of their
/// environment.
const RETRY_DELAY: Duration = Duration::from_secs(15);

impl Publisher {
    pub(crate) fn new(
        client: Client,
        settings: Settings,
        anchors: watch::Receiver<Arc<[u8]>>,
        registry: &Registry,
    ) -> Self {
        let family = registry.counter_family(
            "trust_roots_copies_total",
            "Writes of copies of the trust anchors, by result",
        );
        let result = |result: &'static str| family.with(&Labels::new().with("result", result));
        Self {
            pending: PendingNamespaces::new(&settings.control_namespace),
            client,
            settings,
            anchors,
            written: result("written"),
            failed: result("failed"),
        }
    }

    /// Runs until the sender of the anchors is dropped, when the process exits.
    pub(crate) async fn run(mut self) {
        let mut events = stream::select_all([
            watch_objects(
                Api::all(self.client.clone()),
                Config::default(),
                "namespaces, to publish the trust anchors",
                Backoff::for_api_server(),
            )
            .map(WatchEvent::Namespace)
            .boxed(),
            watch_objects(
                Api::all(self.client.clone()),
                Config::default().labels(&format!(
                    "{CONTROL_PLANE_NS}={}",
                    self.settings.control_namespace
                )),
                "meshed pods, to publish the trust anchors",
                Backoff::for_api_server(),
            )
            .map(WatchEvent::Pod)
            .boxed(),
            watch_objects(
                Api::all(self.client.clone()),
                Config::default().fields(&format!("metadata.name={NAME}")),
                "copies of the trust anchors",
                Backoff::for_api_server(),
            )
            .map(WatchEvent::Copy)
            .boxed(),
        ]);
        let mut due: Option<Instant> = None;
        loop {
            let wait = tokio::select! {
                Some(event) = events.next() => {
                    self.apply(event);
                    SETTLE
                }
                changed = self.anchors.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    SETTLE
                }
                () = at(due) => {
                    due = None;
                    if !self.pending.is_listed() || self.publish().await {
                        continue;
                    }
                    RETRY_DELAY
                }
            };
            // After a failure all events wait for the retry.
            due.get_or_insert_with(|| Instant::now() + wait);
        }
    }

    fn apply(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Namespace(event) => self.pending.namespace(event),
            WatchEvent::Pod(event) => self.pending.pod(event),
            WatchEvent::Copy(event) => self.pending.copy(event, KEY),
        }
    }

    /// Writes the copies that are missing or differ. Returns whether all writes succeeded.
    async fn publish(&mut self) -> bool {
        let anchors = self.anchors.borrow_and_update().clone();
        let Ok(bundle) = std::str::from_utf8(&anchors) else {
            // Unreachable: the anchors were parsed as PEM, which is ASCII.
            return true;
        };
        let outdated = self.pending.outdated(bundle);
        if outdated.is_empty() {
            return true;
        }
        let owner = self.owner().await;
        let mut succeeded = true;
        for namespace in outdated {
            match self.write(&namespace, bundle, owner.clone()).await {
                Ok(()) => {
                    self.written.inc();
                    self.pending.written(&namespace, bundle);
                    tracing::info!(namespace, "Published trust anchors");
                }
                Err(error) => {
                    succeeded = false;
                    self.failed.inc();
                    let error = explain(&error);
                    tracing::warn!(
                        namespace,
                        error,
                        "Cannot publish trust anchors; running proxies of the namespace do not receive new ones"
                    );
                }
            }
        }
        succeeded
    }

    async fn write(
        &self,
        namespace: &str,
        bundle: &str,
        owner: Option<OwnerReference>,
    ) -> Result<(), kube::Error> {
        let copy = ConfigMap {
            metadata: ObjectMeta {
                name: Some(NAME.to_owned()),
                namespace: Some(namespace.to_owned()),
                labels: Some(
                    [
                        ("linkerd.io/control-plane-component", "identity"),
                        (
                            "linkerd.io/control-plane-ns",
                            &self.settings.control_namespace,
                        ),
                    ]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
                ),
                owner_references: owner.map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            data: Some([(KEY.to_owned(), bundle.to_owned())].into()),
            ..ConfigMap::default()
        };
        let copies: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        // Overwrites changes by other clients, because proxies trust the content.
        let params = PatchParams::apply(FIELD_MANAGER).force();
        copies.patch(NAME, &params, &Patch::Apply(&copy)).await?;
        Ok(())
    }

    /// Returns the owner of the copies. Without it they are written anyway, and stay when the mesh
    /// is removed.
    async fn owner(&self) -> Option<OwnerReference> {
        let name = self.settings.owner.as_deref()?;
        let roles: Api<ClusterRole> = Api::all(self.client.clone());
        match roles.get_metadata(name).await {
            Ok(role) => Some(OwnerReference {
                api_version: "rbac.authorization.k8s.io/v1".to_owned(),
                kind: "ClusterRole".to_owned(),
                name: name.to_owned(),
                uid: role.metadata.uid?,
                ..OwnerReference::default()
            }),
            Err(error) => {
                let error = explain(&error);
                tracing::warn!(
                    name,
                    error,
                    "Cannot read the ClusterRole that owns the copies of the trust anchors; writing them without owner"
                );
                None
            }
        }
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
