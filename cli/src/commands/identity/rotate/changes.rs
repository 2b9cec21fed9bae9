//! Writes the changes of a rotation. Each write names the version of the object that was read, so
//! that it fails if another client has changed the object since, and the rotation is evaluated
//! again. The command may be killed between any two writes.

use std::collections::BTreeMap;

use anyhow::Context as _;
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use mesh_cluster::certificate::authority::CertificateAndKey;
use mesh_cluster::certificate::pem_blocks;
use mesh_core::anchor_rotation::Change;
use mesh_core::annotation::{CONTROL_PLANE_COMPONENT, CONTROL_PLANE_NS, CREATED_BY};
use mesh_k8s::kinds::{ByteString, ConfigMap, ObjectMeta, Secret};
use mesh_k8s::pod::meta_annotation;
use mesh_k8s::trust::{ANCHOR_SECRET, BOOTSTRAP, ISSUER_SECRET, IssuerNames, ROTATION_SECRET};

use crate::cluster::{Cluster, error};
use crate::facts::names::{BUNDLE_KEY, TRUST_ROOTS};
use crate::facts::trust::own_map;
use crate::facts::{Facts, fact_ref};
use crate::rotation::stored::{Replaced, Stored};
use crate::rotation::{Direction, InProgress, bundle};

/// Writes to a cluster.
pub(super) struct Writer<'a> {
    config_maps: Api<ConfigMap>,
    secrets: Api<Secret>,
    namespace: &'a str,
    /// The names in the issuer's Secret.
    names: IssuerNames,
    facts: &'a Facts,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Yes,
    /// Another client has changed the object.
    Conflict,
}

impl<'a> Writer<'a> {
    pub(super) fn new(cluster: &'a Cluster, facts: &'a Facts) -> anyhow::Result<Self> {
        let namespace = &cluster.control_namespace;
        let values = facts.values().map_err(anyhow::Error::msg)?;
        Ok(Self {
            config_maps: Api::namespaced(cluster.client.clone(), namespace),
            secrets: Api::namespaced(cluster.client.clone(), namespace),
            namespace,
            names: IssuerNames::for_scheme(&values.identity.issuer.scheme),
            facts,
        })
    }

    /// Returns the anchor that the mesh created, if it did.
    pub(super) async fn own_anchor(&self) -> anyhow::Result<Option<CertificateAndKey>> {
        let secret = self.read(ANCHOR_SECRET).await?;
        Ok(secret.map(|secret| pair(&secret, IssuerNames::TLS)))
    }

    /// Stores a new rotation.
    pub(super) async fn start(&self, stored: &Stored) -> anyhow::Result<Written> {
        let secret = stored.to_secret(self.namespace);
        let created = self.secrets.create(&params(), &secret).await;
        written(&format!("create Secret {ROTATION_SECRET}"), created)
    }

    /// Replaces the Secret of the rotation.
    pub(super) async fn store(&self, stored: &Stored) -> anyhow::Result<Written> {
        self.replace_secret(&stored.to_secret(self.namespace)).await
    }

    /// Makes a change of a rotation that this command has stored.
    pub(super) async fn make(
        &self,
        change: Change,
        rotation: &InProgress,
        stored: &Stored,
    ) -> anyhow::Result<Written> {
        // Another operator may have aborted or ended the rotation.
        let version = |secret: &Secret| secret.metadata.resource_version.clone();
        let present = self.read(ROTATION_SECRET).await?;
        if present.as_ref().and_then(version) != stored.meta.resource_version {
            return Ok(Written::Conflict);
        }
        let is_forward = rotation.roots.direction == Direction::Forward;
        let (to, from) = if is_forward {
            (&stored.anchor.certificate, &stored.old_anchors)
        } else {
            (&stored.old_anchors, &stored.anchor.certificate)
        };
        match change {
            Change::AddAnchor => self.write_anchors(|text| bundle::with(text, to)).await,
            Change::RemoveAnchor => {
                let from: Vec<Vec<u8>> = pem_blocks(from).into_iter().map(|it| it.der).collect();
                self.write_anchors(|text| bundle::without(text, &from))
                    .await
            }
            Change::SwitchIssuer if is_forward => self.switch(stored).await,
            Change::SwitchIssuer => self.switch_back(stored).await,
            Change::AppendCrossCertificate => {
                let cross = stored.cross_certificate.as_deref().unwrap_or_default();
                self.write_chain(|chain| bundle::with(chain, cross)).await
            }
            Change::DeleteOldKeys => {
                let mut stored = stored.clone();
                stored.delete_old_keys();
                self.store(&stored).await
            }
            Change::Finish => self.finish(rotation, stored).await,
        }
    }

    async fn write_anchors(&self, edit: impl Fn(&str) -> String) -> anyhow::Result<Written> {
        let map = own_map(self.facts).map_err(anyhow::Error::msg)?;
        let mut map = map
            .with_context(|| format!("ConfigMap {TRUST_ROOTS} is gone"))?
            .clone();
        let data = map.data.get_or_insert_default();
        let text = data.entry(BUNDLE_KEY.to_owned()).or_default();
        *text = edit(text);
        let replaced = self.config_maps.replace(TRUST_ROOTS, &params(), &map).await;
        written(&format!("replace ConfigMap {TRUST_ROOTS}"), replaced)
    }

    /// Replaces the issuer by the new one. First what it replaces is stored, and then the anchor
    /// that the bootstrap renews the issuer with is replaced.
    async fn switch(&self, stored: &Stored) -> anyhow::Result<Written> {
        let issuer = self.issuer().await?;
        if stored.replaced.is_none() {
            let mut stored = stored.clone();
            stored.replaced = Some(Replaced {
                issuer: pair(&issuer, self.names),
                created_by: meta_annotation(&issuer.metadata, CREATED_BY).map(str::to_owned),
                anchor: self.own_anchor().await?,
            });
            if self.store(&stored).await? == Written::Conflict {
                return Ok(Written::Conflict);
            }
        }
        let new = Some(&stored.anchor).filter(|anchor| !anchor.key.is_empty());
        if self.write_own_anchor(new).await? == Written::Conflict {
            return Ok(Written::Conflict);
        }
        // Without the anchor's key the bootstrap cannot renew it.
        let created_by = new.map(|_| BOOTSTRAP.to_owned());
        let mut replacement = stored.issuer.clone();
        let cross = stored.cross_certificate.as_deref().unwrap_or_default();
        replacement.certificate = bundle::with(&replacement.certificate, cross);
        self.write_issuer(issuer, &replacement, created_by).await
    }

    /// Restores the issuer that was replaced, and its anchor.
    async fn switch_back(&self, stored: &Stored) -> anyhow::Result<Written> {
        let replaced = stored.replaced.as_ref();
        let replaced = replaced.context("the rotation has not stored the old issuer")?;
        let issuer = self.issuer().await?;
        if self.write_own_anchor(replaced.anchor.as_ref()).await? == Written::Conflict {
            return Ok(Written::Conflict);
        }
        let created_by = replaced.created_by.clone();
        self.write_issuer(issuer, &replaced.issuer, created_by)
            .await
    }

    /// Writes the Secret of the anchor that the mesh created, or deletes it.
    async fn write_own_anchor(
        &self,
        anchor: Option<&CertificateAndKey>,
    ) -> anyhow::Result<Written> {
        let present = self.read(ANCHOR_SECRET).await?;
        match (present, anchor) {
            (None, None) => Ok(Written::Yes),
            (Some(secret), None) => self.delete(&secret).await,
            (Some(secret), Some(anchor)) if pair(&secret, IssuerNames::TLS) == *anchor => {
                Ok(Written::Yes)
            }
            (Some(mut secret), Some(anchor)) => {
                set_pair(&mut secret, IssuerNames::TLS, anchor);
                self.replace_secret(&secret).await
            }
            (None, Some(anchor)) => {
                let mut secret = Secret {
                    metadata: self.own_metadata(ANCHOR_SECRET),
                    type_: Some(IssuerNames::TLS.secret_type.to_owned()),
                    ..Secret::default()
                };
                set_pair(&mut secret, IssuerNames::TLS, anchor);
                let created = self.secrets.create(&params(), &secret).await;
                written(&format!("create Secret {ANCHOR_SECRET}"), created)
            }
        }
    }

    async fn write_issuer(
        &self,
        mut secret: Secret,
        issuer: &CertificateAndKey,
        created_by: Option<String>,
    ) -> anyhow::Result<Written> {
        set_pair(&mut secret, self.names, issuer);
        let annotations = secret.metadata.annotations.get_or_insert_default();
        match created_by {
            Some(creator) => drop(annotations.insert(CREATED_BY.to_owned(), creator)),
            None => drop(annotations.remove(CREATED_BY)),
        }
        self.replace_secret(&secret).await
    }

    /// Changes the certificates of the issuer's Secret.
    async fn write_chain(&self, edit: impl Fn(&str) -> String) -> anyhow::Result<Written> {
        let mut secret = self.issuer().await?;
        let mut issuer = pair(&secret, self.names);
        let before = std::mem::take(&mut issuer.certificate);
        issuer.certificate = edit(&before);
        if issuer.certificate == before {
            return Ok(Written::Yes);
        }
        set_pair(&mut secret, self.names, &issuer);
        self.replace_secret(&secret).await
    }

    async fn finish(&self, rotation: &InProgress, stored: &Stored) -> anyhow::Result<Written> {
        let without_cross = |chain: &str| {
            let above = pem_blocks(chain).into_iter().skip(1).map(|block| block.der);
            let cross: Vec<Vec<u8>> = above
                .filter(|der| rotation.roots.is_cross_certificate(der))
                .collect();
            bundle::without(chain, &cross)
        };
        if self.write_chain(without_cross).await? == Written::Conflict {
            return Ok(Written::Conflict);
        }
        self.delete(&stored.to_secret(self.namespace)).await
    }

    /// Returns the Secret of the issuer, if it is the one that the facts are about.
    async fn issuer(&self) -> anyhow::Result<Secret> {
        let secret = self.read(ISSUER_SECRET).await?;
        let mut secret = secret.with_context(|| format!("Secret {ISSUER_SECRET} is gone"))?;
        let known = fact_ref(&self.facts.objects.issuer).map_err(anyhow::Error::msg)?;
        let known = known
            .as_ref()
            .and_then(|meta| meta.resource_version.clone());
        // A replacement of any other version is a conflict.
        secret.metadata.resource_version = known;
        Ok(secret)
    }

    async fn read(&self, name: &str) -> anyhow::Result<Option<Secret>> {
        let found = self.secrets.get_opt(name).await;
        found.map_err(|error| error::failed(&format!("read Secret {name}"), error))
    }

    async fn replace_secret(&self, secret: &Secret) -> anyhow::Result<Written> {
        let name = secret.metadata.name.as_deref().unwrap_or_default();
        let replaced = self.secrets.replace(name, &params(), secret).await;
        written(&format!("replace Secret {name}"), replaced)
    }

    async fn delete(&self, secret: &Secret) -> anyhow::Result<Written> {
        let name = secret.metadata.name.as_deref().unwrap_or_default();
        let only = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: secret.metadata.resource_version.clone(),
                uid: None,
            }),
            ..DeleteParams::default()
        };
        match self.secrets.delete(name, &only).await {
            Err(error) if error::is_missing(&error) => Ok(Written::Yes),
            deleted => written(&format!("delete Secret {name}"), deleted),
        }
    }

    /// Returns the metadata of an object as the bootstrap creates it.
    fn own_metadata(&self, name: &str) -> ObjectMeta {
        let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            let pairs = pairs.iter();
            pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.namespace.to_owned()),
            labels: Some(pairs(&[
                (CONTROL_PLANE_COMPONENT, "identity"),
                (CONTROL_PLANE_NS, self.namespace),
            ])),
            annotations: Some(pairs(&[(CREATED_BY, BOOTSTRAP)])),
            ..ObjectMeta::default()
        }
    }
}

fn params() -> PostParams {
    PostParams {
        field_manager: Some("meshctl".to_owned()),
        ..PostParams::default()
    }
}

fn written<T>(what: &str, result: kube::Result<T>) -> anyhow::Result<Written> {
    match result {
        Ok(_) => Ok(Written::Yes),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {
            Ok(Written::Conflict)
        }
        Err(error) => Err(error::failed(what, error)),
    }
}

/// Returns the certificate and key of a Secret; a missing or binary entry is empty.
fn pair(secret: &Secret, names: IssuerNames) -> CertificateAndKey {
    let text = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        let text = bytes.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
        text.unwrap_or_default()
    };
    CertificateAndKey {
        certificate: text(names.certificate),
        key: text(names.key),
    }
}

fn set_pair(secret: &mut Secret, names: IssuerNames, pair: &CertificateAndKey) {
    let data = secret.data.get_or_insert_default();
    for (key, text) in [
        (names.certificate, &pair.certificate),
        (names.key, &pair.key),
    ] {
        data.insert(key.to_owned(), ByteString(text.clone().into_bytes()));
    }
}
