//! Faults of the control plane's objects and pods, and of the custom resources.

use super::Fault;
use super::guide::UPGRADE_STEP;

/// Checks that fail without the injector.
const WITHOUT_INJECTOR: &[&str] = &[
    "l5d-api-control-ready",
    "control-plane-endpoints",
    "webhook-presents",
    "webhook-injects",
];
const WITHOUT_CONTROLLER: &[&str] = &["l5d-api-control-ready", "control-plane-endpoints"];

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "the values are missing",
        plant: &["kubectl -n linkerd delete configmap linkerd-config"],
        check: "l5d-existence-linkerd-config",
        detail: "no ConfigMap linkerd-config",
        related: &[],
        repair_steps: &[UPGRADE_STEP],
        substitutions: &[],
    },
    Fault {
        name: "a value was edited by hand and is invalid",
        plant: &[
            "kubectl -n linkerd get configmap linkerd-config -o yaml | sed 's/controllerReplicas: 1/controllerReplicas: [many]/' | kubectl replace -f -",
        ],
        check: "l5d-existence-linkerd-config",
        detail: "controllerReplicas: invalid type",
        related: &[],
        repair_steps: &[UPGRADE_STEP],
        substitutions: &[],
    },
    Fault {
        name: "the trust domain was edited by hand",
        plant: &[
            "kubectl -n linkerd get configmap linkerd-config -o yaml | sed 's/identityTrustDomain: cluster.local/identityTrustDomain: example.org/' | kubectl replace -f -",
        ],
        check: "config-drift",
        detail: "linkerd-config has \"example.org\"",
        related: &[],
        repair_steps: &[UPGRADE_STEP],
        substitutions: &[],
    },
    Fault {
        name: "a Deployment is missing",
        plant: &["kubectl -n linkerd delete deployment linkerd-proxy-injector"],
        check: "control-plane-deployments",
        detail: "Deployment linkerd-proxy-injector is missing",
        related: WITHOUT_INJECTOR,
        repair_steps: &[UPGRADE_STEP],
        substitutions: &[],
    },
    Fault {
        name: "the injector is scaled to 0",
        plant: &["kubectl -n linkerd scale deployment linkerd-proxy-injector --replicas=0"],
        check: "control-plane-deployments",
        detail: "linkerd-proxy-injector is scaled to 0",
        related: WITHOUT_INJECTOR,
        repair_steps: &["kubectl -n linkerd scale deployment NAME --replicas=1"],
        substitutions: &[("NAME", "linkerd-proxy-injector")],
    },
    Fault {
        name: "identity is scaled to 0",
        plant: &["kubectl -n linkerd scale deployment linkerd-identity --replicas=0"],
        check: "control-plane-deployments",
        detail: "linkerd-identity is scaled to 0",
        related: WITHOUT_CONTROLLER,
        repair_steps: &["kubectl -n linkerd scale deployment NAME --replicas=1"],
        substitutions: &[("NAME", "linkerd-identity")],
    },
    Fault {
        name: "destination is scaled to 0",
        plant: &["kubectl -n linkerd scale deployment linkerd-destination --replicas=0"],
        check: "control-plane-deployments",
        detail: "linkerd-destination is scaled to 0",
        related: WITHOUT_CONTROLLER,
        repair_steps: &["kubectl -n linkerd scale deployment NAME --replicas=1"],
        substitutions: &[("NAME", "linkerd-destination")],
    },
    Fault {
        name: "the policy controller crashes",
        plant: &[
            r#"kubectl -n linkerd patch deployment linkerd-destination --type=json -p '[{"op": "add", "path": "/spec/template/spec/containers/2/args/-", "value": "--unknown"}]'"#,
        ],
        check: "control-plane-containers",
        detail: "container policy",
        related: &["l5d-api-control-ready"],
        repair_steps: &["kubectl -n linkerd rollout undo WORKLOAD"],
        substitutions: &[("WORKLOAD", "deployment/linkerd-destination")],
    },
    Fault {
        name: "the destination controller's image cannot be pulled",
        plant: &[
            "kubectl -n linkerd set image deployment/linkerd-destination destination=mesh/controller:absent",
        ],
        check: "control-plane-containers",
        detail: "mesh/controller:absent",
        related: &["l5d-api-control-ready", "l5d-version-control"],
        repair_steps: &["kubectl -n linkerd rollout undo WORKLOAD"],
        substitutions: &[("WORKLOAD", "deployment/linkerd-destination")],
    },
    Fault {
        name: "the policy controller's Service is missing",
        plant: &["kubectl -n linkerd delete service linkerd-policy"],
        check: "control-plane-endpoints",
        detail: "Service linkerd-policy is missing",
        related: &[],
        repair_steps: &[UPGRADE_STEP],
        substitutions: &[],
    },
    Fault {
        name: "a Service selects no pod",
        plant: &[
            r#"kubectl -n linkerd patch service linkerd-dst-headless -p '{"spec": {"selector": {"linkerd.io/control-plane-component": "dst"}}}'"#,
        ],
        check: "control-plane-endpoints",
        detail: "linkerd-dst-headless has no ready endpoint",
        related: &[],
        repair_steps: &[UPGRADE_STEP],
        substitutions: &[],
    },
    Fault {
        name: "identity is not allowed to review tokens",
        plant: &["kubectl delete clusterrolebinding linkerd-linkerd-identity"],
        check: "controllers-permissions",
        detail: "linkerd-identity may not create tokenreviews",
        related: &[],
        repair_steps: &[UPGRADE_STEP],
        substitutions: &[],
    },
    Fault {
        name: "the agents' role is missing",
        plant: &["kubectl delete clusterrole linkerd-linkerd-mesh-agent"],
        check: "controllers-permissions",
        detail: "mesh-agent may not list pods",
        related: &[],
        repair_steps: &[UPGRADE_STEP],
        substitutions: &[],
    },
    Fault {
        name: "a custom resource is not defined",
        plant: &["kubectl delete crd servers.policy.linkerd.io"],
        check: "l5d-existence-crd",
        detail: "policy.linkerd.io/v1beta3/Server is not served",
        related: &["controllers-follow"],
        repair_steps: &["meshctl install --crds | kubectl apply -f -"],
        substitutions: &[],
    },
    Fault {
        name: "a custom resource is not served in the version that is read",
        plant: &[
            r#"kubectl patch crd authorizationpolicies.policy.linkerd.io --type=json -p '[{"op": "replace", "path": "/spec/versions/0/served", "value": false}]'"#,
        ],
        check: "l5d-existence-crd",
        detail: "policy.linkerd.io/v1alpha1/AuthorizationPolicy is not served",
        related: &["controllers-follow"],
        repair_steps: &["meshctl install --crds | kubectl apply -f -"],
        substitutions: &[],
    },
];

/// Faults whose repair takes more than ten seconds.
pub(super) const SLOW: &[Fault] = &[
    Fault {
        name: "pods have addresses that the mesh does not know",
        plant: &[
            "kubectl -n linkerd get configmap linkerd-config -o yaml | sed 's#clusterNetworks: .*#clusterNetworks: 203.0.113.0/24#' | kubectl replace -f -",
        ],
        check: "l5d-cluster-networks-pods",
        detail: "Service faults/web has",
        related: &["l5d-cluster-networks-cidr"],
        repair_steps: &[
            "helm upgrade linkerd-control-plane helm/linkerd-control-plane -n linkerd --reuse-values --set clusterNetworks='10.0.0.0/8\\,192.0.2.0/24'",
        ],
        substitutions: &[],
    },
    Fault {
        name: "a service account is missing",
        plant: &["kubectl -n linkerd delete serviceaccount linkerd-destination"],
        check: "l5d-existence-sa",
        detail: "ServiceAccount linkerd-destination is missing",
        related: &["controllers-follow"],
        repair_steps: &[
            UPGRADE_STEP,
            "kubectl -n linkerd rollout restart deployment",
        ],
        substitutions: &[],
    },
    Fault {
        name: "a quota admits no pod",
        plant: &[
            "kubectl -n linkerd create quota none --hard=pods=0",
            "kubectl -n linkerd delete pods -l linkerd.io/control-plane-component=proxy-injector",
        ],
        check: "control-plane-deployments",
        detail: "exceeded quota: none",
        related: WITHOUT_INJECTOR,
        repair_steps: &["kubectl -n linkerd delete resourcequota NAME"],
        substitutions: &[("NAME", "none")],
    },
    Fault {
        name: "a service account was recreated, and the tokens of its pods are invalid",
        plant: &[
            "kubectl -n linkerd get serviceaccount linkerd-identity -o yaml | kubectl replace --force -f -",
        ],
        check: "l5d-existence-sa",
        detail: "is older than its ServiceAccount linkerd-identity",
        related: &[],
        repair_steps: &["kubectl -n linkerd rollout restart deployment"],
        substitutions: &[],
    },
];
