//! Faults of the viz extension, one after the other: `meshctl viz check` reports each, and the
//! commands of its advice repair it.

use mesh_test_support::cluster::Cluster;
use mesh_test_support::eventually::eventually;

use crate::faults::report::Report;
use crate::faults::shell::Shell;
use crate::faults::wait_until_healthy;

/// A fault, the check that reports it, and its repair.
struct Fault {
    name: &'static str,
    /// The commands that cause the fault.
    plant: &'static [&'static str],
    /// The row that reports the fault, and a part of its detail.
    check: &'static str,
    detail: &'static str,
    /// The commands of the advice.
    repair: &'static [Step],
}

/// A step of a repair.
enum Step {
    /// A command that the advice contains.
    Advised(&'static str),
    /// The words that the advice, or its section in docs/operations/checks.md, must contain.
    Described(&'static str),
}

use Step::{Advised, Described};

const CHECK: &str = "viz check --proxy";

/// The advice has the command without the flags that this chart from a directory needs.
const UPGRADE: Step =
    Described("helm upgrade linkerd-viz helm/linkerd-viz -n linkerd-viz --wait --timeout 5m");

const FAULTS: &[Fault] = &[
    Fault {
        name: "the namespace has lost its label",
        plant: &["kubectl label namespace linkerd-viz linkerd.io/extension-"],
        check: "l5d-viz-ns-exists",
        detail: "no namespace has the label linkerd.io/extension=viz",
        repair: &[Described(
            "kubectl label namespace linkerd-viz linkerd.io/extension=viz",
        )],
    },
    Fault {
        name: "a ClusterRole is missing",
        plant: &["kubectl delete clusterrole linkerd-linkerd-viz-tap"],
        check: "l5d-viz-cr-exists",
        detail: "ClusterRole linkerd-linkerd-viz-tap is missing",
        repair: &[UPGRADE],
    },
    Fault {
        name: "a ClusterRoleBinding is missing",
        plant: &["kubectl delete clusterrolebinding linkerd-linkerd-viz-metrics-api"],
        check: "l5d-viz-crb-exists",
        detail: "ClusterRoleBinding linkerd-linkerd-viz-metrics-api is missing",
        repair: &[UPGRADE],
    },
    Fault {
        name: "Prometheus has no replicas",
        plant: &["kubectl -n linkerd-viz scale deployment prometheus --replicas=0"],
        check: "l5d-viz-pods-running",
        detail: "Deployment prometheus has no replicas",
        repair: &[Advised(
            "kubectl -n linkerd-viz scale deployment prometheus --replicas=1",
        )],
    },
    Fault {
        name: "the metrics API has no replicas",
        plant: &["kubectl -n linkerd-viz scale deployment metrics-api --replicas=0"],
        check: "l5d-viz-pods-running",
        detail: "Deployment metrics-api has no replicas",
        repair: &[Advised(
            "kubectl -n linkerd-viz scale deployment metrics-api --replicas=1",
        )],
    },
    Fault {
        name: "the tap API has no replicas",
        plant: &["kubectl -n linkerd-viz scale deployment tap --replicas=0"],
        check: "l5d-viz-pods-running",
        detail: "Deployment tap has no replicas",
        repair: &[Advised(
            "kubectl -n linkerd-viz scale deployment tap --replicas=1",
        )],
    },
    Fault {
        name: "Prometheus is missing",
        plant: &["kubectl -n linkerd-viz delete deployment prometheus"],
        check: "l5d-viz-prometheus",
        detail: "there are no statistics",
        repair: &[UPGRADE],
    },
    Fault {
        name: "the metrics API does not find Prometheus",
        plant: &["kubectl -n linkerd-viz delete service prometheus"],
        check: "l5d-viz-metrics-api",
        detail: "can talk to Prometheus",
        repair: &[UPGRADE],
    },
    Fault {
        name: "the tap API is not registered",
        plant: &["kubectl delete apiservice v1alpha1.tap.linkerd.io"],
        check: "l5d-tap-cert-valid",
        detail: "APIService v1alpha1.tap.linkerd.io is missing: requests cannot be tapped",
        repair: &[UPGRADE],
    },
    Fault {
        name: "another Service is registered as the tap API",
        plant: &[
            r#"kubectl patch apiservice v1alpha1.tap.linkerd.io --type=merge -p '{"spec": {"service": {"name": "web"}}}'"#,
        ],
        check: "l5d-tap-api",
        detail: "APIService v1alpha1.tap.linkerd.io is not available",
        // Helm compares manifests, which have not changed.
        repair: &[
            Described("kubectl delete apiservice v1alpha1.tap.linkerd.io"),
            UPGRADE,
        ],
    },
    Fault {
        name: "the API server trusts another CA, and the tap API is not allowed to correct it",
        plant: &[
            "kubectl delete clusterrolebinding linkerd-linkerd-viz-tap",
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=stranger -keyout stranger.key -out stranger.crt",
            r#"kubectl patch apiservice v1alpha1.tap.linkerd.io --type=merge -p "{\"spec\": {\"caBundle\": \"$(base64 -w0 stranger.crt)\"}}""#,
        ],
        check: "l5d-tap-cert-valid",
        detail: "is not accepted by the APIService's caBundle",
        repair: &[
            UPGRADE,
            Advised(
                "kubectl -n linkerd-viz delete secret tap-k8s-tls && kubectl -n linkerd-viz rollout restart deployment tap",
            ),
        ],
    },
    Fault {
        name: "the tap injector is not registered",
        plant: &["kubectl delete mutatingwebhookconfiguration linkerd-tap-injector-webhook-config"],
        check: "viz-tap-injector-cert-valid",
        detail: "is missing: new pods cannot be tapped",
        repair: &[UPGRADE],
    },
    Fault {
        name: "a component was created while there was no injector",
        plant: &[
            "kubectl -n linkerd scale deployment linkerd-proxy-injector --replicas=0",
            "kubectl -n linkerd wait pods -l linkerd.io/control-plane-component=proxy-injector --for=delete --timeout=120s",
            "kubectl -n linkerd-viz rollout restart deployment web",
            "kubectl -n linkerd-viz rollout status deployment web --timeout=120s",
            "kubectl -n linkerd scale deployment linkerd-proxy-injector --replicas=1",
            "kubectl -n linkerd rollout status deployment linkerd-proxy-injector --timeout=120s",
        ],
        check: "l5d-viz-pods-injection",
        detail: "has no proxy",
        repair: &[Advised("kubectl -n linkerd-viz rollout restart deployment")],
    },
    Fault {
        name: "the default policy of a namespace denies scrapes",
        // Pods take it over when they are created.
        plant: &[
            "kubectl annotate namespace shop config.linkerd.io/default-inbound-policy=deny",
            "kubectl -n shop rollout restart deployment web",
            "kubectl -n shop rollout status deployment web --timeout=120s",
        ],
        check: "l5d-viz-data-plane-prom-authz",
        detail: "the default policy of namespace shop denies scrapes",
        repair: &[
            Advised("meshctl viz allow-scrapes -n shop | kubectl apply -f -"),
            Described("kubectl annotate namespace shop config.linkerd.io/default-inbound-policy-"),
            Described("kubectl -n shop rollout restart deployment web"),
            Described("kubectl -n shop rollout status deployment web --timeout=120s"),
        ],
    },
    Fault {
        name: "a policy refuses scrapes",
        plant: &[
            "meshctl viz allow-scrapes -n shop | kubectl delete -f -",
            r#"kubectl apply -f - <<< '{"apiVersion": "policy.linkerd.io/v1beta3", "kind": "Server", "metadata": {"name": "admin", "namespace": "shop"}, "spec": {"podSelector": {}, "port": "linkerd-admin", "proxyProtocol": "HTTP/1"}}'"#,
        ],
        check: "l5d-data-plane-prom",
        detail: "Prometheus has no series of shop/",
        repair: &[Described(
            "kubectl -n shop delete servers.policy.linkerd.io admin",
        )],
    },
    Fault {
        name: "a pod was created while there was no tap injector",
        plant: &[
            "kubectl -n linkerd-viz scale deployment tap-injector --replicas=0",
            "kubectl -n linkerd-viz wait pods -l component=tap-injector --for=delete --timeout=120s",
            "kubectl -n shop rollout restart deployment web",
            "kubectl -n shop rollout status deployment web --timeout=120s",
            "kubectl -n linkerd-viz scale deployment tap-injector --replicas=1",
        ],
        check: "viz-tap-enabled",
        detail: "was created before the extension: it cannot be tapped",
        repair: &[Described("kubectl -n shop rollout restart deployment web")],
    },
];

/// Causes the faults one after the other on a healthy extension with the application.
pub(super) fn plant_and_repair(cluster: &Cluster) {
    let shell = Shell::new(cluster);
    wait_until_healthy(cluster, CHECK, "the extension");
    for fault in FAULTS {
        println!("{}", fault.name);
        for command in fault.plant {
            shell.run(command);
        }
        let advice = eventually(&format!("{}: it is reported", fault.name), || {
            let report = Report::fetch(cluster, CHECK);
            let row = report.row_with_detail(fault.check, fault.detail)?;
            Ok::<_, String>(row.advice.clone())
        });
        for step in fault.repair {
            let (Advised(command) | Described(command)) = step;
            assert!(
                matches!(step, Described(_)) || advice.contains(command),
                "{}: the advice has no {command:?}: {advice}",
                fault.name
            );
            shell.run(command);
        }
        wait_until_healthy(cluster, CHECK, fault.name);
    }
    println!("{} faults reported and repaired", FAULTS.len());
}
