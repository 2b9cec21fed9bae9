//! Creates a pod that asks for the mesh, as a dry run: the API server calls the injector as for a
//! real one, and keeps nothing.

use kube::{Api, api::PostParams};
use mesh_k8s::{kinds::Pod, pod::PROXY_CONTAINER};

use super::super::facts::{Seen, Trial};
use crate::cluster::{Cluster, error};

/// As restricted as any namespace may ask for, so that nothing but the injector decides.
const POD: &str = r#"{
  "apiVersion": "v1", "kind": "Pod",
  "metadata": {"generateName": "meshctl-check-", "annotations": {"linkerd.io/inject": "enabled"}},
  "spec": {
    "restartPolicy": "Never",
    "securityContext": {"runAsNonRoot": true, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [{
      "name": "check", "image": "mesh/none",
      "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
      "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "10m", "memory": "8Mi"}}
    }]
  }
}"#;

pub(super) async fn run(cluster: &Cluster, namespace: &str) -> Seen<Trial> {
    let pod: Pod = serde_json::from_str(POD).map_err(|error| error.to_string())?;
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
    let params = PostParams {
        dry_run: true,
        ..Default::default()
    };
    match api.create(&params, &pod).await {
        Ok(pod) => {
            let spec = pod.spec.unwrap_or_default();
            let injected =
                mesh_k8s::pod::containers(&spec).any(|container| container.name == PROXY_CONTAINER);
            Ok(if injected {
                Trial::Injected
            } else {
                Trial::LeftAlone
            })
        }
        Err(failure) if error::is_forbidden(&failure) && !from_admission(&failure) => {
            Ok(Trial::Forbidden)
        }
        Err(failure) => Ok(Trial::Refused(error::explain(&failure))),
    }
}

/// Admission refuses with 403 as well; authorization names the user.
fn from_admission(failure: &kube::Error) -> bool {
    !error::explain(failure).contains("cannot create resource")
}
