//! Faults of the node agents.

use super::{Fault, guide::AN_UPGRADE};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "no agent on a node",
        plant: &[
            r#"kubectl -n linkerd patch daemonset mesh-agent -p '{"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/os": "none"}}}}}'"#,
        ],
        check: "agent-ready",
        says: "none has the label kubernetes.io/os=none",
        also: &["pods-enrolled"],
        follow: &["correct the value", AN_UPGRADE],
        names: &[("correct the value", "true")],
    },
    Fault {
        name: "a node is held back, for no agent takes its taint away",
        plant: &[
            r#"kubectl -n linkerd patch daemonset mesh-agent -p '{"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/os": "none"}}}}}'"#,
            // An agent that is still ending would take the taint away.
            r#"while [ -n "$(kubectl -n linkerd get pods -l app.kubernetes.io/name=mesh-agent -o name)" ]; do sleep 0.2; done"#,
            "kubectl taint node $node mesh-agent/not-ready=:NoSchedule",
        ],
        check: "agent-startup-taint",
        says: "has the taint mesh-agent/not-ready",
        also: &["agent-ready", "pods-enrolled"],
        follow: &["kubectl taint node NODE mesh-agent/not-ready-", AN_UPGRADE],
        names: &[("NODE", "$node")],
    },
    Fault {
        name: "the agent's image cannot be had",
        plant: &["kubectl -n linkerd set image daemonset/mesh-agent mesh-agent=mesh/agent:absent"],
        check: "agent-ready",
        says: "mesh/agent:absent",
        also: &["pods-enrolled"],
        follow: &["kubectl -n linkerd rollout undo daemonset mesh-agent"],
        names: &[],
    },
    Fault {
        name: "the agent does not stay up",
        plant: &[
            r#"kubectl -n linkerd patch daemonset mesh-agent --type=json -p '[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--unknown"}]'"#,
        ],
        check: "agent-ready",
        says: "unexpected argument '--unknown'",
        also: &["pods-enrolled"],
        follow: &["kubectl -n linkerd rollout undo daemonset mesh-agent"],
        names: &[],
    },
    Fault {
        name: "Pod Security refuses the agent",
        plant: &[
            "kubectl label namespace linkerd --overwrite pod-security.kubernetes.io/enforce=restricted",
            "kubectl -n linkerd delete pods -l app.kubernetes.io/name=mesh-agent",
        ],
        check: "pre-pod-security",
        says: "enforces \"restricted\"",
        also: &["control-plane-deployments", "agent-ready", "pods-enrolled"],
        follow: &[
            "kubectl label namespace linkerd --overwrite pod-security.kubernetes.io/enforce=privileged",
        ],
        names: &[],
    },
];

/// The node itself is not ready for a while.
pub(super) const SLOW: &[Fault] = &[
    Fault {
        name: "the plugin on a node cannot be executed",
        plant: &["on_node 'chmod a-x /host/opt/cni/bin/mesh-cni'"],
        check: "repairs",
        says: "made the program mesh-cni executable again",
        also: &["agent-cni", "agent-warnings"],
        follow: &[],
        names: &[],
    },
    Fault {
        name: "a node's CNI configuration was removed",
        plant: &[
            "on_node 'mkdir /host/run/faults-cni && mv /host/etc/cni/net.d/* /host/run/faults-cni/'",
        ],
        check: "agent-cni",
        says: "there is no network configuration yet",
        also: &["agent-warnings"],
        follow: &["If there is no file, restart the node's network plugin, which writes it"],
        names: &[(
            "If there is no file, restart the node's network plugin, which writes it",
            "on_node 'cd /host/run/faults-cni; for file in *; do cat $file > /host/etc/cni/net.d/$file; done; rm -r /host/run/faults-cni'; \
            kubectl wait nodes --all --for=condition=Ready --timeout=60s",
        )],
    },
];
