//! The balancer with real metric handles and paused time.

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_core::endpoint::ProtocolHint;
use mesh_core::resilience::{FailureAccrual, FailurePenalty};
use mesh_runtime::metrics::{Exemplars, Labels, Registry};

use super::*;
use crate::discovery::{EndpointSet, EndpointState};
use crate::telemetry::Families;
use crate::telemetry::http::ResponseDurations;
use crate::watch;

mod breakers;

const BACKOFF: Backoff = Backoff {
    min: Duration::from_millis(100),
    max: Duration::from_secs(10),
    jitter: 0.0,
};

fn endpoint(last: u8) -> Arc<Endpoint> {
    Arc::new(Endpoint {
        addr: SocketAddr::from(([10, 0, 0, last], 80)),
        weight: 10_000,
        labels: Default::default(),
        tls: None,
        hint: ProtocolHint::Unknown,
        opaque_transport_port: None,
        authority_override: None,
        http2: None,
    })
}

fn set(lasts: &[u8]) -> Arc<EndpointSet> {
    Arc::new(EndpointSet {
        state: EndpointState::Known,
        endpoints: lasts.iter().map(|last| endpoint(*last)).collect(),
    })
}

fn metrics(registry: &Registry) -> BalancerMetrics {
    Families::new(registry, Exemplars::Off, ResponseDurations::Off)
        .http_balancer
        .balancer(&Labels::new())
}

fn balancer() -> Balancer<u8> {
    let metrics = metrics(&Registry::new());
    Balancer::new(PeakEwma::default(), BACKOFF, None, metrics, 7, last_byte)
}

fn last_byte(endpoint: &Arc<Endpoint>) -> u8 {
    match endpoint.addr {
        SocketAddr::V4(addr) => addr.ip().octets()[3],
        SocketAddr::V6(_) => 0,
    }
}

fn new_queue(
    first: Arc<EndpointSet>,
    capacity: usize,
) -> (watch::Sender<Arc<EndpointSet>>, BalanceQueue<u8>) {
    new_queue_with(BACKOFF, first, capacity)
}

fn new_queue_with(
    backoff: Backoff,
    first: Arc<EndpointSet>,
    capacity: usize,
) -> (watch::Sender<Arc<EndpointSet>>, BalanceQueue<u8>) {
    let (sender, receiver) = watch::channel(first);
    let settings = BalanceSettings {
        queue_capacity: capacity,
        failfast: Duration::from_secs(3),
        backoff,
    };
    let metrics = metrics(&Registry::new());
    let queue = BalanceQueue::new(
        receiver,
        PeakEwma::default(),
        &settings,
        None,
        metrics,
        last_byte,
    );
    (sender, queue)
}

#[tokio::test(start_paused = true)]
async fn queue_metrics_follow_waits_and_gate() {
    let (sender, receiver) = watch::channel(set(&[]));
    let settings = BalanceSettings {
        queue_capacity: 10,
        failfast: Duration::from_secs(3),
        backoff: BACKOFF,
    };
    let registry = Registry::new();
    let metrics = metrics(&registry);
    let queue = BalanceQueue::new(
        receiver,
        PeakEwma::default(),
        &settings,
        None,
        metrics,
        last_byte,
    );
    let shows = |lines: &[&str]| {
        let text = String::from_utf8(registry.encode()).unwrap();
        for line in lines {
            let line = format!("outbound_http_balancer_queue_{line}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    };
    shows(&[
        "gate_open_total 1",
        "gate_shut_total 0",
        "gate_shut_time_seconds 0",
        "gate_timeout_seconds 3",
        "length 0",
    ]);
    let waiting = queue.acquire(Instant::now());
    let waited = tokio::join!(waiting, async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        shows(&["length 1", "requests_total 1"]);
        sender.send_replace(set(&[1]));
    });
    drop(waited.0.unwrap());
    drop(queue.acquire(Instant::now()).await.unwrap());
    shows(&[
        "length 0",
        "requests_total 2",
        "latency_seconds_bucket{le=\"0.0005\"} 1",
        "latency_seconds_bucket{le=\"1\"} 1",
        "latency_seconds_bucket{le=\"3\"} 2",
    ]);
    sender.send_replace(set(&[]));
    queue.acquire(Instant::now()).await.err().unwrap();
    shows(&["gate_shut_total 1", "gate_open_time_seconds 0", "length 0"]);
    sender.send_replace(set(&[2]));
    drop(queue.acquire(Instant::now()).await.unwrap());
    shows(&["gate_open_total 2", "gate_shut_time_seconds 0"]);
}

#[test]
fn update_keeps_unchanged_endpoints() {
    let made = Rc::new(Cell::new(0));
    let make = {
        let made = made.clone();
        move |endpoint: &Arc<Endpoint>| {
            made.set(made.get() + 1);
            last_byte(endpoint)
        }
    };
    let metrics = metrics(&Registry::new());
    let balancer = Balancer::new(PeakEwma::default(), BACKOFF, None, metrics, 7, make);
    // Kept, so that both endpoints stay equally busy.
    let pick_all = || {
        let pick = |_| balancer.pick(Instant::now(), None).unwrap();
        let held: Vec<_> = (0..100).map(pick).collect();
        held.iter().map(|p| *p.value).collect::<BTreeSet<u8>>()
    };
    assert!(balancer.update(&[endpoint(1), endpoint(2)]));
    assert_eq!(
        made.get(),
        0,
        "no value is created for an endpoint that was not picked"
    );
    assert_eq!(pick_all(), [1, 2].into());
    // An equal endpoint in another allocation is the same endpoint.
    assert!(balancer.update(&[endpoint(2), endpoint(3)]));
    assert_eq!(pick_all(), [2, 3].into());
    assert_eq!(made.get(), 3);
    let changed = Endpoint {
        hint: ProtocolHint::Http2,
        ..(*endpoint(3)).clone()
    };
    assert!(!balancer.update(&[endpoint(2), Arc::new(changed)]));
    assert_eq!(pick_all(), [2, 3].into());
    assert_eq!(made.get(), 4);
    balancer.update(&[]);
    assert!(balancer.pick(Instant::now(), None).is_none());
}

/// With `-ext-endpoint-zone-weights`, Linkerd's destination service gives endpoints in the client's
/// zone ten times the weight.
#[tokio::test(start_paused = true)]
async fn endpoints_receive_load_by_weight() {
    let balancer = balancer();
    let near = Endpoint {
        weight: 100_000,
        ..(*endpoint(2)).clone()
    };
    balancer.update(&[endpoint(1), Arc::new(near)]);
    let pick = |_| balancer.pick(Instant::now(), None).unwrap();
    let held: Vec<_> = (0..110).map(pick).collect();
    let near = held.iter().filter(|picked| *picked.value == 2).count();
    assert!((99..=101).contains(&near), "{near}");
}

#[tokio::test(start_paused = true)]
async fn slow_and_busy_endpoints_are_avoided() {
    let balancer = balancer();
    balancer.update(&[endpoint(1), endpoint(2)]);
    let slow = balancer.pick(Instant::now(), None).unwrap();
    let slow_one = *slow.value;
    tokio::time::advance(Duration::from_secs(1)).await;
    slow.record_latency();
    drop(slow);
    for _ in 0..100 {
        let picked = balancer.pick(Instant::now(), None).unwrap();
        assert_ne!(*picked.value, slow_one);
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_balancer_is_removed_from_gauges() {
    let registry = Registry::new();
    let balancer = Balancer::new(
        PeakEwma::default(),
        BACKOFF,
        None,
        metrics(&registry),
        7,
        last_byte,
    );
    let shows = |ready: &str| {
        let text = String::from_utf8(registry.encode()).unwrap();
        let line =
            format!("outbound_http_balancer_endpoints{{endpoint_state=\"ready\"}} {ready}\n");
        assert!(text.contains(&line), "{text}");
    };
    balancer.update(&[endpoint(1), endpoint(2)]);
    shows("2");
    let picked = balancer.pick(Instant::now(), None).unwrap();
    balancer.mark_failed(&picked, Instant::now());
    shows("1");
    assert!(balancer.mark_reached(&picked));
    shows("2");
    let handle = balancer.metrics.ready.clone();
    drop((picked, balancer));
    assert_eq!(handle.value(), 0);
}

#[tokio::test(start_paused = true)]
async fn failed_endpoint_recovers_after_backoff() {
    let (_sender, queue) = new_queue(set(&[1, 2]), 10);
    let failed = queue.acquire(Instant::now()).await.unwrap();
    queue.mark_failed(&failed);
    let backed_off = *failed.value;
    drop(failed);
    for _ in 0..50 {
        let other = queue.acquire(Instant::now()).await.unwrap();
        assert_ne!(*other.value, backed_off);
    }
    tokio::time::advance(Duration::from_millis(101)).await;
    let mut seen = BTreeSet::new();
    for _ in 0..50 {
        seen.insert(*queue.acquire(Instant::now()).await.unwrap().value);
    }
    assert!(seen.contains(&backed_off));
}

#[tokio::test(start_paused = true)]
async fn request_waits_for_first_endpoint() {
    let (sender, queue) = new_queue(set(&[]), 10);
    let began = Instant::now();
    let (picked, ()) = tokio::join!(queue.acquire(began), async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        sender.send_replace(set(&[5]));
    });
    assert_eq!(*picked.unwrap().value, 5);
    assert_eq!(began.elapsed(), Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn requests_are_shed_after_fail_fast_timeout_until_endpoint_is_added() {
    let (sender, queue) = new_queue(set(&[]), 10);
    let began = Instant::now();
    assert_eq!(queue.acquire(began).await.err(), Some(QueueError::FailFast));
    assert_eq!(began.elapsed(), Duration::from_secs(3));
    assert!(!queue.is_available());
    assert_eq!(
        queue.acquire(Instant::now()).await.err(),
        Some(QueueError::LoadShed)
    );
    assert_eq!(began.elapsed(), Duration::from_secs(3));
    sender.send_replace(set(&[1]));
    assert!(queue.is_available());
    assert_eq!(*queue.acquire(Instant::now()).await.unwrap().value, 1);
}

#[tokio::test(start_paused = true)]
async fn queued_requests_fail_when_gate_shuts() {
    let (_sender, queue) = new_queue(set(&[]), 10);
    let began = Instant::now();
    let late = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        queue.acquire(Instant::now()).await.err()
    };
    let (first, second) = tokio::join!(queue.acquire(began), late);
    assert_eq!(first.err(), Some(QueueError::FailFast));
    assert_eq!(second, Some(QueueError::FailFast));
    assert_eq!(began.elapsed(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn full_queue_sheds_requests() {
    let (_sender, queue) = new_queue(set(&[]), 1);
    let now = Instant::now();
    let (first, second) = tokio::join!(queue.acquire(now), queue.acquire(now));
    assert_eq!(first.err(), Some(QueueError::FailFast));
    assert_eq!(second.err(), Some(QueueError::LoadShed));
}

#[tokio::test(start_paused = true)]
async fn unreachable_endpoint_is_tried_after_backoff() {
    let (_sender, queue) = new_queue(set(&[1]), 10);
    let began = Instant::now();
    // As the request path does when no endpoint can be reached.
    let refusal = loop {
        match queue.acquire(began).await {
            Ok(picked) => queue.mark_failed(&picked),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal, QueueError::FailFast);
    assert!(began.elapsed() <= Duration::from_secs(3));
    assert_eq!(
        queue.acquire(Instant::now()).await.err(),
        Some(QueueError::LoadShed)
    );
    tokio::time::advance(Duration::from_secs(10)).await;
    let probe = queue.acquire(Instant::now()).await.unwrap();
    queue.mark_reached(&probe);
    assert!(queue.is_available());
}

/// Its node may have vanished: each would wait for the connect timeout.
#[tokio::test(start_paused = true)]
async fn only_one_request_waits_for_a_connection_to_an_endpoint_that_has_failed() {
    let (_sender, queue) = new_queue(set(&[1, 2, 3]), 10);
    let now = Instant::now;
    let failed = queue.acquire(now()).await.unwrap();
    let addr = failed.endpoint.addr;
    queue.mark_failed(&failed);
    drop(failed);
    let picks = async || {
        let mut held = Vec::new();
        for _ in 0..60 {
            held.push(queue.acquire(now()).await.unwrap());
        }
        held
    };
    let trials = |held: &[PickedEndpoint<u8>]| {
        let is_trial = |picked: &&PickedEndpoint<u8>| picked.endpoint.addr == addr;
        held.iter().filter(is_trial).count()
    };
    tokio::time::advance(BACKOFF.min).await;
    let mut held = picks().await;
    assert_eq!(trials(&held), 1);
    // A trial ends with its request,
    held.retain(|picked| picked.endpoint.addr != addr);
    let more = picks().await;
    assert_eq!(trials(&more), 1);
    // with its failure,
    let tried = more.iter().find(|picked| picked.endpoint.addr == addr);
    queue.mark_failed(tried.unwrap());
    tokio::time::advance(BACKOFF.max).await;
    let last = picks().await;
    assert_eq!(trials(&last), 1);
    // and with its connection.
    let tried = last.iter().find(|picked| picked.endpoint.addr == addr);
    tried.unwrap().record_send();
    let (one, two) = (picks().await, picks().await);
    assert_eq!((trials(&one), trials(&two)), (1, 0));
    let tried = one.iter().find(|picked| picked.endpoint.addr == addr);
    queue.mark_reached(tried.unwrap());
    assert!(trials(&picks().await) > 1);
}

#[tokio::test(start_paused = true)]
async fn requests_wait_together_for_a_connection_to_the_only_endpoint() {
    let (_sender, queue) = new_queue(set(&[1]), 10);
    let failed = queue.acquire(Instant::now()).await.unwrap();
    queue.mark_failed(&failed);
    tokio::time::advance(BACKOFF.min).await;
    let _trial = queue.acquire(Instant::now()).await.unwrap();
    assert!(queue.is_available());
    queue.acquire(Instant::now()).await.unwrap();
}

/// Their back-offs have grown to seconds.
#[tokio::test(start_paused = true)]
async fn one_request_tries_each_100_ms_while_all_endpoints_are_excluded() {
    let (_sender, queue) = new_queue(set(&[1, 2]), 10);
    let mut tried = Vec::new();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(20) {
        match queue.acquire(Instant::now()).await {
            Ok(picked) => {
                queue.mark_failed(&picked);
                tried.push((began.elapsed(), *picked.value));
            }
            Err(_) => tokio::time::advance(Duration::from_millis(10)).await,
        }
    }
    let late: Vec<_> = tried.iter().filter(|it| it.0.as_secs() >= 5).collect();
    assert!((140..=160).contains(&late.len()), "{}", late.len());
    for endpoint in [1, 2] {
        let tried = late.iter().filter(|it| it.1 == endpoint).count();
        assert!(tried >= 60, "{endpoint}: {tried}");
    }
    // The one that is reached serves all requests at once.
    tokio::time::advance(Duration::from_millis(100)).await;
    let picked = queue.acquire(Instant::now()).await.unwrap();
    queue.mark_reached(&picked);
    for _ in 0..10 {
        let other = queue.acquire(Instant::now()).await.unwrap();
        assert_eq!(*other.value, *picked.value);
    }
}

const MINUTE: Backoff = Backoff {
    min: Duration::from_secs(60),
    max: Duration::from_secs(60),
    jitter: 0.0,
};

#[tokio::test(start_paused = true)]
async fn trial_is_due_each_100_ms_while_all_endpoints_are_excluded() {
    let (_sender, queue) = new_queue_with(MINUTE, set(&[1]), 10);
    assert!(!queue.is_trial_due(), "the endpoint is available");
    let picked = queue.acquire(Instant::now()).await.unwrap();
    queue.mark_failed(&picked);
    for _ in 0..3 {
        assert!(!queue.has_available() && !queue.is_trial_due());
        tokio::time::advance(TRIAL_INTERVAL).await;
        assert!(!queue.has_available() && queue.is_trial_due());
        queue.acquire(Instant::now()).await.unwrap();
    }
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(queue.has_available() && !queue.is_trial_due());
}

#[tokio::test(start_paused = true)]
async fn trials_alternate_while_their_results_are_outstanding() {
    let (_sender, queue) = new_queue_with(MINUTE, set(&[1, 2]), 10);
    for _ in 0..2 {
        let picked = queue.acquire(Instant::now()).await.unwrap();
        queue.mark_failed(&picked);
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    tokio::time::advance(TRIAL_INTERVAL).await;
    let first = queue.acquire(Instant::now()).await.unwrap();
    tokio::time::advance(TRIAL_INTERVAL).await;
    let second = queue.acquire(Instant::now()).await.unwrap();
    assert_ne!(*first.value, *second.value);
}

#[tokio::test(start_paused = true)]
async fn trial_ends_fail_fast_only_when_the_endpoint_was_reached() {
    let (_sender, queue) = new_queue_with(MINUTE, set(&[1]), 10);
    let picked = queue.acquire(Instant::now()).await.unwrap();
    queue.mark_failed(&picked);
    let expired = Instant::now() - Duration::from_secs(3);
    let refusal = queue.acquire(expired).await.err();
    assert_eq!(refusal, Some(QueueError::FailFast));
    assert!(!queue.is_available());
    tokio::time::advance(TRIAL_INTERVAL).await;
    let trial = queue.acquire(Instant::now()).await.unwrap();
    assert!(!queue.is_available(), "nothing is known of it yet");
    let refusal = queue.acquire(Instant::now()).await.err();
    assert_eq!(refusal, Some(QueueError::LoadShed));
    queue.mark_reached(&trial);
    queue.acquire(Instant::now()).await.unwrap();
    assert!(queue.is_available());
}

#[tokio::test(start_paused = true)]
async fn another_endpoint_is_one_that_is_available_at_another_address() {
    let (sender, queue) = new_queue_with(MINUTE, set(&[1]), 10);
    let first = queue.acquire(Instant::now()).await.unwrap();
    assert!(!queue.has_other(&first));
    sender.send_replace(set(&[1, 2]));
    let second = queue
        .acquire_other(Instant::now(), Some(first.endpoint.addr))
        .await
        .unwrap();
    assert_eq!(*second.value, 2);
    assert!(queue.has_other(&first) && queue.has_other(&second));
    queue.mark_failed(&second);
    assert!(!queue.has_other(&first) && queue.has_other(&second));
}

#[tokio::test(start_paused = true)]
async fn latency_is_measured_from_the_sending_of_the_request() {
    let balancer = balancer();
    balancer.update(&[endpoint(1)]);
    let picked = balancer.pick(Instant::now(), None).unwrap();
    assert!(!picked.needs_result(), "no breaker, no penalty");
    // The handshake.
    tokio::time::advance(Duration::from_secs(1)).await;
    picked.record_send();
    tokio::time::advance(Duration::from_millis(100)).await;
    picked.record_latency();
    let member = picked.member.clone();
    drop(picked);
    let cost = member.load.cost(Instant::now());
    assert!((cost - 0.1).abs() < 1e-9, "{cost}");
}

#[tokio::test(start_paused = true)]
async fn endpoints_are_counted_by_state_and_change() {
    let registry = Registry::new();
    let metrics = metrics(&registry);
    let balancer = Balancer::new(PeakEwma::default(), BACKOFF, None, metrics, 7, last_byte);
    let shows = |lines: &[&str]| {
        let text = String::from_utf8(registry.encode()).unwrap();
        for line in lines {
            let line = format!("outbound_http_balancer_{line}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    };
    balancer.update(&[endpoint(1), endpoint(2)]);
    balancer.update(&[endpoint(2), endpoint(3)]);
    let picked = balancer.pick(Instant::now(), None).unwrap();
    balancer.mark_failed(&picked, Instant::now());
    shows(&[
        "p2c_endpoints 2",
        "endpoints{endpoint_state=\"ready\"} 1",
        "endpoints{endpoint_state=\"pending\"} 1",
        "p2c_updates_total{op=\"Add\"} 3",
        "p2c_updates_total{op=\"Remove\"} 1",
    ]);
    balancer.update(&[]);
    balancer.update(&[]);
    shows(&[
        "p2c_endpoints 0",
        "p2c_updates_total{op=\"Remove\"} 3",
        "p2c_updates_total{op=\"Reset\"} 1",
    ]);
}

#[test]
fn avoided_endpoint_is_picked_only_if_it_is_the_only_one() {
    let balancer = balancer();
    let (a, b) = (endpoint(1), endpoint(2));
    balancer.update(&[a.clone(), b]);
    for _ in 0..100 {
        let picked = balancer.pick(Instant::now(), Some(a.addr)).unwrap();
        assert_eq!(*picked.value, 2);
    }
    balancer.update(std::slice::from_ref(&a));
    assert!(balancer.pick(Instant::now(), Some(a.addr)).is_some());
}

#[test]
fn dropped_pick_releases_load() {
    let balancer = balancer();
    balancer.update(&[endpoint(1)]);
    let now = Instant::now();
    let picked = balancer.pick(now, None).unwrap();
    let busy = picked.load.cost(now);
    let member = picked.member.clone();
    drop(picked);
    assert!(member.load.cost(now) < busy);
}
