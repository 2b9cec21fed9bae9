//! The controllers with the API server of a real cluster: `MESH_TEST_CLUSTER` is the name of its
//! context in the file of `KUBECONFIG`. Without it these tests are skipped. A program of its own,
//! because another one that installs a mesh must not use the cluster at the same time.
//!
//! Each test uses its own namespace, which is deleted at the end. Pods have a nonexistent
//! scheduler, so that nothing runs, and the test writes their status.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and prints why it is skipped"
)]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, Config, ResourceExt};
use mesh_api::proto::destination::Update;
use mesh_api::proto::destination::destination_client::DestinationClient;
use mesh_test_support::controller::Controller;
use mesh_test_support::eventually::eventually_async as eventually;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tonic::Streaming;

use crate::manifests::service;
use crate::messages::request;

mod absent;
mod certificates;
mod endpoints;
mod injector;
mod links;
#[path = "../shared/manifests.rs"]
mod manifests;
#[path = "../shared/messages.rs"]
mod messages;
mod mirrors;
mod policies;

/// A namespace of a cluster.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    /// The names of the CustomResourceDefinitions that the test created and that are deleted with
    /// it.
    pub(crate) created_definitions: Mutex<Vec<String>>,
    kubeconfig: String,
    context: String,
}

/// Returns the Service `web` and its pods, without the address that it has in a directory, which a
/// cluster allocates.
pub(crate) fn web(pods: &[(&str, &str)]) -> String {
    service(pods).replace("clusterIP: 10.96.0.1, ", "")
}

/// Returns the configured cluster with a new namespace, or prints why the test is skipped.
pub(crate) async fn cluster(name: &str) -> Option<Cluster> {
    let Ok(context) = std::env::var("MESH_TEST_CLUSTER") else {
        println!("skipped: MESH_TEST_CLUSTER is not set to the context of a cluster");
        return None;
    };
    let kubeconfig = std::env::var("KUBECONFIG").unwrap_or_else(|_| {
        let home = std::env::var("HOME").unwrap();
        format!("{home}/.kube/config")
    });
    let context = context_of(&kubeconfig, &context);
    let client = connect(&kubeconfig, &context).await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace: Namespace = serde_json::from_value(json!({
        "metadata": {
            "generateName": format!("mesh-it-{name}-"),
            // Keeps the webhooks of a mesh that is installed on the cluster away from the tests'
            // objects.
            "labels": { "config.linkerd.io/admission-webhooks": "disabled" },
        },
    }))
    .unwrap();
    let created = namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    Some(Cluster {
        client,
        namespace: created.name_any(),
        created_definitions: Mutex::default(),
        context,
        kubeconfig,
    })
}

async fn connect(kubeconfig: &str, context: &str) -> Client {
    let options = KubeConfigOptions {
        context: Some(context.to_owned()),
        ..KubeConfigOptions::default()
    };
    let file = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(file, &options).await;
    Client::try_from(config.unwrap()).unwrap()
}

/// Returns the name of the context, which may differ if it is the only one.
fn context_of(kubeconfig: &str, context: &str) -> String {
    let file = Kubeconfig::read_from(kubeconfig).unwrap();
    match &file.contexts[..] {
        [only] => only.name.clone(),
        _ => context.to_owned(),
    }
}

impl Cluster {
    /// Returns the flags of controllers for this cluster.
    pub(crate) fn flags(&self) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", self.kubeconfig),
            format!("--kube-context={}", self.context),
        ]
    }

    pub(crate) async fn destination(&self) -> Controller {
        let started = Controller::start("destination", "--addr", "--metrics-addr", &self.flags());
        started.ready().await
    }

    /// Returns the controller's stream of the endpoints of `web`.
    pub(crate) async fn endpoints_of_web(&self, controller: &Controller) -> Streaming<Update> {
        let mut client = DestinationClient::new(controller.channel().await);
        let web = format!("web.{}.svc.cluster.local:80", self.namespace);
        client.get(request(&web)).await.unwrap().into_inner()
    }

    /// Applies every document of a manifest, with the test's namespace instead of `shop`.
    pub(crate) async fn apply(&self, manifest: &str) {
        let manifest = manifest.replace("shop", &self.namespace);
        for document in manifest
            .split("---\n")
            .filter(|text| !text.trim().is_empty())
        {
            let mut object: Value = serde_norway::from_str(document).unwrap();
            let status = object
                .as_object_mut()
                .unwrap()
                .remove("status")
                .filter(|_| object["kind"] == "Pod");
            if object["kind"] == "Pod" {
                self.prepare(&mut object).await;
            }
            let object: DynamicObject = serde_json::from_value(object).unwrap();
            let api = self.api(object.types.as_ref().unwrap());
            let name = object.name_any();
            let params = PatchParams::apply("mesh-it").force();
            api.patch(&name, &params, &Patch::Apply(&object))
                .await
                .unwrap();
            if let Some(status) = status {
                let status = json!({ "status": status });
                api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status))
                    .await
                    .unwrap();
            }
        }
    }

    /// Adds the fields of a pod that an API server requires and a directory does not.
    async fn prepare(&self, pod: &mut Value) {
        pod["spec"]["schedulerName"] = "none".into();
        for container in pod["spec"]["containers"].as_array_mut().unwrap() {
            container["image"] = "none.invalid/none".into();
        }
        if let Some(account) = pod["spec"]["serviceAccountName"].as_str() {
            self.service_account(account).await;
        }
    }

    pub(crate) async fn service_account(&self, name: &str) {
        let accounts: Api<ServiceAccount> = self.namespaced();
        let account = json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": { "name": name },
        });
        let params = PatchParams::apply("mesh-it");
        accounts
            .patch(name, &params, &Patch::Apply(&account))
            .await
            .unwrap();
    }

    pub(crate) async fn delete(&self, api_version: &str, kind: &str, name: &str) {
        let types = kube::core::TypeMeta {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        };
        let params = DeleteParams {
            // There is no kubelet to confirm the termination of a pod.
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        };
        self.api(&types).delete(name, &params).await.unwrap();
    }

    pub(crate) fn namespaced<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn api(&self, types: &kube::core::TypeMeta) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::try_from(types).unwrap();
        let plural = match &*gvk.kind {
            "AuthorizationPolicy" => "authorizationpolicies".to_owned(),
            kind => format!("{}s", kind.to_lowercase()),
        };
        let resource = ApiResource::from_gvk_with_plural(&gvk, &plural);
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }
}

impl Drop for Cluster {
    /// Runs on its own thread, because a destructor cannot wait on the runtime of its test.
    fn drop(&mut self) {
        let (kubeconfig, context) = (self.kubeconfig.clone(), self.context.clone());
        let (namespace, definition_names) = (
            self.namespace.clone(),
            self.created_definitions.lock().clone(),
        );
        let deleting = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let client = connect(&kubeconfig, &context).await;
                for name in &definition_names {
                    // Fails if the test has already deleted it.
                    let _deleted = definitions(&client)
                        .delete(name, &DeleteParams::default())
                        .await;
                }
                let namespaces: Api<Namespace> = Api::all(client.clone());
                namespaces
                    .delete(&namespace, &DeleteParams::default())
                    .await
                    .map(drop)
                    .unwrap();
                // The next program finds the cluster as this one did.
                eventually("the objects of the test to be deleted", async || {
                    let mut is_gone = namespaces.get_opt(&namespace).await.ok()?.is_none();
                    for name in &definition_names {
                        is_gone &= definitions(&client).get_opt(name).await.ok()?.is_none();
                    }
                    is_gone.then_some(())
                })
                .await;
            });
        });
        if deleting.join().is_err() {
            println!("namespace {} could not be deleted", self.namespace);
        }
    }
}

pub(crate) fn definitions(client: &Client) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "customresourcedefinitions");
    Api::all_with(client.clone(), &resource)
}

/// Returns the value of a controller's metric with these labels.
pub(crate) async fn metric(controller: &Controller, beginning: &str) -> Option<f64> {
    let (_, metrics) = controller.admin_get("/metrics")?;
    let lines: BTreeMap<&str, &str> = metrics
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .collect();
    lines.get(beginning)?.parse().ok()
}
