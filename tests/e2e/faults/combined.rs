//! Independent faults that are caused at the same time, reported by one check and repaired in one
//! pass.

/// One of several simultaneous faults.
pub(super) struct CombinedFault {
    pub(super) plant: &'static str,
    /// The row that reports the fault, and a part of its detail.
    pub(super) check: &'static str,
    pub(super) detail: &'static str,
    pub(super) repair: &'static str,
}

pub(super) const FAULTS: &[CombinedFault] = &[
    CombinedFault {
        plant: "kubectl create namespace faults-label && kubectl label namespace faults-label linkerd.io/inject=enabled",
        check: "namespace-labels",
        detail: "namespace faults-label has linkerd.io/inject as a label",
        repair: "kubectl label namespace faults-label linkerd.io/inject-",
    },
    CombinedFault {
        plant: "kubectl create namespace faults-excluded && kubectl label namespace faults-excluded config.linkerd.io/admission-webhooks=disabled && kubectl annotate namespace faults-excluded linkerd.io/inject=enabled",
        check: "namespace-excluded",
        detail: "namespace faults-excluded has the injection annotation, but excludes the injector",
        repair: "kubectl label namespace faults-excluded config.linkerd.io/admission-webhooks-",
    },
    CombinedFault {
        plant: r#"kubectl -n faults run host --image=mesh/test-apps:dev --overrides='{"spec": {"hostNetwork": true, "terminationGracePeriodSeconds": 1}}' --command -- sleep infinity"#,
        check: "pods-host-network",
        detail: "faults/host has the injection annotation of namespace faults",
        repair: "kubectl -n faults annotate pod host --overwrite linkerd.io/inject=disabled",
    },
    CombinedFault {
        plant: r#"kubectl -n faults-label run marked --image=mesh/test-apps:dev --labels=linkerd.io/control-plane-ns=linkerd --overrides='{"spec": {"terminationGracePeriodSeconds": 1}}' --command -- sleep infinity"#,
        check: "pods-marked-meshed",
        detail: "faults-label/marked has the label",
        repair: "kubectl -n faults-label label pod marked linkerd.io/control-plane-ns-",
    },
    CombinedFault {
        plant: r#"echo '{"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server", "metadata": {"name": "closed", "namespace": "faults"},
            "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "port": 8081}}' | kubectl apply -f -"#,
        check: "policy-authorizations",
        detail: "Server faults/closed denies every request",
        repair: r#"kubectl -n faults patch server closed --type=merge -p '{"spec": {"accessPolicy": "all-authenticated"}}'"#,
    },
    CombinedFault {
        plant: r#"echo '{"apiVersion": "policy.linkerd.io/v1alpha1", "kind": "MeshTLSAuthentication", "metadata": {"name": "misspelt", "namespace": "faults"},
            "spec": {"identities": ["web.faults.serviceaccount.identity.linkerd.cluster.locl"]}}' | kubectl apply -f -"#,
        check: "policy-identities",
        detail: "which no client of this mesh has",
        repair: "kubectl -n faults delete meshtlsauthentication misspelt",
    },
    CombinedFault {
        plant: r#"echo '{"apiVersion": "policy.linkerd.io/v1beta3", "kind": "HTTPRoute", "metadata": {"name": "lost", "namespace": "faults"},
            "spec": {"parentRefs": [{"group": "policy.linkerd.io", "kind": "Server", "name": "nowhere"}], "rules": [{}]}}' | kubectl apply -f -"#,
        check: "policy-references",
        detail: "HTTPRoute faults/lost: spec.parentRefs[0].name: there is no Server faults/nowhere",
        repair: "kubectl -n faults delete httproutes.policy.linkerd.io lost",
    },
    CombinedFault {
        // The Server `web` of the last fault of the data plane has the port by its name.
        plant: r#"echo '{"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server", "metadata": {"name": "web-too", "namespace": "faults"},
            "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "port": 8080, "accessPolicy": "all-authenticated"}}' | kubectl apply -f -"#,
        check: "policy-server-ports",
        detail: "Server faults/web-too: spec.port: Server web is older and selects the same port",
        repair: "kubectl -n faults delete server web-too",
    },
    CombinedFault {
        // Without pods: the template and the values decide.
        plant: r#"echo '{"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "odd", "namespace": "faults"},
                "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "odd"}}, "template": {
                    "metadata": {"labels": {"app": "odd"}, "annotations": {
                        "config.linkerd.io/default-inbound-policy": "deny", "config.linkerd.io/skip-inbound-ports": "9000",
                        "config.linkerd.io/proxy-enable-native-sidecar": "false", "config.alpha.linkerd.io/proxy-wait-before-exit-seconds": "45"}},
                    "spec": {"containers": [{"name": "main", "image": "mesh/test-apps:dev"}]}}}},
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "odd", "namespace": "faults"},
                "spec": {"selector": {"app": "odd"}, "ports": [{"port": 80}]}}]}' | kubectl apply -f -"#,
        check: "policy-default-deny",
        detail: "leads to port 80 of Deployment faults/odd, whose default policy is deny",
        repair: r#"kubectl -n faults patch deployment odd -p '{"spec": {"template": {"metadata": {"annotations": {"config.linkerd.io/default-inbound-policy": "audit"}}}}}'"#,
    },
    CombinedFault {
        plant: r#"echo '{"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server", "metadata": {"name": "odd", "namespace": "faults"},
            "spec": {"podSelector": {"matchLabels": {"app": "odd"}}, "port": 9000}}' | kubectl apply -f -"#,
        check: "policy-skipped-ports",
        detail: "port 9000 of Deployment faults/odd bypasses the proxy",
        repair: "kubectl -n faults delete server odd",
    },
    CombinedFault {
        plant: "kubectl -n faults annotate service web retry.linkerd.io/timeout=10s timeout.linkerd.io/request=5s",
        check: "request-timeouts",
        detail: "an attempt may take 10s, but its request ends after 5s",
        repair: "kubectl -n faults annotate service web --overwrite retry.linkerd.io/timeout=1s",
    },
    CombinedFault {
        plant: "true",
        check: "pods-grace-period",
        detail: "Deployment faults/odd: spec.template.spec.terminationGracePeriodSeconds: is 30",
        repair: r#"kubectl -n faults patch deployment odd -p '{"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 60}}}}'"#,
    },
];

/// Damage that is repaired automatically within a second, and reported for a day.
pub(super) const REPAIRED: &[CombinedFault] = &[CombinedFault {
    plant: r#"kubectl patch mutatingwebhookconfiguration linkerd-proxy-injector-webhook-config --type=json -p "[{\"op\": \"replace\", \"path\": \"/webhooks/0/clientConfig/caBundle\", \"value\": \"$(base64 -w0 stranger/crt.pem)\"}]""#,
    check: "repairs",
    detail: "caBundle",
    repair: "true",
}];
