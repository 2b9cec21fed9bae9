//! Models of the sequence lock: a scrape sees all fields of one exemplar, or none.

use std::sync::Arc;
use std::time::Duration;

use mesh_models::{check_with, join};

use super::*;

/// An exemplar whose numbers all follow from `n`.
fn numbered(n: u64) -> (f64, Exemplar) {
    let exemplar = Exemplar {
        trace_id: u128::from(n) << 64 | u128::from(n),
        span_id: n,
        at: UNIX_EPOCH + Duration::from_millis(n),
    };
    (n as f64, exemplar)
}

fn store(slot: &ExemplarSlot, n: u64) {
    let (value, exemplar) = numbered(n);
    slot.store(value, &exemplar);
}

fn assert_unmixed(stored: &StoredExemplar) {
    let n = stored.span_id;
    let expected = StoredExemplar {
        trace_id: numbered(n).1.trace_id,
        span_id: n,
        value: n as f64,
        millis: n,
    };
    assert_eq!(*stored, expected);
}

#[test]
fn exemplar_that_is_replaced_is_read_whole_or_not_at_all() {
    check_with(3, || {
        let slot = Arc::new(ExemplarSlot::default());
        store(&slot, 1);
        let other = slot.clone();
        let (seen, ()) = join(move || other.load(), || store(&slot, 2));
        seen.iter().for_each(assert_unmixed);
        assert_eq!(slot.load().map(|it| it.span_id), Some(2));
    });
}

#[test]
fn two_writers_do_not_mix_their_exemplars() {
    check_with(3, || {
        let slot = Arc::new(ExemplarSlot::default());
        let other = slot.clone();
        join(move || store(&other, 1), || store(&slot, 2));
        // One of them may have found the other and skipped its own.
        let seen = slot.load();
        assert!(seen.is_some());
        seen.iter().for_each(assert_unmixed);
    });
}
