//! The writer and an API server in memory, on a paused clock.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use mesh_cluster::api_server::{LeaseOwner, LeaseSettings, LeaseTask};
use mesh_cluster::source::Change;
use mesh_objects::convert::{self, Json};
use mesh_objects::model::{Kind, ReportedKind};
use mesh_runtime::drain::{self, Drain, Outcome as DrainOutcome};
use mesh_runtime::metrics::Registry;
use mesh_test_support::kube_api::{Fault, ScriptedApi};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::status::StatusObjects;
use crate::writer::Writer;

const ROUTES: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/httproutes/";
const SERVICE: &str = "/api/v1/namespaces/shop/services/web";

/// A cluster of routes, and the replicas that write their status.
struct Cluster {
    api: ScriptedApi,
    routes: Vec<String>,
}

/// A process of the policy controller.
struct Replica {
    registry: Registry,
    drain: Drain,
    tasks: Vec<JoinHandle<()>>,
}

impl Cluster {
    fn new(routes: usize) -> Self {
        let cluster = Self {
            api: ScriptedApi::default(),
            routes: (0..routes)
                .map(|number| format!("route-{number}"))
                .collect(),
        };
        for route in &cluster.routes {
            cluster.put_route(route, &json!({}));
        }
        cluster.put_service();
        cluster.api.put(
            "/apis/apps/v1/namespaces/linkerd/deployments/linkerd-destination",
            json!({ "metadata": { "uid": "u" } }),
        );
        cluster
    }

    fn put_route(&self, name: &str, status: &Value) {
        self.api.put(
            &format!("{ROUTES}{name}"),
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "HTTPRoute",
                "metadata": { "name": name, "namespace": "shop", "generation": 1 },
                "spec": {
                    "parentRefs": [{ "group": "", "kind": "Service", "name": "web", "port": 80 }],
                },
                "status": status,
            }),
        );
    }

    fn put_service(&self) {
        self.api.put(
            SERVICE,
            json!({
                "metadata": { "name": "web", "namespace": "shop" },
                "spec": { "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }] },
            }),
        );
    }

    /// Returns the objects as a watch reports them.
    fn read(api: &ScriptedApi, routes: &[String]) -> Vec<Change> {
        let service = api.get(SERVICE).map(|object| (Kind::Service, object));
        let routes = routes.iter().filter_map(|route| {
            let object = api.get(&format!("{ROUTES}{route}"))?;
            Some((Kind::Reported(ReportedKind::GatewayHttpRoute), object))
        });
        let objects = routes.chain(service).map(|(kind, mut object)| {
            if kind == Kind::Service {
                object["metadata"]["resourceVersion"] = Value::Null;
            }
            convert::object(kind, &Json(object)).unwrap_or_else(|error| panic!("{error:?}"))
        });
        vec![Change::Replace(objects.collect())]
    }

    fn start(&self, name: &'static str) -> Replica {
        let registry = Registry::new();
        let client = Client::new(self.api.service(name), "default");
        let settings = LeaseSettings {
            namespace: "linkerd".to_owned(),
            name: "policy-controller-write".to_owned(),
            owner: Some(LeaseOwner {
                component: "destination",
                deployment: "linkerd-destination".to_owned(),
            }),
            claimant: name.to_owned(),
            field_manager: "policy-controller",
        };
        let (lease, leadership) = LeaseTask::new(&client, settings, &registry);
        let (api, routes) = (self.api.clone(), self.routes.clone());
        let (objects, received) = watch::channel(Arc::default());
        let timeout = Duration::from_secs(5);
        let writer = Writer::new(client, received, leadership, timeout, &registry);
        let (drain, watch) = drain::channel();
        let observe = async move {
            loop {
                objects.send_if_modified(|objects: &mut Arc<StatusObjects>| {
                    let mut current = StatusObjects::default();
                    current.apply(&Self::read(&api, &routes));
                    let changed = current.reported != objects.reported
                        || current.services != objects.services;
                    if changed {
                        *objects = Arc::new(current);
                    }
                    changed
                });
                sleep(Duration::from_millis(100)).await;
            }
        };
        Replica {
            registry,
            tasks: vec![
                tokio::spawn(lease.run(watch.clone())),
                tokio::spawn(writer.run(watch)),
                tokio::spawn(observe),
            ],
            drain,
        }
    }

    /// Returns the condition `Accepted` of a route.
    fn accepted(&self, route: &str) -> Value {
        let object = self.api.get(&format!("{ROUTES}{route}")).unwrap();
        object["status"]["parents"][0]["conditions"][0].clone()
    }

    fn writes(&self) -> usize {
        self.api.writes("/status").len()
    }
}

impl Replica {
    fn metric(&self, name: &str) -> u64 {
        let text = String::from_utf8(self.registry.encode()).unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")));
        let value = line.and_then(|line| line.rsplit_once(' '));
        value
            .unwrap_or_else(|| panic!("no {name}"))
            .1
            .parse()
            .unwrap()
    }

    fn kill(&self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }

    async fn stop(self) {
        let drained = self.drain.drain(Duration::from_secs(20)).await;
        assert_eq!(drained, DrainOutcome::Complete);
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn pass(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn statuses_are_written_once_and_follow_changes() {
    let cluster = Cluster::new(3);
    let replica = cluster.start("a");
    pass(60).await;
    assert_eq!(cluster.writes(), 3);
    let write = &cluster.api.writes("/status")[0];
    assert_eq!(write.query, "&fieldManager=linkerd.io%2Fpolicy-controller");
    assert_eq!(write.body["apiVersion"], "gateway.networking.k8s.io/v1");
    assert_eq!(cluster.accepted("route-2")["status"], "True");

    cluster.api.delete(SERVICE);
    pass(2).await;
    assert_eq!(cluster.accepted("route-2")["reason"], "NoMatchingParent");
    assert_eq!(cluster.writes(), 6);
    assert_eq!(replica.metric("resource_status_patches_total"), 6);
    assert_eq!(replica.metric("resource_status_patch_enqueues_total"), 6);
    assert_eq!(replica.metric("resource_status_patch_dequeues_total"), 6);
    assert_eq!(
        replica.metric("resource_status_patch_duration_seconds_count"),
        6
    );
}

#[tokio::test(start_paused = true)]
async fn status_that_another_client_removes_is_written_again() {
    let cluster = Cluster::new(1);
    let _replica = cluster.start("a");
    pass(5).await;
    cluster.put_route("route-0", &json!({ "parents": [] }));
    pass(5).await;
    assert_eq!(cluster.writes(), 2);
}

#[tokio::test(start_paused = true)]
async fn other_replica_writes_nothing_and_continues_without_changes() {
    let cluster = Cluster::new(20);
    let a = cluster.start("a");
    pass(5).await;
    let b = cluster.start("b");
    pass(60).await;
    let before: Vec<_> = cluster
        .routes
        .iter()
        .map(|route| cluster.accepted(route))
        .collect();
    a.kill();
    pass(120).await;
    a.stop().await;
    let after: Vec<_> = cluster
        .routes
        .iter()
        .map(|route| cluster.accepted(route))
        .collect();
    assert_eq!(before, after);
    assert_eq!(cluster.writes(), 20);
    cluster.api.delete(SERVICE);
    pass(5).await;
    let writes = cluster.api.writes("/status");
    assert_eq!(writes.len(), 40);
    assert!(writes[20..].iter().all(|write| write.client == "b"));
    assert_eq!(b.metric("resource_status_patches_total"), 20);
}

#[tokio::test(start_paused = true)]
async fn restart_in_the_middle_completes_the_rest() {
    let cluster = Cluster::new(20);
    cluster
        .api
        .set_fault("a", Some(Fault::Slow(Duration::from_millis(500))));
    let a = cluster.start("a");
    pass(5).await;
    let written = cluster.writes();
    assert!((1..20).contains(&written), "{written}");
    a.stop().await;
    let b = cluster.start("b");
    pass(20).await;
    // Each route was written once.
    assert_eq!(cluster.writes(), 20);
    b.stop().await;
    let writers: Vec<_> = cluster
        .api
        .writes("/status")
        .iter()
        .map(|write| write.client)
        .collect();
    assert!(writers.is_sorted() && writers.contains(&"b"), "{writers:?}");
}

#[tokio::test(start_paused = true)]
async fn no_patch_is_sent_that_could_outlast_the_lease() {
    let cluster = Cluster::new(5);
    let a = cluster.start("a");
    pass(5).await;
    let b = cluster.start("b");
    pass(5).await;
    cluster.api.delete(SERVICE);
    // Renewals and patches of the holder hang from here on.
    cluster.api.set_fault("a", Some(Fault::Lost));
    pass(60).await;
    assert_eq!(cluster.accepted("route-4")["reason"], "NoMatchingParent");
    let writes = cluster.api.writes("/status");
    assert!(
        writes[5..].iter().all(|write| write.client == "b"),
        "{writes:?}"
    );
    assert!(a.metric("resource_status_patch_timeouts_total") >= 1);
    cluster.api.set_fault("a", None);
    pass(60).await;
    assert_eq!(cluster.writes(), 10);
    assert_eq!(a.metric("resource_status_patches_total"), 5);
    assert_eq!(b.metric("resource_status_patches_total"), 5);
}

#[tokio::test(start_paused = true)]
async fn overloaded_api_server_is_asked_less_often_and_then_written_to() {
    for (code, error) in [(429, true), (503, true), (500, true)] {
        let cluster = Cluster::new(10);
        let a = cluster.start("a");
        pass(5).await;
        cluster.api.set_fault("a", Some(Fault::Status(code)));
        cluster.api.delete(SERVICE);
        pass(6).await;
        let errors = a.metric("resource_status_patch_api_errors_total");
        assert!((1..=12).contains(&errors) == error, "{code}: {errors}");
        cluster.api.set_fault("a", None);
        pass(60).await;
        assert_eq!(cluster.writes(), 20, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_status_is_sent_less_and_less_often() {
    let cluster = Cluster::new(2);
    // Only patches of statuses are refused, so that the Lease stays.
    cluster.api.refuse_writes_to("route-0/status", 422);
    let a = cluster.start("a");
    pass(600).await;
    assert_eq!(cluster.accepted("route-1")["status"], "True");
    let errors = a.metric("resource_status_patch_api_errors_total");
    assert!((3..=8).contains(&errors), "{errors}");
    // A new version of the object is tried at once.
    cluster.put_route("route-0", &json!({}));
    pass(2).await;
    assert_eq!(
        a.metric("resource_status_patch_api_errors_total"),
        errors + 1
    );
}

#[tokio::test(start_paused = true)]
async fn obsolete_patch_is_computed_again_from_the_new_version() {
    let cluster = Cluster::new(1);
    let foreign = json!({ "controllerName": "example.com/other", "parentRef": { "name": "edge" } });
    cluster
        .api
        .set_fault("a", Some(Fault::Slow(Duration::from_millis(700))));
    let a = cluster.start("a");
    // Another controller writes while the patch is on its way.
    until(|| a.metric("resource_status_patch_dequeues_total") == 1).await;
    cluster.put_route("route-0", &json!({ "parents": [foreign.clone()] }));
    pass(20).await;
    assert_eq!(a.metric("resource_status_patch_api_errors_total"), 1);
    let object = cluster.api.get(&format!("{ROUTES}route-0")).unwrap();
    let parents = object["status"]["parents"].as_array().unwrap();
    assert_eq!(parents.len(), 2);
    assert_eq!(parents[0], foreign);
}

async fn until(condition: impl Fn() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition is never true");
}
