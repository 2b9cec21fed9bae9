//! The facts that checks evaluate, gathered at one moment. A fact that could not be determined has
//! the reason instead, so that a user without access to Secrets still gets all other results.

pub(crate) mod cert_manager;
pub(crate) mod containers;
pub(crate) mod host;
pub(crate) mod injection;
mod machine;
mod multicluster;
pub(crate) mod names;
pub(crate) mod permission;
pub(crate) mod restarts;
pub(crate) mod trust;
mod viz;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::Duration;

use mesh_core::annotation;
use mesh_core::exposition::Sample;
use mesh_core::node::{NodeStatus, PodStatus};
use mesh_k8s::kinds::core::Event;
use mesh_k8s::kinds::{
    ConfigMap, CronJob, DaemonSet, Deployment, EndpointSlice, Lease, MutatingWebhookConfiguration,
    Namespace, NetworkPolicy, Node, ObjectMeta, Pod, ResourceExt, Secret, Service, ServiceAccount,
    ValidatingWebhookConfiguration,
};
use mesh_k8s::pod;
use mesh_k8s::values::{Redirection, Values};
use mesh_objects::convert;
use mesh_objects::model::PodRecord;
use mesh_objects::store::Store;
use serde::Serialize;
use serde_json::Value;

pub(crate) use self::{
    machine::Machine,
    multicluster::{Credentials, LinkFacts, Multicluster, Replica, Target, TargetMesh},
    permission::Permission,
    trust::Trust,
    viz::{SelfCheck, Viz},
};
use crate::analyze::kinds::POLICIES;
use crate::analyze::{self, Finding};
use crate::cluster::agent;
use crate::resource::Scope;

/// A fact, or why it could not be determined.
pub(crate) type Fact<T> = Result<T, String>;

/// Pods younger than this may still be starting, so that checks of application pods exclude them
/// and say so.
pub(crate) const NEW_POD_SECONDS: u64 = 30;

/// The value of a fact that was not queried. It is not shown, because the checks that use it do not
/// apply.
pub(crate) const NOT_QUERIED: &str = "not queried";

/// The set of checks that the user requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Whether the mesh can be installed.
    Pre,
    /// Whether the custom resource definitions are installed.
    Crds,
    Installed {
        /// Check all meshed pods, too.
        proxies: bool,
    },
    /// What follows a rotation of the trust anchor.
    Rotation,
    /// Whether the viz extension works.
    Viz {
        /// Check what it sees of all meshed pods, too.
        proxies: bool,
    },
    /// Whether links to other clusters work.
    Multicluster {
        /// The limit of requests to another cluster, and to a mirror controller.
        timeout: Duration,
    },
    /// Whether the units of this machine are redirected to working proxies.
    Host,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Environment {
    /// A machine without a local node.
    Machine,
    LocalNode,
    Cluster,
}

#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) environment: Environment,
    pub(crate) mode: Mode,
    pub(crate) control_namespace: String,
    /// The namespaces whose pods `--proxy` checks.
    pub(crate) scope: Scope,
    /// Unix time of this machine in seconds.
    pub(crate) now: u64,
    pub(crate) cli_version: &'static str,
    pub(crate) machine: Machine,
    pub(crate) api_server: Fact<ApiServer>,
    pub(crate) objects: Objects,
    /// Permissions of the user or of the controllers.
    pub(crate) access: Vec<AccessReview>,
    pub(crate) trust: Trust,
    pub(crate) agents: Vec<Agent>,
    pub(crate) controllers: Vec<Controller>,
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) webhook: Webhook,
    pub(crate) viz: Viz,
    pub(crate) multicluster: Multicluster,
    pub(crate) host: host::Host,
    /// Parsed once, when the configuration has been read.
    values: OnceLock<Fact<Values>>,
    /// The objects that decide about traffic, as far as they are known. Converted once.
    traffic: OnceLock<analyze::Objects>,
    /// Computed once, since several rows show a part of it.
    analysis: OnceLock<Fact<Vec<Finding>>>,
}

/// The API server.
#[derive(Debug, Clone)]
pub(crate) struct ApiServer {
    pub(crate) version: String,
    pub(crate) major_minor: Option<(u32, u32)>,
    /// Unix time of the API server in seconds, from the Date header of its response.
    pub(crate) clock: Option<u64>,
    /// `group/version/Kind` of the kinds that it serves in the groups of the mesh.
    pub(crate) served: Fact<BTreeSet<String>>,
}

#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) namespaces: Fact<Vec<Namespace>>,
    pub(crate) nodes: Fact<Vec<Node>>,
    pub(crate) leases: Fact<Vec<Lease>>,
    pub(crate) pods: Fact<Vec<Pod>>,
    pub(crate) services: Fact<Vec<Service>>,
    /// Warnings about objects in the control plane's namespace. The five fields below are limited
    /// to that namespace, too.
    pub(crate) events: Fact<Vec<Event>>,
    pub(crate) slices: Fact<Vec<EndpointSlice>>,
    pub(crate) deployments: Fact<Vec<Deployment>>,
    pub(crate) daemon_sets: Fact<Vec<DaemonSet>>,
    pub(crate) cron_jobs: Fact<Vec<CronJob>>,
    pub(crate) accounts: Fact<Vec<ServiceAccount>>,
    pub(crate) config: Fact<Option<ConfigMap>>,
    /// The ConfigMaps with trust anchors in all namespaces.
    pub(crate) trust_roots: Fact<Vec<ConfigMap>>,
    /// The trust anchors that the identity service sends, with their number.
    pub(crate) trust_bundle: Fact<Option<ConfigMap>>,
    /// The list of denied identities.
    pub(crate) denied_identities: Fact<Option<ConfigMap>>,
    /// The Secret of a rotation of the trust anchor, while it lasts.
    pub(crate) rotation: Fact<Option<Secret>>,
    /// The metadata of the issuer's Secret.
    pub(crate) issuer: Fact<Option<ObjectMeta>>,
    /// The Certificate that cert-manager writes the issuer's Secret from, if there is one.
    pub(crate) issuer_certificate: Fact<Option<cert_manager::Certificate>>,
    pub(crate) webhook_secret: Fact<Option<Secret>>,
    pub(crate) webhooks: Fact<Option<MutatingWebhookConfiguration>>,
    /// The objects of each validator, by the container that serves its webhook.
    pub(crate) validators: BTreeMap<&'static str, ValidatorObjects>,
    /// The configuration of Cilium, if the cluster has one.
    pub(crate) cilium: Fact<Option<ConfigMap>>,
    /// The ConfigMap of CoreDNS, if the cluster has one.
    pub(crate) cluster_dns: Fact<Option<ConfigMap>>,
    pub(crate) network_policies: Fact<Vec<NetworkPolicy>>,
    /// The policy objects in JSON with `kind`, so that an invalid object can be named.
    pub(crate) policies: Fact<Vec<Value>>,
    /// The leases of Kubernetes' controllers and of the control plane.
    pub(crate) leader_leases: Fact<Vec<Lease>>,
    /// The EndpointSlices of namespace kube-system.
    pub(crate) system_slices: Fact<Vec<EndpointSlice>>,
    /// Warnings of all namespaces about pods that a workload could not create.
    pub(crate) failed_creates: Fact<Vec<Event>>,
    /// The workloads and ServiceAccounts of all namespaces in JSON with `kind`.
    pub(crate) workloads: Fact<Vec<Value>>,
}

/// The objects of a validating webhook.
#[derive(Debug)]
pub(crate) struct ValidatorObjects {
    pub(crate) registration: Fact<Option<ValidatingWebhookConfiguration>>,
    pub(crate) secret: Fact<Option<Secret>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccessReview {
    /// A service account of the control plane; `None` is the user.
    pub(crate) account: Option<&'static str>,
    pub(crate) permission: Permission,
    pub(crate) allowed: Fact<bool>,
}

#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) node: String,
    pub(crate) status: Fact<NodeStatus>,
    pub(crate) pods: Fact<Vec<PodStatus>>,
}

#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) pod: String,
    pub(crate) name: &'static str,
    pub(crate) ready: Fact<()>,
    pub(crate) metrics: Fact<Vec<Sample>>,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    /// The pod belongs to an application and may still be starting.
    pub(crate) is_new: bool,
    pub(crate) ready: Fact<()>,
    pub(crate) metrics: Fact<Vec<Sample>>,
    /// The certificates that it presents, leaf first and in DER. Queried during a rotation of the
    /// trust anchor only.
    pub(crate) chain: Option<Fact<Vec<Vec<u8>>>>,
}

#[derive(Debug)]
pub(crate) struct Webhook {
    /// The chain that each ready injector pod presents, keyed by pod.
    pub(crate) presented: BTreeMap<String, Fact<Vec<Vec<u8>>>>,
    /// The result of creating a pod as a dry run.
    pub(crate) dry_run: Fact<InjectionDryRun>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InjectionDryRun {
    Injected,
    /// The API server accepted the pod without a proxy.
    NotInjected,
    /// The error message of the API server.
    Rejected(String),
    /// The user may not create pods in the namespace.
    Forbidden,
    /// No suitable namespace exists, for this reason.
    NotAttempted(String),
}

/// The namespaces whose pods belong to the mesh itself.
pub(crate) struct OwnNamespaces<'a> {
    control_plane: &'a str,
    /// Absent if no agents redirect pods.
    agents: Option<String>,
}

impl Facts {
    /// Creates facts that are all unknown.
    pub(crate) fn new(
        environment: Environment,
        mode: Mode,
        control_namespace: &str,
        scope: Scope,
    ) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            environment,
            mode,
            control_namespace: control_namespace.to_owned(),
            scope,
            now: now.map_or(0, |since| since.as_secs()),
            cli_version: env!("CARGO_PKG_VERSION"),
            machine: Machine::default(),
            api_server: not_queried(),
            objects: Objects::not_queried(),
            access: Vec::new(),
            trust: Trust {
                anchors: not_queried(),
                issuer: not_queried(),
                key: not_queried(),
            },
            agents: Vec::new(),
            controllers: Vec::new(),
            proxies: Vec::new(),
            webhook: Webhook {
                presented: BTreeMap::new(),
                dry_run: not_queried(),
            },
            viz: Viz::not_queried(),
            multicluster: Multicluster::not_queried(),
            host: host::Host::not_queried(),
            values: OnceLock::new(),
            traffic: OnceLock::new(),
            analysis: OnceLock::new(),
        }
    }

    pub(crate) fn is_installed_mode(&self) -> bool {
        matches!(self.mode, Mode::Installed { .. })
    }

    /// Returns the chart values that ConfigMap linkerd-config records.
    pub(crate) fn values(&self) -> Fact<&Values> {
        fact_ref(self.values.get_or_init(|| {
            let text = self.values_text()?;
            let what = "the values of ConfigMap linkerd-config";
            let values =
                serde_norway::from_str(&text).map_err(|error| format!("{what}: {error}"))?;
            Values::of_installation(values, &self.control_namespace)
                .map_err(|error| format!("{what}: {error}"))
        }))
    }

    pub(crate) fn values_text(&self) -> Fact<String> {
        let config = fact_ref(&self.objects.config)?.as_ref().ok_or_else(|| {
            format!(
                "namespace {} has no ConfigMap linkerd-config",
                self.control_namespace
            )
        })?;
        let values = config.data.as_ref().and_then(|data| data.get("values"));
        let values = values.ok_or("ConfigMap linkerd-config has no key \"values\"")?;
        Ok(values.clone())
    }

    /// Returns whether node agents redirect pods, which is the default of the chart.
    pub(crate) fn has_agents(&self) -> bool {
        self.values()
            .map_or(true, |values| values.redirection() == Redirection::Agent)
    }

    /// Returns the namespace of the node agents, or the chart's default if the values are unknown.
    pub(crate) fn agent_namespace(&self) -> String {
        let namespace = |values: &Values| values.agent_namespace().to_owned();
        self.values()
            .map_or_else(|_unknown| namespace(&Values::default()), namespace)
    }

    /// Returns the DaemonSet of the node agents, if it exists.
    pub(crate) fn agent_set(&self) -> Fact<Option<&DaemonSet>> {
        let namespace = self.agent_namespace();
        let mut sets = fact_ref(&self.objects.daemon_sets)?.iter();
        Ok(sets.find(|set| {
            set.name_any() == agent::NAME && set.namespace().as_ref() == Some(&namespace)
        }))
    }

    /// Returns the namespaces of the control plane and the node agents.
    pub(crate) fn own_namespaces(&self) -> OwnNamespaces<'_> {
        OwnNamespaces {
            control_plane: &self.control_namespace,
            agents: self.has_agents().then(|| self.agent_namespace()),
        }
    }

    /// Returns whether the values ask for reports of the installation, which is not the default.
    pub(crate) fn sends_heartbeat(&self) -> bool {
        self.values()
            .is_ok_and(|values| values.heartbeat_receiver().is_some())
    }

    /// Returns the objects that decide about traffic. Unknown ones are missing.
    pub(crate) fn traffic(&self) -> &analyze::Objects {
        self.traffic.get_or_init(|| {
            let read = &self.objects;
            let documents = [&read.policies, &read.workloads].into_iter().flatten();
            let mut objects: analyze::Objects = documents.flatten().cloned().collect();
            objects.extend(json(&read.namespaces));
            objects.extend(json(&read.services));
            objects.extend(json(&read.pods));
            objects.set_unserved(self.unserved_policies());
            if let Ok(values) = self.values() {
                objects.set_values(values.clone());
            }
            objects
        })
    }

    /// Returns the records of the valid objects that decide about traffic, if policies are known.
    pub(crate) fn store(&self) -> Fact<&Store> {
        fact_ref(&self.objects.policies)?;
        Ok(self.traffic().store())
    }

    /// Returns the record of a pod.
    pub(crate) fn record(&self, pod: &Pod) -> Option<&PodRecord> {
        self.traffic().store().pod(&convert::name(&pod.metadata))
    }

    /// Returns what `meshctl analyze` finds in the objects of the cluster.
    pub(crate) fn analysis(&self) -> Fact<&[Finding]> {
        let findings = self.analysis.get_or_init(|| {
            let read = &self.objects;
            fact_ref(&read.policies)?;
            fact_ref(&read.workloads)?;
            fact_ref(&read.namespaces)?;
            fact_ref(&read.services)?;
            fact_ref(&read.pods)?;
            Ok(analyze::analyze(self.traffic()))
        });
        findings.as_deref().map_err(Clone::clone)
    }

    /// Returns the kinds of policies that the API server lacks, if it says which it serves.
    fn unserved_policies(&self) -> Vec<(&'static str, &'static str)> {
        let served = self.api_server.as_ref().map(|server| &server.served);
        let Ok(Ok(served)) = served else {
            return Vec::new();
        };
        let unserved = POLICIES.into_iter().filter(|(group, versions, kind)| {
            let mut names = versions
                .iter()
                .map(|version| format!("{group}/{version}/{kind}"));
            !names.any(|name| served.contains(&name))
        });
        unserved.map(|(group, _, kind)| (group, kind)).collect()
    }

    /// Returns the pods that run or are starting.
    pub(crate) fn live_pods(&self) -> Fact<impl Iterator<Item = &Pod>> {
        Ok(fact_ref(&self.objects.pods)?
            .iter()
            .filter(|pod| !pod::is_terminal(pod) && pod.metadata.deletion_timestamp.is_none()))
    }

    /// Returns the live pods of the scope, without the control plane's and the agents' pods.
    pub(crate) fn scoped_pods(&self) -> Fact<impl Iterator<Item = &Pod>> {
        let own = self.own_namespaces();
        Ok(self.live_pods()?.filter(move |pod| {
            let namespace = pod.namespace().unwrap_or_default();
            self.scope.contains(&namespace) && !own.contain(&namespace)
        }))
    }

    /// Returns the pods of the control plane.
    pub(crate) fn control_pods(&self) -> Fact<impl Iterator<Item = &Pod>> {
        Ok(self.live_pods()?.filter(|pod| {
            pod.namespace().as_deref() == Some(&self.control_namespace)
                && pod::label(pod, annotation::CONTROL_PLANE_COMPONENT).is_some()
        }))
    }

    /// Returns the pods of the scope that have a proxy, without the control plane's pods.
    pub(crate) fn meshed_pods(&self) -> Fact<impl Iterator<Item = &Pod>> {
        Ok(self.live_pods()?.filter(|pod| {
            let namespace = pod.namespace().unwrap_or_default();
            namespace != self.control_namespace
                && self.scope.contains(&namespace)
                && proxy_container(pod).is_some()
        }))
    }

    /// Returns the time of the API server, which the timestamps of objects are based on.
    pub(crate) fn clock(&self) -> u64 {
        let server = self.api_server.as_ref().ok();
        server.and_then(|server| server.clock).unwrap_or(self.now)
    }

    /// Returns whether the pod was created less than [`NEW_POD_SECONDS`] ago.
    pub(crate) fn is_new(&self, pod: &Pod) -> bool {
        let created = pod.creation_timestamp().map(|time| time.0.as_second());
        let created = created.and_then(|seconds| u64::try_from(seconds).ok());
        created.is_some_and(|created| created + NEW_POD_SECONDS > self.clock())
    }

    /// Returns the message of the kubelet or node controller if the node is not Ready.
    pub(crate) fn unready_reason(&self, node: &Node) -> Option<String> {
        let conditions = node.status.as_ref()?.conditions.as_ref()?;
        let ready = conditions
            .iter()
            .find(|condition| condition.type_ == "Ready")?;
        (ready.status != "True").then(|| {
            let text = ready.message.as_deref().or(ready.reason.as_deref());
            text.unwrap_or("no reason given").to_owned()
        })
    }

    /// Returns whether the pod's node is not Ready. Its daemons are unreachable, and `nodes-ready`
    /// reports the node.
    pub(crate) fn is_on_unready_node(&self, pod: &Pod) -> bool {
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        let nodes = self.objects.nodes.as_deref().unwrap_or_default();
        let node = nodes.iter().find(|node| Some(&node.name_any()) == name);
        node.is_some_and(|node| self.unready_reason(node).is_some())
    }

    /// Returns the last warning event about an object in the control plane's namespace.
    pub(crate) fn last_warning(&self, kind: &str, name: &str) -> Option<&str> {
        self.newest_warning(kind, name, |_event| true)
    }

    /// Returns the last warning event about a container, usually a failed probe.
    pub(crate) fn container_warning(&self, pod: &str, container: &str) -> Option<&str> {
        // `spec.containers{name}`, or `spec.initContainers{name}`.
        let end = format!("{{{container}}}");
        self.newest_warning("Pod", pod, |event| {
            let field = event.involved_object.field_path.as_deref();
            field.is_some_and(|field| field.ends_with(&end))
        })
    }

    fn newest_warning(
        &self,
        kind: &str,
        name: &str,
        which: impl Fn(&Event) -> bool,
    ) -> Option<&str> {
        let events = self.objects.events.as_deref().unwrap_or_default().iter();
        let about = events.filter(|event| {
            event.involved_object.kind.as_deref() == Some(kind)
                && event.involved_object.name.as_deref() == Some(name)
                && which(event)
        });
        about
            .max_by_key(|event| event.last_timestamp.as_ref().map(|time| time.0))
            .and_then(|event| event.message.as_deref())
    }

    /// Returns the Pod Security level that a namespace enforces, if it has one.
    pub(crate) fn enforced_level(&self, namespace: &str) -> Option<&str> {
        let labels = self.namespace(namespace)?.labels();
        labels
            .get("pod-security.kubernetes.io/enforce")
            .map(String::as_str)
    }

    pub(crate) fn namespace(&self, name: &str) -> Option<&Namespace> {
        let all = self.objects.namespaces.as_ref().ok()?;
        all.iter().find(|namespace| namespace.name_any() == name)
    }
}

impl Objects {
    fn not_queried() -> Self {
        Self {
            namespaces: not_queried(),
            nodes: not_queried(),
            leases: not_queried(),
            pods: not_queried(),
            services: not_queried(),
            events: not_queried(),
            slices: not_queried(),
            deployments: not_queried(),
            daemon_sets: not_queried(),
            cron_jobs: not_queried(),
            accounts: not_queried(),
            config: not_queried(),
            trust_roots: not_queried(),
            trust_bundle: not_queried(),
            denied_identities: not_queried(),
            rotation: not_queried(),
            issuer: not_queried(),
            issuer_certificate: not_queried(),
            webhook_secret: not_queried(),
            webhooks: not_queried(),
            validators: BTreeMap::new(),
            cilium: not_queried(),
            cluster_dns: not_queried(),
            network_policies: not_queried(),
            policies: not_queried(),
            leader_leases: not_queried(),
            system_slices: not_queried(),
            failed_creates: not_queried(),
            workloads: not_queried(),
        }
    }
}

impl OwnNamespaces<'_> {
    pub(crate) fn contain(&self, name: &str) -> bool {
        name == self.control_plane || self.agents.as_deref() == Some(name)
    }
}

/// Returns all objects of one kind in JSON, if they are known.
fn json<T: Serialize>(all: &Fact<Vec<T>>) -> impl Iterator<Item = Value> {
    all.iter().flatten().flat_map(serde_json::to_value)
}

pub(crate) fn not_queried<T>() -> Fact<T> {
    Err(NOT_QUERIED.to_owned())
}

/// Borrows a fact, or returns the reason why it is unknown.
pub(crate) fn fact_ref<T>(fact: &Fact<T>) -> Fact<&T> {
    fact.as_ref().map_err(Clone::clone)
}

pub(crate) fn proxy_container(pod: &Pod) -> Option<&mesh_k8s::kinds::core::Container> {
    pod::containers(pod.spec.as_ref()?).find(|container| container.name == pod::PROXY_CONTAINER)
}

/// Returns `namespace/name`.
pub(crate) fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}
