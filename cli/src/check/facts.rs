//! Everything that checks judge, as it was seen at one moment.
//!
//! What could not be seen carries the reason, so that a person who may not read Secrets still
//! learns everything else.

use std::collections::{BTreeMap, BTreeSet};

use mesh_core::{
    annotation,
    node::{NodeStatus, PodStatus},
};
use mesh_k8s::{
    kinds::{
        ConfigMap, DaemonSet, Deployment, EndpointSlice, Lease, MutatingWebhookConfiguration,
        Namespace, Node, Pod, ResourceExt, Secret, Service, ServiceAccount, core::Event,
    },
    pod,
    values::{Redirection, Values},
};
use serde_json::Value;

use crate::{clients::metrics::Sample, mesh::Scope};

/// What was seen, or why it could not be.
pub(crate) type Seen<T> = Result<T, String>;

/// A pod that is younger has had no time to start, in seconds. Rows about applications' pods leave
/// it out and say so.
pub(crate) const NEW_POD: u64 = 30;
/// So long after the trust anchors were changed copies may still be on their way, in seconds:
/// kubelets look at ConfigMaps about once a minute.
pub(crate) const PROPAGATION: u64 = 90;

/// What a question that was not asked answers. Nobody sees it: the checks that need it do not
/// apply.
pub(crate) const NOT_ASKED: &str = "it was not looked at";

/// What the user asked to be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Can the mesh be installed?
    Pre,
    /// Are the custom resource definitions there?
    Crds,
    Installed {
        /// Every meshed pod, too.
        proxies: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A machine on which no local node runs.
    Machine,
    Node,
    Cluster,
}

#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) place: Place,
    pub(crate) mode: Mode,
    pub(crate) control_namespace: String,
    /// Whose pods `--proxy` looks at.
    pub(crate) scope: Scope,
    /// Seconds since 1970 by this machine's clock.
    pub(crate) now: u64,
    pub(crate) cli_version: &'static str,
    pub(crate) machine: Machine,
    pub(crate) server: Seen<Server>,
    pub(crate) objects: Objects,
    /// What you, and the controllers, may do.
    pub(crate) access: Vec<Access>,
    pub(crate) trust: Trust,
    pub(crate) agents: Vec<Agent>,
    pub(crate) controllers: Vec<Controller>,
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) webhook: Webhook,
}

/// This machine.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    pub(crate) root: bool,
    pub(crate) kernel: String,
    pub(crate) mounts: String,
    pub(crate) btf: bool,
}

/// The API server.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) version: String,
    pub(crate) major_minor: Option<(u32, u32)>,
    /// Seconds since 1970 by the API server's clock, from the head of its answer.
    pub(crate) clock: Option<u64>,
    /// `group/version/Kind` of what it serves of our groups.
    pub(crate) served: Seen<BTreeSet<String>>,
}

#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) namespaces: Seen<Vec<Namespace>>,
    pub(crate) nodes: Seen<Vec<Node>>,
    pub(crate) leases: Seen<Vec<Lease>>,
    pub(crate) pods: Seen<Vec<Pod>>,
    pub(crate) services: Seen<Vec<Service>>,
    /// Warnings about objects of the control plane's namespace; of that namespace are the four
    /// below, too.
    pub(crate) events: Seen<Vec<Event>>,
    pub(crate) slices: Seen<Vec<EndpointSlice>>,
    pub(crate) deployments: Seen<Vec<Deployment>>,
    pub(crate) daemon_sets: Seen<Vec<DaemonSet>>,
    pub(crate) accounts: Seen<Vec<ServiceAccount>>,
    pub(crate) config: Seen<Option<ConfigMap>>,
    /// The ConfigMaps of trust roots, of every namespace.
    pub(crate) trust_roots: Seen<Vec<ConfigMap>>,
    pub(crate) webhook_secret: Seen<Option<Secret>>,
    pub(crate) webhooks: Seen<Option<MutatingWebhookConfiguration>>,
    /// Cilium's configuration, where the cluster has one.
    pub(crate) cilium: Seen<Option<ConfigMap>>,
    /// The policy objects as they are, with `kind`, so that an unreadable one can be named.
    pub(crate) policies: Seen<Vec<Value>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Access {
    /// A service account of the control plane, or you.
    pub(crate) who: Option<&'static str>,
    pub(crate) what: Permission,
    pub(crate) allowed: Seen<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Permission {
    pub(crate) verb: &'static str,
    pub(crate) group: &'static str,
    pub(crate) resource: &'static str,
    /// In the control plane's namespace rather than in the whole cluster.
    pub(crate) namespaced: bool,
}

/// The roots of trust and the issuer, in DER.
#[derive(Debug)]
pub(crate) struct Trust {
    pub(crate) anchors: Seen<Vec<Vec<u8>>>,
    /// The issuer first, then what stands between it and the anchor.
    pub(crate) issuer: Seen<Vec<Vec<u8>>>,
    /// Whether the issuer's key belongs to its certificate.
    pub(crate) key: Seen<()>,
}

#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) node: String,
    pub(crate) status: Seen<NodeStatus>,
    pub(crate) pods: Seen<Vec<PodStatus>>,
}

#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) pod: String,
    pub(crate) name: &'static str,
    pub(crate) ready: Seen<()>,
    pub(crate) metrics: Seen<Vec<Sample>>,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    /// The pod of an application has had no time to start.
    pub(crate) new: bool,
    pub(crate) ready: Seen<()>,
    pub(crate) metrics: Seen<Vec<Sample>>,
}

#[derive(Debug)]
pub(crate) struct Webhook {
    /// The chain that each ready pod of the injector presents, by the pod.
    pub(crate) presented: BTreeMap<String, Seen<Vec<Vec<u8>>>>,
    /// What became of a pod that was created for trial and not kept.
    pub(crate) trial: Seen<Trial>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trial {
    Injected,
    /// The API server accepted the pod as it was.
    LeftAlone,
    /// The API server's words.
    Refused(String),
    /// You may not create pods there.
    Forbidden,
    /// No pod can or should be created there, for this reason.
    NotTried(String),
}

impl Facts {
    /// Nothing seen yet.
    pub(crate) fn new(place: Place, mode: Mode, control_namespace: &str, scope: Scope) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            place,
            mode,
            control_namespace: control_namespace.to_owned(),
            scope,
            now: now.map_or(0, |since| since.as_secs()),
            cli_version: env!("CARGO_PKG_VERSION"),
            machine: Machine::default(),
            server: unseen(),
            objects: Objects::unseen(),
            access: Vec::new(),
            trust: Trust {
                anchors: unseen(),
                issuer: unseen(),
                key: unseen(),
            },
            agents: Vec::new(),
            controllers: Vec::new(),
            proxies: Vec::new(),
            webhook: Webhook {
                presented: BTreeMap::new(),
                trial: unseen(),
            },
        }
    }

    pub(crate) fn is_installed_mode(&self) -> bool {
        matches!(self.mode, Mode::Installed { .. })
    }

    /// The values that the chart wrote down.
    pub(crate) fn values(&self) -> Seen<Values> {
        let text = self.values_text()?;
        let what = "the values of ConfigMap linkerd-config";
        let given = serde_norway::from_str(&text).map_err(|error| format!("{what}: {error}"))?;
        let mut values = Values::read(given).map_err(|error| format!("{what}: {error}"))?;
        values.namespace.clone_from(&self.control_namespace);
        Ok(values)
    }

    pub(crate) fn values_text(&self) -> Seen<String> {
        let config = see(&self.objects.config)?.as_ref().ok_or_else(|| {
            format!(
                "namespace {} has no ConfigMap linkerd-config",
                self.control_namespace
            )
        })?;
        let values = config.data.as_ref().and_then(|data| data.get("values"));
        let values = values.ok_or("ConfigMap linkerd-config has no key \"values\"")?;
        Ok(values.clone())
    }

    /// Does the mesh redirect by node agents? It does unless the chart was told otherwise.
    pub(crate) fn has_agents(&self) -> bool {
        self.values()
            .map_or(true, |values| values.redirection() == Redirection::Agent)
    }

    /// Pods that run or are about to.
    pub(crate) fn live_pods(&self) -> Seen<impl Iterator<Item = &Pod>> {
        Ok(see(&self.objects.pods)?
            .iter()
            .filter(|pod| !pod::is_terminal(pod) && pod.metadata.deletion_timestamp.is_none()))
    }

    /// Pods of the control plane.
    pub(crate) fn control_pods(&self) -> Seen<impl Iterator<Item = &Pod>> {
        Ok(self.live_pods()?.filter(|pod| {
            pod.namespace().as_deref() == Some(&self.control_namespace)
                && pod::label(pod, annotation::CONTROL_PLANE_COMPONENT).is_some()
        }))
    }

    /// Pods with a proxy that are not the control plane's, in the scope that was asked for.
    pub(crate) fn meshed_pods(&self) -> Seen<impl Iterator<Item = &Pod>> {
        Ok(self.live_pods()?.filter(|pod| {
            let namespace = pod.namespace().unwrap_or_default();
            namespace != self.control_namespace
                && self.scope.contains(&namespace)
                && proxy_container(pod).is_some()
        }))
    }

    /// The API server's time, by which objects are dated.
    pub(crate) fn clock(&self) -> u64 {
        let server = self.server.as_ref().ok();
        server.and_then(|server| server.clock).unwrap_or(self.now)
    }

    /// Was the pod created less than [`NEW_POD`] seconds ago?
    pub(crate) fn is_new(&self, pod: &Pod) -> bool {
        let created = pod.creation_timestamp().map(|time| time.0.as_second());
        let created = created.and_then(|seconds| u64::try_from(seconds).ok());
        created.is_some_and(|created| created + NEW_POD > self.clock())
    }

    /// Why a node is not Ready, in the kubelet's or the node controller's words.
    pub(crate) fn node_trouble(&self, node: &Node) -> Option<String> {
        let conditions = node.status.as_ref()?.conditions.as_ref()?;
        let ready = conditions
            .iter()
            .find(|condition| condition.type_ == "Ready")?;
        (ready.status != "True").then(|| {
            let text = ready.message.as_deref().or(ready.reason.as_deref());
            text.unwrap_or("its kubelet does not say why").to_owned()
        })
    }

    /// Does the pod stand on a node that is not Ready? Nothing there can be asked, and a check of
    /// its own names the node.
    pub(crate) fn is_on_lost_node(&self, pod: &Pod) -> bool {
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        let nodes = self.objects.nodes.as_deref().unwrap_or_default();
        let node = nodes.iter().find(|node| Some(&node.name_any()) == name);
        node.is_some_and(|node| self.node_trouble(node).is_some())
    }

    /// The newest warning that was written about an object of the control plane's namespace.
    pub(crate) fn last_warning(&self, kind: &str, name: &str) -> Option<&str> {
        self.newest_warning(kind, name, |_event| true)
    }

    /// The newest warning about a container of a pod, a failed probe mostly.
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

    pub(crate) fn namespace(&self, name: &str) -> Option<&Namespace> {
        let all = self.objects.namespaces.as_ref().ok()?;
        all.iter().find(|namespace| namespace.name_any() == name)
    }
}

impl Objects {
    fn unseen() -> Self {
        Self {
            namespaces: unseen(),
            nodes: unseen(),
            leases: unseen(),
            pods: unseen(),
            services: unseen(),
            events: unseen(),
            slices: unseen(),
            deployments: unseen(),
            daemon_sets: unseen(),
            accounts: unseen(),
            config: unseen(),
            trust_roots: unseen(),
            webhook_secret: unseen(),
            webhooks: unseen(),
            cilium: unseen(),
            policies: unseen(),
        }
    }
}

pub(crate) fn unseen<T>() -> Seen<T> {
    Err(NOT_ASKED.to_owned())
}

/// Borrows what was seen, or passes the reason on.
pub(crate) fn see<T>(seen: &Seen<T>) -> Seen<&T> {
    seen.as_ref().map_err(Clone::clone)
}

pub(crate) fn proxy_container(pod: &Pod) -> Option<&mesh_k8s::kinds::core::Container> {
    pod::containers(pod.spec.as_ref()?).find(|container| container.name == pod::PROXY_CONTAINER)
}

/// `namespace/name`.
pub(crate) fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

impl std::fmt::Display for Permission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}
