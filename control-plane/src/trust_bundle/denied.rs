//! Follows the ConfigMap of the denied identities (docs/adr/0231).
//!
//! A watch only tells when to look: the list is read from the API server after the record of the
//! anchors, so that a replica that is behind does not write an earlier one. An object that is
//! invalid, or cannot be read, leaves the recorded list in effect.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client, ResourceExt as _};
use mesh_cluster::api_server::{Backoff, explain, watch_objects};
use mesh_core::deny_list::DenyList;
use mesh_core::rights::{self, Right};
use mesh_k8s::denied_identities::{CONFIG_MAP, read, valid_entries};
use mesh_k8s::invalid::summary;
use mesh_runtime::metrics::{Counter, Gauge, Labels, Registry};
use tokio::sync::{Notify, watch};

use crate::identity::IdentitySuffix;

/// The denied identities of the API server.
pub(crate) struct DeniedIdentities {
    config_maps: Api<ConfigMap>,
    names: IdentitySuffix,
    /// Who gets no certificate. `None` while that is unknown.
    known: watch::Sender<Option<Arc<DenyList>>>,
    /// Told about each event of the watch.
    changed: Arc<Notify>,
    /// The last problem. Only changes are logged.
    problem: Option<String>,
    size: Gauge,
    failed: Counter,
}

/// How often the object is read besides, as after a watch that has missed a change.
const INTERVAL: Duration = Duration::from_secs(10);

/// The rights of the follower, in the namespace of the control plane.
pub(crate) fn rights() -> impl Iterator<Item = Right> {
    rights::all("", "configmaps", &["list", "watch"])
}

impl DeniedIdentities {
    /// `known` receives the list in effect.
    pub(crate) fn new(
        client: &Client,
        names: &IdentitySuffix,
        known: watch::Sender<Option<Arc<DenyList>>>,
        registry: &Registry,
    ) -> Self {
        let none = Labels::new();
        let size = registry.gauge_family(
            "mesh_denied_identities",
            "Entries of the list of denied identities that is in effect in this replica",
        );
        let failed = registry.counter_family(
            "mesh_denied_identities_failures_total",
            "Attempts to read the list of denied identities that failed, so that the last list stays in effect",
        );
        Self {
            config_maps: Api::namespaced(client.clone(), &names.control_namespace),
            names: names.clone(),
            known,
            changed: Arc::default(),
            problem: None,
            size: size.with(&none),
            failed: failed.with(&none),
        }
    }

    /// Returns the receiver of events of the object, and the watch that sends them.
    pub(crate) fn watch(&self) -> (Arc<Notify>, impl Future<Output = ()> + Send + use<>) {
        let changed = self.changed.clone();
        let config = Config::default().fields(&selector());
        let what = "ConfigMap of denied identities";
        let backoff = Backoff::for_api_server();
        let events = watch_objects(self.config_maps.clone(), config, what, backoff);
        let notify = changed.clone();
        let watching = events.for_each(move |event| {
            if !matches!(event, Event::Init) {
                notify.notify_one();
            }
            std::future::ready(())
        });
        (changed, watching)
    }

    /// Follows the object where no anchors are sent: running proxies do not get the list, and no
    /// denied identity gets a certificate.
    pub(crate) async fn run(mut self) {
        let changed = self.changed.clone();
        loop {
            self.observe(None).await;
            tokio::select! {
                () = changed.notified() => {}
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    pub(super) fn known(&self) -> Option<Arc<DenyList>> {
        self.known.borrow().clone()
    }

    /// Returns the list in effect, after `recorded` was; `None` if it is unknown.
    pub(super) async fn observe(&mut self, recorded: Option<&DenyList>) -> Option<DenyList> {
        let (found, problem) = match self.find().await {
            Ok(None) => (Some(DenyList::default()), None),
            Ok(Some(object)) => self.read(&object, recorded),
            Err(problem) => (self.last(recorded), Some(problem)),
        };
        self.report(problem);
        if let Some(list) = &found {
            self.publish(list);
        }
        found
    }

    async fn find(&self) -> Result<Option<ConfigMap>, String> {
        let selected = ListParams::default().fields(&selector());
        let listed = self.config_maps.list(&selected).await;
        let mut objects = listed.map_err(|error| explain(&error))?.items.into_iter();
        Ok(objects.find(|object| object.name_any() == CONFIG_MAP))
    }

    fn read(
        &self,
        object: &ConfigMap,
        recorded: Option<&DenyList>,
    ) -> (Option<DenyList>, Option<String>) {
        let IdentitySuffix {
            control_namespace,
            trust_domain,
        } = &self.names;
        match read(object, control_namespace, trust_domain) {
            Ok(list) => (Some(list), None),
            Err(problems) => {
                // Without a list before this one nothing else says who is denied.
                let valid = || valid_entries(object, control_namespace, trust_domain);
                let list = self.last(recorded).unwrap_or_else(valid);
                (Some(list), Some(summary(&problems)))
            }
        }
    }

    fn last(&self, recorded: Option<&DenyList>) -> Option<DenyList> {
        let known = || self.known().as_deref().cloned();
        recorded.cloned().or_else(known)
    }

    fn publish(&self, list: &DenyList) {
        self.size.set(i64::try_from(list.len()).unwrap_or(i64::MAX));
        self.known.send_if_modified(|known| {
            let is_new = known.as_deref() != Some(list);
            if is_new {
                tracing::info!(
                    entries = list.len(),
                    "The list of denied identities changed"
                );
                *known = Some(Arc::new(list.clone()));
            }
            is_new
        });
    }

    fn report(&mut self, problem: Option<String>) {
        if problem.is_some() {
            self.failed.inc();
        }
        if problem == self.problem {
            return;
        }
        match &problem {
            Some(problem) => {
                let config_map = CONFIG_MAP;
                tracing::warn!(
                    config_map,
                    problem,
                    "Cannot use the list of denied identities; the last one stays in effect"
                );
            }
            None => tracing::info!("The list of denied identities is valid again"),
        }
        self.problem = problem;
    }
}

fn selector() -> String {
    format!("metadata.name={CONFIG_MAP}")
}
