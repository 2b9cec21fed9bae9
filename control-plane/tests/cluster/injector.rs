//! The injector as webhook of an API server: with the permissions of the chart, through a Service,
//! with a managed certificate.

use std::net::{IpAddr, UdpSocket};

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{AuthInfo, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt};
use mesh_k8s::pod::PROXY_CONTAINER;
use mesh_test_support::controller::Controller;
use mesh_test_support::eventually::eventually_async as eventually;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use crate::{Cluster, cluster, metric};

const ACCOUNT: &str = "linkerd-proxy-injector";
const SECRET: &str = "linkerd-proxy-injector-k8s-tls";
const PEM: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";

/// An injector that a cluster calls, and the namespace of the reviewed objects.
struct InjectorFixture {
    control: Cluster,
    apps: Cluster,
    injector: Controller,
    _files: tempfile::TempDir,
}

impl InjectorFixture {
    async fn new() -> Option<Self> {
        let control = cluster("control").await?;
        let address = local_address(&control);
        if address.is_loopback() {
            println!("skipped: the API server has a loopback address and cannot call this host");
            return None;
        }
        let apps = cluster("apps").await?;
        // The cluster calls this listener, which forwards to the controller.
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
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
                let (mut caller, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    if let Ok(mut injector) = TcpStream::connect(target).await {
                        // Either peer may close the connection.
                        let _ = tokio::io::copy_bidirectional(&mut caller, &mut injector).await;
                    }
                });
            }
        });
        let fixture = Self {
            control,
            apps,
            injector: injector.ready().await,
            _files: files,
        };
        // kube-proxy needs some time to observe the Service.
        eventually("the API server to reach the injector", async || {
            fixture.dry_run(json!({})).await.ok()
        })
        .await;
        Some(fixture)
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

    /// Returns the pod that the API server would store.
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

/// Returns the address of this host towards the API server.
fn local_address(cluster: &Cluster) -> IpAddr {
    let file = Kubeconfig::read_from(&cluster.kubeconfig).unwrap();
    let context = file
        .contexts
        .iter()
        .find(|entry| entry.name == cluster.context);
    let name = context.unwrap().context.clone().unwrap().cluster;
    let entry = file.clusters.iter().find(|entry| entry.name == name);
    let server = entry.unwrap().cluster.clone().unwrap().server.unwrap();
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

/// Starts an injector with the token of its ServiceAccount.
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
async fn pods_of_workload_are_injected_and_events_posted_on_workload() {
    let Some(fixture) = InjectorFixture::new().await else {
        return;
    };
    // An invalid annotation of the namespace causes a warning; one of the pod would be rejected.
    fixture
        .annotate_namespace("config.linkerd.io/proxy-log-format", "xml")
        .await;
    fixture
        .annotate_namespace("linkerd.io/inject", "enabled")
        .await;
    // The injector watches namespaces.
    eventually("the namespace's annotation to be seen", async || {
        has_proxy(&fixture.dry_run(json!({})).await.unwrap())
    })
    .await;
    let deployments: Api<Deployment> = fixture.apps.namespaced();
    let web = json!({
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {
                    "labels": {"app": "web"},
                },
                "spec": {
                    "schedulerName": "none",
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
    let pods: Api<Pod> = fixture.apps.namespaced();
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
    assert_eq!(
        pod.labels()["linkerd.io/workload-ns"],
        fixture.apps.namespace
    );
    assert_eq!(
        pod.labels()["linkerd.io/control-plane-ns"],
        fixture.control.namespace
    );
    let opaque = &pod.annotations()["config.linkerd.io/opaque-ports"];
    assert!(opaque.split(',').any(|port| port == "3306"), "{opaque}");

    let events: Api<Event> = fixture.apps.namespaced();
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
        fixture.apps.namespace
    );
    assert_eq!(metric(&fixture.injector, &counted).await, Some(1.0));
}

#[tokio::test]
async fn pods_without_annotation_and_services_are_admitted() {
    let Some(fixture) = InjectorFixture::new().await else {
        return;
    };
    let pod = fixture.dry_run(json!({})).await.unwrap();
    assert!(!has_proxy(&pod));
    let pod = fixture
        .dry_run(json!({"linkerd.io/inject": "enabled"}))
        .await
        .unwrap();
    assert!(has_proxy(&pod));
    let services: Api<Service> = fixture.apps.namespaced();
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
async fn certificate_and_ca_bundle_are_repaired() {
    let Some(fixture) = InjectorFixture::new().await else {
        return;
    };
    let first = fixture.secret().await.unwrap();
    let authority = first.data.as_ref().unwrap()["ca.crt"].0.clone();
    assert_eq!(fixture.bundle().await, authority);
    assert_eq!(first.owner_references()[0].name, fixture.hook_name());

    // Another client changes the bundle.
    let wrong = json!({"webhooks": [{
        "name": "linkerd-proxy-injector.linkerd.io",
        "clientConfig": {"caBundle": "UEVN"},
    }]});
    let hooks = fixture.hooks();
    hooks
        .patch(
            &fixture.hook_name(),
            &PatchParams::default(),
            &Patch::Strategic(wrong),
        )
        .await
        .unwrap();
    eventually("the bundle to be corrected", async || {
        fixture.bundle().await == authority
    })
    .await;
    let altered = r#"mesh_injector_repairs_last_day{found="ca-bundle-altered"}"#;
    // Counted once the API server has responded, which others may see before.
    eventually("the repair to be counted", async || {
        metric(&fixture.injector, altered).await == Some(1.0)
    })
    .await;

    // Another client deletes the Secret: the old CA stays trusted, and pods are injected
    // throughout.
    let secrets: Api<Secret> = fixture.control.namespaced();
    secrets
        .delete(SECRET, &DeleteParams::default())
        .await
        .unwrap();
    let bundle = eventually("another certificate", async || {
        let bundle = fixture.bundle().await;
        (bundle != authority).then_some(bundle)
    })
    .await;
    let second = fixture.secret().await.unwrap();
    assert_ne!(second.uid(), first.uid());
    assert_eq!(second.data.unwrap()["ca.crt"].0, bundle);
    assert!(
        bundle
            .windows(authority.len())
            .any(|part| part == authority)
    );
    eventually("the second certificate to be served", async || {
        let served = fixture
            .dry_run(json!({"linkerd.io/inject": "enabled"}))
            .await;
        assert!(has_proxy(&served.unwrap()));
        let log = fixture.injector.program.log();
        log.matches("Serving with the certificate of the Secret")
            .count()
            == 2
    })
    .await;
    let served = fixture
        .dry_run(json!({"linkerd.io/inject": "enabled"}))
        .await;
    assert!(has_proxy(&served.unwrap()));

    // The Secret is deleted with the webhook configuration.
    hooks
        .delete(&fixture.hook_name(), &DeleteParams::default())
        .await
        .unwrap();
    eventually("the Secret to be collected", async || {
        fixture.secret().await.is_none()
    })
    .await;
}
