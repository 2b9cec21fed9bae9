//! The Secrets and the ConfigMap of the certificates, with the names and keys of Linkerd's chart.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use mesh_cluster::api_server::explain;
use mesh_cluster::certificate::authority::CertificateAndKey;
use mesh_core::annotation::{CONTROL_PLANE_COMPONENT, CONTROL_PLANE_NS, CREATED_BY};
use mesh_core::rights::{self, Right};
use mesh_k8s::inject::{TRUST_ROOTS_CONFIG_MAP, TRUST_ROOTS_KEY};
use mesh_k8s::pod::meta_annotation;
use mesh_k8s::trust::{ANCHOR_SECRET, BOOTSTRAP, ISSUER_SECRET, IssuerNames};

use super::plan::{ExistingIssuer, ExistingObjects};
use super::{BootstrapError, Settings};

/// Reads and writes the objects.
pub(super) struct Objects {
    secrets: Api<Secret>,
    config_maps: Api<ConfigMap>,
    settings: Settings,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    Applied,
    /// Another client has created or changed the object.
    Conflict,
}

/// Returns the rights to create and renew the certificates.
pub(crate) fn rights() -> impl Iterator<Item = Right> {
    rights::all("", "secrets", &["create"])
        .chain(rights::all("", "configmaps", &["create"]))
        .chain(rights::named("", "secrets", &["get"], ANCHOR_SECRET))
        .chain(rights::named(
            "",
            "secrets",
            &["get", "update"],
            ISSUER_SECRET,
        ))
        .chain(rights::named(
            "",
            "configmaps",
            &["get"],
            TRUST_ROOTS_CONFIG_MAP,
        ))
}

impl Objects {
    pub(super) fn new(client: Client, settings: Settings) -> Self {
        let namespace = &settings.authority.control_namespace;
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            config_maps: Api::namespaced(client, namespace),
            settings,
        }
    }

    /// Reads the objects in reverse order of creation, so that an object is never read without the
    /// objects that it was created from, even while another Job creates them.
    pub(super) async fn read(&self) -> Result<ExistingObjects, kube::Error> {
        let roots = self.config_maps.get_opt(TRUST_ROOTS_CONFIG_MAP).await?;
        let issuer = self.secrets.get_opt(ISSUER_SECRET).await?;
        let anchor = self.secrets.get_opt(ANCHOR_SECRET).await?;
        let names = self.settings.names;
        Ok(ExistingObjects {
            anchor: anchor.map(|secret| certificate_and_key(&secret, IssuerNames::TLS)),
            issuer: issuer.map(|secret| ExistingIssuer {
                certificate_and_key: certificate_and_key(&secret, names),
                managed: meta_annotation(&secret.metadata, CREATED_BY) == Some(BOOTSTRAP),
                version: secret.metadata.resource_version,
            }),
            roots: roots.and_then(|map| map.data?.remove(TRUST_ROOTS_KEY)),
        })
    }

    pub(super) async fn create_anchor(
        &self,
        anchor: &CertificateAndKey,
    ) -> Result<WriteOutcome, BootstrapError> {
        let secret = self.secret(ANCHOR_SECRET, IssuerNames::TLS, anchor);
        let created = self.secrets.create(&PostParams::default(), &secret).await;
        write_outcome("Secret linkerd-trust-anchor", created)
    }

    pub(super) async fn create_issuer(
        &self,
        issuer: &CertificateAndKey,
    ) -> Result<WriteOutcome, BootstrapError> {
        let secret = self.issuer(issuer);
        let created = self.secrets.create(&PostParams::default(), &secret).await;
        write_outcome("Secret linkerd-identity-issuer", created)
    }

    /// Replaces the issuer if it still has this resource version.
    pub(super) async fn replace_issuer(
        &self,
        issuer: &CertificateAndKey,
        version: Option<String>,
    ) -> Result<WriteOutcome, BootstrapError> {
        let mut secret = self.issuer(issuer);
        secret.metadata.resource_version = version;
        let params = PostParams::default();
        let replaced = self.secrets.replace(ISSUER_SECRET, &params, &secret).await;
        write_outcome("Secret linkerd-identity-issuer, renewed", replaced)
    }

    pub(super) async fn create_trust_roots(
        &self,
        bundle: &str,
    ) -> Result<WriteOutcome, BootstrapError> {
        let map = ConfigMap {
            metadata: self.metadata(TRUST_ROOTS_CONFIG_MAP),
            data: Some([(TRUST_ROOTS_KEY.to_owned(), bundle.to_owned())].into()),
            ..ConfigMap::default()
        };
        let created = self.config_maps.create(&PostParams::default(), &map).await;
        write_outcome("ConfigMap linkerd-identity-trust-roots", created)
    }

    fn issuer(&self, issuer: &CertificateAndKey) -> Secret {
        self.secret(ISSUER_SECRET, self.settings.names, issuer)
    }

    fn secret(
        &self,
        name: &str,
        names: IssuerNames,
        certificate_and_key: &CertificateAndKey,
    ) -> Secret {
        let data = [
            (names.certificate, &certificate_and_key.certificate),
            (names.key, &certificate_and_key.key),
        ]
        .map(|(key, pem)| (key.to_owned(), ByteString(pem.clone().into_bytes())));
        Secret {
            metadata: self.metadata(name),
            type_: Some(names.secret_type.to_owned()),
            data: Some(data.into()),
            ..Secret::default()
        }
    }

    fn metadata(&self, name: &str) -> ObjectMeta {
        let text = |pairs: [(&str, &str); 2]| -> BTreeMap<String, String> {
            pairs
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into()
        };
        let namespace = &self.settings.authority.control_namespace;
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.clone()),
            labels: Some(text([
                (CONTROL_PLANE_COMPONENT, "identity"),
                (CONTROL_PLANE_NS, namespace),
            ])),
            annotations: Some([(CREATED_BY.to_owned(), BOOTSTRAP.to_owned())].into()),
            ..ObjectMeta::default()
        }
    }
}

/// Reads a certificate and key from a Secret. A missing or binary entry becomes empty and is
/// rejected where it is used.
fn certificate_and_key(secret: &Secret, names: IssuerNames) -> CertificateAndKey {
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

fn write_outcome<T>(
    what: &'static str,
    result: Result<T, kube::Error>,
) -> Result<WriteOutcome, BootstrapError> {
    match result {
        Ok(_) => {
            tracing::info!("Created {what}");
            Ok(WriteOutcome::Applied)
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() || status.is_conflict() => {
            Ok(WriteOutcome::Conflict)
        }
        Err(error) => Err(BootstrapError::Write {
            what,
            problem: explain(&error),
        }),
    }
}

#[cfg(test)]
mod tests;
