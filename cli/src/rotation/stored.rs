//! The Secret of a rotation: the new anchor and issuer, and the old ones while the rotation can be
//! aborted. It is created by the first step and deleted by the last one.

use std::collections::BTreeMap;

use mesh_cluster::certificate::authority::CertificateAndKey;
use mesh_core::annotation::{CONTROL_PLANE_COMPONENT, CONTROL_PLANE_NS, CREATED_BY};
use mesh_k8s::kinds::{ByteString, ObjectMeta, Secret};
use mesh_k8s::trust::ROTATION_SECRET;
use serde::{Deserialize, Serialize};

use super::{Direction, Roots};
use crate::certificate::read_pem;
use crate::facts::Fact;

/// The content of the Secret.
#[derive(Clone)]
pub(crate) struct Stored {
    /// The metadata that was read; without a resource version before the first write.
    pub(crate) meta: ObjectMeta,
    pub(crate) direction: Direction,
    pub(crate) is_compromised: bool,
    /// The anchors that signed the issuer before, in PEM.
    pub(crate) old_anchors: String,
    /// The new anchor. Its key is empty if the user keeps it.
    pub(crate) anchor: CertificateAndKey,
    pub(crate) issuer: CertificateAndKey,
    /// The certificate of the new anchor that the old one signed, in PEM.
    pub(crate) cross_certificate: Option<String>,
    /// Present from the replacement of the issuer on.
    pub(crate) replaced: Option<Replaced>,
}

/// What the new issuer replaced.
#[derive(Clone)]
pub(crate) struct Replaced {
    /// The key is empty once it has been deleted.
    pub(crate) issuer: CertificateAndKey,
    /// The annotation of that name.
    pub(crate) created_by: Option<String>,
    /// The anchor that the mesh had created. The key is empty once it has been deleted.
    pub(crate) anchor: Option<CertificateAndKey>,
}

/// What is not a certificate or a key, as JSON under one key of the Secret.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct State {
    direction: Direction,
    compromised: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replaced: Option<ReplacedState>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReplacedState {
    created_by: Option<String>,
    /// Whether the mesh had created the anchor.
    has_anchor: bool,
}

const STATE: &str = "state.json";
const OLD_ANCHORS: &str = "old-anchors.crt";
const ANCHOR: Names = Names("anchor.crt", "anchor.key");
const ISSUER: Names = Names("issuer.crt", "issuer.key");
const CROSS_CERTIFICATE: &str = "cross.crt";
const REPLACED_ISSUER: Names = Names("replaced-issuer.crt", "replaced-issuer.key");
const REPLACED_ANCHOR: Names = Names("replaced-anchor.crt", "replaced-anchor.key");

/// The keys of a certificate and of its private key.
#[derive(Clone, Copy)]
struct Names(&'static str, &'static str);

/// The command that writes the Secret, in its annotation.
const CREATOR: &str = "meshctl identity rotate";

impl Stored {
    /// Reads the Secret. The error names the entry that is missing or invalid.
    pub(crate) fn read(secret: &Secret) -> Fact<Self> {
        let entries = Entries(secret);
        let state: State = serde_json::from_str(&entries.text(STATE)?)
            .map_err(|error| entries.invalid(STATE, &error.to_string()))?;
        let stored = Self {
            meta: secret.metadata.clone(),
            direction: state.direction,
            is_compromised: state.compromised,
            old_anchors: entries.certificates(OLD_ANCHORS)?,
            anchor: entries.pair(ANCHOR)?,
            issuer: entries.pair(ISSUER)?,
            cross_certificate: entries.optional(CROSS_CERTIFICATE)?,
            replaced: match state.replaced {
                Some(replaced) => Some(Replaced {
                    issuer: entries.pair(REPLACED_ISSUER)?,
                    created_by: replaced.created_by,
                    anchor: if replaced.has_anchor {
                        Some(entries.pair(REPLACED_ANCHOR)?)
                    } else {
                        None
                    },
                }),
                None => None,
            },
        };
        Ok(stored)
    }

    /// Returns the Secret with this content.
    pub(crate) fn to_secret(&self, namespace: &str) -> Secret {
        let state = State {
            direction: self.direction,
            compromised: self.is_compromised,
            replaced: self.replaced.as_ref().map(|replaced| ReplacedState {
                created_by: replaced.created_by.clone(),
                has_anchor: replaced.anchor.is_some(),
            }),
        };
        let mut data = BTreeMap::new();
        let mut add = |key: &str, text: &str| {
            if !text.is_empty() {
                data.insert(key.to_owned(), ByteString(text.as_bytes().to_vec()));
            }
        };
        // The fields of the state are text and booleans.
        add(STATE, &serde_json::to_string(&state).unwrap_or_default());
        add(OLD_ANCHORS, &self.old_anchors);
        add(
            CROSS_CERTIFICATE,
            self.cross_certificate.as_deref().unwrap_or_default(),
        );
        let mut pairs = vec![(ANCHOR, &self.anchor), (ISSUER, &self.issuer)];
        if let Some(replaced) = &self.replaced {
            pairs.push((REPLACED_ISSUER, &replaced.issuer));
            pairs.extend(
                replaced
                    .anchor
                    .as_ref()
                    .map(|anchor| (REPLACED_ANCHOR, anchor)),
            );
        }
        for (Names(certificate, key), pair) in pairs {
            add(certificate, &pair.certificate);
            add(key, &pair.key);
        }
        Secret {
            metadata: self.metadata(namespace),
            type_: Some("Opaque".to_owned()),
            data: Some(data),
            ..Secret::default()
        }
    }

    pub(crate) fn roots(&self) -> Roots {
        let ders = |text: &str| read_pem(text.as_bytes(), "the Secret").unwrap_or_default();
        Roots {
            old: ders(&self.old_anchors),
            new: ders(&self.anchor.certificate)
                .into_iter()
                .next()
                .unwrap_or_default(),
            direction: self.direction,
        }
    }

    /// Returns whether keys of the old anchor or its issuer are stored.
    pub(crate) fn has_old_keys(&self) -> bool {
        self.replaced.as_ref().is_some_and(|replaced| {
            let anchor = replaced.anchor.as_ref();
            !replaced.issuer.key.is_empty() || anchor.is_some_and(|it| !it.key.is_empty())
        })
    }

    /// Deletes the keys of the old anchor and its issuer.
    pub(crate) fn delete_old_keys(&mut self) {
        if let Some(replaced) = &mut self.replaced {
            replaced.issuer.key.clear();
            if let Some(anchor) = &mut replaced.anchor {
                anchor.key.clear();
            }
        }
    }

    fn metadata(&self, namespace: &str) -> ObjectMeta {
        if self.meta.resource_version.is_some() {
            return self.meta.clone();
        }
        let text = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            let pairs = pairs.iter();
            pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        ObjectMeta {
            name: Some(ROTATION_SECRET.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(text(&[
                (CONTROL_PLANE_COMPONENT, "identity"),
                (CONTROL_PLANE_NS, namespace),
            ])),
            annotations: Some(text(&[(CREATED_BY, CREATOR)])),
            ..ObjectMeta::default()
        }
    }
}

impl std::fmt::Debug for Stored {
    /// Without the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stored")
            .field("direction", &self.direction)
            .field("is_compromised", &self.is_compromised)
            .finish_non_exhaustive()
    }
}

/// The entries of the Secret.
struct Entries<'a>(&'a Secret);

impl Entries<'_> {
    fn optional(&self, key: &str) -> Fact<Option<String>> {
        let bytes = self.0.data.as_ref().and_then(|data| data.get(key));
        let text = bytes.map(|bytes| String::from_utf8(bytes.0.clone()));
        text.transpose()
            .map_err(|_error| self.invalid(key, "it is not text"))
    }

    fn text(&self, key: &str) -> Fact<String> {
        let text = self.optional(key)?;
        text.ok_or_else(|| self.invalid(key, "it is missing"))
    }

    fn certificates(&self, key: &str) -> Fact<String> {
        let text = self.text(key)?;
        read_pem(text.as_bytes(), "it").map_err(|reason| self.invalid(key, &reason))?;
        Ok(text)
    }

    /// Returns a certificate and its key, which may be missing.
    fn pair(&self, Names(certificate, key): Names) -> Fact<CertificateAndKey> {
        Ok(CertificateAndKey {
            certificate: self.certificates(certificate)?,
            key: self.optional(key)?.unwrap_or_default(),
        })
    }

    fn invalid(&self, key: &str, reason: &str) -> String {
        format!(
            "entry {key} of Secret {ROTATION_SECRET} is invalid: {reason}; restore it, or delete the Secret and continue the rotation by hand"
        )
    }
}

#[cfg(test)]
mod tests;
