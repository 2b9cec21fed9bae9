//! Faults of trust: the issuer, the anchors, and the tokens that proxies show.

use super::Fault;
use super::guide::UPGRADE_STEP;

/// The mesh made its own certificates, so it makes the issuer again.
const ANOTHER_ISSUER: &[&str] = &[
    "kubectl -n linkerd delete secret linkerd-identity-issuer",
    UPGRADE_STEP,
];

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "the issuer has expired",
        plant: &[
            "kubectl -n linkerd create secret generic linkerd-identity-issuer --from-file=expired/crt.pem --from-file=expired/key.pem --dry-run=client -o yaml | kubectl apply -f -",
        ],
        check: "l5d-identity-issuer-cert-is-time-valid",
        detail: "expired on",
        related: &["l5d-identity-issuer-cert-not-expiring-soon"],
        repair_steps: &[UPGRADE_STEP],
        substitutions: &[],
    },
    Fault {
        name: "the issuer is not valid yet: it comes from a machine whose clock is ahead",
        plant: &[
            "kubectl -n linkerd create secret generic linkerd-identity-issuer --from-file=tomorrow/crt.pem --from-file=tomorrow/key.pem --dry-run=client -o yaml | kubectl apply -f -",
        ],
        check: "l5d-identity-issuer-cert-is-time-valid",
        detail: "is not valid before",
        related: &[],
        repair_steps: &[
            "kubectl -n linkerd create secret generic linkerd-identity-issuer --from-file=crt.pem --from-file=key.pem --dry-run=client -o yaml | kubectl apply -f -",
        ],
        substitutions: &[],
    },
    Fault {
        name: "the issuer ends soon",
        plant: &[
            "kubectl -n linkerd create secret generic linkerd-identity-issuer --from-file=ending/crt.pem --from-file=ending/key.pem --dry-run=client -o yaml | kubectl apply -f -",
        ],
        check: "l5d-identity-issuer-cert-not-expiring-soon",
        detail: "expires in",
        related: &[],
        repair_steps: &[UPGRADE_STEP],
        substitutions: &[],
    },
    Fault {
        name: "the issuer's key is another's",
        plant: &[
            "kubectl -n linkerd create secret generic linkerd-identity-issuer --from-file=crt.pem --from-file=stranger/key.pem --dry-run=client -o yaml | kubectl apply -f -",
        ],
        check: "l5d-identity-cert-config-valid",
        detail: "does not match its certificate",
        related: &[],
        repair_steps: ANOTHER_ISSUER,
        substitutions: &[],
    },
    Fault {
        name: "no anchor signed the issuer",
        plant: &[
            "kubectl -n linkerd create secret generic linkerd-identity-issuer --from-file=stranger/crt.pem --from-file=stranger/key.pem --dry-run=client -o yaml | kubectl apply -f -",
        ],
        check: "l5d-identity-issuer-cert-issued-by-trust-anchor",
        detail: "no trust anchor signed it",
        related: &[],
        repair_steps: ANOTHER_ISSUER,
        substitutions: &[],
    },
    Fault {
        name: "the issuer's key is of a kind that proxies do not take",
        plant: &[
            "kubectl -n linkerd create secret generic linkerd-identity-issuer --from-file=p384/crt.pem --from-file=p384/key.pem --dry-run=client -o yaml | kubectl apply -f -",
        ],
        check: "l5d-identity-issuer-cert-uses-supported-crypto",
        detail: "an ECDSA key of 384 bits",
        related: &[],
        repair_steps: ANOTHER_ISSUER,
        substitutions: &[],
    },
    Fault {
        name: "the issuer may not sign",
        plant: &[
            "kubectl -n linkerd create secret generic linkerd-identity-issuer --from-file=server/crt.pem --from-file=server/key.pem --dry-run=client -o yaml | kubectl apply -f -",
        ],
        check: "issuer-may-sign",
        detail: "lack CA:TRUE",
        related: &[],
        repair_steps: ANOTHER_ISSUER,
        substitutions: &[],
    },
    Fault {
        name: "the issuer is gone",
        plant: &["kubectl -n linkerd delete secret linkerd-identity-issuer"],
        check: "l5d-identity-cert-config-valid",
        detail: "no Secret linkerd-identity-issuer",
        related: &[],
        repair_steps: &[UPGRADE_STEP],
        substitutions: &[],
    },
    Fault {
        name: "the anchors are a stranger's",
        plant: &[
            "kubectl -n linkerd create configmap linkerd-identity-trust-roots --from-file=ca-bundle.crt=stranger/crt.pem --dry-run=client -o yaml | kubectl apply -f -",
        ],
        check: "l5d-identity-issuer-cert-issued-by-trust-anchor",
        detail: "no trust anchor signed it",
        related: &["trust-roots-published"],
        repair_steps: &[
            "kubectl -n linkerd get secret linkerd-trust-anchor -o jsonpath='{.data.tls\\.crt}' | base64 -d >> ca-bundle.crt",
            "kubectl -n linkerd create configmap linkerd-identity-trust-roots --from-file=ca-bundle.crt --dry-run=client -o yaml | kubectl apply -f -",
        ],
        substitutions: &[],
    },
    Fault {
        name: "an old anchor was left in the bundle",
        plant: &[
            "cat anchor.crt old/crt.pem > both.crt",
            "kubectl -n linkerd create configmap linkerd-identity-trust-roots --from-file=ca-bundle.crt=both.crt --dry-run=client -o yaml | kubectl apply -f -",
        ],
        check: "l5d-identity-trustAnchors-are-time-valid",
        detail: "expired on",
        related: &[
            "l5d-identity-trustAnchors-not-expiring-soon",
            "trust-roots-published",
        ],
        repair_steps: &[
            "remove it from the file",
            "kubectl -n linkerd create configmap linkerd-identity-trust-roots --from-file=ca-bundle.crt --dry-run=client -o yaml | kubectl apply -f -",
        ],
        substitutions: &[("remove it from the file", "cp anchor.crt ca-bundle.crt")],
    },
    Fault {
        name: "a rotation of the trust anchor was begun and left",
        plant: &["meshctl identity rotate --again --to start"],
        check: "anchor-rotation",
        detail: "is in step add (2 of 5)",
        related: &[],
        repair_steps: &["meshctl identity rotate --abort"],
        substitutions: &[],
    },
    Fault {
        name: "the bundle of anchors is empty",
        plant: &[
            "kubectl -n linkerd create configmap linkerd-identity-trust-roots --from-literal=ca-bundle.crt= --dry-run=client -o yaml | kubectl apply -f -",
        ],
        check: "l5d-identity-cert-config-valid",
        detail: "contains no certificate",
        related: &[],
        repair_steps: &[
            "kubectl -n linkerd delete configmap linkerd-identity-trust-roots",
            UPGRADE_STEP,
        ],
        substitutions: &[],
    },
    Fault {
        name: "a manually injected proxy has a token for another audience",
        plant: &[
            "kubectl -n faults create deployment by-hand --image=mesh/test-apps:dev --dry-run=client -o yaml -- sleep infinity | meshctl inject --manual - | sed 's/identity.l5d.io/vault/' | kubectl apply -f -",
        ],
        check: "token-audience",
        detail: "no token for identity.l5d.io but for vault",
        related: &["proxy-certificates", "l5d-data-plane-ready"],
        repair_steps: &["kubectl -n NAMESPACE edit WORKLOAD"],
        substitutions: &[
            ("NAMESPACE", "faults"),
            ("WORKLOAD", "deployment/by-hand"),
            (
                "kubectl -n NAMESPACE edit WORKLOAD",
                "export KUBE_EDITOR=\"sed -i s/vault/identity.l5d.io/\"; kubectl -n faults edit deployment/by-hand",
            ),
        ],
    },
];
