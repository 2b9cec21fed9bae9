//! Shares of faults, with a seeded generator.

use http::StatusCode;
use mesh_core::route::filter::Ratio;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;
use crate::http::Body;

fn abort(percent: u32) -> Filter {
    Filter::InjectHttpFailure {
        status: StatusCode::SERVICE_UNAVAILABLE,
        message: "fault".into(),
        ratio: Ratio {
            numerator: percent,
            denominator: 100,
        },
    }
}

/// Returns for each of 1,000 requests whether it goes on.
fn pass(filters: &[Filter]) -> Vec<bool> {
    let mut rng = SmallRng::seed_from_u64(7);
    let passed = |_| {
        let mut request = Request::new(Body::empty());
        let mut state = FilterState::new(None);
        let applied = apply(filters, &mut request, &mut state, || rng.random());
        applied.unwrap().is_continue()
    };
    (0..1_000).map(passed).collect()
}

#[test]
fn abort_ends_its_share_of_requests() {
    let count = |percent| pass(&[abort(percent)]).iter().filter(|it| !**it).count();
    assert_eq!(count(0), 0);
    assert_eq!(count(100), 1_000);
    // The share that the seed draws.
    let quarter = count(25);
    assert!((200..300).contains(&quarter), "{quarter}");
    assert_eq!(pass(&[abort(25)]), pass(&[abort(25)]));
}

#[test]
fn delays_and_aborts_draw_independently() {
    let half = Ratio {
        numerator: 1,
        denominator: 2,
    };
    let delay = Filter::Delay {
        duration: Duration::from_millis(10),
        ratio: half,
    };
    let filters = [delay.clone(), delay, abort(50)];
    let mut rng = SmallRng::seed_from_u64(7);
    let mut outcomes = [[0; 3]; 2];
    for _ in 0..4_000 {
        let mut request = Request::new(Body::empty());
        let mut state = FilterState::new(None);
        let applied = apply(&filters, &mut request, &mut state, || rng.random());
        let delays = match state.delay.as_millis() {
            0 => 0,
            10 => 1,
            20 => 2,
            other => panic!("{other}"),
        };
        outcomes[usize::from(applied.unwrap().is_break())][delays] += 1;
    }
    // An eighth, a quarter and an eighth of 4,000, with and without the abort.
    for counts in outcomes {
        for (count, expected) in counts.into_iter().zip([500, 1_000, 500]) {
            assert!(
                (expected - 100..expected + 100).contains(&count),
                "{outcomes:?}"
            );
        }
    }
}

#[test]
fn filters_without_a_share_draw_nothing() {
    let mut request = Request::new(Body::empty());
    let mut state = FilterState::new(None);
    let filters = [Filter::RequestHeaders(HeaderModifier::default())];
    let applied = apply(&filters, &mut request, &mut state, || unreachable!());
    assert!(applied.unwrap().is_continue());
}
