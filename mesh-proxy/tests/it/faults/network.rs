//! Connections that are reset.

use mesh_test_support::campaign::{Choices, measured};
use mesh_test_support::command::are_installed;

use super::Scene;
use crate::harness::eventually;
use crate::load::assert_none_failed;

/// Every connection of all proxies is reset, again and again.
#[tokio::test]
async fn reset_storm_leaves_nothing_and_ends_with_it() {
    const RESETS: usize = 12;
    let Some(scene) = Scene::new(2).await else {
        return;
    };
    if !are_installed(&["ss"]) {
        return;
    }
    let mut choices = Choices::new();
    let client = &scene.client;
    let load = "h2load --h1 -n 1000 -c 8 http://10.96.0.1/";
    assert_none_failed(&client.run(load).await, 1000);
    let descriptors =
        || -> Vec<usize> { scene.pods().map(super::resources::descriptors).collect() };
    let before = descriptors();
    let storm = client.launch("wrk -t1 -c8 -d600s --timeout 30s http://10.96.0.1/");
    let sent = async || {
        let [first, second] = &scene.servers[..] else {
            panic!("two servers");
        };
        scene.sent_to(first).await + scene.sent_to(second).await
    };
    let pods: Vec<_> = scene.pods().collect();
    let mut reset = 0;
    for _ in 0..RESETS {
        let more = u32::try_from(20 + choices.below(100)).expect("a small number");
        let wanted = sent().await + f64::from(more);
        eventually("requests between two resets", async || {
            sent().await >= wanted
        })
        .await;
        reset += choices.of_these(&pods).reset_connections();
    }
    drop(storm);
    assert!(reset >= RESETS, "only {reset} connections were reset");
    // The first request after the storm succeeds, and all others.
    assert_none_failed(&client.run(load).await, 1000);
    eventually("no descriptor is left", async || {
        let now = descriptors();
        let is_back = now.iter().zip(&before).all(|(now, before)| now <= before);
        is_back.then_some(()).ok_or(format!("{before:?} {now:?}"))
    })
    .await;
    measured(format!(
        "{reset} connections reset in {RESETS} turns before"
    ));
}
