//! The values that were given at installation: everything that differs from the chart's defaults,
//! kept in a Secret because keys may be among them.

use anyhow::Context;
use mesh_k8s::values::Values;
use serde_json::{Map, Value, json};

use super::manifest::{self, Manifest};
use crate::exit::Failure;

/// The Secret, and the only key in it.
pub(crate) const NAME: &str = "linkerd-config-overrides";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overrides(String);

impl Overrides {
    /// Of complete values, those that are not the default.
    pub(super) fn of(values: &Value) -> anyhow::Result<Self> {
        let defaults = serde_json::to_value(Values::default())?;
        let given = difference(values, &defaults).unwrap_or_else(|| Value::Object(Map::new()));
        Ok(Self(serde_norway::to_string(&given)?))
    }

    /// As they were stored: a file of values.
    pub(crate) fn stored(text: String) -> Self {
        Self(text)
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    pub(super) fn secret(&self, namespace: &str) -> anyhow::Result<Manifest> {
        Manifest::of(json!({
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

    /// Those of an installation that was written to a file.
    pub(crate) fn of_manifests(stream: &str) -> anyhow::Result<Self> {
        let manifests = manifest::split(stream)
            .map_err(|error| Failure::Input(format!("the manifests: {error}")))?;
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

/// Takes the document out in which Helm told all values.
pub(super) fn take_values(manifests: &mut Vec<Manifest>) -> anyhow::Result<Value> {
    let place = manifests.iter().position(Manifest::is_values);
    let place = place.context("helm did not say which values it used")?;
    let Value::Object(mut document) = manifests.remove(place).object else {
        anyhow::bail!("helm's values are no object");
    };
    let mut values = document.remove("values").unwrap_or_default();
    if let Some(values) = values.as_object_mut() {
        values.remove("global");
    }
    Ok(values)
}

/// What of `values` is not in `defaults`; nothing when all is.
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
    fn only_what_differs_is_kept() {
        let mut values = serde_json::to_value(Values::default()).unwrap();
        assert_eq!(Overrides::of(&values).unwrap().text().trim(), "{}");
        values["controllerReplicas"] = json!(3);
        values["podLabels"] = json!({ "a": "b" });
        values["identity"]["issuer"]["tls"]["crtPEM"] = json!("PEM");
        let overrides = Overrides::of(&values).unwrap();
        let kept: Value = serde_norway::from_str(overrides.text()).unwrap();
        let expected = json!({ "controllerReplicas": 3, "podLabels": { "a": "b" }, "identity": { "issuer": { "tls": { "crtPEM": "PEM" } } } });
        assert_eq!(kept, expected);
    }

    #[test]
    fn a_stored_secret_is_found_again() {
        let overrides = Overrides::stored("controllerReplicas: 3\n".into());
        let secret = overrides.secret("linkerd").unwrap();
        let stream = format!(
            "---\nkind: Namespace\nmetadata: {{name: a}}\n---\n{}",
            secret.text
        );
        assert_eq!(Overrides::of_manifests(&stream).unwrap(), overrides);
        assert!(Overrides::of_manifests("kind: Namespace\n").is_err());
    }
}
