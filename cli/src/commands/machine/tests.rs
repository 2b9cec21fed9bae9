//! Rows, details and exit codes of `meshctl machine`.

use std::collections::BTreeMap;

use mesh_core::machine::{UnitIdentity, UnitState};

use super::*;
use crate::facts::host::tests::redirected;

fn unit(name: &str) -> UnitStatus {
    UnitStatus {
        listening: vec!["0.0.0.0:80".parse().unwrap(), "[::]:80".parse().unwrap()],
        connections: BTreeMap::from([
            ("inbound_steered".to_owned(), 3),
            ("inbound_refused".to_owned(), 0),
        ]),
        ..redirected(name, 61_000)
    }
}

#[test]
fn units_have_a_row_each() {
    let stopped = UnitStatus {
        state: UnitState::Waiting,
        running: false,
        proxy_listens: false,
        listening: Vec::new(),
        warnings: vec!["x".to_owned()],
        ..unit("b.service")
    };
    let expected = "\
UNIT         STATE       RUNNING  PROXY    LISTENING           WARNINGS
web.service  redirected  yes      listens  0.0.0.0:80 [::]:80         0
b.service    waiting     no       absent   -                          1
";
    assert_eq!(table(&[unit("web.service"), stopped]), expected);
}

#[test]
fn details_of_a_unit_have_ports_and_connections_without_zeros() {
    let text = details(&unit("web.service"));
    for line in [
        "redirect ports  61004-61063",
        "proxy ports     inbound=61001 outbound=61000 admin=61003 control=61002",
        "connections     inbound_steered=3",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
    }
}

#[test]
fn details_of_a_unit_have_its_identity() {
    let unit = UnitStatus {
        identity: Some(UnitIdentity {
            service_account: "shop/db".to_owned(),
            external_workload: "db-1-web".to_owned(),
            name: None,
            token_expires: Some(1_767_323_045),
            token_file: None,
        }),
        ..unit("web.service")
    };
    let text = details(&unit);
    for line in [
        "service account    shop/db",
        "external workload  db-1-web",
        "identity           -",
        "token until        2026-01-02T03:04:05Z",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
    }
}

#[test]
fn unknown_unit_is_named_with_the_enrolled_ones() {
    let error = find(vec![unit("web.service")], "data.service").unwrap_err();
    let expected = "unit data.service is not enrolled on this host; enrolled: web.service";
    assert_eq!(error.to_string(), expected);
    assert!(find(Vec::new(), "web.service").is_err());
}

#[test]
fn refusals_have_exit_codes_by_reason() {
    let refused = |reason| {
        let message = "because".to_owned();
        let refusal = Response::Refused(Refusal { reason, message });
        answer(refusal).unwrap_err()
    };
    let failure = |reason| refused(reason).downcast::<Failure>().ok();
    assert!(matches!(
        failure(RefusalReason::Invalid),
        Some(Failure::Input(_))
    ));
    assert!(matches!(
        failure(RefusalReason::TryAgain),
        Some(Failure::TimedOut(_))
    ));
    assert!(failure(RefusalReason::Failed).is_none());
}

#[test]
fn annotation_is_split_at_the_first_equals_sign() {
    let parsed = parse_annotation("config.linkerd.io/skip-subnets=10.0.0.0/8=x");
    let expected = (
        "config.linkerd.io/skip-subnets".to_owned(),
        "10.0.0.0/8=x".to_owned(),
    );
    assert_eq!(parsed, Ok(expected));
    assert!(parse_annotation("=x").is_err());
    assert!(parse_annotation("x").is_err());
}
