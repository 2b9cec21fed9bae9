//! Manifests of workloads with a proxy and without: what `meshctl inject` and `meshctl uninject` do
//! to a list of documents.
//!
//! Pure: documents in, documents and one report for each object out; `meshctl` reads files and
//! prints. The documents stay plain JSON, so that fields and kinds this version knows nothing of
//! pass through. Injecting begins with uninjecting, and so may be repeated. A `List` is taken apart
//! and put together again.

use std::collections::BTreeMap;

use json_patch::PatchError;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use mesh_core::annotation;
use serde_json::{Map, Value, json};

use crate::{
    inject::{self, Decision, InjectError, SkipReason},
    pod::{self, owner::Owner},
    values::Values,
};

mod template;

#[cfg(test)]
mod tests;

use self::template::Shape;

/// How manifests are injected.
#[derive(Clone, Debug, Default)]
pub struct Injection<'a> {
    /// Annotations that the user asked for on the command line: written on every pod; of them, a
    /// Service gets its opaque ports.
    pub annotations: BTreeMap<String, String>,
    pub ingress: bool,
    /// Write the proxy itself into the manifest. Without, an annotation asks the cluster's injector
    /// to.
    pub manual: Option<&'a Values>,
}

/// What became of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// In lower case; empty when the document has none.
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
    pub outcome: Outcome,
    /// What was asked for and could not be done, and what will not work; one sentence each.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The proxy is in the manifest.
    Injected,
    /// Annotations were written.
    Annotated,
    /// What an injector had added was removed.
    Uninjected,
    /// A workload that stays as it is.
    Skipped(Vec<SkipReason>),
    /// A workload that stays as it is because its annotations, or the flags, cannot be read; one
    /// sentence each.
    Refused(Vec<String>),
    /// Not a workload: passed on as it is.
    Untouched,
}

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("{object} is not what its kind says")]
    Object {
        object: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("{object} cannot be injected")]
    Inject {
        object: String,
        #[source]
        source: InjectError,
    },
    #[error("{object} cannot be changed")]
    Patch {
        object: String,
        #[source]
        source: PatchError,
    },
}

/// Injects every workload of the documents, in place of an earlier injection.
pub fn inject(
    documents: Vec<Value>,
    injection: &Injection<'_>,
) -> Result<(Vec<Value>, Vec<Report>), ManifestError> {
    each(documents, &mut |object| injection.apply(object))
}

/// Takes from every object what an injector added. Configuration that users wrote stays.
pub fn uninject(documents: Vec<Value>) -> Result<(Vec<Value>, Vec<Report>), ManifestError> {
    each(documents, &mut |object| {
        let outcome = if remove_injection(object) {
            Outcome::Uninjected
        } else {
            Outcome::Untouched
        };
        Ok(Report::of(object, outcome))
    })
}

/// Does something to every object, those in Lists included.
fn each(
    documents: Vec<Value>,
    change: &mut impl FnMut(&mut Value) -> Result<Report, ManifestError>,
) -> Result<(Vec<Value>, Vec<Report>), ManifestError> {
    let mut reports = Vec::new();
    let mut changed = Vec::with_capacity(documents.len());
    for mut document in documents {
        each_of(&mut document, change, &mut reports)?;
        changed.push(document);
    }
    Ok((changed, reports))
}

fn each_of(
    document: &mut Value,
    change: &mut impl FnMut(&mut Value) -> Result<Report, ManifestError>,
    reports: &mut Vec<Report>,
) -> Result<(), ManifestError> {
    // A document of comments alone is nothing.
    if document.is_null() {
        return Ok(());
    }
    if let Some(items) = template::items(document) {
        for item in items {
            each_of(item, change, reports)?;
        }
        return Ok(());
    }
    reports.push(change(document)?);
    Ok(())
}

fn remove_injection(object: &mut Value) -> bool {
    match template::shape(object) {
        Shape::Workload(path) => object.pointer_mut(path).is_some_and(inject::uninject),
        Shape::Namespace | Shape::Service => inject::uninject_metadata(object),
        Shape::Other => false,
    }
}

impl Injection<'_> {
    fn apply(&self, object: &mut Value) -> Result<Report, ManifestError> {
        // Comparing with nothing in between would call an object changed that had been injected in
        // the same way before.
        remove_injection(object);
        match template::shape(object) {
            Shape::Workload(path) => self.workload(object, path),
            Shape::Namespace => {
                annotate(object, [(annotation::INJECT, self.mode())]);
                Ok(Report::of(object, Outcome::Annotated))
            }
            Shape::Service => Ok(self.service(object)),
            Shape::Other => Ok(Report::of(object, Outcome::Untouched)),
        }
    }

    fn workload(&self, object: &mut Value, path: &str) -> Result<Report, ManifestError> {
        let mut report = Report::of(object, Outcome::Untouched);
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
            // The pods will be in the workload's namespace; without one, wherever the manifest is
            // applied to.
            pod.metadata.namespace.clone_from(&report.namespace);
            Ok(pod)
        };
        let asked = ObjectMeta {
            name: report.namespace.clone(),
            annotations: Some([(annotation::INJECT.to_owned(), self.mode().to_owned())].into()),
            ..ObjectMeta::default()
        };
        let before = pod(template, &report)?;
        // Where the proxy has no token of its own is known from the values only.
        let projection = self
            .manual
            .is_none_or(|values| values.identity.service_account_token_projection);
        if let Decision::Skip(reasons) = inject::decide(&asked, &before, projection) {
            report.outcome = Outcome::Skipped(reasons);
            return Ok(report);
        }
        report.warnings = foresee(&before);
        let untouched = template.clone();
        let flags = self.annotations.iter();
        annotate(
            template,
            flags.map(|(key, value)| (key.as_str(), value.as_str())),
        );
        annotate(template, [(annotation::INJECT, self.mode())]);
        report.outcome = Outcome::Annotated;
        // Without values nothing is patched, but what the cluster's injector would refuse is
        // refused here already.
        let values = self.manual.cloned().unwrap_or_default();
        let patched = inject::patch(&values, &asked, &pod(template, &report)?, &report.owner());
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
            json_patch::patch(template, &outcome.patch).map_err(|source| ManifestError::Patch {
                object: report.object(),
                source,
            })?;
            if report.kind == "cronjob" {
                // Its Jobs have other names, so the injector of a cluster cannot write this one.
                set(
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

    /// Clients take opaque ports from the Service.
    fn service(&self, object: &mut Value) -> Report {
        let Some(ports) = self.annotations.get(annotation::OPAQUE_PORTS) else {
            return Report::of(object, Outcome::Untouched);
        };
        annotate(object, [(annotation::OPAQUE_PORTS, ports.as_str())]);
        Report::of(object, Outcome::Annotated)
    }

    fn mode(&self) -> &'static str {
        if self.ingress { "ingress" } else { "enabled" }
    }
}

/// What does not keep a pod from being injected and may still surprise.
fn foresee(pod: &Pod) -> Vec<String> {
    let udp = pod
        .spec
        .iter()
        .flat_map(pod::ports::declared)
        .any(|(_, port)| port.protocol.as_deref() == Some("UDP"));
    let mut warnings = Vec::new();
    if udp {
        warnings.push("UDP ports are declared; UDP is not carried by the mesh".to_owned());
    }
    warnings
}

fn annotate<'a>(object: &mut Value, entries: impl IntoIterator<Item = (&'a str, &'a str)>) {
    set(object, "annotations", entries);
}

/// Writes entries of a map of the metadata, making maps that are missing.
fn set<'a>(object: &mut Value, map: &str, entries: impl IntoIterator<Item = (&'a str, &'a str)>) {
    let mut entries = entries.into_iter().peekable();
    if entries.peek().is_none() {
        return;
    }
    let Some(object) = object.as_object_mut() else {
        return;
    };
    let Some(map) = child(object, "metadata").and_then(|meta| child(meta, map)) else {
        return;
    };
    for (key, value) in entries {
        map.insert(key.to_owned(), json!(value));
    }
}

/// The object below a key; `null` and nothing become an empty one.
fn child<'a>(parent: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
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

    /// Injection was asked for and cannot be done. That a workload does not want it is no failure.
    pub fn is_refused(&self) -> bool {
        match &self.outcome {
            Outcome::Refused(_) => true,
            Outcome::Skipped(reasons) => reasons.iter().any(|reason| {
                !matches!(
                    reason,
                    SkipReason::DisabledByAnnotation | SkipReason::NotEnabled
                )
            }),
            Outcome::Injected | Outcome::Annotated | Outcome::Uninjected | Outcome::Untouched => {
                false
            }
        }
    }

    /// As messages name the object.
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
