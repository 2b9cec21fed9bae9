//! Faults of machines with systemd units, and of their proxies.

use mesh_core::machine::{MembershipStatus, UnitState};
use mesh_core::node::{SelfTestCase, SelfTestOutcome, Tier};

use super::faults::{Fault, check};
use super::fixture::host::{DAY, PROXY_USER, machine, reached};
use super::fixture::{NOW, TestCa, expiry};
use super::*;
use crate::facts::Mode;
use crate::facts::host::{AGENT_UNIT, PROXY_TEMPLATE, Refusal, Unit};
use crate::host::token::Found;
use crate::host::{environment, systemd};

/// Replaces the facts by a machine's, and returns the unit `web.service`.
fn web(facts: &mut Facts) -> &mut Unit {
    *facts = machine();
    &mut facts.host.units.as_mut().unwrap()[0]
}

fn membership(facts: &mut Facts) -> &mut MembershipStatus {
    *facts = machine();
    facts.host.membership.as_mut().unwrap().as_mut().unwrap()
}

fn own_unit<'a>(facts: &'a mut Facts, name: &str) -> &'a mut systemd::Unit {
    *facts = machine();
    let units = facts.host.own_units.as_mut().unwrap();
    &mut units.get_mut(name).unwrap().unit
}

fn without_agent(facts: &mut Facts, state: &str) {
    own_unit(facts, AGENT_UNIT).active = state.to_owned();
    let reason = "cannot connect to the node agent at /run/mesh/agent.sock";
    facts.host.agent = Err(reason.to_owned());
    facts.host.membership = Err(reason.to_owned());
    facts.host.units = Err(reason.to_owned());
    facts.agents.clear();
}

/// Has the service present a certificate of this name and authority.
fn present(facts: &mut Facts, at: usize, name: &str, authority: &TestCa) {
    let reached = &mut facts.host.services[at];
    reached.chain = Ok(Some(vec![authority.server(name, 1).0]));
}

fn proxy(facts: &mut Facts) -> &mut systemd::Unit {
    web(facts).proxy.as_mut().unwrap()
}

fn token(facts: &mut Facts) -> &mut Found {
    let token = web(facts).token.as_mut().unwrap().as_mut().unwrap();
    token.found.as_mut().unwrap()
}

/// Writes `/etc/mesh/proxy.env`.
fn write_overrides(facts: &mut Facts, text: &str) {
    web(facts).files[1].content = Ok(Some(environment::parse(text)));
}

/// Removes the membership, and the identities of units if the machine never had any.
fn unjoin(facts: &mut Facts, with_identities: bool) {
    *facts = machine();
    facts.host.membership = Ok(None);
    facts.host.services.clear();
    facts.host.clocks = Ok(None);
    if !with_identities {
        for unit in facts.host.units.as_mut().unwrap() {
            unit.status.identity = None;
        }
    }
}

pub(super) const FAULTS: &[Fault] = &[
    check("machine-root").fails("you are not root", |facts| {
        *facts = machine();
        facts.machine.root = false;
    }),
    check("machine-systemd").warns("process 1 is tini", |facts| {
        *facts = machine();
        facts.host.init = Ok("tini".to_owned());
    }),
    check("machine-kernel").fails("no cgroup2 file system", |facts| {
        *facts = machine();
        facts.machine.mounts = "cgroup /sys/fs/cgroup cgroup rw 0 0\n".to_owned();
    }),
    check("machine-kernel").fails("/sys/kernel/btf/vmlinux is missing", |facts| {
        *facts = machine();
        facts.machine.btf = false;
    }),
    check("machine-kernel").fails("self-test connected-udp has failed: x", |facts| {
        *facts = machine();
        facts.host.agent.as_mut().unwrap().self_test = vec![SelfTestCase {
            name: "connected-udp".to_owned(),
            outcome: SelfTestOutcome::Failed,
            detail: "x".to_owned(),
        }];
    }),
    check("machine-kernel").fails("the agent uses tier nft: the best", |facts| {
        *facts = machine();
        facts.host.agent.as_mut().unwrap().tier = Tier::Nft;
    }),
    check("machine-unit-files").fails("systemd has no unit mesh-proxy@.service", |facts| {
        own_unit(facts, PROXY_TEMPLATE).load = "not-found".to_owned();
    }),
    check("machine-unit-files").fails("mesh-agent.service is masked", |facts| {
        own_unit(facts, AGENT_UNIT).load = "masked".to_owned();
    }),
    check("machine-unit-files").warns("mesh-proxy@.service is not the file of version", |facts| {
        *facts = machine();
        let units = facts.host.own_units.as_mut().unwrap();
        units.get_mut(PROXY_TEMPLATE).unwrap().text = Ok("[Service]\n".to_owned());
    }),
    check("machine-unit-files").warns("have changed since systemd read them", |facts| {
        own_unit(facts, PROXY_TEMPLATE).needs_reload = true;
    }),
    check("machine-agent-runs").fails("the agent is not installed", |facts| {
        without_agent(facts, "inactive");
        let units = facts.host.own_units.as_mut().unwrap();
        units.get_mut(AGENT_UNIT).unwrap().unit.load = "not-found".to_owned();
        // The row about the unit files would be the root cause.
        units.remove(PROXY_TEMPLATE);
    }),
    check("machine-agent-runs").fails("mesh-agent.service is inactive", |facts| {
        without_agent(facts, "inactive");
    }),
    check("machine-agent-runs").fails("it logged: no BTF", |facts| {
        without_agent(facts, "failed");
        facts.host.agent_log = vec!["no BTF".to_owned()];
    }),
    check("machine-agent-runs").warns("is not enabled: after the next boot", |facts| {
        own_unit(facts, AGENT_UNIT).file_state = "disabled".to_owned();
    }),
    check("machine-agent-runs").warns("an agent responds, but", |facts| {
        own_unit(facts, AGENT_UNIT).active = "inactive".to_owned();
    }),
    check("machine-agent-answers").fails("cannot connect to the node agent", |facts| {
        without_agent(facts, "active");
    }),
    check("machine-agent-answers").fails("redirects pods", |facts| {
        *facts = machine();
        facts.host.units = Err("this agent redirects pods".to_owned());
    }),
    check("machine-agent-version").warns("the agent is v0, meshctl", |facts| {
        *facts = machine();
        facts.host.agent.as_mut().unwrap().agent_version = "v0".to_owned();
    }),
    check("machine-agent-warnings").fails(
        "the user mesh-proxy of the proxies does not exist",
        |facts| {
            let failure = "the identity service refused machine db-1";
            membership(facts).renewal_failure = Some(failure.to_owned());
            facts.host.agent.as_mut().unwrap().warnings = vec![
                "web.service: another program listens".to_owned(),
                format!("the certificate of the machine is not renewed: {failure}"),
                "the user mesh-proxy of the proxies does not exist".to_owned(),
            ];
        },
    ),
    check("machine-joined").warns("the machine has not joined a mesh", |facts| {
        unjoin(facts, false);
    }),
    check("machine-joined").fails(
        "web.service: its ServiceAccount shop/web is of no mesh",
        |facts| {
            unjoin(facts, true);
        },
    ),
    check("machine-joined").fails("the record of the membership cannot be used", |facts| {
        *facts = machine();
        facts.host.membership = Err("the record of the membership cannot be used".to_owned());
    }),
    check("machine-certificate").fails(
        "the certificate of machine db-1 expired 47 hours ago",
        |facts| {
            membership(facts).certificate_expires = NOW - 47 * 3600;
        },
    ),
    check("machine-renewal").warns(
        "expires in 15 days, on 2026-01-16: machine \"db-1\" is not admitted",
        |facts| {
            let member = membership(facts);
            member.certificate_expires = NOW + 15 * DAY;
            member.renewal_failure = Some("machine \"db-1\" is not admitted".to_owned());
        },
    ),
    check("machine-renewal").fails(
        "the last renewal failed, and the certificate expires in 6 days",
        |facts| {
            let member = membership(facts);
            member.certificate_expires = NOW + 6 * DAY;
            member.renewal_failure = Some("cannot connect".to_owned());
        },
    ),
    check("machine-renewal").warns(
        "the renewal was due 5 hours ago and was not tried",
        |facts| {
            membership(facts).renews_at = NOW - 5 * 3600;
        },
    ),
    check("machine-anchors").fails("old expired on", |facts| {
        membership(facts).trust_anchors = TestCa::new("old", -1).pem();
    }),
    check("machine-anchors").warns("old expired on", |facts| {
        let member = membership(facts);
        member.trust_anchors += &TestCa::new("old", -1).pem();
    }),
    check("machine-anchors").warns("soon expires in 30 days", |facts| {
        membership(facts).trust_anchors = TestCa::new("soon", 30).pem();
    }),
    check("machine-anchors").fails("contains no certificate", |facts| {
        membership(facts).trust_anchors = "none".to_owned();
    }),
    check("machine-clock").warns(
        "the clock of this machine is 60 s behind the identity",
        |facts| {
            *facts = machine();
            let clocks = facts.host.clocks.as_mut().unwrap().as_mut().unwrap();
            clocks.own = clocks.service - 60;
        },
    ),
    check("machine-clock").fails("3600 s ahead of the identity service's: tokens", |facts| {
        *facts = machine();
        let clocks = facts.host.clocks.as_mut().unwrap().as_mut().unwrap();
        clocks.own = clocks.service + 3600;
    }),
    check("machine-reaches-identity").fails(
        "the agent: cannot connect to the identity service",
        |facts| {
            *facts = machine();
            let reason = "cannot connect to the identity service at 10.0.0.7:8080: refused";
            facts.host.services[0].chain = Err(reason.to_owned());
        },
    ),
    check("machine-reaches-identity").fails("UnknownIssuer", |facts| {
        *facts = machine();
        let name = facts.host.services[0].service.name.clone();
        present(facts, 0, &name, &TestCa::new("other", 365));
    }),
    check("machine-reaches-destination").fails(
        "a server with the names web.example.com responds",
        |facts| {
            *facts = machine();
            let ca = TestCa::new("root", 365);
            let member = facts.host.membership.as_ref().unwrap().as_ref().unwrap();
            facts.host.services[1] = reached(&member.services[1], &ca);
            present(facts, 1, "web.example.com", &ca);
        },
    ),
    check("machine-reaches-policy").fails(
        "the certificate of the policy service at 10.0.0.7:8090 is not valid here",
        |facts| {
            *facts = machine();
            facts.now = NOW + 2 * DAY;
        },
    ),
    check("machine-reaches-policy").fails("the trust anchors contains no certificate", |facts| {
        *facts = machine();
        facts.host.services[2].service.anchors = "none".to_owned();
    }),
    check("unit-exists").fails("web.service: systemd has no such unit", |facts| {
        web(facts).systemd.as_mut().unwrap().load = "not-found".to_owned();
    }),
    check("unit-exists").warns("web.service is masked", |facts| {
        web(facts).systemd.as_mut().unwrap().load = "masked".to_owned();
    }),
    check("unit-exists").fails(
        "runs in cgroup app.slice/web.service, and is enrolled with system.slice",
        |facts| {
            web(facts).systemd.as_mut().unwrap().cgroup = "/app.slice/web.service".to_owned();
        },
    ),
    check("unit-warnings").warns("web.service: a process outside", |facts| {
        let warning = "a process outside of web.service listens on :: port 80, too";
        web(facts).status.warnings = vec![warning.to_owned()];
    }),
    check("unit-environment").fails("/var/lib/mesh/proxies/web.env is missing", |facts| {
        web(facts).files[0].content = Ok(None);
    }),
    check("unit-environment").fails(
        "mesh-proxy@web.service does not read /var/lib/mesh",
        |facts| {
            web(facts).files.remove(0);
        },
    ),
    check("unit-environment").fails("names no identity service and no SPIFFE", |facts| {
        let content = web(facts).files[0].content.as_mut().unwrap();
        let variables = &mut content.as_mut().unwrap().variables;
        variables.remove("LINKERD2_PROXY_IDENTITY_SVC_ADDR");
    }),
    check("unit-overrides").warns(
        "/etc/mesh/proxy.env: no proxy reads LINKERD2_PROXY_LOGLEVEL",
        |facts| {
            write_overrides(facts, "LINKERD2_PROXY_LOGLEVEL=debug\n");
        },
    ),
    check("unit-overrides").warns("line 2 sets no variable", |facts| {
        write_overrides(facts, "# ok\nexport LINKERD2_PROXY_LOG=debug\n");
    }),
    check("unit-overrides").warns(
        "LINKERD2_PROXY_ADMIN_LISTEN_ADDR replaces what the agent",
        |facts| {
            write_overrides(facts, "LINKERD2_PROXY_ADMIN_LISTEN_ADDR=127.0.0.1:4191\n");
        },
    ),
    check("unit-ports").fails("another program listens on 0.0.0.0:61001", |facts| {
        web(facts).status.foreign_listeners = vec!["0.0.0.0:61001".parse().unwrap()];
    }),
    check("unit-ports").fails(
        "port 61070 of its proxy is also one of db.service",
        |facts| {
            web(facts).status.ports.inbound = 61_070;
        },
    ),
    check("unit-token").fails(
        "web.service: its token /run/mesh/tokens/web is missing",
        |facts| {
            let token = web(facts).token.as_mut().unwrap().as_mut().unwrap();
            token.found = None;
        },
    ),
    check("unit-token").fails(
        "user 991, which its proxy runs as, cannot read its token",
        |facts| {
            token(facts).modes[0].uid = PROXY_USER + 1;
        },
    ),
    check("unit-token").fails("/run/mesh belongs to user 0 and has mode 700", |facts| {
        token(facts).modes[2].mode = 0o700;
    }),
    check("unit-token").fails(
        "its token /run/mesh/tokens/web expired 2 hours ago",
        |facts| {
            token(facts).expires = Some(NOW - 7200);
        },
    ),
    check("unit-token").warns("expires in 5 minutes", |facts| {
        token(facts).expires = Some(NOW + 300);
    }),
    check("unit-token").fails("is not a token", |facts| {
        token(facts).expires = None;
    }),
    check("unit-proxy-runs").fails("mesh-proxy@web.service, its proxy, does not run", |facts| {
        proxy(facts).active = "inactive".to_owned();
    }),
    check("unit-proxy-runs").fails(
        "is activating (auto-restart): it refuses its environment",
        |facts| {
            *proxy(facts) = systemd::Unit {
                active: "activating".to_owned(),
                sub: "auto-restart".to_owned(),
                result: "exit-code".to_owned(),
                exit_code: Some(64),
                ..proxy(&mut machine()).clone()
            };
        },
    ),
    check("unit-proxy-runs").warns("mesh-proxy@web.service is not enabled", |facts| {
        proxy(facts).file_state = "disabled".to_owned();
    }),
    check("unit-proxy-runs").fails("systemd has no unit mesh-proxy@web.service", |facts| {
        proxy(facts).load = "not-found".to_owned();
    }),
    check("unit-proxy-runs").fails(
        "no process runs in cgroup mesh.slice/mesh-proxy@web.service",
        |facts| {
            let web = web(facts);
            web.proxy = Err("cannot run systemctl".to_owned());
            web.process = None;
        },
    ),
    check("unit-proxy-listens").fails(
        "does not listen on ports 61001 and 61000: connections of the unit are refused",
        |facts| {
            web(facts).status.proxy_listens = false;
        },
    ),
    check("unit-redirected").fails("web.service is waiting for its proxy", |facts| {
        web(facts).status.state = UnitState::Waiting;
    }),
    check("unit-proxy-current").warns(
        "(process 12) was started with other values of LINKERD2_PROXY_INBOUND_LISTEN_ADDR",
        |facts| {
            let process = web(facts).process.as_mut().unwrap();
            let name = "LINKERD2_PROXY_INBOUND_LISTEN_ADDR".to_owned();
            process.environment.insert(name, "[::]:4143".to_owned());
        },
    ),
    check("unit-account").fails(
        "refuses ServiceAccount shop/web: machine db-1 may not have",
        |facts| {
            let web = web(facts);
            web.metrics = Ok(Vec::new());
            web.refusal = Some(Refusal {
                message: "machine db-1 may not have the identity".to_owned(),
                is_denied: true,
            });
        },
    ),
    check("unit-certificate").fails(
        "web.service: its proxy has no certificate yet: no route",
        |facts| {
            let web = web(facts);
            web.metrics = Ok(Vec::new());
            web.refusal = Some(Refusal {
                message: "no route".to_owned(),
                is_denied: false,
            });
        },
    ),
    check("unit-certificate").fails("the certificate of its proxy has expired", |facts| {
        web(facts).metrics = Ok(expiry(NOW - 1));
    }),
    check("unit-certificate").warns("and is not renewed: internal", |facts| {
        web(facts).refusal = Some(Refusal {
            message: "internal".to_owned(),
            is_denied: false,
        });
    }),
    check("unit-proxy-ready").fails("web.service: not ready: policies", |facts| {
        web(facts).ready = Err("not ready: policies".to_owned());
    }),
];

#[test]
fn all_checks_of_hosts_pass_on_a_healthy_machine() {
    let facts = machine();
    let categories: Vec<&str> = evaluate(&facts)
        .into_iter()
        .map(|category| category.category_name)
        .collect();
    let expected = ["machine", "mesh-agent", "mesh-membership", "mesh-units"];
    assert_eq!(categories, expected);
    for row in all_rows(&facts) {
        assert_eq!(row.mark, Mark::Ok, "{}: {:?}", row.name, row.detail);
    }
    // The rows of hosts are of no other mode.
    let mut other = machine();
    other.mode = Mode::Installed { proxies: true };
    let hosts = |row: &Report| row.name.starts_with("unit-") || row.name == "machine-root";
    assert!(!all_rows(&other).iter().any(hosts));
}

/// All that only the agent knows is reported once, by the row about the agent.
#[test]
fn agent_that_does_not_run_is_the_only_root_cause() {
    let mut facts = machine();
    without_agent(&mut facts, "inactive");
    let rows = all_rows(&facts);
    let roots = rows
        .iter()
        .filter(|row| row.mark == Mark::Fail && row.cause.is_none());
    let roots: Vec<&str> = roots.map(|row| row.name).collect();
    assert_eq!(roots, ["machine-agent-runs"]);
    let advice = &row(&facts, "machine-agent-runs").advice;
    assert_eq!(advice, "systemctl enable --now mesh-agent.service");
}

#[test]
fn missing_certificate_follows_from_the_identity_service() {
    let mut facts = machine();
    let web = &mut facts.host.units.as_mut().unwrap()[0];
    web.metrics = Ok(Vec::new());
    web.ready = Err("not ready: the certificate".to_owned());
    facts.host.services[0].chain = Err("cannot connect".to_owned());
    for consequence in ["unit-certificate", "unit-proxy-ready"] {
        let row = row(&facts, consequence);
        assert_eq!(row.cause, Some("machine-reaches-identity"), "{consequence}");
    }
}

/// Without systemd the rows that need its answers say so, and the others are evaluated.
#[test]
fn machine_without_systemd_is_checked_by_its_processes() {
    let mut facts = machine();
    let reason = "cannot run systemctl: not found";
    facts.host.own_units = Err(reason.to_owned());
    for unit in facts.host.units.as_mut().unwrap() {
        unit.systemd = Err(reason.to_owned());
        unit.proxy = Err(reason.to_owned());
    }
    assert_eq!(wrong_rows(&facts), Vec::<&str>::new());
    let units = facts.host.units.as_mut().unwrap();
    units[0].process = None;
    // Its admin server need not respond then.
    units[0].ready = Err("refused".to_owned());
    assert_eq!(wrong_rows(&facts), ["unit-proxy-runs"]);
}

#[test]
fn proxies_of_the_workload_api_need_no_membership() {
    let mut facts = machine();
    unjoin(&mut facts, false);
    for unit in facts.host.units.as_mut().unwrap() {
        let text = "LINKERD2_PROXY_IDENTITY_SPIRE_SOCKET=/run/spire.sock\n";
        unit.files[1].content = Ok(Some(environment::parse(text)));
        unit.process = None;
        unit.token = None;
    }
    assert_eq!(wrong_rows(&facts), Vec::<&str>::new());
}

#[test]
fn advice_names_the_objects_of_the_machine() {
    for (message, expect) in [
        (
            "shop/web: machine db-1",
            "meshctl machine admit db-1 --key-sha256 00ff --service-account shop/web",
        ),
        (
            "on 0.0.0.0:61001",
            "--annotation config.linkerd.io/inbound-port=PORT",
        ),
        (
            "expired 47 hours ago",
            "meshctl machine admit db-1 --key-sha256 00ff > join.yaml",
        ),
        (
            "does not run",
            "systemctl enable --now mesh-proxy@web.service",
        ),
        (
            "with other values of",
            "systemctl restart mesh-proxy@web.service",
        ),
        ("no such unit", "meshctl machine withdraw web.service"),
    ] {
        let fault = FAULTS.iter().find(|it| it.message.contains(message));
        let fault = fault.unwrap_or_else(|| panic!("{message}"));
        let mut facts = machine();
        (fault.inject)(&mut facts);
        let advice = row(&facts, fault.check).advice;
        assert!(advice.contains(expect), "{advice}");
    }
}
