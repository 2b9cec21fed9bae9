//! Faults on the way from the API server to the injector.

use super::{Fault, guide::AN_UPGRADE};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "the injector's registration is gone",
        plant: &[
            "kubectl delete mutatingwebhookconfiguration linkerd-proxy-injector-webhook-config",
        ],
        check: "l5d-existence-mwc",
        says: "is missing: no pod is injected",
        also: &[],
        follow: &[AN_UPGRADE],
        names: &[],
    },
    Fault {
        name: "somebody else's Service is registered",
        plant: &[
            r#"kubectl patch mutatingwebhookconfiguration linkerd-proxy-injector-webhook-config --type=json -p '[{"op": "replace", "path": "/webhooks/0/clientConfig/service/namespace", "value": "default"}]'"#,
        ],
        check: "l5d-existence-mwc",
        says: "registered at Service default/linkerd-proxy-injector",
        also: &[],
        follow: &[AN_UPGRADE],
        names: &[],
    },
    Fault {
        name: "a selector of the registration leaves everybody out",
        plant: &[
            r#"kubectl patch mutatingwebhookconfiguration linkerd-proxy-injector-webhook-config --type=json -p '[{"op": "add", "path": "/webhooks/0/namespaceSelector/matchLabels", "value": {"mesh": "yes"}}]'"#,
        ],
        check: "webhook-injects",
        says: "namespaceSelector excludes namespace faults",
        also: &[],
        follow: &[
            "kubectl delete mutatingwebhookconfiguration linkerd-proxy-injector-webhook-config",
            AN_UPGRADE,
        ],
        names: &[],
    },
    Fault {
        name: "the API server trusts another authority, and the injector may not tell it better",
        plant: &[
            "kubectl delete clusterrolebinding linkerd-linkerd-proxy-injector",
            r#"kubectl patch mutatingwebhookconfiguration linkerd-proxy-injector-webhook-config --type=json -p "[{\"op\": \"replace\", \"path\": \"/webhooks/0/clientConfig/caBundle\", \"value\": \"$(base64 -w0 stranger/crt.pem)\"}]""#,
        ],
        check: "l5d-proxy-injector-webhook-cert-valid",
        says: "is not accepted by the webhook's caBundle",
        also: &[
            "controllers-permissions",
            "webhook-presents",
            "webhook-injects",
        ],
        follow: &[
            AN_UPGRADE,
            "kubectl -n linkerd delete secret linkerd-proxy-injector-k8s-tls",
            "kubectl -n linkerd rollout restart deployment linkerd-proxy-injector",
        ],
        names: &[],
    },
    Fault {
        name: "the injector is away, and the API server may not go on without it",
        plant: &[
            r#"kubectl patch mutatingwebhookconfiguration linkerd-proxy-injector-webhook-config --type=json -p '[{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"}]'"#,
            "kubectl -n linkerd scale deployment linkerd-proxy-injector --replicas=0",
        ],
        check: "control-plane-deployments",
        says: "no pod can be created",
        also: &[],
        follow: &[
            "kubectl -n linkerd scale deployment NAME --replicas=1",
            AN_UPGRADE,
        ],
        names: &[("NAME", "linkerd-proxy-injector")],
    },
    Fault {
        name: "the injector's Service is gone",
        plant: &["kubectl -n linkerd delete service linkerd-proxy-injector"],
        check: "control-plane-endpoints",
        says: "Service linkerd-proxy-injector is missing",
        also: &["webhook-injects"],
        follow: &[AN_UPGRADE],
        names: &[],
    },
];
