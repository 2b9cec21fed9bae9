//! The pod patch: which pods get a proxy, and what is added to them.
//!
//! A pure function of values, namespace and pod, shared by the admission webhook, `meshctl inject`
//! and the local node. [`decide`] says whether; [`patch`] also says how, as a JSON patch. The
//! containers are typed until the last step, so that text from annotations cannot break out of its
//! place. [`uninject`] takes away again what was added.

use std::{borrow::Cow, fmt::Write as _};

use json_patch::Patch;
use k8s_openapi::{
    api::core::v1::{Pod, PodSpec, Service},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use mesh_core::annotation;
use sha2::{Digest, Sha256};

mod containers;
mod decision;
mod env;
mod opaque;
mod operations;
mod overrides;
mod redirected;
mod reverse;
mod units;

#[cfg(test)]
mod tests;

pub use crate::values::{self, Values};
pub use containers::{TOKEN_AUDIENCE, TRUST_ROOTS_CONFIG_MAP};
pub use decision::{Decision, SkipReason, decide};
pub use env::TRUST_ROOTS_KEY;
pub use overrides::configuration_keys;
pub use reverse::uninject;
pub(crate) use reverse::uninject_metadata;

use self::{
    env::Given,
    operations::Operations,
    overrides::{Annotations, Origin},
    redirected::Correction,
};
use crate::{
    pod::{self, owner::Owner},
    values::Redirection,
};

/// What becomes of a pod, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub decision: Decision,
    /// Empty when nothing is to be changed. A pod that is skipped may still get the annotation of
    /// its opaque ports.
    pub patch: Patch,
    /// What was asked for and could not be done, one sentence each.
    pub warnings: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    #[error(
        "clusterNetworks: {0:?} is no block of addresses such as 10.0.0.0/8; correct the mesh's values"
    )]
    ClusterNetworks(String),
    /// One sentence for each; the object is not to be admitted.
    #[error("{}", .0.join("; "))]
    Annotations(Vec<String>),
    #[error("write the {what} as JSON")]
    Serialize {
        what: &'static str,
        #[source]
        source: serde_json::Error,
    },
}

/// Computes the patch of a pod. `owner` is the workload the pod belongs to, or the pod itself.
pub fn patch(
    values: &Values,
    namespace: &ObjectMeta,
    pod: &Pod,
    owner: &Owner,
) -> Result<Outcome, InjectError> {
    let projection = values.identity.service_account_token_projection;
    let decision = decide(namespace, pod, projection);
    let Decision::Inject { ingress } = decision else {
        let default = || opaque::default_of_pod(&pod_spec(pod), &values.proxy.opaque_ports);
        return Ok(Outcome {
            decision,
            patch: annotate_opaque(namespace, &pod.metadata, default),
            warnings: Vec::new(),
        });
    };
    let mut values = values.clone();
    values.proxy.is_ingress |= ingress;
    let origin = Origin {
        namespace,
        pod: &pod.metadata,
        owner,
    };
    let annotations = overrides::inherit(namespace, &pod.metadata);
    let mut applied = overrides::apply(&mut values, &annotations, origin);
    overrides::merge_additional_env(&mut values, origin, &mut applied);
    opaque::check(&annotations, &pod_spec(pod), origin, &mut applied);
    if !applied.problems.is_empty() {
        return Err(InjectError::Annotations(applied.problems));
    }
    let component = pod::label(pod, annotation::CONTROL_PLANE_COMPONENT).is_some();
    let correction = redirected::correct(&values, &annotations, &applied, component);
    let patch = injection(&values, &annotations, correction, pod, owner)?;
    Ok(Outcome {
        decision,
        patch,
        warnings: applied.warnings,
    })
}

/// What of a Service's annotations cannot be used. Clients take the rest; a Service is no reason to
/// keep anything from being created.
pub fn service_warnings(
    namespace: &ObjectMeta,
    service: &Service,
    in_namespace: &str,
) -> Vec<String> {
    opaque::service_warnings(namespace, service, in_namespace)
}

/// The patch of a Service: at most the annotation of its opaque ports.
pub fn patch_service(values: &Values, namespace: &ObjectMeta, service: &Service) -> Patch {
    let default = || opaque::default_of_service(service, &values.proxy.opaque_ports);
    annotate_opaque(namespace, &service.metadata, default)
}

/// The operations for a pod that is injected. `values` are those of this pod, annotations applied.
fn injection(
    values: &Values,
    annotations: &Annotations,
    correction: Correction,
    pod: &Pod,
    owner: &Owner,
) -> Result<Patch, InjectError> {
    let spec = pod_spec(pod);
    let component = pod::label(pod, annotation::CONTROL_PLANE_COMPONENT);
    let env = env::proxy(&Given {
        values,
        spec: &spec,
        component,
        opaque_ports: opaque::for_proxy(annotations, &spec, &values.proxy.opaque_ports),
    })?;
    let mut operations = Operations::default();
    let own = pod.metadata.annotations.as_ref();
    for key in &correction.remove {
        if own.is_some_and(|own| own.contains_key(*key)) {
            operations.remove(&["metadata", "annotations", key]);
        }
    }
    let added = added_annotations(values, annotations, correction, pod, &spec);
    operations.metadata_entries("annotations", own, added);
    let labels = pod.metadata.labels.as_ref();
    operations.metadata_entries("labels", labels, added_labels(values, pod, owner));
    operations.ensure_list(&["spec", "volumes"], spec.volumes.is_some());
    if values.proxy.native_sidecar || values.redirection() != Redirection::Agent {
        operations.ensure_list(&["spec", "initContainers"], spec.init_containers.is_some());
    }
    let first = first_container(&mut operations, values, &spec, component.is_some())?;
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

/// Adds the init container that redirects the pod or asks whether it is redirected. Where the agent
/// does that, there is none.
fn first_container(
    operations: &mut Operations,
    values: &Values,
    spec: &PodSpec,
    control_plane: bool,
) -> Result<bool, InjectError> {
    // Before the native sidecar, which comes before everything else; a proxy among the containers
    // needs it before itself only.
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

/// The annotations that an injected pod gets, beyond those it has.
fn added_annotations(
    values: &Values,
    annotations: &Annotations,
    correction: Correction,
    pod: &Pod,
    spec: &PodSpec,
) -> Annotations {
    let version = &values.linkerd_version;
    let mut added = annotations.clone();
    let own = pod.metadata.annotations.as_ref();
    added.retain(|key, _| {
        own.is_none_or(|own| !own.contains_key(key)) && !correction.remove.contains(&key.as_str())
    });
    added.extend(correction.set);
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
    /// The kinds that have a label; a pod of a CronJob is known by its Job alone.
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

/// Adds the annotation of opaque ports to an object that lacks it: the namespace's value, else
/// those defaults that the object uses.
fn annotate_opaque(
    namespace: &ObjectMeta,
    object: &ObjectMeta,
    default: impl FnOnce() -> Option<String>,
) -> Patch {
    let of = |meta: &ObjectMeta| {
        let annotations = meta.annotations.as_ref()?;
        annotations.get(annotation::OPAQUE_PORTS).cloned()
    };
    let mut operations = Operations::default();
    if of(object).is_none()
        && let Some(ports) = of(namespace).or_else(default)
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

/// Lets tools see which bundle a pod was started with; of the bundle as it is, blanks included.
fn trust_root_sha256(bundle: &str) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(bundle.as_bytes()) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
