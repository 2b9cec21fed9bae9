//! The injector as the API server's webhook: with the rights that the chart gives it and no more,
//! through a Service, with a certificate that it looks after itself.

use std::net::{IpAddr, UdpSocket};

use k8s_openapi::{
    api::{
        admissionregistration::v1::MutatingWebhookConfiguration,
        apps::v1::Deployment,
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::{Namespace, Pod, Secret, Service, ServiceAccount},
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    config::{AuthInfo, Kubeconfig},
    core::{ApiResource, GroupVersionKind},
};
use mesh_k8s::pod::PROXY_CONTAINER;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use super::{Cluster, cluster, metric};
use crate::controller::{Controller, eventually};

const ACCOUNT: &str = "linkerd-proxy-injector";
const SECRET: &str = "linkerd-proxy-injector-k8s-tls";
const PEM: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";

/// An injector that a cluster asks, and the namespace that it is asked about.
struct Stage {
    control: Cluster,
    apps: Cluster,
    injector: Controller,
    _files: tempfile::TempDir,
}

impl Stage {
    async fn new() -> Option<Self> {
        let control = cluster("control").await?;
        let address = our_address(&control);
        if address.is_loopback() {
            println!(
                "skipped: the API server is behind a loopback address and cannot call this machine"
            );
            return None;
        }
        let apps = cluster("apps").await?;
        // Where the cluster calls, whatever address the controller listens at.
        let door = TcpListener::bind((address, 0)).await.unwrap();
        let port = door.local_addr().unwrap().port();
        let namespaces: Api<Namespace> = Api::all(control.client.clone());
        let owner = namespaces
            .get(&control.namespace)
            .await
            .unwrap()
            .uid()
            .unwrap();
        let manifest = include_str!("injector.yaml")
            .replace("OWNER", &owner)
            .replace("CONTROL", &control.namespace)
            .replace("APPS", &apps.namespace)
            .replace("ADDRESS", &address.to_string())
            .replace("PORT", &port.to_string());
        apply(&control, &manifest).await;
        let files = tempfile::tempdir().unwrap();
        let injector = start(&control, &files).await;
        let target = injector.grpc;
        tokio::spawn(async move {
            loop {
                let (mut caller, _) = door.accept().await.unwrap();
                tokio::spawn(async move {
                    if let Ok(mut injector) = TcpStream::connect(target).await {
                        // Either side may end it.
                        let _ = tokio::io::copy_bidirectional(&mut caller, &mut injector).await;
                    }
                });
            }
        });
        let stage = Self {
            control,
            apps,
            injector: injector.ready().await,
            _files: files,
        };
        // kube-proxy learns of the Service when it does.
        eventually("the API server to reach the injector", async || {
            stage.dry_run(json!({})).await.ok()
        })
        .await;
        Some(stage)
    }

    fn hooks(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.control.client.clone())
    }

    fn hook_name(&self) -> String {
        format!("{}-injector", self.control.namespace)
    }

    async fn bundle(&self) -> Vec<u8> {
        let hook = self.hooks().get(&self.hook_name()).await.unwrap();
        let client = hook.webhooks.unwrap().remove(0).client_config;
        client.ca_bundle.map(|bundle| bundle.0).unwrap_or_default()
    }

    async fn secret(&self) -> Option<Secret> {
        let secrets: Api<Secret> = self.control.namespaced();
        secrets.get_opt(SECRET).await.unwrap()
    }

    async fn annotate_namespace(&self, key: &str, value: &str) {
        let namespaces: Api<Namespace> = Api::all(self.apps.client.clone());
        let patch = json!({"metadata": {"annotations": {key: value}}});
        namespaces
            .patch(
                &self.apps.namespace,
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await
            .unwrap();
    }

    /// What the API server would store.
    async fn dry_run(&self, annotations: serde_json::Value) -> Result<Pod, kube::Error> {
        let pods: Api<Pod> = self.apps.namespaced();
        let pod = serde_json::from_value(json!({
            "metadata": {"generateName": "probe-", "annotations": annotations},
            "spec": {"containers": [{"name": "app", "image": "none.invalid/none"}]},
        }));
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        pods.create(&params, &pod.unwrap()).await
    }
}

/// The address of this machine that the API server sees.
fn our_address(cluster: &Cluster) -> IpAddr {
    let file = Kubeconfig::read_from(&cluster.kubeconfig).unwrap();
    let context = file
        .contexts
        .iter()
        .find(|named| named.name == cluster.context);
    let name = context.unwrap().context.clone().unwrap().cluster;
    let named = file.clusters.iter().find(|named| named.name == name);
    let server = named.unwrap().cluster.clone().unwrap().server.unwrap();
    let server: http::Uri = server.parse().unwrap();
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let port = server.port_u16().unwrap_or(443);
    socket.connect((server.host().unwrap(), port)).unwrap();
    socket.local_addr().unwrap().ip()
}

async fn apply(cluster: &Cluster, manifest: &str) {
    for document in manifest.split("---\n") {
        let object: DynamicObject = serde_norway::from_str(document).unwrap();
        let types = object.types.clone().unwrap();
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).unwrap());
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(cluster.client.clone(), &namespace, &resource),
            None => Api::all_with(cluster.client.clone(), &resource),
        };
        let params = PatchParams::apply("mesh-it").force();
        let name = object.name_any();
        api.patch(&name, &params, &Patch::Apply(&object))
            .await
            .unwrap();
    }
}

/// Starts an injector that is its ServiceAccount to the API server.
async fn start(cluster: &Cluster, files: &tempfile::TempDir) -> Controller {
    let accounts: Api<ServiceAccount> = cluster.namespaced();
    let request = TokenRequest {
        metadata: ObjectMeta::default(),
        spec: TokenRequestSpec {
            audiences: Vec::new(),
            bound_object_ref: None,
            expiration_seconds: Some(3600),
        },
        status: None,
    };
    let token = accounts
        .create_token_request(ACCOUNT, &PostParams::default(), &request)
        .await
        .unwrap();
    let mut kubeconfig = Kubeconfig::read_from(&cluster.kubeconfig).unwrap();
    for user in &mut kubeconfig.auth_infos {
        let account = AuthInfo {
            token: Some(token.status.clone().unwrap().token.into()),
            ..AuthInfo::default()
        };
        user.auth_info = Some(account);
    }
    let path = |name: &str| files.path().join(name);
    std::fs::write(
        path("kubeconfig"),
        serde_norway::to_string(&kubeconfig).unwrap(),
    )
    .unwrap();
    std::fs::write(path("values"), "linkerdVersion: test\n").unwrap();
    std::fs::write(path("anchors"), PEM).unwrap();
    let args = [
        format!("--kubeconfig={}", path("kubeconfig").display()),
        format!("--kube-context={}", cluster.context),
        format!("--values-file={}", path("values").display()),
        format!("--trust-anchors={}", path("anchors").display()),
        format!("--controller-namespace={}", cluster.namespace),
        format!("--webhook-config={}-injector", cluster.namespace),
    ];
    Controller::start("proxy-injector", "--addr", "--metrics-addr", &args)
}

fn has_proxy(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref().unwrap();
    mesh_k8s::pod::containers(spec).any(|container| container.name == PROXY_CONTAINER)
}

#[tokio::test]
async fn pods_of_a_workload_are_injected_and_the_workload_is_told() {
    let Some(stage) = Stage::new().await else {
        return;
    };
    // On the namespace it is a warning; a pod's own would be refused.
    stage
        .annotate_namespace("config.linkerd.io/proxy-log-format", "xml")
        .await;
    stage
        .annotate_namespace("linkerd.io/inject", "enabled")
        .await;
    // The injector learns of it by a watch.
    eventually("the namespace's annotation to be seen", async || {
        has_proxy(&stage.dry_run(json!({})).await.unwrap()).then_some(())
    })
    .await;
    let deployments: Api<Deployment> = stage.apps.namespaced();
    let web = json!({
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {
                    "labels": {"app": "web"},
                },
                "spec": {
                    "schedulerName": "nobody",
                    "containers": [{"name": "web", "image": "none.invalid/none", "ports": [{"containerPort": 3306}]}],
                },
            },
        },
    });
    let web = serde_json::from_value(web).unwrap();
    deployments
        .create(&PostParams::default(), &web)
        .await
        .unwrap();
    let pods: Api<Pod> = stage.apps.namespaced();
    let pod = eventually("the pod of the deployment", async || {
        let listed = pods
            .list(&ListParams::default().labels("app=web"))
            .await
            .unwrap();
        listed.items.into_iter().next()
    })
    .await;
    assert!(has_proxy(&pod));
    assert_eq!(pod.labels()["linkerd.io/proxy-deployment"], "web");
    assert_eq!(pod.labels()["linkerd.io/workload-ns"], stage.apps.namespace);
    assert_eq!(
        pod.labels()["linkerd.io/control-plane-ns"],
        stage.control.namespace
    );
    let opaque = &pod.annotations()["config.linkerd.io/opaque-ports"];
    assert!(opaque.split(',').any(|port| port == "3306"), "{opaque}");

    let events: Api<Event> = stage.apps.namespaced();
    let noted = async |reason: &str| {
        eventually(&format!("an event {reason}"), async || {
            let listed = events.list(&ListParams::default()).await.unwrap();
            let event = listed.items.into_iter().find(|event| {
                let about = event.regarding.as_ref().unwrap();
                event.reason.as_deref() == Some(reason)
                    && about.kind.as_deref() == Some("Deployment")
                    && about.name.as_deref() == Some("web")
            });
            event?.note
        })
        .await
    };
    assert_eq!(noted("Injected").await, "Linkerd sidecar proxy injected");
    let warned = noted("InvalidAnnotation").await;
    assert!(
        warned.contains("proxy-log-format") && warned.contains("\"xml\""),
        "{warned}"
    );
    let counted = format!(
        "proxy_inject_admission_responses_total{{owner_kind=\"deployment\",namespace=\"{}\",annotation_at=\"namespace\",skip=\"false\",skip_reason=\"\"}}",
        stage.apps.namespace
    );
    assert_eq!(metric(&stage.injector, &counted).await, Some(1.0));
}

#[tokio::test]
async fn pods_that_did_not_ask_and_services_pass() {
    let Some(stage) = Stage::new().await else {
        return;
    };
    let pod = stage.dry_run(json!({})).await.unwrap();
    assert!(!has_proxy(&pod));
    let pod = stage
        .dry_run(json!({"linkerd.io/inject": "enabled"}))
        .await
        .unwrap();
    assert!(has_proxy(&pod));
    let services: Api<Service> = stage.apps.namespaced();
    let service = json!({"metadata": {"name": "db"}, "spec": {"ports": [{"port": 3306}]}});
    let service: Service = serde_json::from_value(service).unwrap();
    let service = services
        .create(&PostParams::default(), &service)
        .await
        .unwrap();
    assert_eq!(
        service.annotations()["config.linkerd.io/opaque-ports"],
        "3306"
    );
}

#[tokio::test]
async fn the_certificate_looks_after_itself() {
    let Some(stage) = Stage::new().await else {
        return;
    };
    let first = stage.secret().await.unwrap();
    let authority = first.data.as_ref().unwrap()["ca.crt"].0.clone();
    assert_eq!(stage.bundle().await, authority);
    assert_eq!(first.owner_references()[0].name, stage.hook_name());

    // Somebody breaks the bundle.
    let wrong = json!({"webhooks": [{
        "name": "linkerd-proxy-injector.linkerd.io",
        "clientConfig": {"caBundle": "UEVN"},
    }]});
    let hooks = stage.hooks();
    hooks
        .patch(
            &stage.hook_name(),
            &PatchParams::default(),
            &Patch::Strategic(wrong),
        )
        .await
        .unwrap();
    eventually("the bundle to be corrected", async || {
        (stage.bundle().await == authority).then_some(())
    })
    .await;
    let altered = r#"mesh_injector_repairs_last_day{found="ca-bundle-altered"}"#;
    assert_eq!(metric(&stage.injector, altered).await, Some(1.0));

    // Somebody deletes the Secret: the old authority stays trusted, and pods are injected all the
    // while.
    let secrets: Api<Secret> = stage.control.namespaced();
    secrets
        .delete(SECRET, &DeleteParams::default())
        .await
        .unwrap();
    let bundle = eventually("another certificate", async || {
        let bundle = stage.bundle().await;
        (bundle != authority).then_some(bundle)
    })
    .await;
    let second = stage.secret().await.unwrap();
    assert_ne!(second.uid(), first.uid());
    assert_eq!(second.data.unwrap()["ca.crt"].0, bundle);
    assert!(
        bundle
            .windows(authority.len())
            .any(|part| part == authority)
    );
    eventually("the second certificate to be served", async || {
        let served = stage.dry_run(json!({"linkerd.io/inject": "enabled"})).await;
        assert!(has_proxy(&served.unwrap()));
        let served = stage
            .injector
            .times_logged("Serving with the certificate of the Secret");
        (served == 2).then_some(())
    })
    .await;
    let served = stage.dry_run(json!({"linkerd.io/inject": "enabled"})).await;
    assert!(has_proxy(&served.unwrap()));

    // It goes with the mesh.
    hooks
        .delete(&stage.hook_name(), &DeleteParams::default())
        .await
        .unwrap();
    eventually("the Secret to be collected", async || {
        stage.secret().await.is_none().then_some(())
    })
    .await;
}
