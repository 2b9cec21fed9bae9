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
fn filters_without_a_share_draw_nothing() {
    let mut request = Request::new(Body::empty());
    let mut state = FilterState::new(None);
    let filters = [Filter::RequestHeaders(HeaderModifier::default())];
    let applied = apply(&filters, &mut request, &mut state, || unreachable!());
    assert!(applied.unwrap().is_continue());
}
