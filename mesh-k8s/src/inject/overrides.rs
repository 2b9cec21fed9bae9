//! The configuration annotations: which a namespace passes on to its pods, and how those in force
//! change the values.
//!
//! A value that cannot be read is refused where the pod has it, and where its namespace has it and
//! it says who may connect. Any other value that cannot be used changes nothing: the setting it
//! would have replaced stays, and a warning names object, annotation, value and what is accepted.
//! So a mistake in a namespace's log level does not keep every pod of the namespace from starting.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{api::core::v1::EnvVar, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use mesh_core::annotation;

use super::units::parse_bool;
use crate::{
    pod::owner::Owner,
    values::{Ports, Values},
};

pub(super) mod keys;

use self::keys::{KEYS, Unusable};

pub(super) type Annotations = BTreeMap<String, String>;

/// The annotation whose JSON list of variables is merged by name over chart, namespace and
/// workload.
const ADDITIONAL_ENV: &str = "config.linkerd.io/proxy-additional-env";
const ENABLE_DEBUG_SIDECAR: &str = "config.linkerd.io/enable-debug-sidecar";
/// Its list is computed from the pod's containers, whatever the annotation says, as Linkerd does.
const POD_INBOUND_PORTS: &str = "config.linkerd.io/pod-inbound-ports";
/// Spellings of one setting, the one that wins first.
const NATIVE_SIDECAR: [&str; 3] = [
    "config.linkerd.io/proxy-enable-native-sidecar",
    "config.beta.linkerd.io/proxy-enable-native-sidecar",
    "config.alpha.linkerd.io/proxy-enable-native-sidecar",
];

/// Keys a namespace passes on which no entry of [`KEYS`] reads: they are read elsewhere, or were
/// and are still copied.
const ALSO_INHERITED: [&str; 7] = [
    annotation::INJECT,
    annotation::OPAQUE_PORTS,
    ADDITIONAL_ENV,
    ENABLE_DEBUG_SIDECAR,
    NATIVE_SIDECAR[0],
    NATIVE_SIDECAR[2],
    POD_INBOUND_PORTS,
];

/// Where annotations come from, for the messages about them.
#[derive(Clone, Copy)]
pub(super) struct Origin<'a> {
    pub(super) namespace: &'a ObjectMeta,
    pub(super) pod: &'a ObjectMeta,
    pub(super) owner: &'a Owner,
}

/// What became of the annotations.
#[derive(Debug, Default)]
pub(super) struct Applied {
    pub(super) warnings: Vec<String>,
    /// Why the pod is not admitted, one sentence for each annotation.
    pub(super) problems: Vec<String>,
    /// The keys whose values could not be used.
    pub(super) refused: BTreeSet<&'static str>,
}

/// The pod's annotations together with those of the namespace that it inherits.
pub(super) fn inherit(namespace: &ObjectMeta, pod: &ObjectMeta) -> Annotations {
    let mut merged = pod.annotations.clone().unwrap_or_default();
    for (key, value) in namespace.annotations.iter().flatten() {
        if is_inherited(key) && !merged.contains_key(key) {
            merged.insert(key.clone(), value.clone());
        }
    }
    merged
}

/// Changes the values as the annotations say.
pub(super) fn apply(values: &mut Values, annotations: &Annotations, origin: Origin<'_>) -> Applied {
    let mut applied = Applied::default();
    let ports = values.proxy.ports;
    for key in KEYS {
        if let Some(value) = annotations.get(key.name)
            && let Err(unusable) = (key.apply)(values, value)
        {
            match unusable {
                Unusable::Unreadable(expected) => {
                    applied.refuse(origin, key.name, value, &expected);
                }
                Unusable::NotApplicable(reason) => applied.ignore(origin, key.name, value, reason),
            }
        }
    }
    let native = NATIVE_SIDECAR
        .iter()
        .find_map(|key| Some((*key, annotations.get(*key)?)));
    if let Some((key, value)) = native {
        match parse_bool(value) {
            Ok(native) => values.proxy.native_sidecar = native,
            Err(expected) => applied.refuse(origin, key, value, &expected),
        }
    }
    if let Some(value) = annotations.get(ENABLE_DEBUG_SIDECAR)
        && let Err(expected) = parse_bool(value)
    {
        applied.refuse(origin, ENABLE_DEBUG_SIDECAR, value, &expected);
    }
    if !are_distinct(values.proxy.ports) {
        values.proxy.ports = ports;
        for key in keys::PORTS {
            if let Some(value) = annotations.get(key) {
                let expected = "the proxy's inbound, outbound, admin and control ports must differ";
                applied.refuse(origin, key, value, expected);
            }
        }
    }
    applied
        .warnings
        .extend(unknown(origin).map(|key| no_such_key(origin, key)));
    applied
}

/// Adds the variables of the namespace and of the workload, the workload's last, each by name over
/// those before it.
pub(super) fn merge_additional_env(values: &mut Values, origin: Origin<'_>, applied: &mut Applied) {
    for (meta, whose, own) in [
        (origin.namespace, origin.namespace_name(), false),
        (origin.pod, origin.workload_name(), true),
    ] {
        let annotations = meta.annotations.as_ref();
        let Some(text) = annotations.and_then(|all| all.get(ADDITIONAL_ENV)) else {
            continue;
        };
        match serde_json::from_str::<Vec<EnvVar>>(text) {
            Err(error) => {
                let expected =
                    format!("expected a JSON list of {{\"name\": …, \"value\": …}}: {error}");
                if own {
                    let problem = unreadable(&whose, ADDITIONAL_ENV, text, &expected);
                    applied.problems.push(problem);
                } else {
                    let warning = warning(&whose, ADDITIONAL_ENV, text, &expected);
                    applied.warnings.push(warning);
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

/// Whether the debugging container is asked for.
pub(super) fn wants_debug_sidecar(annotations: &Annotations) -> bool {
    annotations
        .get(ENABLE_DEBUG_SIDECAR)
        .is_some_and(|value| parse_bool(value) == Ok(true))
}

/// Every annotation that configures injection, in no particular order: for whoever reports on them.
pub fn configuration_keys() -> impl Iterator<Item = &'static str> {
    let elsewhere = [
        annotation::OPAQUE_PORTS,
        ADDITIONAL_ENV,
        ENABLE_DEBUG_SIDECAR,
        POD_INBOUND_PORTS,
    ];
    KEYS.iter()
        .map(|key| key.name)
        .chain(NATIVE_SIDECAR)
        .chain(elsewhere)
}

fn is_inherited(key: &str) -> bool {
    ALSO_INHERITED.contains(&key)
        || KEYS
            .iter()
            .any(|known| known.inherited && known.name == key)
}

fn are_distinct(ports: Ports) -> bool {
    let mut all = [ports.inbound, ports.outbound, ports.admin, ports.control];
    all.sort_unstable();
    all.windows(2).all(|pair| pair[0] != pair[1])
}

/// Annotations of the pod that look like ours and are none: misspelt, most likely.
fn unknown<'a>(origin: Origin<'a>) -> impl Iterator<Item = &'a str> {
    let own = origin.pod.annotations.iter().flatten();
    own.map(|(key, _)| key.as_str()).filter(|key| {
        key.starts_with(annotation::CONFIG_PREFIX)
            && !configuration_keys().any(|known| known == *key)
    })
}

fn no_such_key(origin: Origin<'_>, key: &str) -> String {
    format!(
        "{}: {key} is no annotation of this version and has no effect: is it spelt right?",
        origin.workload_name()
    )
}

pub(super) fn warning(whose: &str, key: &str, value: &str, expected: &str) -> String {
    format!("{whose}: {key}: {} is ignored: {expected}", quoted(value))
}

fn unreadable(whose: &str, key: &str, value: &str, expected: &str) -> String {
    format!(
        "{whose}: {key}: {} cannot be read: {expected}",
        quoted(value)
    )
}

fn quoted(value: &str) -> String {
    /// Messages quote as much of a value; the API server cuts long warnings off.
    const SHOWN: usize = 60;
    let shown: String = value.chars().take(SHOWN).collect();
    let more = if shown.len() < value.len() { "…" } else { "" };
    format!("{shown:?}{more}")
}

impl Applied {
    /// The value cannot be read.
    pub(super) fn refuse(
        &mut self,
        origin: Origin<'_>,
        key: &'static str,
        value: &str,
        expected: &str,
    ) {
        if origin.is_own(key) || keys::SECURITY.contains(&key) {
            let problem = unreadable(&origin.whose(key), key, value, expected);
            self.problems.push(problem);
        } else {
            self.ignore(origin, key, value, expected);
        }
    }

    fn ignore(&mut self, origin: Origin<'_>, key: &'static str, value: &str, reason: &str) {
        let warning = warning(&origin.whose(key), key, value, reason);
        self.warnings.push(warning);
        self.refused.insert(key);
    }
}

impl Origin<'_> {
    /// The object that has the annotation in force.
    fn whose(self, key: &str) -> String {
        if self.is_own(key) {
            self.workload_name()
        } else {
            self.namespace_name()
        }
    }

    pub(super) fn is_own(self, key: &str) -> bool {
        let own = self.pod.annotations.as_ref();
        own.is_some_and(|own| own.contains_key(key))
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
