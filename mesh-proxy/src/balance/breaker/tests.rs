//! The state machine of a breaker, as tables of results and times.

use std::thread;

use super::*;

const BACKOFF: Backoff = Backoff {
    min: Duration::from_secs(1),
    max: Duration::from_secs(5),
    jitter: 0.5,
};
const CONSECUTIVE: FailureAccrual = FailureAccrual::ConsecutiveFailures {
    max_failures: 3,
    backoff: BACKOFF,
};
const UNIFIED: FailureAccrual = FailureAccrual::Unified {
    success_rate_threshold: 0.8,
    window: Duration::from_secs(10),
    min_requests: 5,
    max_consecutive_failures: 0,
    backoff: BACKOFF,
    honor_retry_after: true,
};

use Outcome::{Failure, Success, Throttled};

/// A breaker and the time of its test, which begins at zero. Without jitter.
struct Test {
    breaker: Breaker,
    now: Instant,
}

impl Test {
    fn new(accrual: FailureAccrual) -> Self {
        let now = Instant::now();
        let policy = BreakerPolicy::new(&accrual).unwrap();
        let group = Arc::new(BreakerGroup::new(policy, now));
        Self {
            breaker: Breaker::new(group),
            now,
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn admit(&self) -> Option<Admission> {
        self.breaker.admit(self.now)
    }

    fn record(&self, admission: Admission, outcome: Outcome) -> Option<Change> {
        self.record_hint(admission, outcome, None)
    }

    fn record_hint(
        &self,
        admission: Admission,
        outcome: Outcome,
        hint: Option<Duration>,
    ) -> Option<Change> {
        self.breaker
            .record(admission, outcome, hint, self.now, || 0.0)
    }

    /// A request and its result.
    fn request(&self, outcome: Outcome) -> Option<Change> {
        self.record(self.admit().unwrap(), outcome)
    }

    /// Requests and the change that the last one causes; the others must cause none.
    fn requests(&self, outcomes: &[Outcome]) -> Option<Change> {
        let (last, others) = outcomes.split_last().unwrap();
        for outcome in others {
            assert_eq!(self.request(*outcome), None);
        }
        self.request(*last)
    }
}

fn opened(cause: Cause, seconds: u64) -> Option<Change> {
    let backoff = Duration::from_secs(seconds);
    Some(Change::Opened { cause, backoff })
}

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn consecutive_failures_open_breaker() {
    for (outcomes, expected) in [
        (&[Failure, Failure][..], None),
        (
            &[Failure, Failure, Failure],
            opened(Cause::ConsecutiveFailures, 1),
        ),
        (&[Failure, Failure, Success, Failure, Failure], None),
        (&[Failure, Failure, Throttled, Failure, Failure], None),
        (&[Throttled, Throttled, Throttled, Throttled], None),
    ] {
        let test = Test::new(CONSECUTIVE);
        assert_eq!(test.requests(outcomes), expected, "{outcomes:?}");
        assert_eq!(test.admit().is_some(), expected.is_none(), "{outcomes:?}");
    }
}

#[test]
fn low_success_rate_opens_breaker_after_minimum_of_requests() {
    let low = opened(Cause::SuccessRate, 1);
    for (outcomes, expected) in [
        (&[Failure, Failure, Failure, Failure][..], None),
        (&[Success, Failure, Success, Failure, Success], low),
        (&[Success, Success, Success, Success, Failure], None),
        (&[Success, Success, Success, Throttled, Throttled], low),
        (&[Failure, Failure, Failure, Failure, Success], low),
    ] {
        let test = Test::new(UNIFIED);
        assert_eq!(test.requests(outcomes), expected, "{outcomes:?}");
    }
    let mut test = Test::new(UNIFIED);
    test.requests(&[Failure, Failure, Failure, Failure]);
    test.pass(SECOND * 10);
    assert_eq!(test.request(Failure), None, "the others were too long ago");
}

#[test]
fn one_probe_after_each_backoff() {
    let mut test = Test::new(CONSECUTIVE);
    test.requests(&[Failure, Failure, Failure]);
    for backoff in [1, 2, 4, 5, 5] {
        test.pass(SECOND * backoff - MILLI);
        assert!(!test.breaker.is_available(test.now) && test.admit().is_none());
        test.pass(MILLI);
        assert_eq!(test.breaker.retry_at(), Some(test.now));
        assert!(test.breaker.is_available(test.now));
        let probe = test.admit().unwrap();
        assert!(probe.is_probe() && test.admit().is_none());
        let next = opened(Cause::FailedProbe, u64::from(backoff * 2).min(5));
        assert_eq!(test.record(probe, Failure), next);
    }
    test.pass(SECOND * 5);
    assert_eq!(test.request(Success), Some(Change::Closed));
    assert!(test.breaker.is_closed() && test.breaker.retry_at().is_none());
    // The failures before are forgotten, and so is the length of the back-off.
    assert_eq!(test.requests(&[Failure, Failure]), None);
    let again = opened(Cause::ConsecutiveFailures, 1);
    assert_eq!(test.request(Failure), again);
}

#[test]
fn results_of_earlier_requests_are_ignored() {
    let mut test = Test::new(CONSECUTIVE);
    let early = test.admit().unwrap();
    test.requests(&[Failure, Failure, Failure]);
    assert_eq!(test.record(early, Success), None);
    test.pass(SECOND);
    let probe = test.admit().unwrap();
    assert_eq!(test.record(early, Success), None);
    assert_eq!(test.record(early, Failure), None);
    assert_eq!(test.record(probe, Success), Some(Change::Closed));
    for _ in 0..3 {
        assert_eq!(test.record(early, Failure), None);
    }
    assert!(test.breaker.is_closed());
}

#[test]
fn throttled_probe_fails_only_with_success_rate() {
    let mut test = Test::new(UNIFIED);
    test.requests(&[Failure; 5]);
    test.pass(SECOND);
    let failed = opened(Cause::FailedProbe, 2);
    assert_eq!(test.request(Throttled), failed);
    test.pass(SECOND * 2);
    assert_eq!(test.request(Success), Some(Change::Closed));
    assert_eq!(test.requests(&[Failure; 4]), None, "the window is empty");

    let mut test = Test::new(CONSECUTIVE);
    test.requests(&[Failure; 3]);
    test.pass(SECOND);
    assert_eq!(test.request(Throttled), Some(Change::Closed));
}

#[test]
fn abandoned_probe_is_replaced_by_next_request() {
    let mut test = Test::new(CONSECUTIVE);
    let early = test.admit().unwrap();
    test.requests(&[Failure; 3]);
    test.breaker.abandon(early);
    assert!(test.admit().is_none());
    test.pass(SECOND);
    let abandoned = test.admit().unwrap();
    test.breaker.abandon(abandoned);
    let probe = test.admit().unwrap();
    assert!(probe.is_probe());
    assert_eq!(test.record(abandoned, Success), None);
    // One whose result never arrives.
    test.pass(SECOND * 5);
    let next = test.admit().unwrap();
    assert!(next.is_probe() && next != probe);
    assert_eq!(test.record(probe, Success), None);
    assert_eq!(test.record(next, Success), Some(Change::Closed));
}

#[test]
fn retry_after_lengthens_backoff_up_to_maximum() {
    for (hint, expected) in [(0, 1), (1, 1), (3, 3), (5, 5), (u64::MAX, 5)] {
        let test = Test::new(UNIFIED);
        test.requests(&[Failure; 4]);
        let hint = Some(Duration::from_secs(hint));
        let change = test.record_hint(test.admit().unwrap(), Throttled, hint);
        assert_eq!(change, opened(Cause::SuccessRate, expected), "{hint:?}");
    }
    let test = Test::new(CONSECUTIVE);
    test.requests(&[Failure; 2]);
    let change = test.record_hint(test.admit().unwrap(), Failure, Some(SECOND * 3));
    assert_eq!(change, opened(Cause::ConsecutiveFailures, 1));
}

#[test]
fn jitter_extends_backoff() {
    let policy = BreakerPolicy::new(&UNIFIED).unwrap();
    let pause = |hint, jitter| policy.pause(0, hint, jitter).as_millis();
    assert_eq!(pause(None, 1.0), 1500);
    assert_eq!(pause(Some(SECOND * 60), 1.0), 7500);
}

#[test]
fn criteria_of_zero_are_off() {
    let unified = |threshold, failures| FailureAccrual::Unified {
        success_rate_threshold: threshold,
        window: Duration::ZERO,
        min_requests: 0,
        max_consecutive_failures: failures,
        backoff: BACKOFF,
        honor_retry_after: false,
    };
    let off = FailureAccrual::ConsecutiveFailures {
        max_failures: 0,
        backoff: BACKOFF,
    };
    assert_eq!(BreakerPolicy::new(&off), None);
    assert_eq!(BreakerPolicy::new(&unified(0.0, 0)), None);
    let test = Test::new(unified(0.0, 2));
    let expected = opened(Cause::ConsecutiveFailures, 1);
    assert_eq!(test.requests(&[Failure, Failure]), expected);
    let test = Test::new(unified(0.1, 0));
    assert_eq!(test.request(Success), None);
    assert_eq!(test.requests(&[Failure; 9]), None);
    assert_eq!(test.request(Failure), opened(Cause::SuccessRate, 1));
}

#[test]
fn longest_backoff_does_not_overflow() {
    let longest = FailureAccrual::ConsecutiveFailures {
        max_failures: 1,
        backoff: Backoff {
            min: Duration::MAX,
            max: Duration::MAX,
            jitter: 100.0,
        },
    };
    let test = Test::new(longest);
    assert!(test.request(Failure).is_some());
    assert!(test.admit().is_none());
    assert!(test.breaker.retry_at().is_some());
}

#[test]
fn states_are_packed_without_loss() {
    for generation in [0, 1, MAX_GENERATION] {
        for (failed_probes, until) in [(0, 0), (1, 1), (MAX_FAILED_PROBES, MAX_VALUE)] {
            for state in [
                State::Closed {
                    generation,
                    failures: u32::try_from(until).unwrap_or(u32::MAX),
                },
                State::Open {
                    generation,
                    failed_probes,
                    until,
                },
                State::Probing {
                    generation,
                    failed_probes,
                    until,
                },
            ] {
                assert_eq!(State::unpack(state.pack()), state);
            }
        }
    }
    assert_eq!(next(MAX_GENERATION), 0);
}

/// All threads ask at once, many times; each time exactly one of them may probe.
#[test]
fn threads_send_one_probe_together() {
    let mut test = Test::new(CONSECUTIVE);
    test.requests(&[Failure; 3]);
    for _ in 0..200 {
        test.pass(SECOND * 5);
        let probes = thread::scope(|scope| {
            let asking: Vec<_> = (0..4).map(|_| scope.spawn(|| test.admit())).collect();
            let asked = asking.into_iter().filter_map(|it| it.join().unwrap());
            asked.collect::<Vec<_>>()
        });
        assert_eq!(probes.len(), 1);
        test.record(probes[0], Failure);
    }
}

/// Failures that threads record at once open the breaker once.
#[test]
fn threads_count_failures_together() {
    for _ in 0..200 {
        let test = &Test::new(CONSECUTIVE);
        let changes = thread::scope(|scope| {
            let admitted = [(); 6].map(|()| test.admit().unwrap());
            let failing =
                admitted.map(|admission| scope.spawn(move || test.record(admission, Failure)));
            let changes = failing.into_iter().filter_map(|it| it.join().unwrap());
            changes.count()
        });
        assert_eq!(changes, 1);
    }
}
