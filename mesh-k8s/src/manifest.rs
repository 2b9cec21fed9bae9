//! Injection and uninjection of manifests, for `meshctl inject` and `meshctl uninject`.
//!
//! Pure functions from a list of documents to the changed documents and one report for each object;
//! `meshctl` reads files and prints. The documents stay plain JSON, so that unknown fields and
//! kinds pass through. Injection first reverses an earlier injection, so it can be repeated. The
//! items of a `List` are changed in place.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mesh_core::annotation;
use serde_json::{Map, Value, json};

use self::template::ObjectRole;
use crate::inject::{self, Decision, InjectError, SkipReason};
use crate::pod;
use crate::pod::owner::Owner;
use crate::values::Values;

mod template;

#[cfg(test)]
mod tests;

/// How manifests are injected.
#[derive(Clone, Debug, Default)]
pub struct InjectOptions<'a> {
    /// The annotations of the command line. Every pod gets all of them, a Service only the
    /// annotation of opaque ports.
    pub annotations: BTreeMap<String, String>,
    /// Whether the proxies run in ingress mode.
    pub ingress: bool,
    /// The values for adding the proxy to the manifest. Without them the manifest only gets the
    /// annotation that makes the cluster's injector add it.
    pub manual: Option<&'a Values>,
}

/// The result for one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The kind, in lower case; empty if the document has none.
    pub kind: String,
    /// The namespace of the object, if the manifest has it.
    pub namespace: Option<String>,
    /// The name, or the prefix of a generated name.
    pub name: String,
    /// How the object was changed, or why not.
    pub outcome: Outcome,
    /// Configuration that has no effect or that the mesh does not support, one message each.
    pub warnings: Vec<String>,
}

/// How an object was changed, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The proxy was added to the manifest.
    Injected,
    /// Annotations were added.
    Annotated,
    /// An injection was removed.
    Uninjected,
    /// The workload is not injected and unchanged.
    Skipped(Vec<SkipReason>),
    /// The workload is unchanged because its annotations, or the command line's, are invalid; one
    /// message each.
    Refused(Vec<String>),
    /// The object is unchanged: it is not a workload, or there is nothing to remove.
    Unchanged,
}

/// Why manifests cannot be injected.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The document is not a valid object of its kind.
    #[error("{object} is not a valid object of its kind")]
    Object {
        /// The kind and name.
        object: String,
        /// The cause.
        source: serde_json::Error,
    },
    /// The values prevent injection.
    #[error("{object} cannot be injected")]
    Inject {
        /// The kind and name.
        object: String,
        /// The cause.
        source: InjectError,
    },
    /// The patch does not apply to the document.
    #[error("{object} cannot be patched")]
    Patch {
        /// The kind and name.
        object: String,
        /// The cause.
        source: inject::ApplyError,
    },
}

/// Injects every workload of the documents, in place of an earlier injection. Returns the changed
/// documents and a report for each object.
///
/// # Errors
///
/// A document that is not a valid object of its kind, or values that prevent injection. Invalid
/// annotations are not errors: their workload is reported as [`Outcome::Refused`].
pub fn inject(
    documents: Vec<Value>,
    options: &InjectOptions<'_>,
) -> Result<(Vec<Value>, Vec<Report>), ManifestError> {
    visit_all(documents, &mut |object| options.apply(object))
}

/// Removes from every object what an injector added. Configuration that users wrote stays. Returns
/// the changed documents and a report for each object.
///
/// # Errors
///
/// None at present; [`inject`] returns the same type.
pub fn uninject(documents: Vec<Value>) -> Result<(Vec<Value>, Vec<Report>), ManifestError> {
    visit_all(documents, &mut |object| {
        let outcome = if uninject_object(object) {
            Outcome::Uninjected
        } else {
            Outcome::Unchanged
        };
        Ok(Report::of(object, outcome))
    })
}

/// Applies `change` to every object, including those in Lists.
fn visit_all(
    documents: Vec<Value>,
    change: &mut impl FnMut(&mut Value) -> Result<Report, ManifestError>,
) -> Result<(Vec<Value>, Vec<Report>), ManifestError> {
    let mut reports = Vec::new();
    let mut changed = Vec::with_capacity(documents.len());
    for mut document in documents {
        visit_document(&mut document, change, &mut reports)?;
        changed.push(document);
    }
    Ok((changed, reports))
}

fn visit_document(
    document: &mut Value,
    change: &mut impl FnMut(&mut Value) -> Result<Report, ManifestError>,
    reports: &mut Vec<Report>,
) -> Result<(), ManifestError> {
    // A document that contains only comments.
    if document.is_null() {
        return Ok(());
    }
    if let Some(items) = template::items(document) {
        for item in items {
            visit_document(item, change, reports)?;
        }
        return Ok(());
    }
    reports.push(change(document)?);
    Ok(())
}

fn uninject_object(object: &mut Value) -> bool {
    match template::object_role(object) {
        ObjectRole::Workload(path) => object.pointer_mut(path).is_some_and(inject::uninject),
        ObjectRole::Namespace | ObjectRole::Service => inject::uninject_metadata(object),
        ObjectRole::Other => false,
    }
}

impl InjectOptions<'_> {
    fn apply(&self, object: &mut Value) -> Result<Report, ManifestError> {
        // So that the result does not depend on an earlier injection.
        uninject_object(object);
        match template::object_role(object) {
            ObjectRole::Workload(path) => self.workload(object, path),
            ObjectRole::Namespace => {
                annotate(object, [(annotation::INJECT, self.mode())]);
                Ok(Report::of(object, Outcome::Annotated))
            }
            ObjectRole::Service => Ok(self.service(object)),
            ObjectRole::Other => Ok(Report::of(object, Outcome::Unchanged)),
        }
    }

    fn workload(&self, object: &mut Value, path: &str) -> Result<Report, ManifestError> {
        let mut report = Report::of(object, Outcome::Unchanged);
        let Some(template) = object.pointer_mut(path) else {
            return Ok(report);
        };
        let pod = |template: &Value, report: &Report| {
            let mut pod: Pod = serde_json::from_value(template.clone()).map_err(|source| {
                ManifestError::Object {
                    object: report.object(),
                    source,
                }
            })?;
            // Pods are created in the namespace of their workload.
            pod.metadata.namespace.clone_from(&report.namespace);
            Ok(pod)
        };
        let namespace = ObjectMeta {
            name: report.namespace.clone(),
            annotations: Some([(annotation::INJECT.to_owned(), self.mode().to_owned())].into()),
            ..ObjectMeta::default()
        };
        let before = pod(template, &report)?;
        // Only the values define whether the proxy gets a projected token.
        let projection = self
            .manual
            .is_none_or(|values| values.identity.service_account_token_projection);
        if let Decision::Skip(reasons) = inject::decide(&namespace, &before, projection) {
            report.outcome = Outcome::Skipped(reasons);
            return Ok(report);
        }
        report.warnings = predict_warnings(&before);
        let untouched = template.clone();
        let flags = self.annotations.iter();
        annotate(
            template,
            flags.map(|(key, value)| (key.as_str(), value.as_str())),
        );
        annotate(template, [(annotation::INJECT, self.mode())]);
        report.outcome = Outcome::Annotated;
        // Without values nothing is patched, but annotations that the cluster's injector would
        // reject are rejected here.
        let values = self.manual.cloned().unwrap_or_default();
        let patched = inject::patch(
            &values,
            &namespace,
            &pod(template, &report)?,
            &report.owner(),
        );
        let outcome = match patched {
            Ok(outcome) => outcome,
            Err(InjectError::Annotations(problems)) => {
                *template = untouched;
                report.warnings.clear();
                report.outcome = Outcome::Refused(problems);
                return Ok(report);
            }
            Err(source) => {
                return Err(ManifestError::Inject {
                    object: report.object(),
                    source,
                });
            }
        };
        if self.manual.is_some() {
            let applied = outcome.patch.apply(template);
            applied.map_err(|source| ManifestError::Patch {
                object: report.object(),
                source,
            })?;
            if report.kind == "cronjob" {
                // The injector of a cluster only sees the pods of its Jobs, whose owner is the Job.
                set_metadata(
                    template,
                    "labels",
                    [("linkerd.io/proxy-cronjob", report.name.as_str())],
                );
            }
            report.warnings.extend(outcome.warnings);
            report.outcome = Outcome::Injected;
        }
        Ok(report)
    }

    /// Writes the annotation of opaque ports, which the destination service reads from Services.
    fn service(&self, object: &mut Value) -> Report {
        let Some(ports) = self.annotations.get(annotation::OPAQUE_PORTS) else {
            return Report::of(object, Outcome::Unchanged);
        };
        annotate(object, [(annotation::OPAQUE_PORTS, ports.as_str())]);
        Report::of(object, Outcome::Annotated)
    }

    fn mode(&self) -> &'static str {
        if self.ingress { "ingress" } else { "enabled" }
    }
}

/// Returns warnings about parts of a pod that the mesh does not support.
fn predict_warnings(pod: &Pod) -> Vec<String> {
    let udp = pod
        .spec
        .iter()
        .flat_map(pod::ports::declared)
        .any(|(_, port)| port.protocol.as_deref() == Some("UDP"));
    let mut warnings = Vec::new();
    if udp {
        warnings.push("the pod declares UDP ports; the mesh does not carry UDP".to_owned());
    }
    warnings
}

fn annotate<'a>(object: &mut Value, entries: impl IntoIterator<Item = (&'a str, &'a str)>) {
    set_metadata(object, "annotations", entries);
}

/// Writes entries of a map of the metadata, creating missing maps.
fn set_metadata<'a>(
    object: &mut Value,
    map: &str,
    entries: impl IntoIterator<Item = (&'a str, &'a str)>,
) {
    let mut entries = entries.into_iter().peekable();
    if entries.peek().is_none() {
        return;
    }
    let Some(object) = object.as_object_mut() else {
        return;
    };
    let Some(map) = child_map(object, "metadata").and_then(|meta| child_map(meta, map)) else {
        return;
    };
    for (key, value) in entries {
        map.insert(key.to_owned(), json!(value));
    }
}

/// Returns the map under a key, creating an empty one in place of `null` or a missing key.
fn child_map<'a>(
    parent: &'a mut Map<String, Value>,
    key: &str,
) -> Option<&'a mut Map<String, Value>> {
    let value = parent.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut()
}

impl Report {
    fn of(object: &Value, outcome: Outcome) -> Self {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let name = text("/metadata/name").or_else(|| text("/metadata/generateName"));
        Self {
            kind: text("/kind").unwrap_or_default().to_ascii_lowercase(),
            namespace: text("/metadata/namespace").map(str::to_owned),
            name: name.unwrap_or_default().to_owned(),
            outcome,
            warnings: Vec::new(),
        }
    }

    /// Returns whether injection was requested and is not possible. A workload that disables
    /// injection is not refused.
    pub fn is_refused(&self) -> bool {
        match &self.outcome {
            Outcome::Refused(_) => true,
            Outcome::Skipped(reasons) => reasons.iter().any(|reason| {
                !matches!(
                    reason,
                    SkipReason::DisabledByAnnotation | SkipReason::NotEnabled
                )
            }),
            Outcome::Injected | Outcome::Annotated | Outcome::Uninjected | Outcome::Unchanged => {
                false
            }
        }
    }

    /// Returns the kind, namespace and name for messages.
    pub fn object(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{}", self.kind, self.name),
            None => format!("{} {}", self.kind, self.name),
        }
    }

    fn owner(&self) -> Owner {
        Owner {
            kind: self.kind.clone(),
            name: self.name.clone(),
        }
    }
}
