//! The objects of an analysis, with the lookups of the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};

use mesh_core::annotation::TRUST_BUNDLE_OF;
use mesh_k8s::kinds::{ConfigMap, LabelSelector};
use mesh_k8s::pod::PROXY_CONTAINER;
use mesh_k8s::values::Values;
use mesh_k8s::{foreign_domain, select};
use mesh_objects::convert;
use mesh_objects::model::{EgressNetwork, Object as Record, Server, Service};
use mesh_objects::policy::server;
use mesh_objects::store::Store;
use serde::Deserialize as _;
use serde_json::Value;

/// The objects of an analysis.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    all: BTreeMap<Key, Object>,
    /// The valid ones.
    store: OnceLock<Store>,
    /// Group and kind of definitions that the API server lacks.
    unserved: BTreeSet<(&'static str, &'static str)>,
    /// The values of the installation, if they are known.
    values: Option<Values>,
    /// Whether it could not be read which domains of other clusters are trusted.
    is_trust_unknown: bool,
    /// These domains, as far as they have been read.
    foreign_domains: OnceLock<Vec<String>>,
}

/// Group, kind, namespace and name.
type Key = (String, String, String, String);

/// An object in JSON.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    /// Empty for the core group.
    pub(crate) group: String,
    pub(crate) kind: String,
    /// Empty for an object of the cluster.
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) json: Value,
    /// `None` if the object is invalid, or of a kind that decides nothing.
    record: Option<Record>,
}

/// The pods of a workload, or one pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload<'a> {
    pub(crate) object: &'a Object,
    /// `metadata` and `spec` of its pods.
    pub(crate) template: &'a Value,
    /// The path of `template`.
    pub(crate) path: &'static str,
}

pub(crate) const POLICY: &str = "policy.linkerd.io";
pub(crate) const GATEWAY: &str = "gateway.networking.k8s.io";
pub(crate) const PROFILE: &str = "linkerd.io";
const WORKLOAD: &str = "workload.linkerd.io";

const DEFAULT_NAMESPACE: &str = "default";

/// Stands for the address that the API server assigns to a Service of a manifest. A headless one
/// says so, and one of type ExternalName gets none.
const UNASSIGNED: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The kinds of workloads that create pods, or objects that do.
const OWNING_KINDS: [&str; 6] = [
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "DaemonSet",
    "Job",
    "CronJob",
];

/// The names of ports of the container that the injector adds, which templates lack.
const PROXY_PORTS: [&str; 2] = ["linkerd-proxy", "linkerd-admin"];

/// The kinds of objects of the cluster.
const CLUSTER_KINDS: [&str; 2] = ["Namespace", "Node"];

impl Extend<Value> for Objects {
    fn extend<I: IntoIterator<Item = Value>>(&mut self, documents: I) {
        documents
            .into_iter()
            .for_each(|document| self.add(document));
    }
}

impl FromIterator<Value> for Objects {
    fn from_iter<I: IntoIterator<Item = Value>>(documents: I) -> Self {
        let mut objects = Self::default();
        objects.extend(documents);
        objects
    }
}

impl Objects {
    /// Adds a document: an object, or a list of objects. A later object replaces an earlier one.
    fn add(&mut self, document: Value) {
        if let Some(items) = document["items"].as_array() {
            items.iter().cloned().for_each(|item| self.add(item));
            return;
        }
        if let Some(object) = Object::new(document) {
            self.all.insert(object.key(), object);
            self.store.take();
            self.foreign_domains.take();
        }
    }

    /// Returns the records of the valid objects.
    pub(crate) fn store(&self) -> &Store {
        let records = || self.iter().filter_map(Object::record).cloned().collect();
        self.store.get_or_init(records)
    }

    /// Records which kinds the API server does not serve, so that no object of them can be created.
    pub(crate) fn set_unserved(
        &mut self,
        kinds: impl IntoIterator<Item = (&'static str, &'static str)>,
    ) {
        self.unserved = kinds.into_iter().collect();
    }

    pub(crate) fn set_values(&mut self, values: Values) {
        self.values = Some(values);
        self.foreign_domains.take();
    }

    pub(super) fn values(&self) -> Option<&Values> {
        self.values.as_ref()
    }

    pub(crate) fn set_trust_unknown(&mut self) {
        self.is_trust_unknown = true;
    }

    /// Returns the trust domains of other clusters that are trusted; `None` if they are unknown.
    pub(super) fn foreign_domains(&self) -> Option<&[String]> {
        let domains = || {
            self.foreign_domains
                .get_or_init(|| self.read_foreign_domains())
        };
        (!self.is_trust_unknown).then(|| &**domains())
    }

    fn read_foreign_domains(&self) -> Vec<String> {
        // Without values every namespace may be the one of the control plane.
        let values = self.values();
        let labelled = self.of("", "ConfigMap").filter(|object| {
            values.is_none_or(|values| values.namespace == object.namespace)
                && object.json["metadata"]["labels"][TRUST_BUNDLE_OF].is_string()
        });
        let read = labelled.filter_map(|object| ConfigMap::deserialize(&object.json).ok());
        let own = values.map_or("", Values::trust_domain);
        let (domains, _refused) = foreign_domain::select(own, read.collect());
        domains.into_iter().map(|it| it.trust_domain).collect()
    }

    /// Returns what to do about a reference to an object that does not exist.
    pub(super) fn fix_of_missing(&self, group: &str, kind: &str) -> String {
        let is_unserved = self
            .unserved
            .iter()
            .any(|(of, name)| *of == group && *name == kind);
        match (is_unserved, group) {
            (false, _) => "correct the name, or create it".to_owned(),
            (true, GATEWAY) => {
                format!("the cluster has no definition of {kind}: install the Gateway API first")
            }
            (true, _) => format!(
                "the cluster has no definition of {kind}: meshctl install --crds | kubectl apply -f -"
            ),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether there is an object of any group with this kind and name.
    pub(crate) fn contains(&self, kind: &str, namespace: &str, name: &str) -> bool {
        self.iter().any(|object| {
            object.kind == kind && object.namespace == namespace && object.name == name
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Object> + Clone {
        self.all.values()
    }

    pub(crate) fn of<'a>(
        &'a self,
        group: &'a str,
        kind: &'a str,
    ) -> impl Iterator<Item = &'a Object> + Clone {
        let first = (
            group.to_owned(),
            kind.to_owned(),
            String::new(),
            String::new(),
        );
        self.all
            .range(first..)
            .map(|(_, object)| object)
            .take_while(move |object| object.group == group && object.kind == kind)
    }

    pub(super) fn find(
        &self,
        group: &str,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Option<&Object> {
        let key: Key = [group, kind, namespace, name].map(str::to_owned).into();
        self.all.get(&key)
    }

    /// Returns whether a namespace has objects of a kind; without any, nothing is known of them.
    pub(super) fn knows(&self, group: &str, kind: &str, namespace: &str) -> bool {
        self.of(group, kind)
            .any(|object| object.namespace == namespace)
    }

    /// Returns the ExternalWorkloads of a namespace.
    pub(super) fn external_workloads<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Object> + Clone {
        self.of(WORKLOAD, "ExternalWorkload")
            .filter(move |object| object.namespace == namespace)
    }

    /// Returns the identities of machines, which need not be of the trust domain.
    pub(super) fn external_identities(&self) -> impl Iterator<Item = &str> {
        self.of(WORKLOAD, "ExternalWorkload")
            .map(|object| text(&object.spec()["meshTLS"]["identity"]))
    }

    /// Returns the workloads of a namespace and all its pods, whatever owns them.
    pub(super) fn pods_of_namespace<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = Workload<'a>> {
        self.workloads_and_pods()
            .filter(move |workload| workload.object.namespace == namespace)
    }

    /// Returns the workloads and all pods, whatever owns them.
    pub(super) fn workloads_and_pods(&self) -> impl Iterator<Item = Workload<'_>> {
        let owned = self
            .of("", "Pod")
            .filter(|pod| !list(&pod.json["metadata"]["ownerReferences"]).is_empty())
            .map(|pod| Workload {
                object: pod,
                template: &pod.json,
                path: "",
            });
        self.workloads().chain(owned)
    }

    /// Returns the workloads, without the pods of other workloads.
    pub(super) fn workloads(&self) -> impl Iterator<Item = Workload<'_>> {
        self.iter().filter_map(Object::workload)
    }
}

impl Object {
    fn new(mut json: Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let kind = text(&json["kind"]);
        let version = text(&json["apiVersion"]);
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let name = text(&json["metadata"]["name"]);
        if kind.is_empty() || name.is_empty() {
            return None;
        }
        let namespace = match text(&json["metadata"]["namespace"]) {
            _ if CLUSTER_KINDS.contains(&&*kind) => String::new(),
            namespace if namespace.is_empty() => DEFAULT_NAMESPACE.to_owned(),
            namespace => namespace,
        };
        let group = group.to_owned();
        if !namespace.is_empty() {
            json["metadata"]["namespace"] = namespace.as_str().into();
        }
        let mut record = convert::valid(&json);
        if let Some(Record::Service(service)) = &mut record
            && json["spec"]["clusterIP"].is_null()
            && service.cluster_ips.is_empty()
        {
            Arc::make_mut(service).cluster_ips.push(UNASSIGNED);
        }
        Some(Self {
            group,
            kind,
            namespace,
            name,
            json,
            record,
        })
    }

    /// Returns the record of a valid object; `None` for kinds that decide nothing.
    pub(super) fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    pub(super) fn server(&self) -> Option<&Server> {
        match &self.record {
            Some(Record::Server(server)) => Some(server),
            _ => None,
        }
    }

    pub(super) fn service(&self) -> Option<&Service> {
        match &self.record {
            Some(Record::Service(service)) => Some(service),
            _ => None,
        }
    }

    pub(super) fn egress_network(&self) -> Option<&EgressNetwork> {
        match &self.record {
            Some(Record::EgressNetwork(network)) => Some(network),
            _ => None,
        }
    }

    fn key(&self) -> Key {
        let parts = [&self.group, &self.kind, &self.namespace, &self.name];
        parts.map(String::clone).into()
    }

    /// Returns the name with the namespace.
    pub(super) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    pub(super) fn spec(&self) -> &Value {
        &self.json["spec"]
    }

    pub(super) fn list(&self, field: &str) -> &[Value] {
        list(&self.spec()[field])
    }

    /// Returns whether a workload created the object, with the annotations of its own template.
    pub(super) fn is_of_workload(&self) -> bool {
        let owners = list(&self.json["metadata"]["ownerReferences"]);
        owners
            .iter()
            .any(|owner| OWNING_KINDS.contains(&text(&owner["kind"])))
    }

    /// Returns whether a label selector selects the object.
    pub(super) fn has_labels(&self, selector: &Value) -> bool {
        is_selected(&self.json["metadata"]["labels"], selector)
    }

    fn workload(&self) -> Option<Workload<'_>> {
        let (path, template) = match &*self.kind {
            "Pod" if list(&self.json["metadata"]["ownerReferences"]).is_empty() => ("", &self.json),
            "Deployment" | "StatefulSet" | "DaemonSet" | "Job" => {
                ("spec.template.", &self.spec()["template"])
            }
            "ReplicaSet" | "ReplicationController"
                if list(&self.json["metadata"]["ownerReferences"]).is_empty() =>
            {
                ("spec.template.", &self.spec()["template"])
            }
            "CronJob" => (
                "spec.jobTemplate.spec.template.",
                &self.spec()["jobTemplate"]["spec"]["template"],
            ),
            _ => return None,
        };
        Some(Workload {
            object: self,
            template,
            path,
        })
    }
}

impl Workload<'_> {
    /// Returns whether a label selector selects the pods; a malformed one selects none.
    pub(super) fn is_selected_by(&self, selector: &Value) -> bool {
        is_selected(&self.template["metadata"]["labels"], selector)
    }

    /// Returns the numbers of the ports with a name, or the number itself.
    pub(super) fn ports(&self, port: &Value) -> Vec<u64> {
        if let Some(number) = port.as_u64() {
            return vec![number];
        }
        self.declared()
            .filter(|entry| entry["name"] == *port)
            .filter_map(|entry| entry["containerPort"].as_u64())
            .collect()
    }

    /// Calls `read` with the pods' properties that Servers select by.
    pub(super) fn selectable<T>(&self, read: impl FnOnce(server::Workload<'_>) -> T) -> T {
        let labels = &self.template["metadata"]["labels"];
        let labels: BTreeMap<String, String> = BTreeMap::deserialize(labels).unwrap_or_default();
        let named: Vec<_> = self
            .declared()
            .filter_map(|port| {
                let number = u16::try_from(port["containerPort"].as_u64()?).ok()?;
                Some((port["name"].as_str()?.into(), number))
            })
            .collect();
        read(server::Workload::pod(
            &self.object.namespace,
            &labels,
            &named,
        ))
    }

    /// Returns whether a port, by name or number, can be one of the application's. A container that
    /// declares no port may listen on any.
    pub(super) fn may_listen_on(&self, port: &Value) -> bool {
        if port.is_string() {
            return is_of_proxy(port) || !self.ports(port).is_empty();
        }
        let mut declared = self.declared().peekable();
        declared.peek().is_none() || declared.any(|entry| entry["containerPort"] == *port)
    }

    /// Returns the TCP ports that the application's containers declare.
    fn declared(&self) -> impl Iterator<Item = &Value> {
        let spec = &self.template["spec"];
        let containers = ["initContainers", "containers"].into_iter();
        containers
            .flat_map(|field| list(&spec[field]))
            .filter(|container| container["name"] != PROXY_CONTAINER)
            .flat_map(|container| list(&container["ports"]))
            .filter(|entry| is_tcp(entry))
    }
}

fn is_selected(labels: &Value, selector: &Value) -> bool {
    let Ok(selector) = LabelSelector::deserialize(selector) else {
        return false;
    };
    let labels: BTreeMap<String, String> = BTreeMap::deserialize(labels).unwrap_or_default();
    select::matches(&selector, Some(&labels))
}

/// Returns whether the injector adds a port with this name.
pub(super) fn is_of_proxy(port: &Value) -> bool {
    PROXY_PORTS.contains(&text(port))
}

/// Returns whether a port of a container or Service is one of TCP, the default.
pub(super) fn is_tcp(port: &Value) -> bool {
    port["protocol"]
        .as_str()
        .is_none_or(|protocol| protocol == "TCP")
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
