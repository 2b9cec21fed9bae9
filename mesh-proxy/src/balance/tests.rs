//! The balancer with real metric handles and paused time.

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_core::endpoint::ProtocolHint;
use mesh_core::resilience::{FailureAccrual, FailurePenalty};
use mesh_runtime::metrics::{Exemplars, Labels, Registry};
use tokio::sync::watch;

use super::*;
use crate::discovery::{EndpointSet, EndpointState};
use crate::telemetry::Families;
use crate::telemetry::http::ResponseDurations;

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
    let (sender, receiver) = watch::channel(first);
    let settings = BalanceSettings {
        queue_capacity: capacity,
        failfast: Duration::from_secs(3),
        backoff: BACKOFF,
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

const ACCRUAL: FailureAccrual = FailureAccrual::ConsecutiveFailures {
    max_failures: 3,
    backoff: Backoff {
        min: Duration::from_secs(1),
        max: Duration::from_secs(60),
        jitter: 0.0,
    },
};

/// The balancers of the threads of a process for one backend.
fn new_threads<const N: usize>(
    first: Arc<EndpointSet>,
) -> (watch::Sender<Arc<EndpointSet>>, [BalanceQueue<u8>; N]) {
    let (sender, receiver) = watch::channel(first);
    let settings = BalanceSettings {
        queue_capacity: 10,
        failfast: Duration::from_secs(3),
        backoff: BACKOFF,
    };
    let registry = Registry::new();
    let families = Families::new(&registry, Exemplars::Off, ResponseDurations::Off);
    let breakers = Breakers::default();
    let queues = [(); N].map(|()| {
        let labels = Labels::new();
        let backend = breakers.backend(&"web:80".into(), &ACCRUAL).unwrap();
        BalanceQueue::new(
            receiver.clone(),
            PeakEwma::default(),
            &settings,
            Some(CircuitBreaking::new(
                backend,
                families.breaker.balancer(&labels),
            )),
            families.http_balancer.balancer(&labels),
            last_byte,
        )
    });
    (sender, queues)
}

async fn request(queue: &BalanceQueue<u8>, outcome: Outcome) -> u8 {
    let picked = queue.acquire(Instant::now()).await.unwrap();
    picked.record_result(outcome, None);
    *picked.value
}

#[tokio::test(start_paused = true)]
async fn threads_share_failures_and_one_probe() {
    let (_sender, [one, other]) = new_threads(set(&[1]));
    for queue in [&one, &other, &one] {
        request(queue, Outcome::Failure).await;
    }
    assert!(!one.has_available() && !other.has_available());
    tokio::time::advance(Duration::from_secs(1)).await;
    let probe = one.acquire(Instant::now()).await.unwrap();
    assert!(!one.has_available() && !other.has_available());
    // A request of the other thread waits until the probe has succeeded.
    let began = Instant::now();
    let (waited, ()) = tokio::join!(other.acquire(began), async {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        probe.record_result(Outcome::Success, None);
    });
    assert_eq!(*waited.unwrap().value, 1);
    assert_eq!(began.elapsed(), Duration::from_millis(1500));
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_probe_and_fail_fast_without_one() {
    let (_sender, [queue]) = new_threads(set(&[1, 2]));
    for _ in 0..6 {
        let picked = queue.acquire(Instant::now()).await.unwrap();
        picked.record_result(Outcome::Failure, None);
    }
    // The first of two waiting requests is the probe of one endpoint, and the second is the probe
    // of the other.
    let began = Instant::now();
    let (first, second) = tokio::join!(queue.acquire(began), queue.acquire(began));
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    assert_ne!(first.value, second.value);
    for failed in [first, second] {
        failed.record_result(Outcome::Failure, None);
    }
    // Probes two seconds later fail too; the next are due after the fail-fast timeout.
    for _ in 0..2 {
        request(&queue, Outcome::Failure).await;
    }
    let began = Instant::now();
    assert_eq!(queue.acquire(began).await.err(), Some(QueueError::FailFast));
    assert_eq!(began.elapsed(), Duration::from_secs(3));
    assert!(!queue.is_available());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(queue.is_available(), "a probe is due");
    request(&queue, Outcome::Success).await;
    assert!(queue.acquire(Instant::now()).await.is_ok());
    assert!(queue.is_available() && queue.has_available());
}

#[tokio::test(start_paused = true)]
async fn update_keeps_breakers_of_unchanged_endpoints() {
    let (sender, [queue]) = new_threads(set(&[1]));
    for _ in 0..3 {
        request(&queue, Outcome::Failure).await;
    }
    sender.send_replace(set(&[1, 2]));
    for _ in 0..20 {
        assert_eq!(request(&queue, Outcome::Success).await, 2);
    }
    // Another pod with the address of the failed one.
    let successor = Endpoint {
        labels: [("pod", "web-2")].into_iter().collect(),
        ..(*endpoint(1)).clone()
    };
    let replaced = EndpointSet {
        state: EndpointState::Known,
        endpoints: vec![Arc::new(successor)],
    };
    sender.send_replace(Arc::new(replaced));
    assert_eq!(request(&queue, Outcome::Success).await, 1);
}

#[tokio::test(start_paused = true)]
async fn cancelled_probe_is_repeated_at_once() {
    let (_sender, [queue]) = new_threads(set(&[1]));
    for _ in 0..3 {
        request(&queue, Outcome::Failure).await;
    }
    tokio::time::advance(Duration::from_secs(1)).await;
    drop(queue.acquire(Instant::now()).await.unwrap());
    request(&queue, Outcome::Success).await;
    assert!(queue.has_available());
}

#[tokio::test(start_paused = true)]
async fn failures_count_as_slow_responses() {
    let penalty = FailurePenalty {
        penalty: Duration::from_secs(5),
        max_retry_after: Duration::from_secs(300),
    };
    for (outcome, hint, latency) in [
        (Outcome::Success, None, 0.03),
        (Outcome::Failure, None, 5.0),
        (Outcome::Throttled, None, 5.0),
        (Outcome::Throttled, Some(2), 5.0),
        (Outcome::Throttled, Some(60), 60.0),
        (Outcome::Failure, Some(u64::MAX), 300.0),
    ] {
        let ewma = PeakEwma {
            penalty: Some(penalty),
            ..PeakEwma::default()
        };
        let metrics = metrics(&Registry::new());
        let balancer = Balancer::new(ewma, BACKOFF, None, metrics, 7, last_byte);
        balancer.update(&[endpoint(1)]);
        let now = Instant::now();
        let picked = balancer.pick(now, None).unwrap();
        assert!(picked.needs_result());
        picked.record_result(outcome, hint.map(Duration::from_secs));
        picked.record_latency();
        let member = picked.member.clone();
        drop(picked);
        let cost = member.load.cost(now);
        assert!((cost - latency).abs() < 1e-9, "{outcome:?} {hint:?} {cost}");
    }
}
