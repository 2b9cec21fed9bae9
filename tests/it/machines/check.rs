//! `meshctl machine check` on a machine that has joined: faults are planted into the running agent,
//! proxy and identity service, and each has a row. systemd is not asked here.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::chown;

use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;
use serde_json::Value;

use super::world::{MACHINE, World};

/// This machine cannot reach them from the beginning.
const CLOSED: [&str; 2] = ["machine-reaches-destination", "machine-reaches-policy"];
/// What follows from that while the proxy runs.
const NOT_READY: &str = "unit-proxy-ready";

/// The checks that fail, with details and advice in one text.
fn failures(world: &World, unit: &str) -> Vec<(String, String)> {
    let report = world.check(&[unit, "-o", "json"]);
    let categories = report["categories"].as_array().expect("categories");
    let rows = categories
        .iter()
        .flat_map(|category| category["checks"].as_array().expect("checks"));
    let failed = rows.filter(|row| row["result"] == "error");
    let failed = failed.map(|row: &Value| {
        let name = row["name"].as_str().expect("a name").to_owned();
        (name, row.to_string())
    });
    failed.collect()
}

/// Waits until the expected checks fail, and of the others only the ones of the closed services.
/// The row of the first expected one has all texts.
fn expect(world: &World, expected: &[&str], texts: &[&str]) {
    let all: Vec<&str> = CLOSED.iter().chain(expected).copied().collect();
    eventually(&format!("the failures {expected:?}"), || {
        let found = failures(world, "web.service");
        let mut names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        let mut all = all.clone();
        names.sort_unstable();
        all.sort_unstable();
        let text = expected.first().map_or("", |name| {
            let mut found = found.iter();
            found
                .find(|(found, _)| found == name)
                .map_or("", |(_, text)| text.as_str())
        });
        let has_texts = texts.iter().all(|expected| text.contains(expected));
        (names == all && has_texts)
            .then_some(())
            .ok_or_else(|| format!("{found:#?}"))
    });
}

#[test]
fn planted_faults_of_a_machine_have_a_row_each() {
    require_root!();
    let world = World::start();
    let agent = world.start_agent();
    world.join();
    let _app = world.start_unit();
    world.enrol();
    expect(
        &world,
        &["unit-proxy-runs", "unit-proxy-listens", "unit-redirected"],
        &["no process runs in cgroup"],
    );
    let proxy = world.start_proxy();
    expect(&world, &[NOT_READY], &["not ready"]);

    let token = world.path("state/tokens/web");
    chown(&token, Some(0), Some(0)).expect("the owner changes");
    expect(
        &world,
        &["unit-token", NOT_READY],
        &["cannot read its token", "mode 400"],
    );
    fs::remove_file(&token).expect("the token is removed");
    expect(&world, &[NOT_READY], &["not ready"]);

    // The admission lists another ServiceAccount, and the proxy asks for its first certificate.
    drop(proxy);
    world.admit_account(&world.key(), "shop/other");
    expect(
        &world,
        &["unit-account", "unit-proxy-runs", "unit-proxy-listens"],
        &[],
    );
    let proxy = world.start_proxy();
    expect(
        &world,
        &["unit-account", "unit-certificate", NOT_READY],
        &[
            "may not have the identity of ServiceAccount shop/db",
            &format!("meshctl machine admit {MACHINE} --key-sha256"),
        ],
    );
    world.admit(&world.key());
    expect(&world, &[NOT_READY], &["not ready"]);

    drop(proxy);
    let port: SocketAddr = "0.0.0.0:61001".parse().expect("an address");
    let other = world.in_host(|| TcpListener::bind(port).expect("the port is free"));
    expect(
        &world,
        &["unit-ports", "unit-proxy-runs", "unit-proxy-listens"],
        &[
            "another program listens on 0.0.0.0:61001",
            "inbound-port=PORT",
        ],
    );
    drop(other);
    let _proxy = world.start_proxy();
    expect(&world, &[NOT_READY], &["not ready"]);

    drop(agent);
    let found = failures(&world, "web.service");
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["machine-agent-answers"]);
    assert!(found[0].1.contains("cannot connect to the node agent"));
}

#[test]
fn unit_that_is_not_enrolled_is_refused() {
    require_root!();
    let world = World::start();
    let _agent = world.start_agent();
    let output = world.check_output(&["absent.service"]);
    assert_eq!(output.status.code(), Some(65));
    let errors = mesh_test_support::command::text(&output.stderr);
    assert!(
        errors.contains("unit absent.service is not enrolled"),
        "{errors}"
    );
    let report = world.check(&["-o", "json"]);
    let text = report.to_string();
    assert!(text.contains("the machine has not joined a mesh"), "{text}");
}

#[test]
fn lost_identity_service_is_the_root_cause_of_missing_certificates() {
    require_root!();
    let mut world = World::start();
    let _agent = world.start_agent();
    world.join();
    let _app = world.start_unit();
    world.enrol();
    world.stop_identity_service();
    let _proxy = world.start_proxy();
    expect(
        &world,
        &["machine-reaches-identity", "unit-certificate", NOT_READY],
        &["the identity service at 10.78.0.2:8080", "the agent"],
    );
}
