//! The source with an API server that does not serve all kinds.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;

use http::{Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Bytes;
use kube::client::Body;
use mesh_runtime::metrics::Registry;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

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
            _ if query.contains("watch=") => {
                self.changed.notified().await;
                return Response::new(Full::default());
            }
            ["", "apis", GROUP, _, "servers"] => list(vec![server()]),
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

fn not_found() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new("404 page not found".into()));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

/// Returns the changes of the next batch, `None` if there is none for ten minutes.
async fn next(batches: &mut mpsc::Receiver<source::Received>) -> Option<Vec<String>> {
    let received = tokio::time::timeout(Duration::from_secs(600), batches.recv());
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
