//! Circuit breakers that the balancers of several threads share.

use super::*;

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
    assert!(probe.is_probe());
    assert!(!one.has_available() && !other.has_available());
    // A request of the other thread waits until the probe has succeeded.
    let began = Instant::now();
    let (waited, ()) = tokio::join!(other.acquire(began), async {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        probe.record_result(Outcome::Success, None);
        assert!(!probe.is_probe(), "it has its result");
    });
    let waited = waited.unwrap();
    assert!(!waited.is_probe());
    assert_eq!(*waited.value, 1);
    assert_eq!(began.elapsed(), Duration::from_millis(1500));
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_probe_and_fail_fast_without_one() {
    let (sender, [queue]) = new_threads(set(&[1, 2]));
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
    // Endpoints that work, without a probe, have ended fail-fast: requests wait again.
    for _ in 0..3 {
        request(&queue, Outcome::Success).await;
    }
    sender.send_replace(set(&[]));
    let began = Instant::now();
    assert_eq!(queue.acquire(began).await.err(), Some(QueueError::FailFast));
    assert_eq!(began.elapsed(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn open_breaker_is_counted_with_the_next_pick() {
    let registry = Registry::new();
    let families = Families::new(&registry, Exemplars::Off, ResponseDurations::Off);
    let labels = Labels::new();
    let breakers = Breakers::default();
    let backend = breakers.backend(&"web:80".into(), &ACCRUAL).unwrap();
    let balancer = Balancer::new(
        PeakEwma::default(),
        BACKOFF,
        Some(CircuitBreaking::new(
            backend,
            families.breaker.balancer(&labels),
        )),
        families.http_balancer.balancer(&labels),
        7,
        last_byte,
    );
    balancer.update(&[endpoint(1)]);
    for _ in 0..3 {
        let picked = balancer.pick(Instant::now(), None).unwrap();
        picked.record_result(Outcome::Failure, None);
    }
    assert!(balancer.pick(Instant::now(), None).is_none());
    assert_eq!(balancer.metrics.ready.value(), 0);
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
