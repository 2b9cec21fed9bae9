//! What one Job sees while another makes everything.

use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering},
    time::SystemTime,
};

use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::json;

use super::{
    super::{certificates, plan},
    *,
};

/// All three as another Job leaves them, by their names.
fn made(now: SystemTime) -> BTreeMap<&'static str, String> {
    let anchor = certificates::anchor(&Settings::usual(), now).unwrap();
    let issuer = certificates::issuer(&Settings::usual(), &anchor, now).unwrap();
    let objects = Objects::new(api_server(0, BTreeMap::new()), Settings::usual());
    let anchor_secret = objects.secret(ANCHOR, TLS, &anchor);
    let roots = json!({ "metadata": { "name": ROOTS }, "data": { BUNDLE: anchor.certificate } });
    [
        (ANCHOR, serde_json::to_string(&anchor_secret).unwrap()),
        (
            ISSUER,
            serde_json::to_string(&objects.issuer(&issuer)).unwrap(),
        ),
        (ROOTS, roots.to_string()),
    ]
    .into()
}

/// Has none of the objects for so many requests, and then all.
fn api_server(nothing: usize, objects: BTreeMap<&'static str, String>) -> Client {
    let asked = AtomicUsize::new(0);
    let answer = move |request: &Request<Body>| {
        let name = request.uri().path().rsplit('/').next().unwrap_or_default();
        let is_there = asked.fetch_add(1, Ordering::Relaxed) >= nothing;
        match objects.get(name).filter(|_| is_there) {
            Some(object) => (StatusCode::OK, object.clone()),
            None => {
                let status = json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 });
                (StatusCode::NOT_FOUND, status.to_string())
            }
        }
    };
    let service = tower::service_fn(move |request: Request<Body>| {
        let (status, body) = answer(&request);
        let mut response = Response::new(Body::from(body.into_bytes()));
        *response.status_mut() = status;
        async move { Ok::<_, Infallible>(response) }
    });
    Client::new(service, "default")
}

#[tokio::test]
async fn a_job_that_looks_while_another_makes_them_has_something_to_do() {
    let now = SystemTime::now();
    let made = made(now);
    for nothing in 0..=made.len() {
        let objects = Objects::new(api_server(nothing, made.clone()), Settings::usual());
        let state = objects.read().await.unwrap();
        if let Err(error) = plan::next(&state, &Settings::usual().names, now) {
            panic!("everything came after {nothing} requests: {error}");
        }
    }
}
