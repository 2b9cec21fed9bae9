//! The queue of a balancer as the policy sets it: how many requests wait, and how long.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use mesh_core::policy::outbound::{BackendTarget, RouteBackend};
use mesh_core::resilience::Queue;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::Instant;

use super::answers::{Answers, detect, first, http_route, service};
use super::app::{Client, Speaks};
use super::world::{CLIENT, Proxy, settle, while_time_passes};

const SERVICE: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7)),
    80,
);
const AUTHORITY: &str = "web.shop.svc.cluster.local:80";

/// The client of a Service without endpoints, whose policy has this queue, and whose proxy is
/// configured with this capacity.
async fn client_of(queue: Queue, configured: &str) -> Proxy {
    let (world, answers) = Answers::start().await;
    let mut backend: RouteBackend = service(AUTHORITY);
    if let BackendTarget::Balance { queue: set, .. } = &mut backend.backend.target {
        *set = queue;
    }
    let route = http_route("web", &[], Vec::new(), first(backend));
    answers.policy(SERVICE, detect(vec![route], None));
    answers.endpoints(AUTHORITY, &[]);
    let changes = [
        ("DESTINATION_PROFILE_NETWORKS", Some("")),
        ("OUTBOUND_HTTP_QUEUE_CAPACITY", Some(configured)),
        ("OUTBOUND_HTTP_FAILFAST_TIMEOUT", Some("2s")),
    ];
    world.proxy_with(CLIENT, &changes)
}

/// A request on a new connection: its status, and when the response arrived.
async fn ask(proxy: &Proxy, speaks: Speaks) -> JoinHandle<(u16, Instant)> {
    let client = proxy.outbound(SERVICE).await;
    spawn_local(async move {
        let (status, _) = Client::new(client, speaks).await.get().await;
        (status, Instant::now())
    })
}

/// The responses to three requests at once: statuses, and how long each took, in order.
async fn three_requests(queue: Queue, configured: &str, speaks: Speaks) -> Vec<(u16, Duration)> {
    let proxy = client_of(queue, configured).await;
    let started = Instant::now();
    let mut asking = Vec::new();
    for nth in 1..=3 {
        asking.push(ask(&proxy, speaks).await);
        while proxy.metric("outbound_http_balancer_queue_requests_total") < nth {
            settle().await;
        }
    }
    let mut responses = Vec::new();
    for asking in asking {
        let (status, at) = while_time_passes(asking).await.unwrap();
        responses.push((status, at - started));
    }
    responses
}

#[test]
fn policy_limits_number_and_time_of_waiting_requests() {
    Speaks::each(async |speaks| {
        let policy = Queue {
            capacity: NonZeroU32::new(2),
            failfast_timeout: Some(Duration::from_secs(1)),
        };
        let responses = three_requests(policy, "1", speaks).await;
        let expected = [(504, 1), (504, 1), (503, 0)];
        let expected = expected.map(|(status, after)| (status, Duration::from_secs(after)));
        assert_eq!(responses, expected, "{speaks:?}");
    });
}

#[test]
fn policy_without_queue_leaves_limits_to_configuration() {
    Speaks::each(async |speaks| {
        let responses = three_requests(Queue::default(), "2", speaks).await;
        let expected = [(504, 2), (504, 2), (503, 0)];
        let expected = expected.map(|(status, after)| (status, Duration::from_secs(after)));
        assert_eq!(responses, expected, "{speaks:?}");
    });
}

/// The policy controllers send 100, which a burst of requests exceeds while the endpoints of a
/// Service are looked up.
#[test]
fn policy_does_not_lower_number_of_waiting_requests() {
    Speaks::each(async |speaks| {
        let policy = Queue {
            capacity: NonZeroU32::new(1),
            failfast_timeout: Some(Duration::from_secs(1)),
        };
        let responses = three_requests(policy, "2", speaks).await;
        let expected = [(504, 1), (504, 1), (503, 0)];
        let expected = expected.map(|(status, after)| (status, Duration::from_secs(after)));
        assert_eq!(responses, expected, "{speaks:?}");
    });
}
