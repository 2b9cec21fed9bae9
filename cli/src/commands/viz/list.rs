//! `meshctl viz list`: which pods can be tapped.

use kube::api::ListParams;
use mesh_k8s::kinds::{Pod, ResourceExt};
use mesh_k8s::pod;

use crate::cluster::error;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::output;
use crate::resource::{Scope, TapState};

/// The lists in their order, each with its heading.
const LISTS: [(TapState, &str); 3] = [
    (TapState::Enabled, "Pods with tap enabled:"),
    (TapState::Disabled, "Pods with tap disabled:"),
    (
        TapState::Missing,
        "Pods missing tap configuration (restart these pods to enable tap):",
    ),
];

pub(super) async fn run(global: &Global) -> anyhow::Result<()> {
    let mesh = Mesh::find(global).await?;
    let pods = pods(&mesh, &mesh.scope(global)).await?;
    let text = render(&pods, mesh.control_namespace());
    if text.is_empty() {
        output::note("no meshed pods found; select other namespaces with -n NAMESPACE or -A");
    }
    output::text(&text)
}

async fn pods(mesh: &Mesh, scope: &Scope) -> anyhow::Result<Vec<Pod>> {
    match mesh {
        Mesh::Local(node) => {
            let mut pods: Vec<Pod> = node.objects("Pod")?;
            pods.retain(|pod| scope.contains(&pod.namespace().unwrap_or_default()));
            Ok(pods)
        }
        Mesh::Cluster(cluster) => {
            let pods = cluster.list::<Pod>(scope, ListParams::default()).await;
            pods.map_err(|error| error::failed("list the pods", error))
        }
    }
}

fn render(pods: &[Pod], control_namespace: &str) -> String {
    let meshed = pods.iter().filter(|it| {
        !pod::is_terminal(it) && pod::control_plane_namespace(it) == Some(control_namespace)
    });
    let mut names: Vec<(TapState, String)> = meshed
        .map(|pod| {
            let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
            (TapState::of_pod(pod), name)
        })
        .collect();
    names.sort_by(|a, b| a.1.cmp(&b.1));
    let mut text = String::new();
    for (state, heading) in LISTS {
        let listed: Vec<&str> = names
            .iter()
            .filter(|(of_pod, _)| *of_pod == state)
            .map(|(_, name)| name.as_str())
            .collect();
        if !listed.is_empty() {
            text += &format!("{heading}\n\t* {}\n", listed.join("\n\t* "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, control_namespace: &str, annotations: &str, phase: &str) -> Pod {
        let text = format!(
            "metadata: {{name: {name}, namespace: shop, labels: {{linkerd.io/control-plane-ns: {control_namespace}}}, annotations: {{{annotations}}}}}\nstatus: {{phase: {phase}}}"
        );
        serde_norway::from_str(&text).unwrap()
    }

    #[test]
    fn meshed_pods_are_listed_by_state() {
        const ENABLED: &str = "viz.linkerd.io/tap-enabled: 'true'";
        let disabled = format!("{ENABLED}, viz.linkerd.io/disable-tap: 'T'");
        let pods = [
            pod("web-2", "linkerd", ENABLED, "Running"),
            pod("web-1", "linkerd", ENABLED, "Pending"),
            pod("secret", "linkerd", &disabled, "Running"),
            pod(
                "old",
                "linkerd",
                "viz.linkerd.io/tap-enabled: 'no'",
                "Running",
            ),
            pod("done", "linkerd", ENABLED, "Succeeded"),
            pod("other", "mesh-2", ENABLED, "Running"),
        ];
        assert_eq!(
            render(&pods, "linkerd"),
            "Pods with tap enabled:\n\t* shop/web-1\n\t* shop/web-2\nPods with tap disabled:\n\t* shop/secret\nPods missing tap configuration (restart these pods to enable tap):\n\t* shop/old\n"
        );
        assert_eq!(render(&pods, "absent"), "");
    }
}
