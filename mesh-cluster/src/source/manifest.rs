//! Manifests: texts of YAML documents, one object each.
//!
//! Documents are separated before they are parsed, so that an invalid one does not affect the
//! others.

use std::fmt;

use mesh_k8s::kinds;
use mesh_objects::convert::{self, Manifest, ObjectError, without_position};
use mesh_objects::model::{Key, Kind, ListedKind, Name, Object};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A document of a manifest.
#[derive(Debug)]
pub enum Document {
    Object {
        line: usize,
        object: Object,
    },
    /// An object of a kind that the controllers do not read.
    Unknown {
        line: usize,
        kind: String,
    },
    Invalid(InvalidDocument),
}

/// An invalid document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidDocument {
    /// The line in the manifest, counted from 1.
    pub line: usize,
    /// The object of the document, if it is known.
    pub key: Option<Key>,
    pub problem: String,
}

/// The fields that all objects share.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: HeaderMeta,
}

#[derive(Default, Deserialize)]
struct HeaderMeta {
    #[serde(default)]
    name: String,
    namespace: Option<String>,
}

/// The namespace of an object without namespace, as in `kubectl`.
const DEFAULT_NAMESPACE: &str = "default";

/// Returns the documents of a manifest. A document is of the first matching one of `kinds`.
pub fn read(text: &str, kinds: &[Kind]) -> Vec<Document> {
    split(text)
        .into_iter()
        .filter_map(|(line, text)| document(line, text, kinds))
        .collect()
}

/// Returns the documents with the line of their start. In YAML a line of `---` always starts a
/// document.
fn split(text: &str) -> Vec<(usize, &str)> {
    let mut documents = Vec::new();
    let mut begin = (1, 0);
    let mut offset = 0;
    for (at, line) in text.split_inclusive('\n').enumerate() {
        let marker = line.trim_end();
        if marker == "---" || marker.starts_with("--- ") || marker == "..." {
            documents.push((begin.0, &text[begin.1..offset]));
            begin = (at + 2, offset + line.len());
        }
        offset += line.len();
    }
    documents.push((begin.0, &text[begin.1..]));
    documents
}

/// Parses a document; returns `None` if it only has comments and blank lines.
fn document(line: usize, text: &str, kinds: &[Kind]) -> Option<Document> {
    let empty = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    let first = line + text.lines().take_while(|line| empty(line)).count();
    if text.lines().all(empty) {
        return None;
    }
    let invalid = |key: Option<&Key>, error: &serde_norway::Error| {
        let at = error.location().map_or(first, |at| line + at.line() - 1);
        Document::Invalid(InvalidDocument {
            line: at,
            key: key.cloned(),
            problem: without_position(error),
        })
    };
    let header: Header = match serde_norway::from_str(text) {
        Ok(header) => header,
        Err(error) => return Some(invalid(None, &error)),
    };
    let missing = |field: &str| {
        Document::Invalid(InvalidDocument {
            line: first,
            key: None,
            problem: format!("{field}: is missing"),
        })
    };
    let Some(kind) = known_kind(&header, kinds) else {
        return Some(if header.kind.is_empty() {
            missing("kind")
        } else {
            Document::Unknown {
                line: first,
                kind: format!("{} {}", header.api_version, header.kind),
            }
        });
    };
    let namespace = match (kind, &header.metadata.namespace) {
        (Kind::Node | Kind::Listed(ListedKind::Namespace), _) => "",
        (_, Some(namespace)) if !namespace.is_empty() => namespace,
        _ => DEFAULT_NAMESPACE,
    };
    if header.metadata.name.is_empty() {
        return Some(missing("metadata.name"));
    }
    let key = Key {
        kind,
        name: Name::new(namespace, &header.metadata.name),
    };
    Some(match convert::object(kind, &Text { key: &key, text }) {
        Ok(object) => Document::Object {
            line: first,
            object,
        },
        Err(ObjectError::Read(error)) => invalid(Some(&key), &error),
        Err(ObjectError::Convert(error)) => Document::Invalid(InvalidDocument {
            line: first,
            key: Some(key),
            problem: error.to_string(),
        }),
    })
}

/// Ignores the version, because all versions of a kind are read in the same way.
fn known_kind(header: &Header, kinds: &[Kind]) -> Option<Kind> {
    let group = header
        .api_version
        .split_once('/')
        .map_or("", |(group, _)| group);
    kinds
        .iter()
        .copied()
        .find(|kind| kind.group() == group && kind.as_str() == header.kind)
}

/// The text of a document, with the namespace of its key.
struct Text<'a> {
    key: &'a Key,
    text: &'a str,
}

impl Manifest for Text<'_> {
    type Error = serde_norway::Error;

    /// Sets the default namespace of the object.
    fn read<T: DeserializeOwned + kinds::Resource>(&self) -> Result<T, Self::Error> {
        let mut object: T = serde_norway::from_str(self.text)?;
        if !self.key.name.namespace.is_empty() {
            object.meta_mut().namespace = Some(self.key.name.namespace.to_string());
        }
        Ok(object)
    }
}

impl fmt::Display for InvalidDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(f, "{key}: {}", self.problem),
            None => f.write_str(&self.problem),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(text: &str) -> Vec<String> {
        read(text, &Kind::ALL)
            .iter()
            .map(|document| match document {
                Document::Object { line, object } => format!("{line} {}", object.key()),
                Document::Unknown { line, kind } => format!("{line} unknown {kind}"),
                Document::Invalid(invalid) => format!("{} invalid {invalid}", invalid.line),
            })
            .collect()
    }

    /// Objects that the validating webhook admits must have an effect, so this test reads the
    /// corpus of its verdicts. Routes of the Gateway API may be for other controllers.
    #[test]
    fn admitted_policies_and_profiles_are_converted() {
        use serde_json::{Value, json};

        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../mesh-k8s/testdata/validate");
        let (mut converted, mut wrong) = (0, Vec::new());
        for file in std::fs::read_dir(corpus).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let file: Value = serde_norway::from_str(&text).unwrap();
            let version = file["apiVersion"].as_str().unwrap();
            if version.starts_with("gateway.networking.k8s.io/") {
                continue;
            }
            let cases = file["cases"].as_array().unwrap().iter();
            for case in cases.filter(|case| case.get("because").is_none()) {
                let object = json!({
                    "apiVersion": version,
                    "kind": file["kind"],
                    "metadata": {
                        "name": case["name"],
                        "namespace": "default",
                        "annotations": case["annotations"],
                    },
                    "spec": case["spec"],
                });
                match read(&object.to_string(), &Kind::ALL).as_slice() {
                    [Document::Object { .. }] => converted += 1,
                    other => wrong.push(format!("{other:?}")),
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(converted >= 60, "{converted}");
    }

    #[test]
    fn documents_have_line_and_kind() {
        let text = "\
# a comment
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{port: 80}]}
---

# nothing
--- # again
apiVersion: v1
kind: Pod
metadata: {name: web-1}
...
---
apiVersion: example.com/v1
kind: Gadget
metadata: {name: x}
";
        assert_eq!(
            summary(text),
            [
                "3 Service shop/web",
                "11 Pod default/web-1",
                "16 unknown example.com/v1 Gadget"
            ]
        );
    }

    #[test]
    fn invalid_document_has_line_and_key_and_does_not_affect_others() {
        let text = "\
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web, namespace: shop}
spec:
  podSelector: {}
  port: 99999
---
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: allow, namespace: shop}
spec:
  targetRef: {kind: Pod, name: web}
  requiredAuthenticationRefs: []
---
kind: [
---
metadata: {name: x}
---
apiVersion: v1
kind: Node
metadata: {name: n, labels: {topology.kubernetes.io/zone: z}}
";
        let seen = summary(text);
        assert_eq!(seen.len(), 5, "{seen:#?}");
        assert!(
            seen[0].starts_with("6 invalid Server shop/web: spec.port: invalid value"),
            "{}",
            seen[0]
        );
        assert!(
            seen[1].starts_with("8 invalid AuthorizationPolicy shop/allow: spec.targetRef:"),
            "{}",
            seen[1]
        );
        assert!(seen[2].starts_with("15 invalid "), "{}", seen[2]);
        assert_eq!(seen[3], "17 invalid kind: is missing");
        assert_eq!(seen[4], "19 Node n");
    }
}
