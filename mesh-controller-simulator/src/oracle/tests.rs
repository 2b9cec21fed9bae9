//! Each promise is found broken.

use super::*;
use crate::api::{Claim, Received, STATUS_LEASE, Write};
use crate::client::Observation;
use crate::history::Change;
use crate::store::Id;

fn at(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn id() -> Id {
    Id::of(&crate::objects::object(0, 1))
}

fn message(generation: u64) -> State {
    State::Message(crate::objects::marker(generation))
}

const TARGET: Target = Target::Profile("web");

/// Checks which promises are broken.
fn check(record: &Record, expect: &[Promise]) {
    let broken: Vec<Promise> = judge(record).iter().map(|it| it.promise).collect();
    assert_eq!(broken, expect, "{:?}", judge(record));
}

#[test]
fn ended_and_unready_processes_are_found() {
    let record = Record {
        exits: vec!["process 1 has ended".into()],
        unready: vec![2],
        ..Record::default()
    };
    check(&record, &[Promise::Runs, Promise::IsReady]);
    check(&Record::default(), &[]);
}

#[test]
fn client_without_the_final_state_is_found() {
    let refused = |code: Code| State::Refused(crate::client::Refusal(code as i32));
    let none = || State::Endpoints(BTreeMap::new());
    let some = || State::Endpoints([("10.0.0.1:80".to_owned(), String::new())].into());
    let endpoints = Target::Endpoints("web");
    for (target, has, fresh, is_right) in [
        (TARGET, Some(message(1)), Some(message(1)), true),
        (TARGET, Some(message(1)), Some(message(2)), false),
        (TARGET, None, Some(message(2)), false),
        (TARGET, Some(message(1)), None, false),
        (TARGET, Some(message(1)), Some(refused(Code::Unknown)), true),
        (endpoints, Some(none()), Some(refused(Code::NotFound)), true),
        (
            endpoints,
            Some(some()),
            Some(refused(Code::NotFound)),
            false,
        ),
        (
            Target::Inbound(""),
            Some(message(1)),
            Some(refused(Code::NotFound)),
            false,
        ),
    ] {
        let record = Record {
            ends: vec![(target, 0, has, fresh)],
            ..Record::default()
        };
        let broken: &[Promise] = if is_right { &[] } else { &[Promise::Converges] };
        check(&record, broken);
    }
}

#[test]
fn generations_that_go_back_are_found_unless_the_api_server_has_gone_back() {
    let served = |seconds, generation| Change {
        at: at(seconds),
        id: id(),
        generation,
    };
    let seen = |states: &[(f64, u64)]| Record {
        changes: vec![
            served(1.0, Some(1)),
            served(2.0, Some(2)),
            served(3.0, None),
            // Goes back.
            served(5.0, Some(1)),
        ],
        clients: vec![Seen {
            target: TARGET,
            process: 0,
            observed: states
                .iter()
                .map(|(seconds, generation)| Observation {
                    at: at(*seconds),
                    state: message(*generation),
                })
                .collect(),
        }],
        ..Record::default()
    };
    check(&seen(&[(1.0, 1), (2.0, 2), (6.0, 1)]), &[]);
    check(&seen(&[(2.5, 2), (4.0, 1)]), &[Promise::Follows]);
    // Late, and in order.
    check(&seen(&[(6.0, 1), (7.0, 2)]), &[]);
    check(&seen(&[(6.0, 2), (7.0, 1), (8.0, 2)]), &[Promise::Follows]);
    check(&seen(&[(1.5, 2)]), &[Promise::Follows]);
    check(&seen(&[(6.0, 3)]), &[Promise::Follows]);
}

#[test]
fn second_writer_is_found() {
    let claim = |seconds, process, holds| Claim {
        at: at(seconds),
        sent: at(seconds),
        process,
        lease: STATUS_LEASE.into(),
        holds,
    };
    let write = |sent, arrived, process| Write {
        at: at(arrived),
        sent: at(sent),
        process,
        id: id(),
        value: serde_json::Value::Null,
    };
    for (claims, writes, is_right) in [
        (vec![claim(1.0, 1, true)], write(2.0, 2.0, 1), true),
        (vec![claim(1.0, 1, true)], write(2.0, 2.0, 2), false),
        (vec![], write(2.0, 2.0, 1), false),
        (
            vec![claim(1.0, 1, true), claim(1.5, 1, false)],
            write(2.0, 2.0, 1),
            false,
        ),
        // The write is on its way when another process claims the Lease.
        (
            vec![claim(0.0, 1, true), claim(12.0, 2, true)],
            write(11.0, 13.0, 1),
            false,
        ),
        // The client has given it up long before.
        (
            vec![claim(1.0, 1, true), claim(11.0, 2, true)],
            write(2.0, 12.0, 1),
            true,
        ),
        (
            vec![claim(1.0, 1, true), claim(10.0, 2, true)],
            write(2.0, 2.0, 1),
            false,
        ),
    ] {
        let record = Record {
            claims,
            writes: vec![writes],
            taken_over: at(100.0),
            ..Record::default()
        };
        let broken: &[Promise] = if is_right {
            &[]
        } else {
            &[Promise::HasOneWriter]
        };
        check(&record, broken);
    }
    let late = Record {
        claims: vec![claim(1.0, 1, true)],
        writes: vec![write(2.0, 2.0, 1)],
        taken_over: at(1.5),
        ..Record::default()
    };
    check(&late, &[Promise::WritesRightly]);
}

#[test]
fn hasty_requests_are_found() {
    let request = |sent, outcome| Received {
        process: 1,
        class: Class::List,
        path: "/api/v1/pods".into(),
        sent: at(sent),
        at: at(sent),
        outcome,
    };
    let record = |requests| Record {
        requests,
        ..Record::default()
    };
    let (ok, failed) = (Outcome::Status(200), Outcome::Status(500));
    check(
        &record(vec![request(1.0, failed), request(1.2, ok)]),
        &[Promise::BacksOff],
    );
    check(&record(vec![request(1.0, failed), request(1.3, ok)]), &[]);
    check(&record(vec![request(1.0, ok), request(1.0, ok)]), &[]);
    let many = |interval| {
        let request = |number: u32| request(f64::from(number) * interval, ok);
        record((0..30).map(request).collect())
    };
    check(&many(0.4), &[Promise::BacksOff]);
    check(&many(0.6), &[]);
}
