//! Shapes that several values have: images, resources, probes, and Kubernetes objects that pass
//! through as they are.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// In the schema: an object that Kubernetes checks, not the chart.
pub(super) type Open = serde_json::Map<String, serde_json::Value>;

/// Labels, annotations, selectors of nodes.
pub type Strings = BTreeMap<String, String>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Image {
    /// Registry and name of the image, without tag
    pub name: String,
    /// Tag of the image; empty for `linkerdVersion`
    pub version: String,
    /// When the image is pulled; empty for `imagePullPolicy`
    #[schemars(extend("enum" = ["", "Always", "IfNotPresent", "Never"]))]
    pub pull_policy: String,
}

/// Requests and limits; an empty one is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Resources {
    /// Processor time, as in 100m
    pub cpu: Bounds,
    /// Memory, as in 250Mi
    pub memory: Bounds,
    /// Disk of the container, as in 1Gi
    #[serde(rename = "ephemeral-storage")]
    pub ephemeral_storage: Bounds,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Bounds {
    /// What is reserved; empty for nothing
    #[serde(deserialize_with = "quantity")]
    #[schemars(extend("type" = ["string", "number"]))]
    pub request: String,
    /// What is allowed at most; empty for no limit
    #[serde(deserialize_with = "quantity")]
    #[schemars(extend("type" = ["string", "number"]))]
    pub limit: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProbeTimeout {
    /// Seconds after which an unanswered probe has failed
    pub timeout_seconds: i32,
}

impl Default for ProbeTimeout {
    fn default() -> Self {
        Self { timeout_seconds: 1 }
    }
}

/// A quantity as people write it: `cpu: 1` is a number in YAML and as good as `cpu: "1"`.
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

/// A word that may be `off`, which YAML of Helm's age reads as `false`.
pub(super) fn off_or_word<'de, D: serde::Deserializer<'de>>(
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
