//! Models of the breaker: in every order of the threads' steps one request probes, all threads see
//! that it has opened, and a result of an earlier generation changes nothing.

use mesh_models::{check, join};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A breaker that opens after one failure, or after more than half of two requests fail.
fn breaker(window: bool) -> Arc<Breaker> {
    let backoff = Backoff {
        min: SECOND,
        max: SECOND * 8,
        jitter: 0.0,
    };
    let success_rate = SuccessRate {
        threshold: 0.5,
        window: SECOND * 100,
        min_requests: 2,
    };
    let policy = BreakerPolicy {
        max_failures: NonZeroU32::new(1),
        success_rate: window.then_some(success_rate),
        backoff,
        honor_retry_after: false,
    };
    let group = BreakerGroup::new(policy, Instant::now());
    Arc::new(Breaker::new(Arc::new(group)))
}

fn at(breaker: &Breaker, seconds: u32) -> Instant {
    breaker.group.started + SECOND * seconds
}

fn record(breaker: &Breaker, admission: Admission, outcome: Outcome, now: u32) -> Option<Change> {
    let now = at(breaker, now);
    breaker.record(admission, outcome, None, now, || 0.0)
}

/// Opens the breaker at the start, until the first second.
fn open(breaker: &Breaker) {
    let admission = breaker.admit(at(breaker, 0)).unwrap();
    assert!(record(breaker, admission, Outcome::Failure, 0).is_some());
}

#[test]
fn one_of_two_threads_sends_the_probe() {
    check(|| {
        let breaker = breaker(false);
        open(&breaker);
        let other = breaker.clone();
        let now = at(&breaker, 1);
        let (one, two) = join(move || other.admit(now), || breaker.admit(now));
        assert!(one.is_some() != two.is_some());
        let probe = one.or(two).unwrap();
        assert!(probe.is_probe());
    });
}

#[test]
fn failures_of_two_threads_open_it_once() {
    check(|| {
        let breaker = breaker(false);
        let fail = |breaker: &Breaker| {
            let admission = breaker.admit(at(breaker, 0))?;
            record(breaker, admission, Outcome::Failure, 0)
        };
        let other = breaker.clone();
        let (one, two) = join(move || fail(&other), || fail(&breaker));
        assert!(one.is_some() != two.is_some());
        assert!(breaker.admit(at(&breaker, 0)).is_none());
    });
}

/// A balancer compares the number of changes, and reads the states of its breakers if it differs.
#[test]
fn thread_that_sees_the_change_sees_the_open_breaker() {
    check(|| {
        let breaker = breaker(false);
        let other = breaker.clone();
        let (seen, ()) = join(
            move || (other.group.changes(), other.is_closed()),
            || open(&breaker),
        );
        assert!(seen != (1, true));
    });
}

#[test]
fn requests_after_the_probe_do_not_see_the_failures_before() {
    check(|| {
        let breaker = breaker(true);
        open(&breaker);
        let probe = breaker.admit(at(&breaker, 1)).unwrap();
        let other = breaker.clone();
        let ((), closed) = join(
            move || {
                if other.admit(at(&other, 1)).is_some() {
                    let window = other.window.as_ref().unwrap();
                    assert_eq!(window.counts(SECOND), (0, 0));
                }
            },
            || record(&breaker, probe, Outcome::Success, 1),
        );
        assert_eq!(closed, Some(Change::Closed));
    });
}

/// The first probe is given up after the longest back-off; its result arrives beside the second.
#[test]
fn late_result_of_a_probe_does_not_shorten_the_back_off() {
    check(|| {
        let breaker = breaker(false);
        open(&breaker);
        let late = breaker.admit(at(&breaker, 1)).unwrap();
        let other = breaker.clone();
        let (closed, failed) = join(
            move || record(&other, late, Outcome::Success, 9),
            || {
                let probe = breaker.admit(at(&breaker, 9))?;
                record(&breaker, probe, Outcome::Failure, 9)
            },
        );
        if closed.is_none() {
            let Some(Change::Opened { backoff, .. }) = failed else {
                panic!("the second probe has failed");
            };
            assert_eq!(backoff, SECOND * 2);
            // The next failure is the second in a row.
            let probe = breaker.admit(at(&breaker, 11)).unwrap();
            let failed = record(&breaker, probe, Outcome::Failure, 11);
            assert!(
                matches!(failed, Some(Change::Opened { backoff, .. }) if backoff == SECOND * 4)
            );
        }
    });
}

#[test]
fn probe_that_is_given_back_is_taken_once() {
    check(|| {
        let breaker = breaker(false);
        open(&breaker);
        let probe = breaker.admit(at(&breaker, 1)).unwrap();
        let other = breaker.clone();
        // It is given back at the real time, which is a little after the start.
        let (early, ()) = join(
            move || other.admit(at(&other, 2)).is_some(),
            || breaker.abandon(probe),
        );
        let later = (0..2).filter(|_| breaker.admit(at(&breaker, 2)).is_some());
        assert_eq!(usize::from(early) + later.count(), 1);
    });
}

#[test]
fn requests_in_a_new_part_of_the_window_are_all_counted() {
    check(|| {
        let window = Arc::new(SuccessWindow::new(SECOND));
        window.record(Duration::ZERO, false);
        let other = window.clone();
        join(
            move || other.record(SECOND, true),
            || window.record(SECOND, false),
        );
        assert_eq!(window.counts(SECOND), (1, 2));
    });
}
