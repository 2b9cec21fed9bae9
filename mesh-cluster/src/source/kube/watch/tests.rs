//! The source with an API server that does not serve all kinds.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::{Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Bytes;
use kube::client::Body;
use mesh_runtime::metrics::Registry;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::*;
use crate::source;
use crate::source::kube::{KubeSource, kinds};

const GROUP: &str = "policy.linkerd.io";

/// The kinds without which the policy controller does not respond, with their versions.
const REQUIRED: [(&str, &str); 5] = [
    ("servers", "v1beta3"),
    ("serverauthorizations", "v1beta1"),
    ("authorizationpolicies", "v1alpha1"),
    ("meshtlsauthentications", "v1alpha1"),
    ("networkauthentications", "v1alpha1"),
];

/// An API server with the built-in kinds, some kinds of `policy.linkerd.io`, and one Server.
#[derive(Clone, Default)]
struct PartialApi {
    served: Arc<Mutex<BTreeSet<&'static str>>>,
    /// Ends the watches, as an API server does when it stops serving a kind.
    changed: Arc<Notify>,
    /// What the watch of Servers sends before it ends.
    events: Arc<Mutex<Vec<String>>>,
    /// The Server, until it is deleted.
    deleted: Arc<AtomicBool>,
    definition: Arc<Mutex<Definition>>,
    /// The requests for the definition of Servers.
    asked: Arc<AtomicUsize>,
}

/// The state of the definition of Servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Definition {
    #[default]
    Established,
    Deleted,
    Gone,
    Forbidden,
    /// The API server fails.
    Unknown,
}

impl PartialApi {
    fn serving(plurals: impl IntoIterator<Item = &'static str>) -> Self {
        let api = Self::default();
        api.serve_kinds(plurals);
        api
    }

    fn serve_kinds(&self, plurals: impl IntoIterator<Item = &'static str>) {
        *self.served.lock() = plurals.into_iter().collect();
        self.changed.notify_waiters();
    }

    /// Deletes the Server, and sends `events` on its watch.
    fn delete_server(&self, definition: Definition, events: Vec<String>) {
        *self.definition.lock() = definition;
        self.deleted.store(true, Ordering::Relaxed);
        *self.events.lock() = events;
        self.changed.notify_waiters();
    }

    /// The definition of Servers, when it is asked for by name.
    fn definition(&self) -> Response<Full<Bytes>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut definition = json!({
            "apiVersion": "meta.k8s.io/v1",
            "kind": "PartialObjectMetadata",
            "metadata": { "name": format!("servers.{GROUP}"), "resourceVersion": "1" },
        });
        let items = match *self.definition.lock() {
            Definition::Established => vec![definition],
            Definition::Deleted => {
                definition["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                vec![definition]
            }
            Definition::Gone => Vec::new(),
            Definition::Forbidden => return failed(StatusCode::FORBIDDEN),
            Definition::Unknown => return failed(StatusCode::INTERNAL_SERVER_ERROR),
        };
        Response::new(Full::new(list(items).to_string().into()))
    }

    /// Starts the source of the policy controller, and returns its batches.
    fn start(&self, registry: &Registry) -> mpsc::Receiver<source::Received> {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.respond(request.uri()).await) }
        });
        let client = Client::new(service, "default");
        let (sender, batches) = source::channel();
        tokio::spawn(KubeSource::new(client, kinds::POLICY, registry).run(sender));
        batches
    }

    async fn respond(&self, uri: &Uri) -> Response<Full<Bytes>> {
        let (path, query) = (uri.path(), uri.query().unwrap_or_default());
        let served = self.served.lock().clone();
        let of_version = |version: &str| {
            let all = REQUIRED.iter().filter(|(_, it)| *it == version);
            let names = all.map(|(plural, _)| *plural);
            names.filter(|it| served.contains(it)).collect::<Vec<_>>()
        };
        let body = match path.split('/').collect::<Vec<_>>()[..] {
            ["", "apis"] => {
                let versions = ["v1beta3", "v1beta1", "v1alpha1"]
                    .map(group_version)
                    .to_vec();
                let groups = if served.is_empty() {
                    json!([])
                } else {
                    json!([{ "name": GROUP, "versions": versions }])
                };
                json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
            }
            ["", "apis", GROUP, version] => {
                let resources = of_version(version).into_iter().map(|plural| {
                    json!({ "name": plural, "singularName": "", "namespaced": true, "kind": plural, "verbs": [] })
                });
                json!({
                    "kind": "APIResourceList",
                    "apiVersion": "v1",
                    "groupVersion": format!("{GROUP}/{version}"),
                    "resources": resources.collect::<Vec<_>>(),
                })
            }
            ["", "apis", GROUP, _, plural] if !served.contains(plural) => return not_found(),
            [.., "customresourcedefinitions"] if query.contains("servers.policy") => {
                return self.definition();
            }
            _ if query.contains("watch=") => {
                let is_of_servers = path.ends_with("/servers");
                // They may be there before the watch.
                if !is_of_servers || self.events.lock().is_empty() {
                    self.changed.notified().await;
                }
                let mut events = String::new();
                if is_of_servers {
                    for event in std::mem::take(&mut *self.events.lock()) {
                        writeln!(events, "{event}").unwrap();
                    }
                }
                return Response::new(Full::new(events.into()));
            }
            ["", "apis", GROUP, _, "servers"] if !self.deleted.load(Ordering::Relaxed) => {
                list(vec![server()])
            }
            _ => list(Vec::new()),
        };
        Response::new(Full::new(body.to_string().into()))
    }
}

fn group_version(version: &str) -> Value {
    json!({ "groupVersion": format!("{GROUP}/{version}"), "version": version })
}

fn list(items: Vec<Value>) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "List",
        "metadata": { "resourceVersion": "1" },
        "items": items,
    })
}

fn server() -> Value {
    json!({
        "apiVersion": "policy.linkerd.io/v1beta3",
        "kind": "Server",
        "metadata": { "name": "web", "namespace": "shop", "resourceVersion": "1" },
        "spec": { "podSelector": {}, "port": 80 },
    })
}

/// With its type before the object, like all events of API servers.
fn event(kind: &str, object: &Value) -> String {
    format!(r#"{{"type":"{kind}","object":{object}}}"#)
}

fn deletion(name: &str) -> String {
    let mut object = server();
    object["metadata"]["name"] = name.into();
    event("DELETED", &object)
}

/// The event that makes a watch list everything anew.
fn expired() -> String {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure",
        "code": 410, "reason": "Expired", "message": "too old resource version",
    });
    event("ERROR", &status)
}

fn failed(code: StatusCode) -> Response<Full<Bytes>> {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure",
        "code": code.as_u16(), "reason": "Failure", "message": "no",
    });
    let mut response = Response::new(Full::new(status.to_string().into()));
    *response.status_mut() = code;
    response
}

fn not_found() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new("404 page not found".into()));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

/// Returns the changes of the next batch, `None` if there is none for ten minutes.
async fn next(batches: &mut mpsc::Receiver<source::Received>) -> Option<Vec<String>> {
    let received = timeout(Duration::from_secs(600), batches.recv());
    let received = received.await.ok()?.expect("the source runs");
    let names = received.batch.into_iter().flat_map(|change| match change {
        Change::Replace(objects) => objects.iter().map(|it| it.key().to_string()).collect(),
        Change::Apply(object) => vec![object.key().to_string()],
        Change::Delete(key) => vec![format!("-{key}")],
    });
    Some(names.collect())
}

#[tokio::test(start_paused = true)]
async fn first_batch_waits_for_each_kind_that_restricts_access() {
    let all = REQUIRED.map(|(plural, _)| plural);
    for missing in all {
        let api = PartialApi::serving(all.into_iter().filter(|it| *it != missing));
        let mut batches = api.start(&Registry::default());
        assert_eq!(next(&mut batches).await, None, "without {missing}");
        api.serve_kinds(all);
        let first = next(&mut batches).await;
        assert_eq!(first, Some(vec!["Server shop/web".to_owned()]), "{missing}");
    }
    let mut batches = PartialApi::default().start(&Registry::default());
    assert_eq!(next(&mut batches).await, None, "without the group");
}

#[tokio::test(start_paused = true)]
async fn objects_of_a_kind_that_disappears_are_kept_until_it_is_served_again() {
    let all = REQUIRED.map(|(plural, _)| plural);
    let api = PartialApi::serving(all);
    let registry = Registry::default();
    let mut batches = api.start(&registry);
    assert!(next(&mut batches).await.is_some());

    api.serve_kinds([]);
    assert_eq!(next(&mut batches).await, None, "no deletion");
    let labels = "{group=\"policy.linkerd.io\",kind=\"Server\"}";
    let metrics = String::from_utf8(registry.encode()).unwrap();
    for line in ["source_kind_served{0} 0", "source_kind_objects{0} 1"] {
        let line = line.replace("{0}", labels);
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }

    api.serve_kinds(all);
    assert_eq!(next(&mut batches).await, None, "the same objects");
}

#[tokio::test(start_paused = true)]
async fn deletions_with_the_definition_have_no_effect() {
    let all = REQUIRED.map(|(plural, _)| plural);
    // As events, and as objects that a new list lacks.
    for events in [vec![deletion("web")], vec![expired()]] {
        for definition in [Definition::Deleted, Definition::Gone] {
            let api = PartialApi::serving(all);
            let mut batches = api.start(&Registry::default());
            assert!(next(&mut batches).await.is_some());
            api.delete_server(definition, events.clone());
            assert_eq!(next(&mut batches).await, None, "{definition:?} {events:?}");
            assert!(api.events.lock().is_empty() && api.asked.load(Ordering::Relaxed) > 0);
            // Every later list lacks it.
            api.delete_server(Definition::Gone, vec![expired()]);
            assert_eq!(next(&mut batches).await, None, "{definition:?} {events:?}");
            api.serve_kinds([]);
            assert_eq!(next(&mut batches).await, None, "{definition:?} {events:?}");
            // A new definition, and no Server.
            *api.definition.lock() = Definition::Established;
            api.serve_kinds(all);
            let deleted = next(&mut batches).await;
            assert_eq!(deleted, Some(vec!["-Server shop/web".to_owned()]));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn other_deletions_take_effect_at_once_with_one_request() {
    let all = REQUIRED.map(|(plural, _)| plural);
    // Without permission to read definitions too.
    for definition in [Definition::Established, Definition::Forbidden] {
        let api = PartialApi::serving(all);
        let mut batches = api.start(&Registry::default());
        assert!(next(&mut batches).await.is_some());
        let begin = Instant::now();
        let mut events: Vec<_> = (0..100).map(|i| deletion(&format!("other-{i}"))).collect();
        events.push(deletion("web"));
        api.delete_server(definition, events);
        let deleted = next(&mut batches).await;
        assert_eq!(deleted, Some(vec!["-Server shop/web".to_owned()]));
        assert!(
            begin.elapsed() < Duration::from_secs(1),
            "{:?}",
            begin.elapsed()
        );
        assert_eq!(api.asked.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn deletion_waits_until_the_state_of_the_definition_is_known() {
    let api = PartialApi::serving(REQUIRED.map(|(plural, _)| plural));
    let mut batches = api.start(&Registry::default());
    assert!(next(&mut batches).await.is_some());
    api.delete_server(Definition::Unknown, vec![deletion("web")]);
    assert_eq!(next(&mut batches).await, None);
    *api.definition.lock() = Definition::Established;
    let deleted = next(&mut batches).await;
    assert_eq!(deleted, Some(vec!["-Server shop/web".to_owned()]));
}
