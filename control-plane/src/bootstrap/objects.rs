//! The three objects, as Linkerd's chart names and shapes them.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};

use super::{
    BootstrapError, Settings,
    certificates::Pair,
    plan::{Found, State},
};
use crate::cluster::explain;

/// Reads and writes them.
pub(super) struct Objects {
    secrets: Api<Secret>,
    config_maps: Api<ConfigMap>,
    settings: Settings,
}

/// Whose version is there now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrote {
    Ours,
    SomebodyElse,
}

const ANCHOR: &str = "linkerd-trust-anchor";
const ISSUER: &str = "linkerd-identity-issuer";
const ROOTS: &str = "linkerd-identity-trust-roots";
const BUNDLE: &str = "ca-bundle.crt";

/// Keys and type of a Secret with a certificate, as Kubernetes itself defines them.
const TLS: (&str, &str, &str) = ("tls.crt", "tls.key", "kubernetes.io/tls");

/// Linkerd's annotation of who made an object. An issuer with this value was made here, and may be
/// renewed here.
const CREATED_BY: &str = "linkerd.io/created-by";
const US: &str = "mesh-controller bootstrap";

impl Objects {
    pub(super) fn new(client: Client, settings: Settings) -> Self {
        let namespace = &settings.control_namespace;
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            config_maps: Api::namespaced(client, namespace),
            settings,
        }
    }

    /// In the opposite order of their making, so that nothing is seen without what it was made from
    /// while another Job makes them.
    pub(super) async fn read(&self) -> Result<State, kube::Error> {
        let roots = self.config_maps.get_opt(ROOTS).await?;
        let issuer = self.secrets.get_opt(ISSUER).await?;
        let anchor = self.secrets.get_opt(ANCHOR).await?;
        let names = self.settings.names;
        Ok(State {
            anchor: anchor.map(|secret| pair(&secret, TLS.0, TLS.1)),
            issuer: issuer.map(|secret| Found {
                pair: pair(&secret, names.certificate, names.key),
                ours: is_ours(&secret.metadata),
                version: secret.metadata.resource_version,
            }),
            roots: roots.and_then(|map| map.data?.remove(BUNDLE)),
        })
    }

    pub(super) async fn create_anchor(&self, anchor: &Pair) -> Result<Wrote, BootstrapError> {
        let secret = self.secret(ANCHOR, TLS, anchor);
        let created = self.secrets.create(&PostParams::default(), &secret).await;
        wrote("Secret linkerd-trust-anchor", created)
    }

    pub(super) async fn create_issuer(&self, issuer: &Pair) -> Result<Wrote, BootstrapError> {
        let secret = self.issuer(issuer);
        let created = self.secrets.create(&PostParams::default(), &secret).await;
        wrote("Secret linkerd-identity-issuer", created)
    }

    /// Replaces the version that was read, and no other.
    pub(super) async fn replace_issuer(
        &self,
        issuer: &Pair,
        version: Option<String>,
    ) -> Result<Wrote, BootstrapError> {
        let mut secret = self.issuer(issuer);
        secret.metadata.resource_version = version;
        let params = PostParams::default();
        let replaced = self.secrets.replace(ISSUER, &params, &secret).await;
        wrote("Secret linkerd-identity-issuer, renewed", replaced)
    }

    pub(super) async fn create_trust_roots(&self, bundle: &str) -> Result<Wrote, BootstrapError> {
        let map = ConfigMap {
            metadata: self.metadata(ROOTS),
            data: Some([(BUNDLE.to_owned(), bundle.to_owned())].into()),
            ..ConfigMap::default()
        };
        let created = self.config_maps.create(&PostParams::default(), &map).await;
        wrote("ConfigMap linkerd-identity-trust-roots", created)
    }

    fn issuer(&self, issuer: &Pair) -> Secret {
        let names = self.settings.names;
        let keys = (names.certificate, names.key, names.secret_type);
        self.secret(ISSUER, keys, issuer)
    }

    fn secret(
        &self,
        name: &str,
        (certificate, key, secret_type): (&str, &str, &str),
        pair: &Pair,
    ) -> Secret {
        let data = [(certificate, &pair.certificate), (key, &pair.key)]
            .map(|(key, pem)| (key.to_owned(), ByteString(pem.clone().into_bytes())));
        Secret {
            metadata: self.metadata(name),
            type_: Some(secret_type.to_owned()),
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
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.settings.control_namespace.clone()),
            labels: Some(text([
                ("linkerd.io/control-plane-component", "identity"),
                (
                    "linkerd.io/control-plane-ns",
                    &self.settings.control_namespace,
                ),
            ])),
            annotations: Some([(CREATED_BY.to_owned(), US.to_owned())].into()),
            ..ObjectMeta::default()
        }
    }
}

/// What a key lacks or holds beside text is empty, and then refused where it is used.
fn pair(secret: &Secret, certificate: &str, key: &str) -> Pair {
    let text = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        let text = bytes.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
        text.unwrap_or_default()
    };
    Pair {
        certificate: text(certificate),
        key: text(key),
    }
}

fn is_ours(meta: &ObjectMeta) -> bool {
    let annotations = meta.annotations.as_ref();
    annotations.is_some_and(|all| all.get(CREATED_BY).is_some_and(|value| value == US))
}

fn wrote<T>(what: &'static str, result: Result<T, kube::Error>) -> Result<Wrote, BootstrapError> {
    match result {
        Ok(_) => {
            tracing::info!("Made {what}");
            Ok(Wrote::Ours)
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() || status.is_conflict() => {
            Ok(Wrote::SomebodyElse)
        }
        Err(error) => Err(BootstrapError::Write {
            what,
            problem: explain(&error),
        }),
    }
}

#[cfg(test)]
mod tests;
