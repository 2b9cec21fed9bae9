//! Creates a pod with the injection annotation as a dry run: the API server calls the injector, but
//! does not store the pod.

use kube::Api;
use kube::api::PostParams;
use mesh_k8s::kinds::Pod;
use mesh_k8s::pod::PROXY_CONTAINER;

use crate::cluster::{Cluster, error};
use crate::facts::{Fact, InjectionDryRun};

/// Satisfies the restricted Pod Security Standard, so that only the injector affects the result.
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

pub(super) async fn run(cluster: &Cluster, namespace: &str) -> Fact<InjectionDryRun> {
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
                InjectionDryRun::Injected
            } else {
                InjectionDryRun::NotInjected
            })
        }
        Err(failure) if error::is_forbidden(&failure) && !from_admission(&failure) => {
            Ok(InjectionDryRun::Forbidden)
        }
        Err(failure) => Ok(InjectionDryRun::Rejected(error::explain(&failure))),
    }
}

/// Returns whether admission rejected the pod. Authorization uses status 403 as well, with another
/// message.
fn from_admission(failure: &kube::Error) -> bool {
    !error::explain(failure).contains("cannot create resource")
}
