//! Injection of pods: the debug container, invalid annotations, and the values of a Linkerd
//! installation.

use mesh_test_support::cluster::installation::Installation;
use mesh_test_support::cluster::{Cluster, contains};
use mesh_test_support::command::Words as _;
use mesh_test_support::eventually::eventually;

use crate::shop::{self, Shop};

/// Values of Linkerd's chart that are `null`, empty or unused here.
const LINKERD: [&str; 5] = [
    "configReaders=null",
    "proxy.inbound.server=null",
    "identityTrustDomain=",
    "kubeAPI.clientQPS=100",
    "disableHeartBeat=false",
];

#[test]
fn injector_rejects_invalid_annotations_and_adds_debug_container() {
    let Some(cluster) =
        Cluster::acquire("annotations that cannot be read, and the debugging container")
    else {
        return;
    };
    let mesh = Installation::by_helm(&cluster, &LINKERD);
    let shop = Shop::open(&cluster);
    shop.assert_works();
    // Identities use the cluster's domain.
    shop.assert_authenticated();

    assert_rejected(&cluster, "default-inbound-policy", "all-authenticate");
    assert_rejected(
        &cluster,
        "proxy-require-identity-inbound-ports",
        "8080,admin",
    );
    annotate_namespace(&cluster, "default-inbound-policy=denied");
    let (created, output) = create(&cluster, "");
    assert!(!created && output.contains("namespace shop"), "{output}");
    // Running pods are not affected, and removing the annotation permits new pods.
    shop.assert_works();
    annotate_namespace(&cluster, "default-inbound-policy-");

    assert_debug_container(&cluster, &shop);
    drop(shop);
    mesh.remove();
}

/// Asserts that a pod with this annotation is rejected, and that the message names annotation and
/// value.
fn assert_rejected(cluster: &Cluster, name: &str, value: &str) {
    let key = format!("config.linkerd.io/{name}");
    let (created, output) = create(cluster, &format!("{key}: \"{value}\""));
    let named = output.contains(&key) && output.contains(value) && output.contains("invalid value");
    assert!(!created && named, "{output}");
}

/// Returns whether the API server would create a pod with these annotations, and its message.
fn create(cluster: &Cluster, annotations: &str) -> (bool, String) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let namespace = shop::NAMESPACE;
    let pod = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: tried, namespace: {namespace}, annotations: {{{annotations}}}}}, \
         spec: {{containers: [{{name: main, image: mesh/test-apps:dev}}]}}}}"
    );
    std::fs::write(file.path(), pod).expect("write the manifest");
    let path = file.path().to_str().expect("a path of letters");
    cluster.try_kubectl(format!("create --dry-run=server -f {path}"))
}

fn annotate_namespace(cluster: &Cluster, annotation: &str) {
    let annotation = format!("config.linkerd.io/{annotation}");
    cluster.kubectl(format!("annotate namespace shop {annotation}"));
    // The injector receives the change through its watch.
    let wanted = !annotation.ends_with('-');
    eventually("the injector uses the namespace's annotation", || {
        let (created, output) = create(cluster, "");
        if created != wanted {
            Ok(())
        } else {
            Err(output)
        }
    });
}

/// The container logs the packets of a request, and can run commands.
fn assert_debug_container(cluster: &Cluster, shop: &Shop<'_>) {
    let patch = r#"{"spec":{"template":{"metadata":{"annotations":{"config.linkerd.io/enable-debug-sidecar":"true"}}}}}"#;
    cluster.kubectl(format!("patch deployment/web -n shop -p {patch}"));
    cluster.rolled_out(shop::NAMESPACE, "deployment/web");
    shop.assert_works();
    // Pods of the previous revision are terminating; kubectl might select one of them.
    let pods = cluster.pods("-n shop -l app=web");
    let pod = pods.first().expect("a pod of web runs");
    let pod = format!("pod/{}", pod["metadata"]["name"].as_str().expect("a name"));
    let of_debug = format!("-n shop {pod} -c linkerd-debug");
    eventually(
        "the debugging container has seen packets of the proxy's port",
        || {
            // Any pod of web may receive the request.
            shop.client("curl -sS --max-time 10 http://web/");
            let log = cluster.kubectl(format!("logs --tail=2000 {of_debug}"));
            contains(log, ".4143")
        },
    );
    let look = "id -u && ip addr show lo && tcpdump --version";
    let place = format!("exec {of_debug} -- sh -c");
    let (done, output) = cluster.try_kubectl([place.words(), vec![look]].concat());
    assert!(
        done && output.contains("127.0.0.1") && output.contains("libpcap"),
        "{output}"
    );
}
