//! The control plane of a local node: manifests of meshed pods that correspond to the chart's, and
//! the metrics API of the viz extension ([`viz`]).

use std::path::{Path, PathBuf};

use mesh_core::annotation::DEFAULT_OPAQUE_PORTS;
use mesh_k8s::inject::Values;

use crate::image::CONTROLLER;
use crate::manifest::{Manifests, ObjectKey};
use crate::node_paths::NodePaths;
use crate::pki::{self, CONTROLLER_UID};
use crate::service::dns::CLUSTER_DOMAIN;
use crate::settings::Settings;

pub mod viz;

/// The namespace of the control plane.
pub const NAMESPACE: &str = "linkerd";
/// The name of the Deployment of the identity controller.
const IDENTITY: &str = "linkerd-identity";
/// The source of the manifests in messages.
const FILE: &str = "(control plane)";
/// Directories in the controllers' containers with the manifests and the node's objects.
const MANIFESTS: &str = "/etc/mesh/manifests";
const OBJECTS: &str = "/etc/mesh/objects";

/// A Deployment of one pod, and its ServiceAccount.
struct Component<'a> {
    namespace: &'a str,
    name: &'a str,
    /// The labels of the pod, an element of a map in YAML.
    labels: &'a str,
    annotation: &'a str,
    containers: &'a str,
    volumes: &'a [Volume<'a>],
}

/// The name of a volume, its directory on the machine, and the one in the containers.
type Volume<'a> = (&'a str, PathBuf, String);

/// Returns the values of the injector for this node.
pub fn values(settings: &Settings, trust_anchors: &str) -> Values {
    Values {
        namespace: NAMESPACE.into(),
        cluster_domain: CLUSTER_DOMAIN.into(),
        identity_trust_anchors_pem: trust_anchors.to_owned(),
        disable_ipv6: settings.network.pods_v6.is_none(),
        // The agent redirects pods, and the CNI plugin delays their start until it has.
        cni_enabled: true,
        ..Values::default()
    }
}

/// Adds the control plane to the manifests.
pub fn add(manifests: &mut Manifests, paths: &NodePaths, settings: &Settings, values: &Values) {
    let text = manifest(paths, settings, values);
    manifests.add_text(Path::new(FILE), &text);
    // A namespace of the directory keeps its annotations.
    if !manifests.namespaces.contains_key(viz::NAMESPACE) {
        manifests.add_text(Path::new(FILE), &viz::namespace());
    }
    let text = viz::manifest(settings, &source_volumes(paths, settings));
    manifests.add_text(Path::new(FILE), &text);
}

/// The start order of pods: each stage starts when the previous one is ready. Starting clients
/// before their servers takes longer in total, because their requests back off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Identity,
    /// The proxies of these pods use the identity controller.
    ControlPlane,
    /// The proxies of these pods use all controllers.
    Others,
}

pub fn stage(key: &ObjectKey) -> Stage {
    match (key.namespace.as_str(), key.name.starts_with(IDENTITY)) {
        (NAMESPACE, true) => Stage::Identity,
        (NAMESPACE, false) => Stage::ControlPlane,
        _ => Stage::Others,
    }
}

impl Stage {
    pub fn next(self) -> Self {
        match self {
            Self::Identity => Self::ControlPlane,
            Self::ControlPlane | Self::Others => Self::Others,
        }
    }
}

fn manifest(paths: &NodePaths, settings: &Settings, values: &Values) -> String {
    let any = any_address(settings);
    let identity = [
        "identity".to_owned(),
        format!("--addr={any}:8080"),
        format!("--admin-addr={any}:9990"),
        format!("--controller-namespace={NAMESPACE}"),
        format!("--identity-trust-domain={}", values.trust_domain()),
        "--identity-issuance-lifetime=24h0m0s".into(),
        "--identity-clock-skew-allowance=20s".into(),
        "--identity-scheme=linkerd.io/tls".into(),
        "--token-verify-key=/var/run/linkerd/identity/token/verify.pem".into(),
        "--publish-trust-roots".into(),
    ];
    let destination = [
        "destination".to_owned(),
        format!("--addr={any}:8086"),
        format!("--metrics-addr={any}:9996"),
        format!("--controller-namespace={NAMESPACE}"),
        format!("--cluster-domain={CLUSTER_DOMAIN}"),
        format!("--identity-trust-domain={}", values.trust_domain()),
        format!("--default-opaque-ports={DEFAULT_OPAQUE_PORTS}"),
        format!("--enable-ipv6={}", settings.network.pods_v6.is_some()),
        "--outbound-transport-mode=transport-header".into(),
        format!("--source-dir={MANIFESTS}"),
        format!("--source-dir={OBJECTS}"),
    ];
    let policy = [
        "policy".to_owned(),
        format!("--grpc-addr={any}:8090"),
        format!("--admin-addr={any}:9990"),
        format!("--cluster-networks={}", values.cluster_networks),
        format!(
            "--global-egress-network-namespace={}",
            values.egress.global_egress_network_namespace
        ),
        format!("--identity-domain={}", values.trust_domain()),
        format!("--cluster-domain={CLUSTER_DOMAIN}"),
        format!("--default-policy={}", values.proxy.default_inbound_policy),
        format!("--control-plane-namespace={NAMESPACE}"),
        "--probe-networks=0.0.0.0/0,::/0".into(),
        format!("--default-opaque-ports={DEFAULT_OPAQUE_PORTS}"),
        format!("--source-dir={MANIFESTS}"),
        format!("--source-dir={OBJECTS}"),
    ];
    let pki = paths.pki();
    let trust = "/var/run/linkerd/identity";
    let identity_pod = pod(
        "identity",
        // The proxy of this pod gets its certificate from the container that starts after it.
        "config.linkerd.io/proxy-await: disabled",
        &container(
            CONTROLLER,
            "identity",
            &identity,
            &[("grpc", 8080), ("admin", 9990)],
        ),
        &[
            ("issuer", pki::issuer_dir(&pki), format!("{trust}/issuer")),
            (
                "trust-roots",
                pki::anchors_dir(&pki),
                format!("{trust}/trust-roots"),
            ),
            ("token", pki::token_dir(&pki), format!("{trust}/token")),
        ],
    );
    let containers = [
        container(
            CONTROLLER,
            "destination",
            &destination,
            &[("grpc", 8086), ("admin", 9996)],
        ),
        container(
            CONTROLLER,
            "policy",
            &policy,
            &[("policy-grpc", 8090), ("policy-admin", 9990)],
        ),
    ]
    .concat();
    let destination_pod = pod(
        "destination",
        "config.linkerd.io/proxy-await: enabled",
        &containers,
        &source_volumes(paths, settings),
    );
    let services = [
        ("linkerd-identity", "identity", 8080, false),
        ("linkerd-identity-headless", "identity", 8080, true),
        ("linkerd-dst", "destination", 8086, false),
        ("linkerd-dst-headless", "destination", 8086, true),
        ("linkerd-policy", "destination", 8090, true),
    ]
    .map(|(name, of, port, headless)| {
        service(
            NAMESPACE,
            name,
            &component_label(of),
            ("grpc", port),
            headless,
        )
    })
    .concat();
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n  annotations: {{linkerd.io/inject: enabled}}\n\
         \x20 labels: {{linkerd.io/is-control-plane: 'true'}}\n{identity_pod}{destination_pod}{services}"
    )
}

/// Returns the listening address of a controller.
fn any_address(settings: &Settings) -> &'static str {
    if settings.network.pods_v6.is_some() {
        "[::]"
    } else {
        "0.0.0.0"
    }
}

/// Returns the directories that controllers read.
fn source_volumes(paths: &NodePaths, settings: &Settings) -> [Volume<'static>; 2] {
    [
        (
            "manifests",
            settings.manifests.clone(),
            MANIFESTS.to_owned(),
        ),
        ("objects", paths.objects(), OBJECTS.to_owned()),
    ]
}

/// Returns the label of a component's pod.
fn component_label(name: &str) -> String {
    format!("linkerd.io/control-plane-component: {name}")
}

/// Returns the ServiceAccount and the Deployment of a controller.
fn pod(name: &str, annotation: &str, containers: &str, volumes: &[Volume<'_>]) -> String {
    let component = Component {
        namespace: NAMESPACE,
        name: &format!("linkerd-{name}"),
        labels: &component_label(name),
        annotation,
        containers,
        volumes,
    };
    component.manifest()
}

impl Component<'_> {
    fn manifest(&self) -> String {
        let Self {
            namespace,
            name,
            labels,
            annotation,
            ..
        } = self;
        let mounts = self.volumes.iter().map(|(volume, _, target)| {
            format!("        - {{name: {volume}, mountPath: {target}, readOnly: true}}\n")
        });
        let mounts: String = mounts.collect();
        let containers = self.containers.replace(
            "        volumeMounts:\n",
            &format!("        volumeMounts:\n{mounts}"),
        );
        let volumes = self.volumes.iter().map(|(volume, source, _)| {
            format!("      - {{name: {volume}, hostPath: {{path: {source:?}}}}}\n")
        });
        let volumes: String = volumes.collect();
        format!(
            "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             ---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  replicas: 1\n\
             \x20 selector: {{matchLabels: {{{labels}}}}}\n  template:\n    metadata:\n      labels: {{{labels}}}\n\
             \x20     annotations: {{{annotation}}}\n    spec:\n      serviceAccountName: {name}\n      containers:\n{containers}      volumes:\n{volumes}"
        )
    }
}

fn container(image: &str, name: &str, args: &[String], ports: &[(&str, u16)]) -> String {
    let args: String = args
        .iter()
        .map(|arg| format!("        - {arg:?}\n"))
        .collect();
    let ports: String = ports
        .iter()
        .map(|(name, port)| format!("        - {{name: {name}, containerPort: {port}}}\n"))
        .collect();
    let admin = if name == "policy" {
        "policy-admin"
    } else {
        "admin"
    };
    format!(
        "      - name: {name}\n        image: {image}:{version}\n        args:\n{args}        ports:\n{ports}\
         \x20       securityContext: {{runAsUser: {CONTROLLER_UID}, allowPrivilegeEscalation: false}}\n\
         \x20       readinessProbe: {{httpGet: {{path: /ready, port: {admin}}}, periodSeconds: 1}}\n        volumeMounts:\n",
        version = env!("CARGO_PKG_VERSION"),
    )
}

/// Returns the Service of the pods with these labels, for a port with its name.
fn service(
    namespace: &str,
    name: &str,
    labels: &str,
    (port_name, port): (&str, u16),
    headless: bool,
) -> String {
    let cluster_ip = if headless { "clusterIP: None, " } else { "" };
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{{cluster_ip}selector: {{{labels}}}, ports: [{{name: {port_name}, port: {port}}}]}}\n"
    )
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Container;

    use super::*;
    use crate::image::{PROXY, VIZ};
    use crate::{
        service,
        workload::{self, NodeCapabilities},
    };

    #[test]
    fn control_plane_pods_are_injected() {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings {
            manifests: directory.path().to_owned(),
            bin_dir: directory.path().to_owned(),
            cni_path: Vec::new(),
            tier: None,
            network: service::tests::network(),
            mesh: true,
        };
        let paths = NodePaths::new("test".parse().unwrap());
        for (_, place) in [
            ("issuer", pki::issuer_dir(&paths.pki())),
            ("objects", paths.objects()),
        ] {
            assert!(place.starts_with("/run/mesh-local/test"));
        }
        let values = values(&settings, "PEM");
        let mut manifests = Manifests::default();
        add(&mut manifests, &paths, &settings, &values);
        assert_eq!(manifests.problems, []);
        assert_eq!(manifests.services.len(), 6);
        // The directories of a node that is not up do not exist. There must be no other problems.
        let has_image = |image: &str| {
            [CONTROLLER, VIZ, PROXY]
                .iter()
                .any(|own| image.starts_with(own))
        };
        let workloads = workload::compute(
            &manifests,
            Some(&values),
            &NodeCapabilities {
                has_image: &has_image,
            },
        );
        for problem in &workloads.problems {
            assert!(problem.message.contains("hostPath"), "{problem}");
        }
        for (namespace, name, containers) in [
            (NAMESPACE, "linkerd-destination", 2),
            (viz::NAMESPACE, viz::METRICS_API, 1),
        ] {
            let deployment = &manifests.deployments[&ObjectKey::new(namespace, name)];
            let template = &deployment.spec.as_ref().unwrap().template;
            let spec = template.spec.as_ref().unwrap();
            assert_eq!(spec.containers.len(), containers);
            check_containers(&spec.containers);
        }
        let metrics_api = &manifests.deployments[&ObjectKey::new(viz::NAMESPACE, viz::METRICS_API)];
        let meta = metrics_api
            .spec
            .as_ref()
            .unwrap()
            .template
            .metadata
            .as_ref();
        let annotations = meta.unwrap().annotations.as_ref().unwrap();
        assert_eq!(annotations["linkerd.io/inject"], "disabled");
    }

    fn check_containers(containers: &[Container]) {
        for container in containers {
            assert_eq!(container.volume_mounts.as_ref().unwrap().len(), 2);
            assert_eq!(container.args.as_ref().unwrap()[0], container.name);
        }
    }
}
