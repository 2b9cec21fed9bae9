//! Reviews of a pod by the injector.

use std::time::Duration;

use mesh_cluster::webhook::Reviewer;
use mesh_cluster::webhook::review::{ReviewMemory, parse};
use mesh_control_plane::simulation::Served;
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::process::Controlled;
use crate::record::Reviewed;

/// The interval of reviews during a run.
const INTERVAL: Duration = Duration::from_secs(7);

/// An API server waits this long for a webhook.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reviews a pod that the ReplicaSet `web-rs` creates in the namespace `shop`. The name of an event
/// about it would have the time of day: there is none.
pub async fn review(reviewer: &dyn Reviewer) -> Reviewed {
    let body = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "review", "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "namespace": "shop", "operation": "CREATE", "dryRun": true,
            "object": {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "generateName": "web-",
                    "ownerReferences": [{
                        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-rs", "uid": "u",
                        "controller": true,
                    }],
                },
                "spec": { "containers": [{ "name": "web", "image": "web" }] },
            },
        },
    });
    let parsed = parse(body.to_string().into(), ReviewMemory::alone());
    let (review, _header) = parsed.map_err(|error| error.to_string())?;
    reviewer.review(review).await
}

/// Reviews pods until the world ends.
pub async fn keep_reviewing(injector: Controlled) {
    loop {
        sleep(INTERVAL).await;
        if let Some(serving) = injector.serving()
            && let Served::Webhook(reviewer) = serving.served
        {
            tokio::select! {
                biased;
                () = serving.down.cancelled() => {}
                // The end of the world compares decisions.
                _reviewed = timeout(TIMEOUT, review(&*reviewer)) => {}
            }
        }
    }
}
