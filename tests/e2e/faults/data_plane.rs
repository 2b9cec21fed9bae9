//! Faults of workloads: pods without proxy, proxies that do not start, invalid settings, policies
//! without a target.

use super::Fault;

const RESTART: &[&str] = &["kubectl -n NAMESPACE rollout restart WORKLOAD"];
const WEB: &[(&str, &str)] = &[("NAMESPACE", "faults"), ("WORKLOAD", "deployment/web")];

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "a pod was created while no injector ran",
        plant: &[
            "kubectl -n linkerd scale deployment linkerd-proxy-injector --replicas=0",
            "kubectl -n linkerd wait --for=delete pods -l linkerd.io/control-plane-component=proxy-injector --timeout=60s",
            "kubectl -n faults rollout restart deployment/web",
            "kubectl -n faults rollout status deployment/web --timeout=60s",
            "kubectl -n linkerd scale deployment linkerd-proxy-injector --replicas=1",
            "kubectl -n linkerd rollout status deployment/linkerd-proxy-injector --timeout=60s",
        ],
        check: "pods-meshed",
        detail: "has no proxy",
        related: &[],
        repair_steps: RESTART,
        substitutions: WEB,
    },
    Fault {
        name: "the injection annotation has an invalid value",
        plant: &["kubectl annotate namespace faults --overwrite linkerd.io/inject=yes"],
        check: "inject-annotation",
        detail: "\"yes\" is not one of enabled, ingress, disabled",
        related: &[],
        repair_steps: &[
            "kubectl annotate namespace NAMESPACE --overwrite linkerd.io/inject=enabled",
        ],
        substitutions: WEB,
    },
    Fault {
        name: "a setting is misspelt",
        plant: &["kubectl annotate namespace faults config.linkerd.io/skip-inbound-prots=1234"],
        check: "config-annotations",
        detail: "config.linkerd.io/skip-inbound-prots]: is not an annotation of the mesh",
        related: &[],
        repair_steps: &["kubectl annotate namespace NAMESPACE KEY-"],
        substitutions: &[
            ("NAMESPACE", "faults"),
            ("KEY", "config.linkerd.io/skip-inbound-prots"),
        ],
    },
    Fault {
        name: "a setting has an invalid value",
        plant: &["kubectl annotate namespace faults config.linkerd.io/skip-outbound-ports=many"],
        check: "config-annotations",
        detail: "ignored value \"many\"",
        related: &[],
        repair_steps: &["kubectl annotate namespace NAMESPACE KEY-"],
        substitutions: &[
            ("NAMESPACE", "faults"),
            ("KEY", "config.linkerd.io/skip-outbound-ports"),
        ],
    },
    Fault {
        name: "a Service's setting is a label",
        plant: &["kubectl -n faults label service web config.linkerd.io/opaque-ports=3306"],
        check: "l5d-data-plane-services-labels",
        detail: "Service faults/web has config.linkerd.io/opaque-ports as a label",
        related: &[],
        repair_steps: &[
            "kubectl -n NAMESPACE label service NAME KEY-",
            "kubectl -n NAMESPACE annotate service NAME KEY=VALUE",
        ],
        substitutions: &[
            ("NAMESPACE", "faults"),
            ("NAME", "web"),
            ("KEY", "config.linkerd.io/opaque-ports"),
            ("VALUE", "3306"),
        ],
    },
    Fault {
        name: "a Service's export is an annotation",
        plant: &["kubectl -n faults annotate service web mirror.linkerd.io/exported=true"],
        check: "l5d-data-plane-services-annotations",
        detail: "Service faults/web has mirror.linkerd.io/exported as an annotation",
        related: &[],
        repair_steps: &[
            "kubectl -n NAMESPACE annotate service NAME mirror.linkerd.io/exported-",
            "kubectl -n NAMESPACE label service NAME mirror.linkerd.io/exported=true",
        ],
        substitutions: &[("NAMESPACE", "faults"), ("NAME", "web")],
    },
    Fault {
        name: "Service and pod disagree about an opaque port",
        plant: &[
            "kubectl -n faults annotate service web --overwrite config.linkerd.io/opaque-ports=80",
        ],
        check: "linkerd-opaque-ports-definition",
        detail: "Service faults/web port 80 is opaque",
        related: &[],
        repair_steps: &[
            "kubectl -n NAMESPACE annotate service NAME --overwrite config.linkerd.io/opaque-ports=PORTS",
        ],
        substitutions: &[("NAMESPACE", "faults"), ("NAME", "web"), ("PORTS", "3306")],
    },
    Fault {
        name: "a proxy has an older version",
        plant: &[
            "kubectl -n faults annotate pods -l app=web --overwrite linkerd.io/proxy-version=0.0.1",
        ],
        check: "l5d-data-plane-version",
        detail: "has 0.0.1, new pods get",
        related: &[],
        repair_steps: RESTART,
        substitutions: WEB,
    },
    Fault {
        name: "a proxy's image cannot be pulled",
        plant: &[
            r#"kubectl -n faults patch deployment web -p '{"spec": {"template": {"metadata": {"annotations": {"config.linkerd.io/proxy-image": "mesh/none"}}}}}'"#,
        ],
        check: "data-plane-containers",
        detail: "mesh/none",
        related: &["proxy-certificates", "pods-enrolled"],
        repair_steps: &["kubectl -n NAMESPACE rollout undo WORKLOAD"],
        substitutions: WEB,
    },
    Fault {
        name: "a policy targets a Server that does not exist",
        plant: &[
            r#"echo '{"apiVersion": "policy.linkerd.io/v1alpha1", "kind": "AuthorizationPolicy", "metadata": {"name": "web", "namespace": "faults"},
                "spec": {"targetRef": {"group": "policy.linkerd.io", "kind": "Server", "name": "web"}, "requiredAuthenticationRefs": []}}' | kubectl apply -f -"#,
        ],
        check: "policy-references",
        detail: "spec.targetRef.name: there is no Server faults/web",
        related: &[],
        repair_steps: &["apply the missing object"],
        substitutions: &[(
            "apply the missing object",
            r#"echo '{"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server", "metadata": {"name": "web", "namespace": "faults"},
                "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "port": "http"}}' | kubectl apply -f -"#,
        )],
    },
    Fault {
        name: "a Server selects no pod",
        plant: &[
            r#"kubectl -n faults patch server web --type=merge -p '{"spec": {"podSelector": {"matchLabels": {"app": "wbe"}}}}'"#,
        ],
        check: "policy-servers",
        detail: "Server faults/web: spec.podSelector: selects no pods",
        related: &[],
        repair_steps: &["Compare its `podSelector`"],
        substitutions: &[(
            "Compare its `podSelector`",
            r#"kubectl -n faults patch server web --type=merge -p '{"spec": {"podSelector": {"matchLabels": {"app": "web"}}}}'"#,
        )],
    },
];
