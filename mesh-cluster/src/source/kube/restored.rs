//! Detects an API server whose state is older than before, as after etcd was restored from a
//! backup.
//!
//! A watch resumes at the last resource version that it has seen. An API server with an older state
//! accepts that, and sends no event until its own version is higher. Changes until then would be
//! missed without an error. So the current version is polled, and if it is lower than before, or
//! than one that a watch has seen, all kinds are listed anew. Versions of one API server are
//! decimal numbers that only increase
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>).

use std::time::Duration;

use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::{Api, Client};
use tokio::time::sleep;

use super::kinds::WatchedKind;
use super::notices;
use super::seen::{self, Seen, SeenVersions};
use crate::api_server::{Backoff, explain};

/// How long a restored state may stay unnoticed while the API server is reachable. After an outage,
/// the next check is due after at most the [delay](Backoff::for_api_server) of retries.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Notifies `restored` each time that the state of the API server is older than before. `watched`
/// is listed, one object at most, to learn its version. `seen` has the versions of the watches,
/// which may be higher than the last one here.
pub(super) async fn watch_version(
    client: Client,
    watched: &'static WatchedKind,
    seen: SeenVersions,
    restored: notices::Sender,
) {
    let api = watched.api();
    let resource = api.resource(watched.kind, api.versions[0]);
    let mut backoff = Backoff::for_api_server();
    let mut last = None;
    loop {
        // Read before the request, so that the response is at least as recent.
        let highest = seen.highest();
        match is_older(&client, &resource, highest, &mut last).await {
            Ok(is_older) => {
                backoff.reset();
                if is_older {
                    tracing::error!(
                        version = last,
                        "The state of the API server is older than before, as after a restored backup; listing all objects anew"
                    );
                    seen.clear();
                    restored.notify();
                }
                sleep(CHECK_INTERVAL).await;
            }
            Err(error) => {
                let error = explain(&error);
                tracing::debug!(error, "Cannot read the version of the API server's state");
                backoff.wait().await;
            }
        }
    }
}

/// Returns whether the state is older than at the `last` check, or than the `highest` version that
/// a watch has seen.
async fn is_older(
    client: &Client,
    resource: &ApiResource,
    highest: Option<Seen>,
    last: &mut Option<u64>,
) -> Result<bool, kube::Error> {
    let now = version(client, resource).await?;
    if has_decreased(last, now) {
        return Ok(true);
    }
    let higher = now.zip(highest).filter(|(now, seen)| *now < seen.version);
    let Some((_now, seen)) = higher else {
        return Ok(false);
    };
    // An API server may have another etcd for this kind, with higher versions.
    let own = version(client, &seen.resource).await?;
    Ok(own.is_some_and(|own| own < seen.version))
}

/// Returns the most recent version of a resource; `None` if it is not a number.
async fn version(client: &Client, resource: &ApiResource) -> Result<Option<u64>, kube::Error> {
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client.clone(), resource);
    // Without a resource version in the request, the response has the most recent one.
    let list = api.list_metadata(&ListParams::default().limit(1)).await?;
    Ok(seen::number(list.metadata.resource_version.as_deref()))
}

/// Replaces `last` by `version`, and returns whether that is lower. A version that is not a number
/// is not compared.
fn has_decreased(last: &mut Option<u64>, version: Option<u64>) -> bool {
    let before = std::mem::replace(last, version);
    before
        .zip(version)
        .is_some_and(|(before, now)| now < before)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Request, Response, Uri};
    use http_body_util::Full;
    use hyper::body::Bytes;
    use kube::client::Body;
    use mesh_runtime::metrics::Registry;
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tokio::sync::mpsc;
    use tokio::time::{Instant, timeout};

    use super::super::KubeSource;
    use super::super::kinds::{self, WatchedKind};
    use super::*;
    use crate::source::{Change, Received};
    use mesh_objects::model::Kind;

    /// An API server that serves Services. Watches get no events, as from an API server with an
    /// older state.
    #[derive(Clone)]
    struct RestoredApi(Arc<Mutex<(u64, Vec<&'static str>)>>);

    impl RestoredApi {
        fn new(version: u64, services: &[&'static str]) -> Self {
            Self(Arc::new(Mutex::new((version, services.to_vec()))))
        }

        fn set(&self, version: u64, services: &[&'static str]) {
            *self.0.lock() = (version, services.to_vec());
        }

        fn client(&self) -> Client {
            let api = self.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let api = api.clone();
                async move { Ok::<_, std::convert::Infallible>(api.serve(request.uri()).await) }
            });
            Client::new(service, "default")
        }

        async fn serve(&self, uri: &Uri) -> Response<Full<Bytes>> {
            let query = uri.query().unwrap_or_default();
            if query.contains("watch=") {
                return std::future::pending().await;
            }
            let (version, services) = self.0.lock().clone();
            let items: Vec<Value> = match uri.path() {
                "/api/v1/services" => services.iter().map(|name| service(name)).collect(),
                _ => Vec::new(),
            };
            let list = json!({
                "apiVersion": "v1", "kind": "ServiceList",
                "metadata": { "resourceVersion": version.to_string() },
                "items": items,
            });
            Response::new(Full::new(list.to_string().into()))
        }
    }

    fn service(name: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": name, "namespace": "shop", "resourceVersion": "1", "uid": name },
            "spec": { "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }] },
        })
    }

    /// Only Services.
    fn services() -> &'static [WatchedKind] {
        let all = kinds::POLICY;
        let at = all.iter().position(|watched| watched.kind == Kind::Service);
        std::slice::from_ref(&all[at.expect("the policy controller watches Services")])
    }

    /// Returns the Services that the next batch applies and deletes.
    async fn next(batches: &mut mpsc::Receiver<Received>) -> (Vec<String>, Vec<String>) {
        let (mut applied, mut deleted) = (Vec::new(), Vec::new());
        let received = timeout(CHECK_INTERVAL * 4, batches.recv()).await;
        let received = received.expect("a batch in time").expect("the source runs");
        for change in received.batch {
            match change {
                Change::Replace(objects) => {
                    applied.extend(objects.iter().map(|object| object.key().name.to_string()));
                }
                Change::Apply(object) => applied.push(object.key().name.to_string()),
                Change::Delete(key) => deleted.push(key.name.to_string()),
            }
        }
        (applied, deleted)
    }

    #[tokio::test(start_paused = true)]
    async fn older_state_is_listed_anew_within_the_interval() {
        let api = RestoredApi::new(1000, &["cart", "web"]);
        let registry = Registry::default();
        let source = KubeSource::new(api.client(), services(), &registry);
        let (sender, mut batches) = mpsc::channel(1);
        tokio::spawn(source.run(sender));
        let (applied, _) = next(&mut batches).await;
        assert_eq!(applied, ["shop/cart", "shop/web"]);

        let restored = Instant::now();
        api.set(500, &["old", "web"]);
        let (applied, deleted) = next(&mut batches).await;
        assert_eq!(
            (applied, deleted),
            (vec!["shop/old".into()], vec!["shop/cart".into()])
        );
        assert!(restored.elapsed() <= CHECK_INTERVAL + Duration::from_secs(2));

        // The lower version is the one that counts from now on.
        api.set(600, &["new"]);
        let unnoticed = timeout(CHECK_INTERVAL * 4, batches.recv());
        assert!(
            unnoticed.await.is_err(),
            "an increase is not a restored state"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn state_older_than_an_event_is_noticed_although_it_is_newer_than_the_last_check() {
        let api = RestoredApi::new(1000, &["web"]);
        let resource = ApiResource::erase::<mesh_k8s::kinds::Service>(&());
        let seen = SeenVersions::default();
        let meta = |version: &str| mesh_k8s::kinds::ObjectMeta {
            resource_version: Some(version.to_owned()),
            ..Default::default()
        };
        let mut last = Some(500);
        let mut check =
            async || is_older(&api.client(), &resource, seen.highest(), &mut last).await;
        seen.record(Kind::Service, &resource, &meta("1000"));
        assert!(!check().await.unwrap());
        seen.record(Kind::Service, &resource, &meta("1200"));
        seen.record(Kind::Service, &resource, &meta("1100"));
        assert!(check().await.unwrap());
        seen.clear();
        assert!(!check().await.unwrap());
    }

    #[test]
    fn only_a_lower_number_is_an_older_state() {
        let mut last = None;
        let mut next = |version| has_decreased(&mut last, version);
        assert!(!next(Some(1000)));
        assert!(!next(Some(1000)));
        assert!(next(Some(999)));
        assert!(!next(Some(1000)));
        assert!(!next(None));
        assert!(!next(Some(1)));
    }
}
