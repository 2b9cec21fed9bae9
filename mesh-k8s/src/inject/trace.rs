//! The attributes of the spans of a pod's proxy, from values, labels and annotations.
//!
//! They follow OpenTelemetry's conventions for Kubernetes: annotations with the prefix
//! `resource.opentelemetry.io/` are attributes, and the recommended labels name the service.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::InjectError;
use super::overrides::{self, AnnotationOrigin, Annotations, OverrideReport};
use crate::values::Values;

/// The prefix of annotations that are attributes of the proxy's spans.
const ATTRIBUTE_PREFIX: &str = "resource.opentelemetry.io/";

/// The attribute that names the service.
const SERVICE_NAME: &str = "service.name";

/// The labels that name the service; the first present one counts.
const SERVICE_LABELS: [&str; 2] = ["app.kubernetes.io/instance", "app.kubernetes.io/name"];

/// Returns the attributes: the labels of the values, the name of the service by the pod's labels,
/// and the pod's annotations. Later ones replace earlier ones.
pub(super) fn attributes(
    values: &Values,
    pod: &ObjectMeta,
    component: Option<&str>,
) -> Annotations {
    let mut attributes = values.proxy.tracing.labels.clone();
    // Proxies of the control plane have only the labels of the values, as the chart renders them.
    if component.is_some() {
        return attributes;
    }
    let labels = pod.labels.iter();
    let name = labels
        .flat_map(|labels| SERVICE_LABELS.map(|label| labels.get(label)))
        .flatten()
        .next();
    if let Some(name) = name {
        let _replaced = attributes.insert(SERVICE_NAME.to_owned(), name.clone());
    }
    for (name, value) in pod.annotations.iter().flatten() {
        if let Some(name) = name.strip_prefix(ATTRIBUTE_PREFIX) {
            let _replaced = attributes.insert(name.to_owned(), value.clone());
        }
    }
    attributes
}

/// Checks what the export of spans requires. Without it, annotations have no effect and are not
/// checked, because other programs read them too.
pub(super) fn check(
    values: &Values,
    origin: AnnotationOrigin<'_>,
    report: &mut OverrideReport,
) -> Result<(), InjectError> {
    let tracing = &values.proxy.tracing;
    if !tracing.enabled {
        return Ok(());
    }
    let invalid = |path, problem: &str| InjectError::Tracing {
        path,
        problem: problem.to_owned(),
    };
    if !is_host_and_port(&tracing.collector.endpoint) {
        let path = "proxy.tracing.collector.endpoint";
        return Err(invalid(
            path,
            "is not a host and port, as in collector.tracing:4317",
        ));
    }
    let identity = &tracing.collector.mesh_identity;
    for (path, name) in [
        (
            "proxy.tracing.collector.meshIdentity.serviceAccountName",
            &identity.service_account_name,
        ),
        (
            "proxy.tracing.collector.meshIdentity.namespace",
            &identity.namespace,
        ),
    ] {
        if name.is_empty() {
            return Err(invalid(
                path,
                "is empty, and spans are only sent to a meshed pod",
            ));
        }
    }
    for (key, value) in origin.pod.annotations.iter().flatten() {
        if key.starts_with(ATTRIBUTE_PREFIX) && value.contains(char::is_control) {
            let holder = origin.workload_name();
            let expected = "expected a text on one line";
            report
                .errors
                .push(overrides::invalid_value(&holder, key, value, expected));
        }
    }
    Ok(())
}

fn is_host_and_port(endpoint: &str) -> bool {
    endpoint.rsplit_once(':').is_some_and(|(host, port)| {
        let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
        is_port && !host.is_empty() && !host.contains(['/', ' '])
    })
}
