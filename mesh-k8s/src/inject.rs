//! The pod patch: which pods are injected, and what injection adds to them.
//!
//! A pure function of values, namespace and pod, shared by the admission webhook, `meshctl inject`
//! and the local node. [`decide`] returns whether a pod is injected, [`patch`] also returns the
//! JSON patch. Containers are typed values until they are serialized into the patch, so that text
//! from annotations cannot escape from its field. [`uninject`] reverses an injection.

use std::borrow::Cow;
use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{Pod, PodSpec, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mesh_core::annotation;
use sha2::{Digest, Sha256};

use self::env::EnvInputs;
use self::overrides::{AnnotationOrigin, Annotations};
use self::patch::Operations;
use self::redirect_annotations::AnnotationPatch;
use crate::pod;
use crate::pod::owner::Owner;
use crate::values::Redirection;

mod containers;
mod decision;
mod env;
mod machine;
mod opaque;
mod overrides;
mod patch;
mod redirect_annotations;
mod reverse;
mod tap;
mod trace;
pub(crate) mod units;

#[cfg(test)]
mod tests;

pub use crate::values::{self, Values};
pub use containers::{TOKEN_AUDIENCE, TRUST_ROOTS_CONFIG_MAP};
pub use decision::{Decision, SkipReason, decide};
pub use env::TRUST_ROOTS_KEY;
pub use machine::machine_settings;
pub use opaque::service_warnings;
pub use overrides::configuration_keys;
pub use patch::{ApplyError, Patch};
pub use reverse::uninject;
pub(crate) use reverse::uninject_metadata;
pub use tap::{DISABLE_TAP, TAP_ENABLED, tap_patch};

/// The result of [`patch`].
#[derive(Clone, Debug, PartialEq)]
pub struct PatchOutcome {
    /// Whether the pod is injected, and why not.
    pub decision: Decision,
    /// Empty when nothing changes. The patch of a skipped pod may add the annotation of its opaque
    /// ports.
    pub patch: Patch,
    /// Configuration that has no effect, one message each.
    pub warnings: Vec<String>,
}

/// Why a pod cannot be patched.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// The value `clusterNetworks` has an item that is not a CIDR block.
    #[error(
        "clusterNetworks: {0:?} is not a CIDR block such as 10.0.0.0/8; correct the mesh's values"
    )]
    ClusterNetworks(String),
    /// Spans are to be exported, and a value about the collector is missing or invalid.
    #[error(
        "{path}: {problem}; set it in the mesh's values, or set proxy.tracing.enabled to false"
    )]
    Tracing {
        /// The dotted path of the value.
        path: &'static str,
        /// The problem with it.
        problem: String,
    },
    /// Invalid annotations, one message each; the pod must not be admitted.
    #[error("{}", .0.join("; "))]
    Annotations(Vec<String>),
    /// A part of the patch cannot be serialized.
    #[error("serialize the {what} as JSON")]
    Serialize {
        /// The part of the patch.
        what: &'static str,
        /// The cause.
        source: serde_json::Error,
    },
}

/// Returns the annotations of a pod with those that it inherits from its namespace, and the values
/// with all of them applied. An annotation that cannot be used changes nothing.
pub fn effective(
    values: &Values,
    namespace: &ObjectMeta,
    pod: &ObjectMeta,
) -> (Annotations, Values) {
    let owner = Owner {
        kind: "pod".to_owned(),
        name: String::new(),
    };
    let origin = AnnotationOrigin {
        namespace,
        pod,
        owner: &owner,
    };
    let annotations = overrides::inherit(namespace, pod);
    let mut values = values.clone();
    overrides::apply(&mut values, &annotations, origin);
    (annotations, values)
}

/// Computes the patch of a pod. `owner` is the workload that owns the pod, or the pod itself.
///
/// # Errors
///
/// Invalid annotations of the pod, invalid security annotations of its namespace, and an invalid
/// `clusterNetworks`.
pub fn patch(
    values: &Values,
    namespace: &ObjectMeta,
    pod: &Pod,
    owner: &Owner,
) -> Result<PatchOutcome, InjectError> {
    let projection = values.identity.service_account_token_projection;
    let decision = decide(namespace, pod, projection);
    let Decision::Inject { ingress } = decision else {
        let default = || opaque::default_of_pod(&pod_spec(pod), &values.proxy.opaque_ports);
        return Ok(PatchOutcome {
            decision,
            patch: annotate_opaque(namespace, &pod.metadata, default),
            warnings: Vec::new(),
        });
    };
    let mut values = values.clone();
    values.proxy.is_ingress |= ingress;
    let origin = AnnotationOrigin {
        namespace,
        pod: &pod.metadata,
        owner,
    };
    let annotations = overrides::inherit(namespace, &pod.metadata);
    let mut report = overrides::apply(&mut values, &annotations, origin);
    overrides::merge_additional_env(&mut values, origin, &mut report);
    opaque::check(&annotations, &pod_spec(pod), origin, &mut report);
    trace::check(&values, origin, &mut report)?;
    if !report.errors.is_empty() {
        return Err(InjectError::Annotations(report.errors));
    }
    let component = pod::label(pod, annotation::CONTROL_PLANE_COMPONENT).is_some();
    let redirect_patch = redirect_annotations::compute(&values, &annotations, &report, component);
    let patch = injection_patch(&values, &annotations, redirect_patch, pod, owner)?;
    Ok(PatchOutcome {
        decision,
        patch,
        warnings: report.warnings,
    })
}

/// Computes the patch of a Service, which adds at most the annotation of its opaque ports.
pub fn patch_service(values: &Values, namespace: &ObjectMeta, service: &Service) -> Patch {
    let default = || opaque::default_of_service(service, &values.proxy.opaque_ports);
    annotate_opaque(namespace, &service.metadata, default)
}

/// Returns the patch of an injected pod. `values` have the pod's annotations applied.
fn injection_patch(
    values: &Values,
    annotations: &Annotations,
    redirect_patch: AnnotationPatch,
    pod: &Pod,
    owner: &Owner,
) -> Result<Patch, InjectError> {
    let spec = pod_spec(pod);
    let component = pod::label(pod, annotation::CONTROL_PLANE_COMPONENT);
    let env = env::proxy(&EnvInputs {
        values,
        spec: &spec,
        component,
        opaque_ports: opaque::for_proxy(annotations, &spec, &values.proxy.opaque_ports),
        trace_attributes: trace::attributes(values, &pod.metadata, component),
    })?;
    let mut operations = Operations::default();
    let own = pod.metadata.annotations.as_ref();
    for key in &redirect_patch.remove {
        if own.is_some_and(|own| own.contains_key(*key)) {
            operations.remove(&["metadata", "annotations", key]);
        }
    }
    let added = added_annotations(values, annotations, redirect_patch, pod, &spec);
    operations.metadata_entries("annotations", own, added);
    let labels = pod.metadata.labels.as_ref();
    operations.metadata_entries("labels", labels, added_labels(values, pod, owner));
    operations.ensure_list(&["spec", "volumes"], spec.volumes.is_some());
    if values.proxy.native_sidecar || values.redirection() != Redirection::Agent {
        operations.ensure_list(&["spec", "initContainers"], spec.init_containers.is_some());
    }
    let first = add_network_container(&mut operations, values, &spec, component.is_some())?;
    if overrides::wants_debug_sidecar(annotations) {
        let debug = containers::debug(values);
        operations.add(&["spec", "containers", "-"], "debugging container", &debug)?;
    }
    for volume in containers::proxy_volumes(values) {
        operations.add(&["spec", "volumes", "-"], "volume", &volume)?;
    }
    let place = match (values.proxy.native_sidecar, values.proxy.r#await) {
        (true, _) if first => ["spec", "initContainers", "1"],
        (true, _) => ["spec", "initContainers", "0"],
        (false, true) => ["spec", "containers", "0"],
        (false, false) => ["spec", "containers", "-"],
    };
    let proxy = containers::proxy(values, &spec, env);
    operations.add(&place, "proxy", &proxy)?;
    Ok(operations.finish())
}

/// Adds the init container that redirects the pod or validates its redirection, and returns whether
/// there is one. Where the agent redirects pods, there is none.
fn add_network_container(
    operations: &mut Operations,
    values: &Values,
    spec: &PodSpec,
    control_plane: bool,
) -> Result<bool, InjectError> {
    // Before the native sidecar, which precedes all other init containers. A proxy among the
    // ordinary containers only needs it to be an init container.
    let index = if values.proxy.native_sidecar {
        "0"
    } else {
        "-"
    };
    let place = ["spec", "initContainers", index];
    match values.redirection() {
        Redirection::Agent => return Ok(false),
        Redirection::ForeignCni => {
            let validator = containers::network_validator(values);
            operations.add(&place, "network validator", &validator)?;
        }
        Redirection::InitContainer => {
            let volume = containers::xtables_volume(values);
            operations.add(&["spec", "volumes", "-"], "volume", &volume)?;
            let init = containers::init(values, spec, control_plane);
            operations.add(&place, "init container", &init)?;
        }
    }
    Ok(true)
}

/// Returns the annotations that injection adds to the pod's own.
fn added_annotations(
    values: &Values,
    annotations: &Annotations,
    redirect_patch: AnnotationPatch,
    pod: &Pod,
    spec: &PodSpec,
) -> Annotations {
    let version = &values.linkerd_version;
    let mut added = annotations.clone();
    let own = pod.metadata.annotations.as_ref();
    added.retain(|key, _| {
        own.is_none_or(|own| !own.contains_key(key))
            && !redirect_patch.remove.contains(&key.as_str())
    });
    added.extend(redirect_patch.set);
    added.insert(
        annotation::CREATED_BY.into(),
        format!("linkerd/proxy-injector {version}"),
    );
    added.insert(
        annotation::PROXY_VERSION.into(),
        values.proxy_version().into(),
    );
    added.insert(
        annotation::TRUST_ROOT_SHA256.into(),
        trust_root_sha256(&values.identity_trust_anchors_pem),
    );
    if !annotations.contains_key(annotation::OPAQUE_PORTS)
        && let Some(ports) = opaque::default_of_pod(spec, &values.proxy.opaque_ports)
    {
        added.insert(annotation::OPAQUE_PORTS.into(), ports);
    }
    added
}

fn added_labels(values: &Values, pod: &Pod, owner: &Owner) -> Annotations {
    /// The kinds that have a label. The pods of a CronJob are owned by a Job.
    const LABELLED: [&str; 6] = [
        "deployment",
        "replicationcontroller",
        "replicaset",
        "job",
        "daemonset",
        "statefulset",
    ];
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let mut labels = Annotations::from([
        (
            annotation::CONTROL_PLANE_NS.to_owned(),
            values.namespace.clone(),
        ),
        (annotation::WORKLOAD_NS.to_owned(), namespace),
    ]);
    if LABELLED.contains(&owner.kind.as_str()) {
        labels.insert(
            format!("linkerd.io/proxy-{}", owner.kind),
            owner.name.clone(),
        );
    }
    labels
}

/// Adds the annotation of opaque ports to an object that lacks it: the value of the namespace, or
/// else the default opaque ports that the object uses.
fn annotate_opaque(
    namespace: &ObjectMeta,
    object: &ObjectMeta,
    default: impl FnOnce() -> Option<String>,
) -> Patch {
    let opaque_ports = |meta| pod::meta_annotation(meta, annotation::OPAQUE_PORTS);
    let mut operations = Operations::default();
    if opaque_ports(object).is_none()
        && let Some(ports) = opaque_ports(namespace).map(str::to_owned).or_else(default)
    {
        operations.metadata_entries(
            "annotations",
            object.annotations.as_ref(),
            [(annotation::OPAQUE_PORTS.to_owned(), ports)].into(),
        );
    }
    operations.finish()
}

fn pod_spec(pod: &Pod) -> Cow<'_, PodSpec> {
    match &pod.spec {
        Some(spec) => Cow::Borrowed(spec),
        None => Cow::Owned(PodSpec::default()),
    }
}

/// Hashes the unmodified bundle, including whitespace. The annotation identifies the trust anchors
/// that a pod was injected with.
fn trust_root_sha256(bundle: &str) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(bundle.as_bytes()) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
