//! Models of counters and histograms: no order of the threads' steps loses an increment.

use mesh_models::{check, join};

use super::*;

#[test]
fn scrape_loses_no_increment() {
    check(|| {
        let counter = Counter {
            cell: Arc::default(),
        };
        let other = counter.clone();
        let ((), scraped) = join(
            move || other.inc(),
            || {
                counter.inc();
                let first = counter.value();
                assert!(first <= counter.value(), "a counter never decreases");
                first
            },
        );
        assert!((1..=2).contains(&scraped));
        assert_eq!(counter.value(), 2);
    });
}

#[test]
fn gauge_of_paired_changes_returns_to_zero() {
    check(|| {
        let gauge = Gauge {
            cell: Arc::default(),
        };
        let other = gauge.clone();
        let change = |gauge: &Gauge| {
            gauge.inc();
            gauge.dec();
        };
        join(move || change(&other), || change(&gauge));
        assert_eq!(gauge.value(), 0);
    });
}

#[test]
fn observations_of_two_threads_are_all_in_count_and_sum() {
    check(|| {
        let cell = Arc::new(HistogramCell::new(&[1.0], Exemplars::Off));
        let other = cell.clone();
        join(move || other.observe(0.5), || cell.observe(2.0));
        let snapshot = cell.snapshot();
        assert_eq!(snapshot.buckets, [(1.0, 1)]);
        assert_eq!((snapshot.count, snapshot.sum), (2, 2.5));
    });
}

/// An exemplar is stored after its observation is counted, and a scrape reads it before.
#[test]
fn bucket_with_an_exemplar_has_a_count() {
    check(|| {
        let cell = Arc::new(HistogramCell::new(&[], Exemplars::Kept));
        let other = cell.clone();
        let histogram = Histogram { cell };
        let exemplar = Exemplar {
            trace_id: 1,
            span_id: 1,
            at: std::time::UNIX_EPOCH,
        };
        let (snapshot, ()) = join(
            move || other.snapshot(),
            || histogram.observe_with(0.5, Some(&exemplar)),
        );
        assert!(snapshot.exemplars[0].is_none() || snapshot.count == 1);
    });
}
