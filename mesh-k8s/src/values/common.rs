//! Types that several values share: images, resources, probes, and Kubernetes objects that are
//! passed through.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

/// The schema of an object that Kubernetes validates, not the chart.
pub(super) type OpenObject = serde_json::Map<String, serde_json::Value>;

/// Labels, annotations, or a node selector.
pub type StringMap = BTreeMap<String, String>;

/// Tolerations of pods. An empty map has none, like an empty list: some values files for Linkerd
/// have it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Tolerations(pub Vec<Toleration>);

values! {
    /// An image. Empty fields have defaults in other values.
    pub struct Image {
        /// Registry and name of the image, without tag
        pub name: String,
        /// Tag of the image; empty for `linkerdVersion`
        pub version: String,
        /// Pull policy of the image; empty for `imagePullPolicy`
        #[schemars(extend("enum" = ["", "Always", "IfNotPresent", "Never"]))]
        pub pull_policy: String,
    }

    /// Resource requests and limits of a container; an empty one is not set.
    pub struct Resources {
        /// CPU, for example 100m
        pub cpu: Bounds,
        /// Memory, for example 250Mi
        pub memory: Bounds,
        /// Local disk, for example 1Gi
        #[serde(rename = "ephemeral-storage")]
        pub ephemeral_storage: Bounds,
    }

    /// The request and the limit of a resource.
    pub struct Bounds {
        /// Request; empty for none
        #[serde(deserialize_with = "quantity")]
        #[schemars(extend("type" = ["string", "number"]))]
        pub request: String,
        /// Limit; empty for none
        #[serde(deserialize_with = "quantity")]
        #[schemars(extend("type" = ["string", "number"]))]
        pub limit: String,
    }

    /// The timeout of a controller's probe.
    #[derive(Copy)]
    pub struct ProbeTimeout {
        /// Timeout of a probe, in seconds
        pub timeout_seconds: i32 = 1,
    }
}

impl Image {
    pub(super) fn named(name: &str) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }
}

impl<'de> Deserialize<'de> for Tolerations {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            List(Vec<Toleration>),
            Map(OpenObject),
        }
        match Written::deserialize(deserializer)? {
            Written::List(list) => Ok(Self(list)),
            Written::Map(map) if map.is_empty() => Ok(Self::default()),
            Written::Map(_) => Err(serde::de::Error::custom("expected a list of tolerations")),
        }
    }
}

impl JsonSchema for Tolerations {
    fn schema_name() -> Cow<'static, str> {
        "Tolerations".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "type": ["array", "object"],
            "items": { "type": "object", "additionalProperties": true },
            "maxProperties": 0,
        })
    }
}

/// Deserializes a number without sign from a string, which may be empty, or a number.
pub(super) fn digits<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<String, D::Error> {
    let text = quantity(deserializer)?;
    if text.chars().all(|digit| digit.is_ascii_digit()) {
        Ok(text)
    } else {
        Err(serde::de::Error::custom("expected a whole number"))
    }
}

/// Deserializes a quantity from a string or a number: `cpu: 1` equals `cpu: "1"`.
fn quantity<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Number(serde_json::Number),
    }
    Ok(match Written::deserialize(deserializer)? {
        Written::Text(text) => text,
        Written::Number(number) => number.to_string(),
    })
}

/// Deserializes a string that may be `off`, which YAML 1.1, and so Helm, reads as `false`.
pub(super) fn string_or_off<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Word(String),
        Flag(bool),
    }
    match Written::deserialize(deserializer)? {
        Written::Word(word) => Ok(word),
        Written::Flag(false) => Ok("off".to_owned()),
        Written::Flag(true) => Err(serde::de::Error::custom("expected a word, or off")),
    }
}
