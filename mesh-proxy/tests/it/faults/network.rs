//! Connections and packets that are lost.

use std::time::Duration;

use mesh_core::policy::outbound::OutboundProtocol;
use mesh_core::resilience::{Backoff, FailureAccrual};
use mesh_test_support::campaign::{Choices, measured};
use mesh_test_support::command::are_installed;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Scene;
use crate::harness::{HttpApp, eventually, policies, sample};
use crate::load::{PORT, SERVICE, assert_none_failed, mesh, nginx};

const UNREACHABLE: [&str; 2] = ["mesh_proxy_control_unreachable", "client=\"destination\""];

/// Packets between proxy and control plane are dropped in both directions, without a reset.
#[tokio::test]
async fn black_hole_to_control_plane_is_noticed_and_loses_no_request() {
    let Some(scene) = Scene::new(2).await else {
        return;
    };
    let [first, second] = &scene.servers[..] else {
        panic!("two servers");
    };
    let client = &scene.client;
    let load = "h2load --h1 -n 600 -c 4 --rps 50 http://10.96.0.1/";
    let few = "h2load --h1 -n 40 -c 4 http://10.96.0.1/";
    assert_none_failed(&client.run(load).await, 600);
    client.drop_packets(&["tcp dport 8090", "tcp sport 8090"]);
    assert_none_failed(&client.run(load).await, 600);
    // Only a service in use is followed, so requests go on: after 5 s without one there would be no
    // call to the control plane that could fail.
    eventually("the black hole is noticed", async || {
        assert_none_failed(&client.run(few).await, 40);
        client.metric(&UNREACHABLE).await == 1.0
    })
    .await;
    // Changes during it are noticed afterwards.
    let endpoints = vec![policies::meshed(second, PORT)];
    let authority = policies::authority("web", SERVICE.1);
    scene.mesh.control.endpoints(&authority, endpoints);
    assert_none_failed(&client.run(load).await, 600);
    client.mend();
    eventually("the client's proxy follows discovery again", async || {
        let before = scene.sent_to(first).await;
        assert_none_failed(&client.run(few).await, 40);
        scene.sent_to(first).await == before
    })
    .await;
    assert_eq!(client.metric(&UNREACHABLE).await, 0.0);
}

#[tokio::test]
async fn lost_packets_and_a_partition_fail_no_request() {
    let Some(scene) = Scene::new(1).await else {
        return;
    };
    let client = &scene.client;
    let server = &scene.servers[0];
    for (percent, requests) in [(5, 400), (20, 100)] {
        let lost = format!("iifname eth0 numgen random mod 100 < {percent}");
        for pod in [client, server] {
            pod.drop_packets(&[&lost]);
        }
        let load = format!("h2load --h1 -n {requests} -c 4 http://10.96.0.1/");
        assert_none_failed(&client.run(&load).await, requests);
        for pod in [client, server] {
            pod.mend();
        }
    }
    // Requests that are sent into a partition are answered once it is over.
    server.drop_packets(&["iifname eth0"]);
    let sent = scene.sent_to(server).await;
    let running = client.launch("h2load --h1 -n 50 -c 4 http://10.96.0.1/");
    eventually("requests are on their way", async || {
        let metrics = client.metrics().await;
        let open = [
            "tcp_open_connections",
            "direction=\"outbound\"",
            "peer=\"src\"",
        ];
        sample(&metrics, &open).is_some_and(|open| open >= 4.0)
    })
    .await;
    // None is answered: each of the four clients waits for its first.
    assert!(scene.sent_to(server).await <= sent + 4.0);
    server.mend();
    assert_none_failed(&running.finish().1, 50);
}

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

/// Among six endpoints, one drops every packet, one takes two seconds, and one answers 503.
#[tokio::test]
async fn three_bad_endpoints_of_six_fail_less_than_a_thousandth() {
    const REQUESTS: u64 = 20_000;
    let Some(mesh) = mesh() else { return };
    let client = mesh.pod("client").meshed().await;
    let mut pods = Vec::new();
    for number in 0..6 {
        pods.push(mesh.pod(&format!("server{number}")).meshed().await);
    }
    let mut choices = Choices::new();
    // The first three after this are bad.
    for at in 0..3 {
        let other = at + choices.below(pods.len() - at);
        pods.swap(at, other);
    }
    let (bad, good) = pods.split_at(3);
    let mut servers = Vec::new();
    for pod in good {
        servers.push(nginx(pod).await);
    }
    let slow = |mut tcp: TcpStream| async move {
        let mut request = [0; 4096];
        while tcp.read(&mut request).await.is_ok_and(|read| read > 0) {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let _ = tcp
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                .await;
        }
    };
    bad[0].listen(PORT, slow).await;
    let refusal = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
    let _refusing = HttpApp::start(&bad[1], PORT, refusal).await;
    bad[2].drop_packets(&["iifname eth0"]);

    let mut policy = policies::service("web", SERVICE.1);
    let accrual = Some(FailureAccrual::ConsecutiveFailures {
        max_failures: 7,
        backoff: Backoff {
            min: Duration::from_secs(1),
            max: Duration::from_secs(60),
            jitter: 0.5,
        },
    });
    if let OutboundProtocol::Detect { http1, http2, .. } = &mut policy.protocol {
        (http1.failure_accrual, http2.failure_accrual) = (accrual, accrual);
    }
    mesh.control.outbound(SERVICE, policy);
    let endpoints = pods.iter().map(|pod| policies::meshed(pod, PORT)).collect();
    let authority = policies::authority("web", SERVICE.1);
    mesh.control.endpoints(&authority, endpoints);

    let load = format!("h2load --h1 -n {REQUESTS} -c 16 http://10.96.0.1/");
    let report = client.run(&load).await;
    let (succeeded, failed) = counted(&report);
    measured(format!("{succeeded} succeeded, {failed} failed"));
    assert_eq!(succeeded + failed, REQUESTS, "{report}");
    assert!(failed * 1000 <= REQUESTS, "{report}");
    // All of them were tried.
    let identity = bad[1].identity();
    assert!(client.metric(&["request_total", &identity]).await >= 7.0);
}

/// Returns how many requests succeeded with a 2xx, and how many did not.
fn counted(report: &str) -> (u64, u64) {
    let of = |line: &str, what: &str| -> u64 {
        let line = report.lines().find(|found| found.starts_with(line));
        let mut parts = line.unwrap_or_default().split([',', ':']);
        let number = parts.find_map(|part| part.trim().strip_suffix(what));
        let number = number.and_then(|number| number.trim().parse().ok());
        number.unwrap_or_else(|| panic!("no {what:?} in {report}"))
    };
    let succeeded = of("status codes:", " 2xx");
    (succeeded, of("requests:", " total") - succeeded)
}
