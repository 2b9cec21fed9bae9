//! `ServiceProfile`: the routes, retries and traffic split of a destination.
//!
//! The controllers, `meshctl profile` and the validation read these types;
//! [`profile`](crate::profile) converts them. An unknown field is an error that names it, because a
//! misspelled condition would match other requests than its author meant.

use std::borrow::Cow;
use std::fmt;

use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};

/// The spec of a `ServiceProfile`. It is serialized as `v1alpha2`; `v1alpha1` has the same fields.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "linkerd.io",
    version = "v1alpha2",
    kind = "ServiceProfile",
    shortname = "sp",
    namespaced,
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceProfileSpec {
    /// The routes; the first one that a request matches applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routes: Option<Vec<Route>>,
    /// The retry budget of the routes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_budget: Option<RetryBudget>,
    /// The destinations of a traffic split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst_overrides: Option<Vec<WeightedDestination>>,
    /// Ports without protocol detection, of a destination outside the cluster. A Service has an
    /// annotation for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opaque_ports: Option<Vec<String>>,
}

/// A route: the requests that satisfy a condition.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Route {
    /// The name of the route in metrics.
    pub name: String,
    /// The condition.
    pub condition: RequestCondition,
    /// Classes of responses; the first one that a response matches applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_classes: Option<Vec<ResponseClass>>,
    /// Whether failed requests are retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_retryable: Option<bool>,
    /// The time limit of a request in the notation of Go, such as `300ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

/// A condition on requests. One with several fields requires all of them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestCondition {
    /// All of the conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "nested_list")]
    pub all: Option<Vec<RequestCondition>>,
    /// One of the conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "nested_list")]
    pub any: Option<Vec<RequestCondition>>,
    /// The opposite of the condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "nested")]
    pub not: Option<Box<RequestCondition>>,
    /// The method, in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// A regular expression for the whole path, without the query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_regex: Option<String>,
}

/// A class of responses.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResponseClass {
    /// The condition.
    pub condition: ResponseCondition,
    /// Whether the responses count as failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_failure: Option<bool>,
}

/// A condition on responses. One with several fields requires all of them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResponseCondition {
    /// All of the conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "nested_list")]
    pub all: Option<Vec<ResponseCondition>>,
    /// One of the conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "nested_list")]
    pub any: Option<Vec<ResponseCondition>>,
    /// The opposite of the condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "nested")]
    pub not: Option<Box<ResponseCondition>>,
    /// The status is in a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<StatusRange>,
}

/// A range of statuses. One bound alone means that status; zero is an absent bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StatusRange {
    /// The lowest status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// The highest status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
}

/// A retry budget.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RetryBudget {
    /// Allowed retries per request.
    #[serde(default)]
    pub retry_ratio: f32,
    /// Retries per second that are always allowed.
    #[serde(default)]
    pub min_retries_per_second: u32,
    /// How long a request counts, in the notation of Go.
    pub ttl: String,
}

/// A part of a traffic split.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WeightedDestination {
    /// The destination, a host name with or without port.
    pub authority: String,
    /// The weight relative to the others.
    pub weight: Weight,
}

/// A weight: a whole number, or a quantity such as `500m`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Weight {
    /// A whole number.
    Number(u32),
    /// A quantity of Kubernetes.
    Quantity(String),
}

impl<'de> Deserialize<'de> for Weight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WeightVisitor)
    }
}

impl JsonSchema for Weight {
    fn schema_name() -> Cow<'static, str> {
        "Weight".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true })
    }
}

struct WeightVisitor;

impl de::Visitor<'_> for WeightVisitor {
    type Value = Weight;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a weight: a whole number, or a quantity such as 500m in quotes")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Weight, E> {
        u32::try_from(value)
            .map(Weight::Number)
            .map_err(|_too_large| E::invalid_value(de::Unexpected::Unsigned(value), &self))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Weight, E> {
        match u64::try_from(value) {
            Ok(value) => self.visit_u64(value),
            Err(_) => Err(E::invalid_value(de::Unexpected::Signed(value), &self)),
        }
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Weight, E> {
        Ok(Weight::Quantity(value.to_owned()))
    }
}

/// Schemas of custom resources cannot be recursive.
fn nested(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

fn nested_list(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": nested(generator) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_are_named() {
        for (text, expect) in [
            ("{rutes: []}", "unknown field `rutes`"),
            (
                "{routes: [{name: a, condition: {}, retryable: true}]}",
                "routes[0]: unknown field `retryable`",
            ),
            (
                "{routes: [{name: a, condition: {all: [{not: {path: /}}]}}]}",
                "routes[0].condition.all[0].not: unknown field `path`",
            ),
            ("{routes: [], routes: []}", "duplicate field `routes`"),
            (
                "{retryBudget: {ttl: 1s, minRetriesPerSecond: -1}}",
                "retryBudget.minRetriesPerSecond: invalid type: integer `-1`",
            ),
        ] {
            let error = serde_norway::from_str::<ServiceProfileSpec>(text).unwrap_err();
            assert!(error.to_string().contains(expect), "{text}: {error}");
        }
    }

    #[test]
    fn profile_is_read_and_written() {
        let text = r#"{"routes":[{"name":"a","condition":{"any":[{"method":"GET"},{"pathRegex":"/a"}]},"responseClasses":[{"condition":{"status":{"min":500,"max":599}},"isFailure":true}],"isRetryable":true,"timeout":"1s"}],"retryBudget":{"retryRatio":0.5,"minRetriesPerSecond":1,"ttl":"10s"},"dstOverrides":[{"authority":"b","weight":"500m"},{"authority":"c","weight":2}],"opaquePorts":["25"]}"#;
        let spec: ServiceProfileSpec = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&spec).unwrap(), text);
    }
}
