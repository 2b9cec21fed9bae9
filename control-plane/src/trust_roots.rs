//! Copies of the trust anchors, one in each namespace that has meshed pods, so that the proxies
//! there can mount them and learn of new ones while they run.
//!
//! Every replica of the identity service does this. They write the same by server-side apply, and
//! only where a copy differs, so they need not agree on who does it. A copy is never deleted here:
//! a namespace that has no meshed pod now may have one in a moment. Copies are owned by a
//! ClusterRole of the chart, and so go with it.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Pod},
    rbac::v1::ClusterRole,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams},
    core::PartialObjectMeta,
    runtime::watcher::{Config, Event},
};
use mesh_core::annotation::CONTROL_PLANE_NS;
use mesh_k8s::kinds::OwnerReference;
use mesh_runtime::metrics::{Counter, Labels, Registry};
use tokio::{sync::watch, time::Instant};

use self::needs::Needs;
use crate::cluster::{Backoff, explain, follow};

mod needs;

/// Where the original is, and what owns the copies.
pub(crate) struct Settings {
    pub(crate) control_namespace: String,
    /// A ClusterRole.
    pub(crate) owner: Option<String>,
}

/// Keeps the copies equal to the anchors in force.
pub(crate) struct Publisher {
    client: Client,
    settings: Settings,
    anchors: watch::Receiver<Arc<[u8]>>,
    needs: Needs,
    written: Counter,
    failed: Counter,
}

/// What the watches tell.
enum Seen {
    Namespace(Event<PartialObjectMeta<Namespace>>),
    Pod(Event<PartialObjectMeta<Pod>>),
    Copy(Event<ConfigMap>),
}

/// The ConfigMap and its key, Linkerd's names.
const NAME: &str = "linkerd-identity-trust-roots";
const KEY: &str = "ca-bundle.crt";

/// The owner of our fields, by which we recognise our copies when we write them again.
const FIELD_MANAGER: &str = "linkerd-identity";

/// What is seen is looked at together this often, so that a cluster in motion costs nothing to
/// speak of.
const SETTLE: Duration = Duration::from_millis(100);

/// A copy that could not be written is tried again after this long. It is not urgent: proxies start
/// with the anchors of their environment.
const TRY_AGAIN: Duration = Duration::from_secs(15);

impl Publisher {
    pub(crate) fn new(
        client: Client,
        settings: Settings,
        anchors: watch::Receiver<Arc<[u8]>>,
        registry: &Registry,
    ) -> Self {
        let family = registry.counter_family(
            "trust_roots_copies_total",
            "Copies of the trust anchors that had to be written, by result",
        );
        let result = |result: &'static str| family.with(&Labels::new().with("result", result));
        Self {
            needs: Needs::new(&settings.control_namespace),
            client,
            settings,
            anchors,
            written: result("written"),
            failed: result("failed"),
        }
    }

    /// Until the anchors have no owner any more, which is the end of the process.
    pub(crate) async fn run(mut self) {
        let mut seen = stream::select_all([
            follow(
                Api::all(self.client.clone()),
                Config::default(),
                "namespaces, to publish the trust anchors",
                Backoff::for_api_server(),
            )
            .map(Seen::Namespace)
            .boxed(),
            follow(
                Api::all(self.client.clone()),
                Config::default().labels(&format!(
                    "{CONTROL_PLANE_NS}={}",
                    self.settings.control_namespace
                )),
                "meshed pods, to publish the trust anchors",
                Backoff::for_api_server(),
            )
            .map(Seen::Pod)
            .boxed(),
            follow(
                Api::all(self.client.clone()),
                Config::default().fields(&format!("metadata.name={NAME}")),
                "copies of the trust anchors",
                Backoff::for_api_server(),
            )
            .map(Seen::Copy)
            .boxed(),
        ]);
        let mut due: Option<Instant> = None;
        loop {
            let wait = tokio::select! {
                Some(seen) = seen.next() => {
                    self.note(seen);
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
                    if !self.needs.known() || self.publish().await {
                        continue;
                    }
                    TRY_AGAIN
                }
            };
            // After a failure everything waits for the next try, whatever is seen meanwhile.
            due.get_or_insert_with(|| Instant::now() + wait);
        }
    }

    fn note(&mut self, seen: Seen) {
        match seen {
            Seen::Namespace(event) => self.needs.namespace(event),
            Seen::Pod(event) => self.needs.pod(event),
            Seen::Copy(event) => self.needs.copy(event, KEY),
        }
    }

    /// Writes the copies that are missing or differ. Did all of it work?
    async fn publish(&mut self) -> bool {
        let anchors = self.anchors.borrow_and_update().clone();
        let Ok(bundle) = std::str::from_utf8(&anchors) else {
            // PEM is ASCII, and what is in force was read as PEM.
            return true;
        };
        let due = self.needs.due(bundle);
        if due.is_empty() {
            return true;
        }
        let owner = self.owner().await;
        let mut worked = true;
        for namespace in due {
            match self.write(&namespace, bundle, owner.clone()).await {
                Ok(()) => {
                    self.written.inc();
                    self.needs.written(&namespace, bundle);
                    tracing::info!(namespace, "Published the trust anchors");
                }
                Err(error) => {
                    worked = false;
                    self.failed.inc();
                    let error = explain(&error);
                    tracing::warn!(
                        namespace,
                        error,
                        "Cannot publish the trust anchors; running proxies there do not learn of new ones"
                    );
                }
            }
        }
        worked
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
        // Whoever else wrote to a copy did so by mistake: proxies would trust what it says.
        let params = PatchParams::apply(FIELD_MANAGER).force();
        copies.patch(NAME, &params, &Patch::Apply(&copy)).await?;
        Ok(())
    }

    /// Without an owner the copies stay when the mesh is removed; that is no reason not to write
    /// them.
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
                    "Cannot read the ClusterRole that is to own the copies of the trust anchors; they will have no owner"
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
