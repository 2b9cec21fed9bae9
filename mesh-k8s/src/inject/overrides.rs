//! The configuration annotations: which of them pods inherit from their namespace, and how they
//! override the values.
//!
//! An invalid value is an error if it is the pod's own, or if it restricts which clients may
//! connect. Any other value that cannot be used changes nothing: the setting that it would override
//! stays in effect, and a warning names object, annotation, value and accepted values. So a typing
//! error in a namespace's log level does not prevent every pod of the namespace from starting.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::EnvVar;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mesh_core::annotation;

use self::keys::{CONFIG_KEYS, OverrideError};
use super::units::parse_bool;
use crate::pod::meta_annotation;
use crate::pod::owner::Owner;
use crate::values::{Ports, Values};

pub(super) mod keys;

pub(super) type Annotations = BTreeMap<String, String>;

/// A JSON list of variables, merged by name from chart, namespace and workload.
const ADDITIONAL_ENV: &str = "config.linkerd.io/proxy-additional-env";
const ENABLE_DEBUG_SIDECAR: &str = "config.linkerd.io/enable-debug-sidecar";
/// Accepted and without effect, as in Linkerd: the list is computed from the pod's containers.
const POD_INBOUND_PORTS: &str = "config.linkerd.io/pod-inbound-ports";
/// Spellings of one setting in order of precedence.
const NATIVE_SIDECAR: [&str; 3] = [
    "config.linkerd.io/proxy-enable-native-sidecar",
    "config.beta.linkerd.io/proxy-enable-native-sidecar",
    "config.alpha.linkerd.io/proxy-enable-native-sidecar",
];

/// Inherited keys that are not in [`CONFIG_KEYS`]: other code reads them, or earlier versions did.
const ALSO_INHERITED: [&str; 7] = [
    annotation::INJECT,
    annotation::OPAQUE_PORTS,
    ADDITIONAL_ENV,
    ENABLE_DEBUG_SIDECAR,
    NATIVE_SIDECAR[0],
    NATIVE_SIDECAR[2],
    POD_INBOUND_PORTS,
];

/// The objects that annotations come from, for messages.
#[derive(Clone, Copy)]
pub(super) struct AnnotationOrigin<'a> {
    pub(super) namespace: &'a ObjectMeta,
    pub(super) pod: &'a ObjectMeta,
    pub(super) owner: &'a Owner,
}

/// The result of applying annotations.
#[derive(Debug, Default)]
pub(super) struct OverrideReport {
    pub(super) warnings: Vec<String>,
    /// Why the pod is rejected, one message for each annotation.
    pub(super) errors: Vec<String>,
    /// The keys whose values could not be used.
    pub(super) rejected_keys: BTreeSet<&'static str>,
}

/// Returns the pod's annotations and the annotations that it inherits from its namespace.
pub(super) fn inherit(namespace: &ObjectMeta, pod: &ObjectMeta) -> Annotations {
    let mut merged = pod.annotations.clone().unwrap_or_default();
    for (key, value) in namespace.annotations.iter().flatten() {
        if is_inherited(key) && !merged.contains_key(key) {
            merged.insert(key.clone(), value.clone());
        }
    }
    merged
}

/// Applies the annotations to the values.
pub(super) fn apply(
    values: &mut Values,
    annotations: &Annotations,
    origin: AnnotationOrigin<'_>,
) -> OverrideReport {
    let mut report = OverrideReport::default();
    let ports = values.proxy.ports;
    for key in CONFIG_KEYS {
        if let Some(value) = annotations.get(key.name)
            && let Err(unusable) = (key.apply)(values, value)
        {
            match unusable {
                OverrideError::Invalid(expected) => {
                    report.reject(origin, key.name, value, &expected);
                }
                OverrideError::NotApplicable(reason) => {
                    report.ignore(origin, key.name, value, reason);
                }
            }
        }
    }
    let native = NATIVE_SIDECAR
        .iter()
        .find_map(|key| Some((*key, annotations.get(*key)?)));
    if let Some((key, value)) = native {
        match parse_bool(value) {
            Ok(native) => values.proxy.native_sidecar = native,
            Err(expected) => report.reject(origin, key, value, &expected),
        }
    }
    if let Some(value) = annotations.get(ENABLE_DEBUG_SIDECAR)
        && let Err(expected) = parse_bool(value)
    {
        report.reject(origin, ENABLE_DEBUG_SIDECAR, value, &expected);
    }
    if !are_distinct(values.proxy.ports) {
        values.proxy.ports = ports;
        for key in keys::PORTS {
            if let Some(value) = annotations.get(key) {
                let expected = "the proxy's inbound, outbound, admin and control ports must differ";
                report.reject(origin, key, value, expected);
            }
        }
    }
    report
        .warnings
        .extend(unknown(origin).map(|key| unknown_key_warning(origin, key)));
    report
}

/// Merges the variables of the namespace and then the workload's variables by name.
pub(super) fn merge_additional_env(
    values: &mut Values,
    origin: AnnotationOrigin<'_>,
    report: &mut OverrideReport,
) {
    for (meta, holder, own) in [
        (origin.namespace, origin.namespace_name(), false),
        (origin.pod, origin.workload_name(), true),
    ] {
        let Some(text) = meta_annotation(meta, ADDITIONAL_ENV) else {
            continue;
        };
        match serde_json::from_str::<Vec<EnvVar>>(text) {
            Err(error) => {
                let expected =
                    format!("expected a JSON list of {{\"name\": …, \"value\": …}}: {error}");
                if own {
                    let problem = invalid_value(&holder, ADDITIONAL_ENV, text, &expected);
                    report.errors.push(problem);
                } else {
                    let warning = warning(&holder, ADDITIONAL_ENV, text, &expected);
                    report.warnings.push(warning);
                }
            }
            Ok(list) => {
                for var in list {
                    let env = &mut values.proxy.additional_env;
                    match env.iter_mut().find(|old| old.name == var.name) {
                        Some(old) => *old = var,
                        None => env.push(var),
                    }
                }
            }
        }
    }
}

/// Returns whether the pod gets the debug container.
pub(super) fn wants_debug_sidecar(annotations: &Annotations) -> bool {
    annotations
        .get(ENABLE_DEBUG_SIDECAR)
        .is_some_and(|value| parse_bool(value) == Ok(true))
}

/// Returns every annotation that configures injection, in no particular order.
pub fn configuration_keys() -> impl Iterator<Item = &'static str> {
    let elsewhere = [
        annotation::OPAQUE_PORTS,
        ADDITIONAL_ENV,
        ENABLE_DEBUG_SIDECAR,
        POD_INBOUND_PORTS,
    ];
    CONFIG_KEYS
        .iter()
        .map(|key| key.name)
        .chain(NATIVE_SIDECAR)
        .chain(elsewhere)
}

fn is_inherited(key: &str) -> bool {
    ALSO_INHERITED.contains(&key)
        || CONFIG_KEYS
            .iter()
            .any(|known| known.inherited && known.name == key)
}

fn are_distinct(ports: Ports) -> bool {
    let mut all = [ports.inbound, ports.outbound, ports.admin, ports.control];
    all.sort_unstable();
    all.windows(2).all(|pair| pair[0] != pair[1])
}

/// Returns the pod's annotations that have the prefix of configuration annotations and are unknown,
/// probably misspelt.
fn unknown<'a>(origin: AnnotationOrigin<'a>) -> impl Iterator<Item = &'a str> {
    let own = origin.pod.annotations.iter().flatten();
    own.map(|(key, _)| key.as_str()).filter(|key| {
        key.starts_with(annotation::CONFIG_PREFIX)
            && !configuration_keys().any(|known| known == *key)
    })
}

fn unknown_key_warning(origin: AnnotationOrigin<'_>, key: &str) -> String {
    format!(
        "{}: {key} has no effect: unknown annotation in this version; check the spelling",
        origin.workload_name()
    )
}

pub(super) fn warning(holder: &str, key: &str, value: &str, expected: &str) -> String {
    format!(
        "{holder}: {key}: ignored value {}: {expected}",
        quoted(value)
    )
}

pub(super) fn invalid_value(holder: &str, key: &str, value: &str, expected: &str) -> String {
    format!(
        "{holder}: {key}: invalid value {}: {expected}",
        quoted(value)
    )
}

fn quoted(value: &str) -> String {
    /// Characters of a value that messages quote; the API server truncates long warnings.
    const MAX_QUOTED: usize = 60;
    let shown: String = value.chars().take(MAX_QUOTED).collect();
    let more = if shown.len() < value.len() { "…" } else { "" };
    format!("{shown:?}{more}")
}

impl OverrideReport {
    /// Records an invalid value: an error of the pod, or a warning.
    pub(super) fn reject(
        &mut self,
        origin: AnnotationOrigin<'_>,
        key: &'static str,
        value: &str,
        expected: &str,
    ) {
        if origin.is_own(key) || keys::SECURITY.contains(&key) {
            let problem = invalid_value(&origin.holder(key), key, value, expected);
            self.errors.push(problem);
        } else {
            self.ignore(origin, key, value, expected);
        }
    }

    fn ignore(
        &mut self,
        origin: AnnotationOrigin<'_>,
        key: &'static str,
        value: &str,
        reason: &str,
    ) {
        let warning = warning(&origin.holder(key), key, value, reason);
        self.warnings.push(warning);
        self.rejected_keys.insert(key);
    }
}

impl AnnotationOrigin<'_> {
    /// Returns the name of the object that has the effective annotation.
    fn holder(self, key: &str) -> String {
        if self.is_own(key) {
            self.workload_name()
        } else {
            self.namespace_name()
        }
    }

    pub(super) fn is_own(self, key: &str) -> bool {
        meta_annotation(self.pod, key).is_some()
    }

    pub(super) fn workload_name(self) -> String {
        let Owner { kind, name } = self.owner;
        match self.pod.namespace.as_deref() {
            None | Some("") => format!("{kind} {name}"),
            Some(namespace) => format!("{kind} {namespace}/{name}"),
        }
    }

    fn namespace_name(self) -> String {
        let own = self.namespace.name.as_deref();
        let name = own.or(self.pod.namespace.as_deref()).unwrap_or_default();
        format!("namespace {name}")
    }
}
