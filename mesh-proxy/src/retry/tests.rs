//! The rows of docs/adr/0030 and 0034 as tables.

use super::Action::Return;
use super::DeliveryFailure::{Indeterminate, NotSent};
use super::Dispatch::{Balanced, Fixed};
use super::Failure::{
    ConnectionRefused, Excluded, Lost, NoConnection, ProtocolError, Refused, Reset, TimedOut,
    Undelivered, Unwritten,
};
use super::Replay::{IfUnprocessed, IfUntouched, Impossible, Safe};
use super::*;
use crate::http::Body;

const OTHER: Action = Action::OtherEndpoint;
const IF_OTHER: Action = Action::OtherEndpointIfAvailable;
const SAME: Action = Action::SameEndpoint;
const ALWAYS: &[Action] = &[OTHER];
const OTHER_ONCE: &[Action] = &[OTHER, Return];
const OTHER_THRICE: &[Action] = &[OTHER, OTHER, OTHER, Return];
const SAME_ONCE: &[Action] = &[SAME, Return];
const SAME_THRICE: &[Action] = &[SAME, SAME, SAME, Return];
const NEVER: &[Action] = &[Return];
const ALL: &[Replay] = &[Safe, IfUnprocessed, IfUntouched, Impossible];
const WITHOUT_BODY: &[Replay] = &[Safe, IfUnprocessed];

/// Fails attempts of a request with `failure`. After `expected`, its last action repeats.
fn check(failure: Failure, replay: Replay, dispatch: Dispatch, expected: &[Action]) {
    let mut history = History::default();
    for n in 0..expected.len() + 3 {
        let action = expected[n.min(expected.len() - 1)];
        let decided = decide(failure, replay, dispatch, &mut history);
        let row = (failure, replay, dispatch, n);
        assert_eq!(decided, action, "{row:?}");
    }
}

/// The rows of docs/adr/0030: the failure, the requests that it permits to retry, and what
/// follows for a balancer, a fixed address, and the application on a new connection.
#[test]
fn decisions_are_those_of_adr_0030() {
    type Row = (Failure, &'static [Replay], [&'static [Action]; 3]);
    let rows: [Row; 11] = [
        (ConnectionRefused, ALL, [ALWAYS, NEVER, NEVER]),
        (NoConnection, ALL, [ALWAYS, NEVER, NEVER]),
        (Unwritten, ALL, [OTHER_THRICE, SAME_THRICE, SAME_THRICE]),
        (Refused, WITHOUT_BODY, [OTHER_ONCE, SAME_ONCE, NEVER]),
        (Excluded, WITHOUT_BODY, [OTHER_ONCE, SAME_ONCE, SAME_ONCE]),
        (Lost, &[Safe], [OTHER_ONCE, SAME_ONCE, SAME_ONCE]),
        (ProtocolError, &[Safe], [OTHER_ONCE, SAME_ONCE, NEVER]),
        (
            Undelivered(NotSent),
            WITHOUT_BODY,
            [&[IF_OTHER], NEVER, NEVER],
        ),
        (
            Undelivered(Indeterminate),
            &[Safe],
            [&[IF_OTHER, Return], NEVER, NEVER],
        ),
        (Reset, &[], [NEVER, NEVER, NEVER]),
        (TimedOut, &[], [NEVER, NEVER, NEVER]),
    ];
    let new = Dispatch::Application { is_reused: false };
    for (failure, permitted, columns) in rows {
        for replay in ALL {
            for (dispatch, actions) in [Balanced, Fixed, new].into_iter().zip(columns) {
                let is_permitted = permitted.contains(replay);
                let expected = if is_permitted { actions } else { NEVER };
                check(failure, *replay, dispatch, expected);
            }
        }
    }
}

/// The application may have closed them before it could receive the request.
#[test]
fn failures_of_reused_connections_count_as_closed_connections() {
    let reused = Dispatch::Application { is_reused: true };
    // The fourth failure is the request's own, which is retried once.
    let retried = [SAME, SAME, SAME, SAME, SAME, SAME, SAME, Return];
    check(Lost, Safe, reused, &retried);
    check(ProtocolError, Safe, reused, SAME_THRICE);
    for replay in [IfUnprocessed, Impossible] {
        check(Lost, replay, reused, NEVER);
        check(ProtocolError, replay, reused, NEVER);
    }
}

/// Whatever an endpoint does to a request that it has received, it may serve others.
#[test]
fn only_endpoints_that_cannot_be_reached_are_excluded() {
    for (failure, reached) in [
        (ConnectionRefused, Some(false)),
        (NoConnection, Some(false)),
        (Undelivered(NotSent), Some(false)),
        (Unwritten, None),
        (Refused, Some(true)),
        (Excluded, Some(true)),
        (Lost, Some(true)),
        (ProtocolError, Some(true)),
        (Reset, Some(true)),
        (TimedOut, Some(true)),
        (Undelivered(Indeterminate), Some(true)),
    ] {
        assert_eq!(failure.reached(), reached, "{failure:?}");
    }
}

#[test]
fn request_that_was_sent_is_retried_once_whatever_failed() {
    for first in [Refused, Excluded, Lost, Undelivered(Indeterminate)] {
        for second in [Refused, Excluded, Lost, Undelivered(Indeterminate)] {
            let mut history = History::default();
            assert_ne!(decide(first, Safe, Balanced, &mut history), Return);
            let decided = decide(second, Safe, Balanced, &mut history);
            assert_eq!(decided, Return, "{second:?} after {first:?}");
            for unsent in [NoConnection, Unwritten, Undelivered(NotSent)] {
                assert_ne!(decide(unsent, Safe, Balanced, &mut history), Return);
            }
        }
    }
}

#[test]
fn replay_depends_on_method_body_and_upgrade() {
    let replay = |method: &str, body: &'static str, requests_upgrade: bool| {
        let body = if body.is_empty() {
            Body::empty()
        } else {
            Body::full(body)
        };
        let mut request = Request::new(body);
        *request.method_mut() = method.parse().unwrap();
        MessageContext::of_mut(request.extensions_mut()).requests_upgrade = requests_upgrade;
        Replay::of(&request)
    };
    assert_eq!(replay("GET", "", false), Safe);
    assert_eq!(replay("DELETE", "", false), Safe);
    assert_eq!(replay("POST", "", false), IfUnprocessed);
    assert_eq!(replay("PUT", "body", false), IfUntouched);
    assert_eq!(replay("PUT", "body", true), Impossible);
    assert_eq!(replay("GET", "", true), Impossible);
}

/// An attempt returns the body only if it has read nothing of it.
#[test]
fn request_can_be_sent_again_while_its_body_is_untouched() {
    let (with_body, without) = (Request::new(Body::full("b")), Request::new(Body::empty()));
    assert_eq!(IfUntouched.after_attempt(&with_body), IfUnprocessed);
    assert_eq!(IfUntouched.after_attempt(&without), Impossible);
    for replay in [Safe, IfUnprocessed, Impossible] {
        assert_eq!(replay.after_attempt(&without), replay);
    }
}

/// The rows of docs/adr/0034, and what docs/adr/0030 reports to peers.
#[test]
fn reports_are_those_of_adr_0034() {
    let plain = Report::Response(None);
    for (failure, later, undelivered) in [
        (ConnectionRefused, Report::Refusal, Some(NotSent)),
        (Excluded, Report::Refusal, Some(NotSent)),
        (NoConnection, plain, Some(NotSent)),
        (Unwritten, plain, Some(NotSent)),
        (Lost, plain, Some(Indeterminate)),
        (ProtocolError, plain, Some(Indeterminate)),
        (Refused, plain, None),
        (Reset, plain, None),
    ] {
        assert_eq!(report(failure, false, false), plain, "{failure:?}");
        assert_eq!(report(failure, false, true), later, "{failure:?}");
        for has_responded in [false, true] {
            let reported = report(failure, true, has_responded);
            assert_eq!(reported, Report::Response(undelivered), "{failure:?}");
        }
    }
}
