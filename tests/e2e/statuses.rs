//! Conditions of routes on a cluster, and that a change of the writer changes nothing.

use mesh_test_support::cluster::Cluster;
use mesh_test_support::cluster::installation::{Installation, NAMESPACE as CONTROL_PLANE};
use mesh_test_support::eventually::eventually;
use serde_json::Value;

const NAMESPACE: &str = "statuses";

const MANIFEST: &str = include_str!("statuses.yaml");

const LEASE: &str = "policy-controller-write";

/// The routes, and the conditions of their only parent.
const ROUTES: [(&str, &str); 6] = [
    (
        "attached",
        "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs",
    ),
    ("to-server", "Accepted=True/Accepted"),
    (
        "no-parent",
        "Accepted=False/NoMatchingParent ResolvedRefs=True/ResolvedRefs",
    ),
    (
        "no-port",
        "Accepted=False/NoMatchingParent ResolvedRefs=True/ResolvedRefs",
    ),
    (
        "no-backend",
        "Accepted=True/Accepted ResolvedRefs=False/BackendNotFound",
    ),
    ("server-missing", "Accepted=False/NoMatchingParent"),
];

#[test]
fn routes_have_conditions_that_survive_their_writer() {
    let Some(cluster) = Cluster::acquire("conditions of routes") else {
        return;
    };
    let mesh = Installation::by_helm(&cluster, &["controllerReplicas=2"]);
    cluster.apply(MANIFEST);
    wait_for_conditions(&cluster, &ROUTES);
    let lease = cluster.json(format!("get lease {LEASE} -n {CONTROL_PLANE}"));
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 30);
    assert_eq!(
        lease["metadata"]["ownerReferences"][0]["name"],
        "linkerd-destination"
    );
    let holder = holder(&cluster);

    // The Service of `no-parent` is created while the next replica writes.
    let before = routes(&cluster);
    cluster.kubectl(format!(
        "delete pod {holder} -n {CONTROL_PLANE} --grace-period=0 --force"
    ));
    eventually("another replica writes", || {
        let now = self::holder(&cluster);
        (now != holder && !now.is_empty())
            .then_some(())
            .ok_or(format!("the holder is {now:?}"))
    });
    mesh.wait_until_ready();
    assert_eq!(routes(&cluster), before);

    cluster.apply(&MANIFEST.replace("name: web,", "name: later,"));
    let mut expect = ROUTES;
    expect[2].1 = "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs";
    wait_for_conditions(&cluster, &expect);
    cluster.delete_namespace(NAMESPACE);
}

/// Returns the pod that writes; empty while no replica does.
fn holder(cluster: &Cluster) -> String {
    let lease = cluster.json(format!("get lease {LEASE} -n {CONTROL_PLANE}"));
    let holder = lease["spec"]["holderIdentity"].as_str();
    holder.unwrap_or_default().to_owned()
}

/// Returns names and statuses of the routes.
fn routes(cluster: &Cluster) -> Vec<(Value, Value)> {
    let routes = cluster.list(format!("httproutes.policy.linkerd.io -n {NAMESPACE}"));
    let route = |mut route: Value| (route["metadata"]["name"].take(), route["status"].take());
    routes.into_iter().map(route).collect()
}

fn wait_for_conditions(cluster: &Cluster, expected: &[(&str, &str)]) {
    eventually("every route has its conditions", || {
        let found = routes(cluster);
        for (name, expect) in expected {
            let status = found.iter().find(|(route, _)| route == name);
            let conditions = status
                .map(|(_, status)| conditions(status))
                .unwrap_or_default();
            if conditions != *expect {
                return Err(format!("{name} has {conditions:?}, expected {expect:?}"));
            }
        }
        Ok(())
    });
}

fn conditions(status: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let conditions = status["parents"][0]["conditions"].as_array();
    let conditions = conditions.into_iter().flatten().map(|condition| {
        let [kind, status, reason] = ["type", "status", "reason"].map(|key| text(&condition[key]));
        format!("{kind}={status}/{reason}")
    });
    conditions.collect::<Vec<_>>().join(" ")
}
