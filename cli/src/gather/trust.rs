//! Reads trust anchors and issuer from the files of a node or the objects of a cluster.

use std::path::Path;

use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use mesh_k8s::kinds::{ResourceExt, Secret};
use mesh_k8s::trust::{ISSUER_SECRET, IssuerNames, ROTATION_SECRET};
use mesh_local::pki;

use crate::certificate::read_pem;
use crate::clients::tls;
use crate::cluster::Cluster;
use crate::cluster::error::{self, to_fact};
use crate::facts::cert_manager::Certificate;
use crate::facts::names::{BUNDLE_KEY, TRUST_ROOTS};
use crate::facts::{Fact, Facts, Trust, fact_ref};
use crate::node::Node;

pub(super) fn of_node(node: &Node) -> Trust {
    let pki = node.paths.pki();
    let (anchors, issuer) = (pki::anchors_dir(&pki), pki::issuer_dir(&pki));
    let certificates = |path: &Path| read_pem(&read(path)?, &path.display().to_string());
    let chain = certificates(&issuer.join("crt.pem"));
    Trust {
        anchors: certificates(&anchors.join(BUNDLE_KEY)),
        key: read(&issuer.join("key.pem")).and_then(|key| check_key(&chain, &key)),
        issuer: chain,
    }
}

fn read(path: &Path) -> Fact<Vec<u8>> {
    std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn check_key(chain: &Fact<Vec<Vec<u8>>>, key: &[u8]) -> Fact<()> {
    let leaf = fact_ref(chain)?.first().cloned().unwrap_or_default();
    tls::check_key_matches(&leaf, key)
        .map_err(|reason| format!("the issuer's key does not match its certificate: {reason}"))
}

/// Reads anchors and issuer, and the Secret of a rotation.
pub(super) async fn of_cluster(cluster: &Cluster, facts: &mut Facts) {
    let (secret, rotation) = tokio::join!(
        cluster.control_object::<Secret>(ISSUER_SECRET),
        cluster.control_object::<Secret>(ROTATION_SECRET),
    );
    facts.objects.issuer_certificate = issuer_certificate(cluster, facts).await;
    let secret = to_fact(&format!("read Secret {ISSUER_SECRET}"), secret);
    facts.objects.issuer = fact_ref(&secret).map(|secret| Some(secret.as_ref()?.metadata.clone()));
    facts.objects.rotation = to_fact(&format!("read Secret {ROTATION_SECRET}"), rotation);
    let secret = secret.and_then(|secret| {
        secret.ok_or_else(|| {
            format!(
                "namespace {} has no Secret {ISSUER_SECRET}",
                cluster.control_namespace
            )
        })
    });
    let chain = fact_ref(&secret).and_then(|secret| {
        let text = entry(secret, ["crt.pem", "tls.crt"])?;
        read_pem(&text, &format!("Secret {ISSUER_SECRET}"))
    });
    facts.trust = Trust {
        anchors: anchors(facts),
        key: fact_ref(&secret)
            .and_then(|secret| entry(secret, ["key.pem", "tls.key"]))
            .and_then(|key| check_key(&chain, &key)),
        issuer: chain,
    };
}

/// Returns the Certificate of the issuer. Without cert-manager there is none; a user who may not
/// read it still gets what the Secret says.
async fn issuer_certificate(cluster: &Cluster, facts: &Facts) -> Fact<Option<Certificate>> {
    let scheme = facts.values().map(|values| &*values.identity.issuer.scheme);
    if scheme.is_ok_and(|scheme| IssuerNames::for_scheme(scheme) != IssuerNames::TLS) {
        return Ok(None);
    }
    let kind = GroupVersionKind::gvk("cert-manager.io", "v1", "Certificate");
    let kind = ApiResource::from_gvk(&kind);
    let client = cluster.client.clone();
    let api: Api<DynamicObject> = Api::namespaced_with(client, &cluster.control_namespace, &kind);
    let listed = match api.list(&ListParams::default()).await {
        Err(error) if error::is_missing(&error) || error::is_forbidden(&error) => return Ok(None),
        listed => to_fact("list the Certificates of the control plane", listed)?,
    };
    for object in listed.items {
        let name = object.name_any();
        let certificate = serde_json::to_value(object).and_then(serde_json::from_value);
        let certificate: Certificate =
            certificate.map_err(|error| format!("Certificate {name}: {error}"))?;
        if certificate.writes(ISSUER_SECRET) {
            return Ok(Some(certificate));
        }
    }
    Ok(None)
}

/// Returns the entry of a Secret under Linkerd's key, or under the key of type kubernetes.io/tls.
fn entry(secret: &Secret, keys: [&str; 2]) -> Fact<Vec<u8>> {
    let data = secret.data.as_ref();
    let found = keys
        .iter()
        .find_map(|key| data?.get(*key).map(|bytes| bytes.0.clone()));
    found.ok_or_else(|| {
        format!(
            "Secret {} has neither {} nor {}",
            secret.name_any(),
            keys[0],
            keys[1]
        )
    })
}

/// Returns the trust anchors of the control plane.
pub(super) fn anchors(facts: &Facts) -> Fact<Vec<Vec<u8>>> {
    let maps = fact_ref(&facts.objects.trust_roots)?;
    let own = maps
        .iter()
        .find(|map| map.namespace().as_deref() == Some(&facts.control_namespace));
    let own = own.ok_or_else(|| {
        format!(
            "namespace {} has no ConfigMap {TRUST_ROOTS}",
            facts.control_namespace
        )
    })?;
    let bundle = own.data.as_ref().and_then(|data| data.get(BUNDLE_KEY));
    let bundle =
        bundle.ok_or_else(|| format!("ConfigMap {TRUST_ROOTS} has no key {BUNDLE_KEY}"))?;
    read_pem(bundle.as_bytes(), &format!("ConfigMap {TRUST_ROOTS}"))
}
