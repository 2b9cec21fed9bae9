//! ListPods: pods with the state of their proxies, and whether Prometheus scrapes these.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mesh_api::linkerd2::Duration as ProtoDuration;
use mesh_api::linkerd2::viz::pod::Owner as ProtoOwner;
use mesh_api::linkerd2::viz::{ListPodsRequest, Pod, Resource};
use mesh_cluster::prometheus::Sample;
use mesh_objects::inventory::{Inventory, Selection};
use mesh_objects::model::{ListedKind, Name, OwnerRef, Selector};

use super::resource::parse_selector;
use crate::metrics::{Family, Grouping, Matchers, Query};

/// A valid request.
#[derive(Clone, Debug)]
pub(super) struct PodsRequest {
    /// Empty for all namespaces.
    namespace: String,
    /// The type and name of the workloads; empty for all.
    kind: String,
    name: String,
    selector: Selector,
}

/// The last scrape of a proxy, and when it started.
type Reports = HashMap<Name, (SystemTime, SystemTime)>;

/// Returns the query for the start of all proxies, which also shows which of them are scraped.
pub(super) fn start_query(namespace: &str) -> Query {
    let mut matchers = Matchers::new();
    if !namespace.is_empty() {
        matchers = matchers.equal("namespace", namespace);
    }
    matchers.max(Family::ProcessStart, &Grouping::of(&["pod", "namespace"]))
}

impl PodsRequest {
    pub(super) fn parse(request: &ListPodsRequest) -> Result<Self, String> {
        let selector = request.selector.as_ref();
        let Resource {
            namespace,
            r#type: kind,
            name,
        } = selector
            .and_then(|selector| selector.resource.clone())
            .unwrap_or_default();
        let selector =
            parse_selector(selector.map_or("", |selector| selector.label_selector.as_str()))?;
        if kind == ListedKind::Namespace.resource_type() {
            // The pods of a namespace, of all owners.
            return Ok(Self {
                namespace: name,
                kind: String::new(),
                name: String::new(),
                selector,
            });
        }
        Ok(Self {
            namespace,
            kind,
            name,
            selector,
        })
    }

    pub(super) fn query(&self) -> Query {
        start_query(&self.namespace)
    }

    /// Returns the pods with these reports, except pods in ignored namespaces.
    pub(super) fn pods(
        &self,
        inventory: &Inventory,
        ignored_namespaces: &[String],
        samples: &[Sample],
        now: SystemTime,
    ) -> Vec<Pod> {
        let reports = reports(samples);
        let selection = Selection {
            kind: ListedKind::Pod,
            namespace: &self.namespace,
            name: "",
            labels: &self.selector,
        };
        let pods = inventory.select(selection).filter_map(|object| {
            if ignored_namespaces
                .iter()
                .any(|it| **it == *object.name.namespace)
            {
                return None;
            }
            let owner = inventory.workload(object);
            let matches = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
            if !(matches(&self.kind, &owner.kind) && matches(&self.name, &owner.name)) {
                return None;
            }
            let detail = object.pod()?;
            let report = reports.get(&object.name);
            Some(Pod {
                name: object.name.to_string(),
                pod_ip: detail.ip.to_string(),
                status: detail.summary.to_string(),
                added: report.is_some(),
                since_last_report: report.map(|(scraped, _)| since(*scraped, now)),
                uptime: report.map(|(_, started)| since(*started, now)),
                controller_namespace: detail.control_plane_ns.to_string(),
                control_plane: detail.control_plane,
                proxy_ready: detail.proxy_ready,
                proxy_version: detail.proxy_version.to_string(),
                resource_version: detail.resource_version.to_string(),
                owner: proto_owner(&object.name.namespace, &owner),
            })
        });
        pods.collect()
    }
}

fn reports(samples: &[Sample]) -> Reports {
    let time = |seconds: f64| {
        let since = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
    };
    samples
        .iter()
        .map(|sample| {
            let name = Name::new(sample.label("namespace"), sample.label("pod"));
            (name, (time(sample.time), time(sample.value)))
        })
        .collect()
}

/// The clock of Prometheus may be ahead.
fn since(time: SystemTime, now: SystemTime) -> ProtoDuration {
    let since = now.duration_since(time).unwrap_or_default();
    ProtoDuration::try_from(since).unwrap_or_default()
}

/// The API has no field for other owners.
fn proto_owner(namespace: &str, owner: &OwnerRef) -> Option<ProtoOwner> {
    let name = format!("{namespace}/{}", owner.name);
    Some(match &*owner.kind {
        "deployment" => ProtoOwner::Deployment(name),
        "replicaset" => ProtoOwner::ReplicaSet(name),
        "replicationcontroller" => ProtoOwner::ReplicationController(name),
        "statefulset" => ProtoOwner::StatefulSet(name),
        "daemonset" => ProtoOwner::DaemonSet(name),
        "job" => ProtoOwner::Job(name),
        _ => return None,
    })
}
