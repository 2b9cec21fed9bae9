//! Reading of values: `null` for the default, keys of Linkerd's chart without effect, and misspelt
//! keys.
//!
//! `meshctl inject --values`, the injector and `meshctl check` read values with these functions.
//! The charts' templates implement the same rules with the output of [`schema`], [`defaults`] and
//! [`ChartValues::IGNORED`], in files that a test in `tests/chart` generates.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::Values;
use crate::spelling::distance;

/// A key that is accepted because values files for Linkerd contain it, and has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IgnoredKey {
    /// The dotted path, for example `policyController.image`.
    pub path: &'static str,
    /// Why it has no effect.
    pub reason: &'static str,
}

/// Why values are invalid.
#[derive(Debug, thiserror::Error)]
pub enum ValuesError {
    /// The values are not a map.
    #[error("expected a map of values")]
    NotAMap,
    /// A value has the wrong type or an invalid content.
    #[error("{path}: {problem}")]
    Value {
        /// The dotted path of the value.
        path: String,
        /// The problem with it.
        problem: String,
    },
    /// A key is unknown.
    #[error("{path} is not a value of this mesh{suggestion}")]
    Unknown {
        /// The dotted path of the key.
        path: String,
        /// A similar key or the list of keys, as the end of the message.
        suggestion: String,
    },
}

const NO_TRACES: &str = "the controllers send no traces; proxy.tracing is for those of the proxies";
const OTHER_PROGRAM: &str = "the arguments and variables of the controllers differ from Linkerd's";
const PROXY_IMAGE: &str = "the init container uses the image and the resources of the proxy";

/// The values of a chart.
pub trait ChartValues: Default + Serialize + DeserializeOwned + JsonSchema {
    /// The name of the chart.
    const CHART: &'static str;
    /// The keys of Linkerd's chart that have no effect, in alphabetical order. A key includes
    /// everything below it.
    const IGNORED: &'static [IgnoredKey];
}

/// Returns a list of [`IgnoredKey`]s, a table of paths and reasons.
macro_rules! ignored {
    ($($path:literal: $reason:expr,)+) => {
        &[$($crate::values::reading::IgnoredKey { path: $path, reason: $reason }),+]
    };
}
pub(super) use ignored;

impl ChartValues for Values {
    const CHART: &'static str = "linkerd-control-plane";
    const IGNORED: &'static [IgnoredKey] = IGNORED;
}

const IGNORED: &[IgnoredKey] = ignored! {
    "controlPlaneTracing": NO_TRACES,
    "controlPlaneTracingNamespace": NO_TRACES,
    "destinationController.additionalArgs": OTHER_PROGRAM,
    "destinationController.experimentalArgs": OTHER_PROGRAM,
    "destinationController.experimentalEnv": OTHER_PROGRAM,
    "enableEndpointSlices": "endpoints always come from EndpointSlices",
    "enablePSP": "Kubernetes no longer has PodSecurityPolicies",
    "enablePprof": "the controllers serve no profiles",
    "heartbeat": OTHER_PROGRAM,
    "identity.additionalArgs": OTHER_PROGRAM,
    "identity.experimentalArgs": OTHER_PROGRAM,
    "identity.experimentalEnv": OTHER_PROGRAM,
    "kubeAPI":
        "only the identity service sends a request to the API server for each client; see identity.kubeAPI",
    "networkValidator.enableSecurityContext":
        "the validator always has a security context; networkValidator.securityContext replaces it",
    "podMonitor.controller.namespaceSelector":
        "Prometheus scrapes the controllers in their own namespace",
    "policyController.additionalArgs": OTHER_PROGRAM,
    "policyController.additionalEnv": OTHER_PROGRAM,
    "policyController.experimentalArgs": OTHER_PROGRAM,
    "policyController.experimentalEnv": OTHER_PROGRAM,
    "policyController.image": "the policy service uses the image of the controllers",
    "proxyInit.image": PROXY_IMAGE,
    "proxyInit.resources": PROXY_IMAGE,
    "proxyInjector.additionalArgs": OTHER_PROGRAM,
    "proxyInjector.experimentalArgs": OTHER_PROGRAM,
    "proxyInjector.experimentalEnv": OTHER_PROGRAM,
    "spValidator.additionalArgs": OTHER_PROGRAM,
    "spValidator.additionalEnv": OTHER_PROGRAM,
    "spValidator.experimentalArgs": OTHER_PROGRAM,
    "spValidator.experimentalEnv": OTHER_PROGRAM,
    "tracing": "the chart contains no collector; proxy.tracing names yours",
};

impl Values {
    /// Reads values, for example from a ConfigMap. Unknown keys are skipped, since a newer version
    /// may have written them.
    ///
    /// # Errors
    ///
    /// A value of the wrong type or with invalid content.
    pub fn read(mut given: Value) -> Result<Self, ValuesError> {
        if given.is_null() {
            return Ok(Self::default());
        }
        if !given.is_object() {
            return Err(ValuesError::NotAMap);
        }
        remove_nulls(&mut given);
        for (path, default) in defaults::<Self>() {
            set_missing(&mut given, &path, default);
        }
        serde_json::from_value(given.clone()).map_err(|error| name_invalid_value(&given, &error))
    }

    /// Reads values that a user wrote, like Helm: merges them into the defaults.
    ///
    /// # Errors
    ///
    /// An unknown key, or a value of the wrong type or with invalid content.
    pub fn read_file(given: &Value) -> Result<Self, ValuesError> {
        if let Some(path) = unknown_key(given) {
            return Err(ValuesError::Unknown {
                suggestion: suggestion(&path),
                path,
            });
        }
        let mut values = Value::Object(Map::new());
        // The defaults of open maps are merged with the given entries.
        for (path, default) in defaults::<Self>() {
            set_missing(&mut values, &path, default);
        }
        merge(&mut values, given);
        Self::read(values)
    }
}

/// Returns the given keys that have no effect.
pub fn ignored_keys<V: ChartValues>(given: &Value) -> Vec<IgnoredKey> {
    let is_given =
        |key: &&IgnoredKey| lookup(given, key.path).is_some_and(|value| !value.is_null());
    V::IGNORED.iter().filter(is_given).copied().collect()
}

/// Returns the JSON schema that Helm validates values with. It is of draft 7, which every Helm 3
/// supports, with all definitions inlined. Maps with defined keys reject other keys; `null` is
/// accepted everywhere.
pub fn schema<V: ChartValues>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let generated = settings.into_generator().into_root_schema_for::<V>();
    let mut schema = generated.to_value();
    tighten(&mut schema, false);
    for key in V::IGNORED {
        let description = format!("Accepted without effect: {}", key.reason);
        insert_property(&mut schema, key.path, json!({ "description": description }));
    }
    // Helm adds it if the chart is a dependency of another one.
    let global = json!({ "type": "object", "description": "Reserved by Helm for charts that contain this one; without effect" });
    insert_property(&mut schema, "global", global);
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".into(), format!("Values of {}", V::CHART).into());
        root.remove("description");
    }
    schema
}

/// Returns the defaults of all leaf values by dotted path. An open map, for example of labels, is a
/// leaf.
pub fn defaults<V: ChartValues>() -> BTreeMap<String, Value> {
    let mut leaves = BTreeMap::new();
    let defaults = serde_json::to_value(V::default()).unwrap_or_default();
    collect_leaves("", &defaults, &schema::<V>(), &mut leaves);
    leaves
}

fn collect_leaves(path: &str, value: &Value, schema: &Value, leaves: &mut BTreeMap<String, Value>) {
    match (value.as_object(), properties(schema)) {
        (Some(map), Some(known)) => {
            for (name, value) in map {
                let below = known.get(name).unwrap_or(&Value::Null);
                collect_leaves(&join_path(path, name), value, below, leaves);
            }
        }
        _ => {
            leaves.insert(path.to_owned(), value.clone());
        }
    }
}

/// Makes a generated schema reject unknown keys and accept `null`.
fn tighten(schema: &mut Value, nullable: bool) {
    let Some(schema) = schema.as_object_mut() else {
        return;
    };
    // The names of Rust's integer types are not formats of JSON Schema.
    schema.remove("format");
    schema.remove("default");
    if let Some(Value::String(description)) = schema.get_mut("description") {
        *description = description.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    if nullable {
        accept_null(schema);
    }
    match schema.get_mut("properties").and_then(Value::as_object_mut) {
        Some(properties) => {
            for property in properties.values_mut() {
                tighten(property, true);
            }
            schema.insert("additionalProperties".into(), Value::Bool(false));
        }
        None => {
            if let Some(items) = schema.get_mut("items") {
                tighten(items, false);
            }
        }
    }
}

/// Helm removes keys with `null`, except in the values of a chart that contains this one.
fn accept_null(schema: &mut Map<String, Value>) {
    match schema.get_mut("type") {
        Some(Value::String(one)) if one.as_str() != "null" => {
            let types = json!([one, "null"]);
            schema.insert("type".into(), types);
        }
        Some(Value::Array(types)) if !types.contains(&"null".into()) => types.push("null".into()),
        _ => {}
    }
    if let Some(Value::Array(choices)) = schema.get_mut("enum")
        && !choices.contains(&Value::Null)
    {
        choices.push(Value::Null);
    }
}

fn insert_property(schema: &mut Value, path: &str, property: Value) {
    let (first, rest) = match path.split_once('.') {
        Some((first, rest)) => (first, Some(rest)),
        None => (path, None),
    };
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    if let Some(rest) = rest
        && let Some(below) = properties.get_mut(first)
    {
        insert_property(below, rest, property);
    } else {
        properties.insert(first.to_owned(), property);
    }
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object)
}

/// Returns the path of the first unknown key.
fn unknown_key(given: &Value) -> Option<String> {
    fn visit(path: &str, given: &Value, schema: &Value) -> Option<String> {
        let (given, known) = given.as_object().zip(properties(schema))?;
        given.iter().find_map(|(name, value)| {
            let path = join_path(path, name);
            match known.get(name) {
                Some(schema) => visit(&path, value, schema),
                None => Some(path),
            }
        })
    }
    visit("", given, &schema::<Values>())
}

/// Suggests a sibling key that differs from a misspelt one in at most two letters.
fn suggestion(path: &str) -> String {
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    let schema = schema::<Values>();
    let place = parent
        .split('.')
        .filter(|name| !name.is_empty())
        .try_fold(&schema, |place, name| properties(place)?.get(name));
    let neighbours = place.and_then(properties).into_iter().flatten();
    let name = name.to_lowercase();
    let near = neighbours
        .map(|(known, _)| (distance(&known.to_lowercase(), &name), known))
        .min()
        .filter(|(distance, _)| *distance <= 2);
    match near {
        Some((_, known)) => format!(": did you mean {}?", join_path(parent, known)),
        None => "; docs/reference/values.md lists them".to_owned(),
    }
}

/// Finds the value that causes an error by deserializing each value alone.
fn name_invalid_value(given: &Value, error: &serde_json::Error) -> ValuesError {
    fn fails(place: &[&str], value: &Value) -> Option<serde_json::Error> {
        let mut alone = value.clone();
        for name in place.iter().rev() {
            alone = Value::Object(Map::from_iter([((*name).to_owned(), alone)]));
        }
        serde_json::from_value::<Values>(alone).err()
    }
    let mut place: Vec<&str> = Vec::new();
    let mut value = given;
    let mut problem = error.to_string();
    while let Some(map) = value.as_object() {
        let culprit = map.iter().find_map(|(name, value)| {
            place.push(name);
            let error = fails(&place, value);
            place.pop();
            error.map(|error| (name, value, error))
        });
        let Some((name, below, error)) = culprit else {
            break;
        };
        place.push(name);
        value = below;
        problem = error.to_string();
    }
    ValuesError::Value {
        path: place.join("."),
        problem,
    }
}

/// Removes entries that are `null`, like Helm; `null` items of lists stay.
fn remove_nulls(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(remove_nulls);
    }
}

/// Merges the given values into the defaults, entry by entry. `null` removes an entry.
fn merge(values: &mut Value, given: &Value) {
    match (values, given) {
        (Value::Object(values), Value::Object(given)) => {
            for (name, given) in given {
                if given.is_null() {
                    values.remove(name);
                } else {
                    merge(values.entry(name).or_insert(Value::Null), given);
                }
            }
        }
        (values, given) => *values = given.clone(),
    }
}

/// Inserts the default of a missing value. A value that should be a map and is not stays, so that
/// deserialization reports it.
fn set_missing(values: &mut Value, path: &str, default: Value) {
    let Some(map) = values.as_object_mut() else {
        return;
    };
    match path.split_once('.') {
        Some((name, rest)) => {
            let below = map.entry(name).or_insert_with(|| Value::Object(Map::new()));
            set_missing(below, rest, default);
        }
        None => {
            map.entry(path).or_insert(default);
        }
    }
}

fn lookup<'a>(values: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.')
        .try_fold(values, |place, name| place.get(name))
}

fn join_path(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    }
}

#[cfg(test)]
mod tests;
