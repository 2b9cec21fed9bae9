//! The rows of docs/adr/0030 and 0034 as tables.

use super::Action::Return;
use super::Dispatch::{Application, Balanced, Fixed};
use super::Failure::{
    BrokenResponse, ConnectionRefused, Excluded, NoConnection, Refused, Reset, TimedOut,
    UnsentByPeer, Unwritten,
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
const LOST: Failure = Failure::Lost {
    may_be_unreceived: true,
};
const LOST_AT_ONCE: Failure = Failure::Lost {
    may_be_unreceived: false,
};
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
/// follows for a balancer, a fixed address, and the application.
#[test]
fn decisions_are_those_of_adr_0030() {
    type Row = (Failure, &'static [Replay], [&'static [Action]; 3]);
    let rows: [Row; 11] = [
        (ConnectionRefused, ALL, [ALWAYS, NEVER, NEVER]),
        (NoConnection, ALL, [ALWAYS, NEVER, NEVER]),
        (Unwritten, ALL, [OTHER_THRICE, SAME_THRICE, SAME_THRICE]),
        (Refused, WITHOUT_BODY, [OTHER_ONCE, SAME_ONCE, NEVER]),
        (Excluded, WITHOUT_BODY, [OTHER_ONCE, SAME_ONCE, SAME_ONCE]),
        (LOST, &[Safe], [OTHER_ONCE, SAME_ONCE, SAME_THRICE]),
        (LOST_AT_ONCE, &[], [NEVER, NEVER, NEVER]),
        (BrokenResponse, &[], [NEVER, NEVER, NEVER]),
        (UnsentByPeer, WITHOUT_BODY, [&[IF_OTHER], NEVER, NEVER]),
        (Reset, &[], [NEVER, NEVER, NEVER]),
        (TimedOut, &[], [NEVER, NEVER, NEVER]),
    ];
    for (failure, permitted, columns) in rows {
        for replay in ALL {
            for (dispatch, actions) in [Balanced, Fixed, Application].into_iter().zip(columns) {
                let is_permitted = permitted.contains(replay);
                let expected = if is_permitted { actions } else { NEVER };
                check(failure, *replay, dispatch, expected);
            }
        }
    }
}

/// Whatever an endpoint does to a request that it has received, it may serve others.
#[test]
fn only_endpoints_that_cannot_be_reached_are_excluded() {
    for (failure, reached) in [
        (ConnectionRefused, Some(false)),
        (NoConnection, Some(false)),
        (UnsentByPeer, Some(false)),
        (Unwritten, None),
        (Refused, Some(true)),
        (Excluded, Some(true)),
        (LOST, Some(true)),
        (LOST_AT_ONCE, Some(true)),
        (BrokenResponse, Some(true)),
        (Reset, Some(true)),
        (TimedOut, Some(true)),
    ] {
        assert_eq!(failure.reached(), reached, "{failure:?}");
    }
}

#[test]
fn request_that_was_sent_is_retried_once_whatever_failed() {
    for first in [Refused, Excluded, LOST] {
        for second in [Refused, Excluded, LOST] {
            let mut history = History::default();
            assert_ne!(decide(first, Safe, Balanced, &mut history), Return);
            let decided = decide(second, Safe, Balanced, &mut history);
            assert_eq!(decided, Return, "{second:?} after {first:?}");
            for unsent in [NoConnection, Unwritten, UnsentByPeer] {
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
    use super::Report::{Refusal, Response, Unsent};
    let report = |failure, is_meshed, has_response, may_repeat| {
        let to = Requester {
            is_meshed,
            has_response,
            may_repeat,
        };
        report(failure, to)
    };
    // To a client whose connection has had a response, which may repeat the request or not, and to
    // a peer.
    for (failure, later, later_unless_repeatable, to_peer) in [
        (ConnectionRefused, Refusal, Refusal, Unsent),
        (Excluded, Refusal, Refusal, Unsent),
        (NoConnection, Response, Response, Unsent),
        (Unwritten, Response, Response, Unsent),
        (LOST, Refusal, Response, Response),
        (LOST_AT_ONCE, Refusal, Response, Response),
        (BrokenResponse, Response, Response, Response),
        (Refused, Response, Response, Response),
        (Reset, Response, Response, Response),
    ] {
        for may_repeat in [true, false] {
            assert_eq!(
                report(failure, false, false, may_repeat),
                Response,
                "{failure:?}"
            );
            for has_response in [false, true] {
                let reported = report(failure, true, has_response, may_repeat);
                assert_eq!(reported, to_peer, "{failure:?}");
            }
        }
        assert_eq!(report(failure, false, true, true), later, "{failure:?}");
        let reported = report(failure, false, true, false);
        assert_eq!(reported, later_unless_repeatable, "{failure:?}");
    }
}

/// The fail-fast timeout of its request begins again, only then.
#[test]
fn only_a_lost_request_may_have_been_processed() {
    assert!(LOST.may_be_processed() && LOST_AT_ONCE.may_be_processed());
    for failure in [
        ConnectionRefused,
        NoConnection,
        Unwritten,
        Refused,
        Excluded,
        Reset,
        BrokenResponse,
        TimedOut,
        UnsentByPeer,
    ] {
        assert!(!failure.may_be_processed(), "{failure:?}");
    }
}
