//! The program that writes the trust anchors or the issuer, and would revert a change of another
//! one.

use mesh_core::anchor_rotation::Change;
use mesh_core::annotation::CREATED_BY;
use mesh_k8s::kinds::ObjectMeta;
use mesh_k8s::trust::BOOTSTRAP;
use mesh_k8s::values::Values;

/// The program. Without one, `meshctl identity rotate` may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Helm or `meshctl upgrade`, by these values of the chart.
    Values(&'static str),
    /// An unknown program, as the value `identity.externalCA` says.
    External,
    /// trust-manager, by this Bundle.
    TrustManager(String),
    /// cert-manager, by this Certificate.
    CertManager(String),
    /// Argo CD or Flux, by this application.
    GitOps(&'static str, String),
    /// A controller, by this object.
    Object(String),
}

const ANCHORS_VALUE: &str = "identityTrustAnchorsPEM";
const ISSUER_VALUES: &str = "identity.issuer.tls.crtPEM and identity.issuer.tls.keyPEM";

/// The metadata of other programs, with the tools.
const GIT_OPS: [(&str, &str); 4] = [
    ("argocd.argoproj.io/tracking-id", "Argo CD"),
    ("argocd.argoproj.io/instance", "Argo CD"),
    ("kustomize.toolkit.fluxcd.io/name", "Flux"),
    ("helm.toolkit.fluxcd.io/name", "Flux"),
];
const TRUST_MANAGER: &str = "trust.cert-manager.io/bundle";
const CERT_MANAGER: &str = "cert-manager.io/certificate-name";

/// Helm's annotation of the objects that the chart makes from values.
const RESOURCE_POLICY: &str = "helm.sh/resource-policy";

impl Owner {
    /// Returns the writer of the ConfigMap of the trust anchors.
    pub(crate) fn of_anchors(values: &Values, meta: &ObjectMeta) -> Option<Self> {
        if !values.identity_trust_anchors_pem.trim().is_empty() {
            return Some(Self::Values(ANCHORS_VALUE));
        }
        if let Some(bundle) = entry(meta, TRUST_MANAGER) {
            return Some(Self::TrustManager(bundle));
        }
        let external = values.identity.external_ca.then_some(Self::External);
        Self::of_metadata(meta).or(external)
    }

    /// Returns the writer of the Secret of the issuer.
    pub(crate) fn of_issuer(values: &Values, meta: &ObjectMeta) -> Option<Self> {
        if let Some(certificate) = entry(meta, CERT_MANAGER) {
            return Some(Self::CertManager(certificate));
        }
        // The object stays when the values have gone, and then belongs to no release.
        let has_anchors =
            values.identity.external_ca || !values.identity_trust_anchors_pem.trim().is_empty();
        let is_rendered = entry(meta, RESOURCE_POLICY).is_some()
            && entry(meta, CREATED_BY).is_some_and(|creator| creator != BOOTSTRAP);
        if has_anchors && is_rendered {
            return Some(Self::Values(ISSUER_VALUES));
        }
        Self::of_metadata(meta)
    }

    fn of_metadata(meta: &ObjectMeta) -> Option<Self> {
        let by_tool = GIT_OPS.iter().find_map(|(key, tool)| {
            let application = entry(meta, key)?;
            // The tracking id has the object after the application.
            let application = application.split(':').next().unwrap_or_default();
            Some(Self::GitOps(tool, application.to_owned()))
        });
        let owner = meta.owner_references.iter().flatten().next();
        by_tool.or_else(|| owner.map(|it| Self::Object(format!("{} {}", it.kind, it.name))))
    }

    /// Returns the name of the program.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Values(values) => format!("the chart, from {values}"),
            Self::External => "another program (identity.externalCA)".to_owned(),
            Self::TrustManager(bundle) => format!("trust-manager, from Bundle {bundle}"),
            Self::CertManager(certificate) => {
                format!("cert-manager, from Certificate {certificate}")
            }
            Self::GitOps(tool, application) => format!("{tool}, from {application}"),
            Self::Object(object) => format!("the controller of {object}"),
        }
    }

    /// Returns how the program makes a change.
    pub(crate) fn instruction(&self, change: Change) -> String {
        let what = match change {
            Change::AddAnchor => "both anchors",
            Change::RemoveAnchor => "the new anchor without the old one",
            Change::SwitchIssuer => "an issuer that the new anchor signed, with its key",
            Change::AppendCrossCertificate => {
                "the issuer's certificate, followed by the cross-certificate"
            }
            Change::DeleteOldKeys | Change::Finish => {
                return "delete the old anchor's key, and remove the cross-certificate from the issuer if it has one".to_owned();
            }
        };
        match self {
            Self::Values(values) => format!(
                "set {values} to {what}, and upgrade (helm upgrade … --set-file, or meshctl upgrade --set-file … | kubectl apply -f -)"
            ),
            Self::External => format!("have its writer write {what}"),
            Self::TrustManager(bundle) => {
                format!("edit the sources of Bundle {bundle} so that they have {what}")
            }
            Self::CertManager(certificate) => match change {
                Change::AppendCrossCertificate => {
                    "cert-manager writes no cross-certificate: restart the workloads that need it"
                        .to_owned()
                }
                _ => format!(
                    "let the issuer of Certificate {certificate} sign with the new anchor, and renew it (cmctl renew {certificate})"
                ),
            },
            Self::GitOps(tool, application) => {
                format!("commit {what} to the source of {application}, and let {tool} apply it")
            }
            Self::Object(object) => format!("change {object} so that it has {what}"),
        }
    }
}

/// Returns the value of a label or an annotation.
fn entry(meta: &ObjectMeta, key: &str) -> Option<String> {
    let maps = [&meta.labels, &meta.annotations];
    let mut maps = maps.into_iter().flatten();
    maps.find_map(|map| map.get(key)).cloned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn values(text: &str) -> Values {
        let values = serde_norway::from_str(text).unwrap();
        Values::of_installation(values, "linkerd").unwrap()
    }

    #[test]
    fn writer_is_found_by_values_and_metadata() {
        let anchors = "identityTrustAnchorsPEM: PEM";
        let external = "identity: {externalCA: true}";
        let rendered = json!({"annotations": {
            "helm.sh/resource-policy": "keep", "linkerd.io/created-by": "linkerd/helm 0.2.0",
        }});
        let bootstrap =
            json!({"annotations": {"linkerd.io/created-by": "mesh-controller bootstrap"}});
        let labelled = |key: &str, value: &str| json!({"labels": {key: value}});
        let sealed = json!({"ownerReferences": [
            {"apiVersion": "v1", "kind": "SealedSecret", "name": "issuer", "uid": "u"}
        ]});
        let argo = json!({"annotations": {
            "argocd.argoproj.io/tracking-id": "mesh:/ConfigMap:linkerd/linkerd-identity-trust-roots"
        }});
        let git_ops = |tool| Some(Owner::GitOps(tool, "mesh".to_owned()));
        for (text, meta, of_anchors, of_issuer) in [
            ("{}", json!({}), None, None),
            ("{}", bootstrap, None, None),
            // Left behind by values that have gone.
            ("{}", rendered.clone(), None, None),
            (
                anchors,
                rendered.clone(),
                Some(Owner::Values(ANCHORS_VALUE)),
                Some(Owner::Values(ISSUER_VALUES)),
            ),
            (
                external,
                rendered,
                Some(Owner::External),
                Some(Owner::Values(ISSUER_VALUES)),
            ),
            (
                external,
                labelled(TRUST_MANAGER, "roots"),
                Some(Owner::TrustManager("roots".to_owned())),
                None,
            ),
            (
                "{}",
                json!({"annotations": {CERT_MANAGER: "issuer"}}),
                None,
                Some(Owner::CertManager("issuer".to_owned())),
            ),
            ("{}", argo, git_ops("Argo CD"), git_ops("Argo CD")),
            (
                "{}",
                labelled("kustomize.toolkit.fluxcd.io/name", "mesh"),
                git_ops("Flux"),
                git_ops("Flux"),
            ),
            (
                "{}",
                sealed,
                Some(Owner::Object("SealedSecret issuer".to_owned())),
                Some(Owner::Object("SealedSecret issuer".to_owned())),
            ),
        ] {
            let parsed: ObjectMeta = serde_json::from_value(meta.clone()).unwrap();
            let values = values(text);
            assert_eq!(
                Owner::of_anchors(&values, &parsed),
                of_anchors,
                "{text} {meta}"
            );
            assert_eq!(
                Owner::of_issuer(&values, &parsed),
                of_issuer,
                "{text} {meta}"
            );
        }
    }
}
