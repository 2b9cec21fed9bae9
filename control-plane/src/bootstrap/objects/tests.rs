//! Reads by one Job while another creates the objects.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use http::Request;
use kube::client::Body;
use mesh_test_support::kube_api;
use serde_json::json;

use super::super::plan;
use super::*;

/// Returns all three objects of another Job by name.
fn made(now: SystemTime) -> BTreeMap<&'static str, String> {
    let authority = Settings::for_tests().authority;
    let anchor = authority.anchor(now).unwrap();
    let issuer = authority.issuer(&anchor, now).unwrap();
    let objects = Objects::new(api_server(0, BTreeMap::new()), Settings::for_tests());
    let anchor_secret = objects.secret(ANCHOR_SECRET, IssuerNames::TLS, &anchor);
    let roots = json!({ "metadata": { "name": TRUST_ROOTS_CONFIG_MAP }, "data": { TRUST_ROOTS_KEY: anchor.certificate } });
    [
        (
            ANCHOR_SECRET,
            serde_json::to_string(&anchor_secret).unwrap(),
        ),
        (
            ISSUER_SECRET,
            serde_json::to_string(&objects.issuer(&issuer)).unwrap(),
        ),
        (TRUST_ROOTS_CONFIG_MAP, roots.to_string()),
    ]
    .into()
}

/// Returns an API server that has none of the objects for the first `nothing` requests, and then
/// all.
fn api_server(nothing: usize, objects: BTreeMap<&'static str, String>) -> Client {
    let requests = AtomicUsize::new(0);
    let service = tower::service_fn(move |request: Request<Body>| {
        let name = request.uri().path().rsplit('/').next().unwrap_or_default();
        let exists = requests.fetch_add(1, Ordering::Relaxed) >= nothing;
        let object = objects.get(name).filter(|_| exists);
        let response = kube_api::found(object.map(|it| serde_json::from_str(it).unwrap()));
        async move { Ok::<_, Infallible>(response) }
    });
    Client::new(service, "default")
}

#[tokio::test]
async fn reads_during_creation_by_another_job_have_valid_next_step() {
    let now = SystemTime::now();
    let made = made(now);
    for nothing in 0..=made.len() {
        let objects = Objects::new(api_server(nothing, made.clone()), Settings::for_tests());
        let state = objects.read().await.unwrap();
        if let Err(error) = plan::next(&state, &Settings::for_tests().names, now) {
            panic!("created after {nothing} requests: {error}");
        }
    }
}
