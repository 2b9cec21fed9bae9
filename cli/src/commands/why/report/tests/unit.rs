//! Connections of systemd units, and to them.

use mesh_core::machine::{UnitState, UnitStatus};

use super::*;
use crate::facts::host::Unit;
use crate::facts::host::tests::redirected;

/// Returns the facts of `admitted` about a unit that has sent nothing.
fn of_unit() -> Facts {
    let mut facts = admitted();
    facts.place = Place::Machine;
    facts.client.kind = WorkloadKind::Unit;
    facts.client.name = "db.service".to_owned();
    facts.request = None;
    facts.connection = Connection::NotMade("none is made".to_owned());
    facts.client_tap = Err("none is made".to_owned());
    let redirected = event(
        0,
        Hook::Connect,
        "outbound-redirected",
        None,
        "10.96.0.10:80",
    );
    facts.client_kernel = Ok(vec![redirected]);
    let server = facts.server.as_mut().unwrap();
    server.chosen_by = Choice::Only;
    server.kernel = Err("not asked".to_owned());
    server.tap = Err("none is made".to_owned());
    facts
}

#[test]
fn connection_of_a_unit_is_explained_without_sending_anything() {
    let facts = of_unit();
    let text = "admitted, by agent and controllers; no connection was made";
    let report = check("unit", &facts, text, ("kernel", Outcome::Ok));
    assert_eq!(report.verdict.outcome, VerdictOutcome::Admitted);
    let kernel = step(&report, "kernel");
    assert_eq!(kernel.details, ["unit db.service is enrolled, tier full"]);
    assert_eq!(step(&report, "tls").outcome, Outcome::Ok);
    assert_eq!(step(&report, "policy").outcome, Outcome::Ok);
    assert_eq!(facts.client.name(), "db.service");
}

#[test]
fn connection_of_a_unit_around_its_proxy_names_the_setting() {
    let mut facts = of_unit();
    let skipped = event(
        0,
        Hook::Connect,
        "outbound-skipped-port",
        None,
        "10.96.0.10:80",
    );
    facts.client_kernel = Ok(vec![skipped]);
    // A policy for the mesh's clients only would refuse it.
    let all = authorization("all", Authentication::Unauthenticated);
    facts.server.as_mut().unwrap().policy = Ok(server_policy(vec![all]));
    let text = "not protected by the mesh: not redirected: port 80 is in config.linkerd.io/skip-outbound-ports of unit db.service";
    let report = check("skipped", &facts, text, ("kernel", Outcome::Notice));
    let hints = step(&report, "kernel").hints.join("\n");
    assert!(
        hints.contains("meshctl machine enrol db.service"),
        "{hints}"
    );

    facts.client.enrolment = Ok(Enrolment::Waiting("no proxy".to_owned()));
    facts.client_kernel = Err("not redirected".to_owned());
    let text = "10.96.0.10:80 is not redirected: unit db.service is not enrolled: no proxy";
    let report = check("waiting", &facts, text, ("kernel", Outcome::Notice));
    let hints = step(&report, "kernel").hints.join("\n");
    assert!(
        hints.contains("meshctl machine check db.service"),
        "{hints}"
    );

    let mut facts = of_unit();
    let refused = event(0, Hook::Connect, "outbound-refused", None, "10.96.0.10:80");
    facts.client_kernel = Ok(vec![refused]);
    let text = "refused by the kernel: the client's proxy does not listen";
    let report = check("refused", &facts, text, ("kernel", Outcome::Refused));
    assert_eq!(report.verdict.outcome, VerdictOutcome::Failed);
}

#[test]
fn policy_that_refuses_a_unit_is_named_with_a_remedy_for_a_workstation() {
    let mut facts = of_unit();
    let server = facts.server.as_mut().unwrap();
    server.policy = Ok(server_policy(vec![authorization(
        "clients",
        identities(&[WEB]),
    )]));
    let text = "refused by Server shop/web: no AuthorizationPolicy names identity client.shop";
    let report = check("policy", &facts, text, ("policy", Outcome::Refused));
    let hints = step(&report, "policy").hints.join("\n");
    assert!(hints.contains("kubectl apply -f -"), "{hints}");
}

fn enrolled(state: UnitState, proxy_listens: bool) -> Unit {
    Unit {
        status: UnitStatus {
            state,
            proxy_listens,
            listening: vec!["0.0.0.0:5432".parse().unwrap()],
            connections: BTreeMap::from([
                ("inbound_steered".to_owned(), 3),
                ("inbound_local".to_owned(), 0),
            ]),
            annotations: BTreeMap::from([(
                "config.linkerd.io/skip-inbound-ports".to_owned(),
                "22".to_owned(),
            )]),
            ..redirected("db.service", 61_000)
        },
        systemd: Err("not asked".to_owned()),
        proxy_unit: "mesh-proxy@db.service".to_owned(),
        proxy: Err("not asked".to_owned()),
        process: None,
        proxy_user: None,
        files: Vec::new(),
        token: None,
        ready: Ok(()),
        metrics: Ok(Vec::new()),
        refusal: None,
    }
}

#[test]
fn clients_of_a_unit_are_listed_by_port() {
    let mut workload = workload("db.service", "192.0.2.5", CLIENT);
    workload.kind = WorkloadKind::Unit;
    let mut skip_inbound = PortSet::default();
    skip_inbound.insert(22..=22);
    workload.skip_inbound = skip_inbound;
    let office = Authorization {
        networks: vec![Network::from(
            "10.2.0.0/16".parse::<ipnet::IpNet>().unwrap(),
        )],
        ..authorization("office", Authentication::Unauthenticated)
    };
    let web = authorization("web", identities(&[WEB]));
    let facts = Inbound {
        unit: workload,
        policies: BTreeMap::from([
            (22, Err("not asked".to_owned())),
            (80, Ok(server_policy(Vec::new()))),
            (443, Err("unreachable".to_owned())),
            (5432, Ok(server_policy(vec![office, web]))),
        ]),
    };
    let report = inbound(&enrolled(UnitState::Redirected, true), &facts);
    assert_eq!(report.verdict.outcome, VerdictOutcome::Admitted);
    let kernel = step(&report, "kernel");
    assert_eq!(
        kernel.details.last().unwrap(),
        "config.linkerd.io/skip-inbound-ports: 22"
    );
    let ports: Vec<&Step> = report.steps.iter().filter(|it| it.name == "port").collect();
    let outcomes: Vec<Outcome> = ports.iter().map(|step| step.outcome).collect();
    let expected = [
        Outcome::Notice,
        Outcome::Refused,
        Outcome::Unknown,
        Outcome::Ok,
    ];
    assert_eq!(outcomes, expected);
    assert_eq!(ports[1].summary, "80: Server shop/web admits no client");
    assert_eq!(ports[3].summary, "5432: Server shop/web, 2 authorizations");
    assert_eq!(
        ports[3].details,
        [
            "AuthorizationPolicy shop/office admits every client from 10.2.0.0/16".to_owned(),
            format!("AuthorizationPolicy shop/web admits {WEB}"),
        ]
    );
    let counters = &step(&report, "counters").summary;
    assert_eq!(counters, "connections by verdict: inbound_steered 3");
}

#[test]
fn unit_without_proxy_is_closed_or_bypasses_the_mesh() {
    for (state, outcome) in [
        (UnitState::Redirected, VerdictOutcome::Failed),
        (UnitState::Waiting, VerdictOutcome::Bypassed),
    ] {
        let facts = Inbound {
            unit: workload("db.service", "192.0.2.5", CLIENT),
            policies: BTreeMap::new(),
        };
        let report = inbound(&enrolled(state, false), &facts);
        assert_eq!(report.verdict.outcome, outcome, "{}", report.verdict.text);
    }
}
