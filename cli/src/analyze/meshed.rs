//! The pods that have a proxy or get one, with the settings of their proxies.

use mesh_core::ports::PortSet;
use mesh_k8s::inject::{Decision, decide, effective};
use mesh_k8s::kinds::core::PodSpec;
use mesh_k8s::kinds::{ObjectMeta, Pod};
use mesh_k8s::pod::{self, PROXY_CONTAINER, ports};
use mesh_k8s::values::Values;
use mesh_objects::convert;
use mesh_objects::model::PodRecord;
use serde::Deserialize as _;

use super::objects::{Objects, Workload, list, text};

/// The pods of a workload, or one pod.
pub(super) struct Meshed<'a> {
    pub(super) workload: Workload<'a>,
    /// With the annotations and the default policy that apply.
    pub(super) record: PodRecord,
    /// The ports whose connections bypass the proxy.
    pub(super) skip_inbound: PortSet,
    /// The ports whose connections bypass the proxy of these pods as clients.
    pub(super) skip_outbound: PortSet,
    /// Whether `skip_outbound` is not the chart's list.
    pub(super) has_own_skip_outbound: bool,
    /// How long the proxy sleeps before it ends. A native sidecar ends after the application.
    pub(super) wait_before_exit_seconds: u32,
}

/// Returns the pods with a proxy, and the workloads whose pods get one. Findings name the first
/// object, so templates, where faults are corrected, come before pods.
pub(super) fn meshed<'a>(objects: &'a Objects, values: &Values) -> Vec<Meshed<'a>> {
    let all = objects.workloads_and_pods();
    let mut meshed: Vec<_> = all
        .filter_map(|workload| Meshed::new(objects, values, workload))
        .collect();
    meshed.sort_by_key(|pods| pods.workload.path.is_empty());
    meshed
}

impl<'a> Meshed<'a> {
    fn new(objects: &Objects, chart: &Values, workload: Workload<'a>) -> Option<Self> {
        let (template, namespace) = (workload.template, &workload.object.namespace);
        let phase = text(&template["status"]["phase"]);
        let mut pod = Pod {
            metadata: ObjectMeta::deserialize(&template["metadata"]).unwrap_or_default(),
            spec: Some(PodSpec::deserialize(&template["spec"]).ok()?),
            status: None,
        };
        if ["Succeeded", "Failed"].contains(&phase) || pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        pod.metadata.namespace = Some(namespace.clone());
        let mut containers = pod.spec.iter().flat_map(pod::containers);
        let mut above = ObjectMeta::default();
        // A pod with a proxy inherits no more, and one that runs without a proxy gets none.
        if !containers.any(|container| container.name == PROXY_CONTAINER) {
            let json = objects.find("", "Namespace", "", namespace);
            let meta = json.map(|object| ObjectMeta::deserialize(&object.json["metadata"]));
            above = meta.and_then(Result::ok).unwrap_or_default();
            let projection = chart.identity.service_account_token_projection;
            let is_injected = matches!(decide(&above, &pod, projection), Decision::Inject { .. });
            if !phase.is_empty() || !is_injected {
                return None;
            }
        }
        let (annotations, values) = effective(chart, &above, &pod.metadata);
        pod.metadata.annotations = Some(annotations);
        let resolve = |list: &str| ports::resolve_list(pod.spec.as_ref(), list);
        let skip_outbound = resolve(&values.proxy_init.ignore_outbound_ports);
        let of_chart = resolve(&chart.proxy_init.ignore_outbound_ports);
        Some(Self {
            workload,
            record: PodRecord {
                default_policy: values.proxy.default_inbound_policy.parse().ok(),
                ..convert::pod(&pod)
            },
            skip_inbound: resolve(&values.proxy_init.ignore_inbound_ports),
            has_own_skip_outbound: skip_outbound != of_chart,
            skip_outbound,
            wait_before_exit_seconds: if values.proxy.native_sidecar {
                0
            } else {
                values.proxy.wait_before_exit_seconds
            },
        })
    }

    pub(super) fn title(&self) -> String {
        let object = self.workload.object;
        format!("{} {}", object.kind, object.full_name())
    }

    /// Returns what to change in the template, or in the manifest of a pod without one.
    pub(super) fn edit(&self, change: &str) -> String {
        let object = self.workload.object;
        let (namespace, name) = (&object.namespace, &object.name);
        if !self.workload.path.is_empty() {
            let kind = object.kind.to_ascii_lowercase();
            return format!("kubectl -n {namespace} edit {kind} {name}: {change} in its template");
        }
        if list(&object.json["metadata"]["ownerReferences"]).is_empty() {
            return format!(
                "{change} in the manifest of the pod, then kubectl -n {namespace} delete pod {name} and create it again"
            );
        }
        format!(
            "{change} in the template of the pod's workload, which kubectl -n {namespace} describe pod {name} names"
        )
    }
}
