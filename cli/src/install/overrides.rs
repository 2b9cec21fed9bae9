//! The values of an installation that differ from the chart's defaults. They are stored in a
//! Secret, because they may include private keys.

use anyhow::Context;
use mesh_k8s::values::Values;
use serde_json::{Map, Value, json};

use super::manifest::{self, Manifest};
use crate::exit::Failure;

/// The name of the Secret and of its only key.
pub(crate) const NAME: &str = "linkerd-config-overrides";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overrides(String);

impl Overrides {
    /// Extracts the values that differ from the defaults.
    pub(super) fn from_values(values: &Value) -> anyhow::Result<Self> {
        let defaults = serde_json::to_value(Values::default())?;
        let overrides = difference(values, &defaults).unwrap_or_else(|| Value::Object(Map::new()));
        Ok(Self(serde_norway::to_string(&overrides)?))
    }

    /// Creates overrides from the stored values file.
    pub(crate) fn stored(text: String) -> Self {
        Self(text)
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    pub(super) fn secret(&self, namespace: &str) -> anyhow::Result<Manifest> {
        Manifest::from_object(json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": NAME,
                "namespace": namespace,
                "labels": { "linkerd.io/control-plane-ns": namespace },
                "annotations": { "linkerd.io/created-by": format!("linkerd/cli {}", env!("CARGO_PKG_VERSION")) },
            },
            "type": "Opaque",
            "stringData": { NAME: self.0 },
        }))
    }

    /// Extracts the overrides from the output of `meshctl install`.
    pub(crate) fn from_manifests(stream: &str) -> anyhow::Result<Self> {
        let manifests = manifest::split(stream)
            .map_err(|error| Failure::Input(format!("invalid manifests: {error}")))?;
        let secret = manifests.iter().find(|manifest| {
            let name = manifest.name();
            name.kind == "Secret" && name.name == NAME
        });
        let text = secret.and_then(|secret| secret.object["stringData"][NAME].as_str());
        let missing = || {
            Failure::Input(format!(
                "the manifests have no Secret {NAME} with stringData: they are not the output of `meshctl install`"
            ))
        };
        Ok(Self(text.ok_or_else(missing)?.to_owned()))
    }
}

/// Removes the document with the merged values from the manifests and returns the values.
pub(super) fn extract_values(manifests: &mut Vec<Manifest>) -> anyhow::Result<Value> {
    let place = manifests.iter().position(Manifest::is_values);
    let place = place.context("the output of helm has no values")?;
    let Value::Object(mut document) = manifests.remove(place).object else {
        anyhow::bail!("the values in the output of helm are not an object");
    };
    let mut values = document.remove("values").unwrap_or_default();
    if let Some(values) = values.as_object_mut() {
        values.remove("global");
    }
    Ok(values)
}

/// Returns the part of `values` that differs from `defaults`, or `None` if they are equal.
fn difference(values: &Value, defaults: &Value) -> Option<Value> {
    let (Value::Object(values), Value::Object(defaults)) = (values, defaults) else {
        return (values != defaults).then(|| values.clone());
    };
    let different: Map<String, Value> = values
        .iter()
        .filter_map(|(key, value)| {
            let rest = match defaults.get(key) {
                Some(default) => difference(value, default)?,
                None => value.clone(),
            };
            Some((key.clone(), rest))
        })
        .collect();
    (!different.is_empty()).then_some(Value::Object(different))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_have_only_nondefault_values() {
        let mut values = serde_json::to_value(Values::default()).unwrap();
        assert_eq!(Overrides::from_values(&values).unwrap().text().trim(), "{}");
        values["controllerReplicas"] = json!(3);
        values["podLabels"] = json!({ "a": "b" });
        values["identity"]["issuer"]["tls"]["crtPEM"] = json!("PEM");
        let overrides = Overrides::from_values(&values).unwrap();
        let kept: Value = serde_norway::from_str(overrides.text()).unwrap();
        let expected = json!({ "controllerReplicas": 3, "podLabels": { "a": "b" }, "identity": { "issuer": { "tls": { "crtPEM": "PEM" } } } });
        assert_eq!(kept, expected);
    }

    #[test]
    fn overrides_are_read_from_manifests() {
        let overrides = Overrides::stored("controllerReplicas: 3\n".into());
        let secret = overrides.secret("linkerd").unwrap();
        let stream = format!(
            "---\nkind: Namespace\nmetadata: {{name: a}}\n---\n{}",
            secret.text
        );
        assert_eq!(Overrides::from_manifests(&stream).unwrap(), overrides);
        assert!(Overrides::from_manifests("kind: Namespace\n").is_err());
    }
}
