//! The namespaces of the control plane and of the agents, and the Pod Security levels of their
//! pods.

use mesh_k8s::values::Values;
use serde_json::{Value, json};

use crate::helm;
use crate::rules::HEARTBEAT;

/// Charts until 0.1.0 recorded no namespace of the agents, which ran beside the control plane.
#[test]
fn recorded_values_of_earlier_charts_have_agents_in_namespace_of_control_plane() {
    for (recorded, expected) in [
        (json!({"meshAgent": {"enabled": true}}), "mesh"),
        (
            json!({"meshAgent": {"namespace": "linkerd-agent"}}),
            "linkerd-agent",
        ),
        (json!({"meshAgent": {"namespace": ""}}), "mesh"),
        (json!({}), "linkerd-agent"),
    ] {
        let values = Values::of_installation(recorded.clone(), "mesh").unwrap();
        assert_eq!(values.namespace, "mesh");
        assert_eq!(values.agent_namespace(), expected, "{recorded}");
    }
}

/// The namespace of the control plane enforces what its pods meet, and the agents have their own.
#[test]
fn pods_of_control_plane_meet_level_of_its_namespace() {
    require_helm!("pods_of_control_plane_meet_level_of_its_namespace");
    for (values, level, agents) in [
        (HEARTBEAT, "restricted", "linkerd-agent"),
        ("meshAgent: {namespace: other}", "restricted", "other"),
        ("meshAgent: {namespace: ''}", "privileged", "linkerd"),
        ("meshAgent: {namespace: linkerd}", "privileged", "linkerd"),
        ("meshAgent: {enabled: false}", "privileged", ""),
        (
            "{meshAgent: {enabled: false}, cniEnabled: true}",
            "restricted",
            "",
        ),
    ] {
        let objects = helm::control_plane(values).unwrap();
        let read = serde_norway::from_str(values).unwrap();
        let read = Values::read_file(&read).unwrap();
        assert_eq!(read.pod_security_level(), level, "{values}");
        let label = format!("namespace linkerd --overwrite {ENFORCE}={level}");
        let notes = helm::notes("linkerd-control-plane", "linkerd", values);
        assert!(notes.contains(&label), "{values}: {notes}");
        let own = objects
            .iter()
            .filter(|object| object["metadata"]["namespace"] == "linkerd");
        let found = restricted(own);
        assert_eq!(found.is_ok(), level == "restricted", "{values}: {found:?}");
        assert!(found.is_err() || found.unwrap() >= 10);
        let of_agents = helm::agents(&objects);
        let found = of_agents.map_or(&Value::Null, |set| &set["metadata"]["namespace"]);
        assert_eq!(found.as_str().unwrap_or_default(), agents, "{values}");
    }
}

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

#[test]
fn namespace_of_agents_admits_them_and_no_webhook() {
    require_helm!("namespace_of_agents_admits_them_and_no_webhook");
    let objects = helm::control_plane("podMonitor: {enabled: true}").unwrap();
    let metadata = &helm::find(&objects, "Namespace", "linkerd-agent")["metadata"];
    assert_eq!(metadata["labels"][ENFORCE], "privileged");
    assert_eq!(metadata["annotations"]["linkerd.io/inject"], "disabled");
    let excluded = json!({"key": "config.linkerd.io/admission-webhooks", "operator": "NotIn", "values": ["disabled"]});
    assert_eq!(
        metadata["labels"]["config.linkerd.io/admission-webhooks"],
        "disabled"
    );
    let mut webhooks = 0;
    for object in objects.iter().chain(&helm::viz("{}").unwrap()) {
        for webhook in object["webhooks"].as_array().into_iter().flatten() {
            let namespaces = &webhook["namespaceSelector"]["matchExpressions"];
            let is_excluded = namespaces.as_array().unwrap().contains(&excluded);
            assert!(is_excluded, "{}", webhook["name"]);
            webhooks += 1;
        }
    }
    assert_eq!(webhooks, 4);
    let shared = helm::control_plane("meshAgent: {namespace: ''}").unwrap();
    assert!(!shared.iter().any(|object| object["kind"] == "Namespace"));
}

/// Earlier charts had the agents in the release namespace. A change of their DaemonSet removes
/// them, not its deletion: agents of a deleted DaemonSet would remove the mesh from their nodes.
#[test]
fn daemon_set_of_earlier_charts_remains_without_nodes() {
    require_helm!("daemon_set_of_earlier_charts_remains_without_nodes");
    let objects = helm::control_plane("{}").unwrap();
    let sets: Vec<&Value> = objects
        .iter()
        .filter(|object| object["kind"] == "DaemonSet")
        .collect();
    let earlier = helm::control_plane("meshAgent: {namespace: ''}").unwrap();
    let (agents, earlier) = (
        helm::agents(&objects).unwrap(),
        helm::agents(&earlier).unwrap(),
    );
    let remaining = sets
        .into_iter()
        .find(|set| set["metadata"]["namespace"] == "linkerd")
        .unwrap();
    assert_eq!(remaining["metadata"]["name"], earlier["metadata"]["name"]);
    // The selector cannot be changed.
    assert_eq!(remaining["spec"]["selector"], earlier["spec"]["selector"]);
    assert_eq!(agents["spec"]["selector"], earlier["spec"]["selector"]);
    let nodes = &remaining["spec"]["template"]["spec"]["nodeSelector"];
    assert_eq!(nodes, &json!({"mesh-agent/moved-to": "linkerd-agent"}));
    // An agent finds its own DaemonSet and its successor by this label.
    for set in [remaining, agents, earlier] {
        let component = &set["metadata"]["labels"]["linkerd.io/control-plane-component"];
        assert_eq!(component, "mesh-agent");
    }
}

/// Checks that all pods except those in the agents' own namespace meet the *restricted* profile,
/// and returns the number of containers.
pub(crate) fn check_restricted(objects: &[Value]) -> usize {
    let privileged: Vec<&Value> = objects
        .iter()
        .filter(|object| object["kind"] == "Namespace")
        .map(|object| &object["metadata"]["name"])
        .collect();
    let others = objects
        .iter()
        .filter(|object| !privileged.contains(&&object["metadata"]["namespace"]));
    restricted(others).unwrap()
}

/// Returns the number of containers, or the first object whose pods do not meet the *restricted*
/// profile.
fn restricted<'a>(objects: impl Iterator<Item = &'a Value>) -> Result<usize, String> {
    let mut seen = 0;
    for object in objects {
        let spec = helm::pod_spec(object);
        if spec["containers"].is_null() {
            continue;
        }
        let name = format!("{} {}", object["kind"], object["metadata"]["name"]);
        let check = |holds: bool, rule: &str| {
            if holds {
                Ok(())
            } else {
                Err(format!("{name}: {rule}"))
            }
        };
        check(spec["automountServiceAccountToken"] == false, "token")?;
        for shared in ["hostNetwork", "hostPID", "hostIPC"] {
            check(spec[shared].is_null(), shared)?;
        }
        for list in ["initContainers", "containers"] {
            for container in spec[list].as_array().into_iter().flatten() {
                let security = &container["securityContext"];
                let capabilities = &security["capabilities"];
                let profile = &security["seccompProfile"]["type"];
                check(security["allowPrivilegeEscalation"] == false, "escalation")?;
                check(
                    security["readOnlyRootFilesystem"] == true,
                    "root file system",
                )?;
                check(security["runAsNonRoot"] == true, "root")?;
                check(capabilities["drop"][0] == "ALL", "capabilities")?;
                check(capabilities["add"].is_null(), "added capabilities")?;
                check(profile == "RuntimeDefault", "seccomp")?;
                for port in container["ports"].as_array().into_iter().flatten() {
                    check(port["hostPort"].is_null(), "hostPort")?;
                }
                seen += 1;
            }
        }
        for volume in spec["volumes"].as_array().into_iter().flatten() {
            check(volume["hostPath"].is_null(), "hostPath")?;
        }
    }
    Ok(seen)
}
