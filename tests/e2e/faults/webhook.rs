//! Faults between the API server and the injector.

use super::Fault;
use super::guide::UPGRADE_STEP;

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "the injector's registration is missing",
        plant: &[
            "kubectl delete mutatingwebhookconfiguration linkerd-proxy-injector-webhook-config",
        ],
        check: "l5d-existence-mwc",
        detail: "is missing: no pod is injected",
        related: &[],
        repair_steps: &[UPGRADE_STEP],
        substitutions: &[],
    },
    Fault {
        name: "another Service is registered",
        plant: &[
            r#"kubectl patch mutatingwebhookconfiguration linkerd-proxy-injector-webhook-config --type=json -p '[{"op": "replace", "path": "/webhooks/0/clientConfig/service/namespace", "value": "default"}]'"#,
        ],
        check: "l5d-existence-mwc",
        detail: "registered at Service default/linkerd-proxy-injector",
        related: &[],
        repair_steps: &[UPGRADE_STEP],
        substitutions: &[],
    },
    Fault {
        name: "a selector of the registration excludes all namespaces",
        plant: &[
            r#"kubectl patch mutatingwebhookconfiguration linkerd-proxy-injector-webhook-config --type=json -p '[{"op": "add", "path": "/webhooks/0/namespaceSelector/matchLabels", "value": {"mesh": "yes"}}]'"#,
        ],
        check: "webhook-injects",
        detail: "namespaceSelector excludes namespace faults",
        related: &[],
        repair_steps: &[
            "kubectl delete mutatingwebhookconfiguration linkerd-proxy-injector-webhook-config",
            UPGRADE_STEP,
        ],
        substitutions: &[],
    },
    Fault {
        name: "the API server trusts another CA, and the injector is not allowed to correct it",
        plant: &[
            "kubectl delete clusterrolebinding linkerd-linkerd-proxy-injector",
            r#"kubectl patch mutatingwebhookconfiguration linkerd-proxy-injector-webhook-config --type=json -p "[{\"op\": \"replace\", \"path\": \"/webhooks/0/clientConfig/caBundle\", \"value\": \"$(base64 -w0 stranger/crt.pem)\"}]""#,
        ],
        check: "l5d-proxy-injector-webhook-cert-valid",
        detail: "is not accepted by the webhook's caBundle",
        related: &[
            "controllers-permissions",
            "webhook-presents",
            "webhook-injects",
        ],
        repair_steps: &[
            UPGRADE_STEP,
            "kubectl -n linkerd delete secret linkerd-proxy-injector-k8s-tls",
            "kubectl -n linkerd rollout restart deployment linkerd-proxy-injector",
        ],
        substitutions: &[],
    },
    Fault {
        name: "the injector is unavailable, and the failure policy is Fail",
        plant: &[
            r#"kubectl patch mutatingwebhookconfiguration linkerd-proxy-injector-webhook-config --type=json -p '[{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"}]'"#,
            "kubectl -n linkerd scale deployment linkerd-proxy-injector --replicas=0",
        ],
        check: "control-plane-deployments",
        detail: "no pod can be created",
        related: &[],
        repair_steps: &[
            "kubectl -n linkerd scale deployment NAME --replicas=1",
            UPGRADE_STEP,
        ],
        substitutions: &[("NAME", "linkerd-proxy-injector")],
    },
    Fault {
        name: "the injector's Service is missing",
        plant: &["kubectl -n linkerd delete service linkerd-proxy-injector"],
        check: "control-plane-endpoints",
        detail: "Service linkerd-proxy-injector is missing",
        related: &["webhook-injects"],
        repair_steps: &[UPGRADE_STEP],
        substitutions: &[],
    },
];
