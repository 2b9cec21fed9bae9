//! Replaces the pods of a linked cluster, one after the other, as rollouts and evictions do: five
//! events of pods and two of EndpointSlices each.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, interval_at, sleep};

use super::super::Front;
use super::super::cluster::{Change, PODS, SLICES};
use super::super::population::slice_of;
use super::pods::{self, Pods};

/// Between two steps of a replacement.
const STEP: Duration = Duration::from_millis(200);

/// Replaces a pod in each interval, the first after `first`, until it is dropped.
pub(super) async fn run(front: Arc<Front>, mut pods: Pods, first: Duration, each: Duration) {
    let mut due = interval_at(Instant::now() + first, each);
    for turn in 0.. {
        due.tick().await;
        replace(&front, &mut pods, turn).await;
    }
}

async fn replace(front: &Front, pods: &mut Pods, turn: u32) {
    let place = pods.place(turn);
    let (old, new) = (pods.current(place), pods.next(place));
    let slice = |endpoints: &[Value]| Change::Set(slice_of(place.service, 0, endpoints));
    let cluster = &front.cluster;
    cluster.change(PODS, Change::Set(pods::pending(&new)));
    sleep(STEP).await;
    cluster.change(PODS, Change::Set(pods::started(&new)));
    sleep(STEP).await;
    cluster.change(PODS, Change::Set(pods::ready(&new)));
    let mut endpoints = pods.endpoints(place.service);
    endpoints.push(new.endpoint(true));
    cluster.change(SLICES, slice(&endpoints));
    sleep(STEP).await;
    cluster.change(PODS, Change::Set(pods::ending(&old)));
    pods.replace(place);
    cluster.change(SLICES, slice(&pods.endpoints(place.service)));
    sleep(STEP).await;
    cluster.change(PODS, Change::Delete(pods::ending(&old)));
}
