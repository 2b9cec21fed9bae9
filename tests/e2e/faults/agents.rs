//! Faults of the node agents.

use super::Fault;
use super::guide::UPGRADE_STEP;

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "no agent on a node",
        plant: &[
            r#"kubectl -n linkerd-agent patch daemonset mesh-agent -p '{"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/os": "none"}}}}}'"#,
        ],
        check: "agent-ready",
        detail: "none has the label kubernetes.io/os=none",
        related: &["pods-enrolled"],
        repair_steps: &["correct the value", UPGRADE_STEP],
        substitutions: &[("correct the value", "true")],
    },
    Fault {
        name: "a node keeps its startup taint, since no agent removes it",
        plant: &[
            r#"kubectl -n linkerd-agent patch daemonset mesh-agent -p '{"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/os": "none"}}}}}'"#,
            // A terminating agent would remove the taint.
            r#"while [ -n "$(kubectl -n linkerd-agent get pods -l app.kubernetes.io/name=mesh-agent -o name)" ]; do sleep 0.2; done"#,
            "kubectl taint node $node mesh-agent/not-ready=:NoSchedule",
        ],
        check: "agent-startup-taint",
        detail: "has the taint mesh-agent/not-ready",
        related: &["agent-ready", "pods-enrolled"],
        repair_steps: &[
            "kubectl taint node NODE mesh-agent/not-ready-",
            UPGRADE_STEP,
        ],
        substitutions: &[("NODE", "$node")],
    },
    Fault {
        name: "the agent's image cannot be pulled",
        plant: &[
            "kubectl -n linkerd-agent set image daemonset/mesh-agent mesh-agent=mesh/agent:absent",
        ],
        check: "agent-ready",
        detail: "mesh/agent:absent",
        related: &["pods-enrolled"],
        repair_steps: &["kubectl -n linkerd-agent rollout undo daemonset mesh-agent"],
        substitutions: &[],
    },
    Fault {
        name: "the agent crashes",
        plant: &[
            r#"kubectl -n linkerd-agent patch daemonset mesh-agent --type=json -p '[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--unknown"}]'"#,
        ],
        check: "agent-ready",
        detail: "unexpected argument '--unknown'",
        related: &["pods-enrolled"],
        repair_steps: &["kubectl -n linkerd-agent rollout undo daemonset mesh-agent"],
        substitutions: &[],
    },
    Fault {
        name: "Pod Security refuses the agent",
        plant: &[
            "kubectl label namespace linkerd-agent --overwrite pod-security.kubernetes.io/enforce=restricted",
            "kubectl -n linkerd-agent delete pods -l app.kubernetes.io/name=mesh-agent",
        ],
        check: "pre-pod-security",
        detail: "enforces \"restricted\"",
        related: &["control-plane-deployments", "agent-ready", "pods-enrolled"],
        repair_steps: &[
            "kubectl label namespace linkerd-agent --overwrite pod-security.kubernetes.io/enforce=privileged",
        ],
        substitutions: &[],
    },
];

/// Faults that make the node not ready temporarily.
pub(super) const SLOW: &[Fault] = &[
    Fault {
        name: "the plugin on a node cannot be executed",
        plant: &["on_node 'chmod a-x /host/opt/cni/bin/mesh-cni'"],
        check: "repairs",
        detail: "made the program mesh-cni executable again",
        related: &["agent-cni", "agent-warnings"],
        repair_steps: &[],
        substitutions: &[],
    },
    Fault {
        name: "a node's CNI configuration was removed",
        plant: &[
            "on_node 'mkdir /host/run/faults-cni && mv /host/etc/cni/net.d/* /host/run/faults-cni/'",
        ],
        check: "agent-cni",
        detail: "there is no network configuration yet",
        related: &["agent-warnings"],
        repair_steps: &["If there is no file, restart the node's network plugin, which writes it"],
        substitutions: &[(
            "If there is no file, restart the node's network plugin, which writes it",
            "on_node 'cd /host/run/faults-cni; for file in *; do cat $file > /host/etc/cni/net.d/$file; done; rm -r /host/run/faults-cni'; \
            kubectl wait nodes --all --for=condition=Ready --timeout=60s",
        )],
    },
];
