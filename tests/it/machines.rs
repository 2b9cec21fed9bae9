//! Machines outside Kubernetes that join a mesh: `meshctl`, the agent of the machine, the proxies
//! of its units, and an identity service behind its proxy. Only the API server is played.

mod check;
mod world;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use mesh_test_support::certificates::TestCa;
use mesh_test_support::command::{feed, output_text, text};
use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;
use serde_json::Value;

use self::world::{ACCOUNT, CLIENT, DAY, MACHINE, UNIT, World};

#[test]
fn machine_that_joins_gives_its_units_identities_and_leaves_without_a_trace() {
    require_root!();
    let world = World::start();
    let agent = world.start_agent();
    world.join();
    let status = world.meshctl_json(&["machine", "status", "-o", "json"]);
    assert_eq!(status["machine"], MACHINE, "{status}");
    assert_eq!(
        status["name"],
        "db-1.machine.identity.linkerd.cluster.local"
    );
    let app = world.start_unit();
    let enrolled = world.enrol();
    assert_eq!(enrolled["identity"]["name"], UNIT, "{enrolled}");
    assert_eq!(enrolled["identity"]["externalWorkload"], "db-1-web");

    // The user of proxies reads the token and nothing else.
    let token = world.path("state/tokens/web");
    let metadata = fs::metadata(&token).unwrap();
    let owner = world::proxy_user();
    assert_eq!((metadata.uid(), metadata.mode() & 0o777), (owner, 0o400));
    for secret in ["units/identity/key.pem", "units/identity/membership.json"] {
        let metadata = fs::metadata(world.path(secret)).unwrap();
        assert_eq!((metadata.uid(), metadata.mode() & 0o777), (0, 0o600));
    }
    let environment = fs::read_to_string(world.path("units/proxies/web.env")).unwrap();
    for line in [
        r#"LINKERD2_PROXY_POLICY_WORKLOAD="{\"external_workload\":\"db-1-web\",\"ns\":\"shop\"}""#,
        r#"LINKERD2_PROXY_INBOUND_DEFAULT_POLICY="all-authenticated""#,
        "LINKERD2_PROXY_INBOUND_LISTEN_ADDR=[::]:61001",
    ] {
        assert!(
            environment.lines().any(|it| it == line),
            "{line}: {environment}"
        );
    }

    // With nothing else written, the proxy gets its certificate, and does mutual TLS.
    let proxy = world.start_proxy();
    eventually("the redirection of the unit", || {
        let status = world.meshctl_json(&["machine", "status", "web.service", "-o", "json"]);
        status["state"] == "redirected"
    });
    eventually("a greeting of the application by mutual TLS", || {
        let output = world.connect(Some(CLIENT));
        let is_greeting = output.contains("\"reached\":\"app\"");
        is_greeting.then_some(()).ok_or(output)
    });
    let series = world.proxy_metric("inbound_tcp_authz_allow_total");
    assert!(
        series.contains(&format!("client_id=\"{CLIENT}\"")),
        "{series}"
    );
    assert!(
        !world.connect(None).contains("reached"),
        "without a certificate"
    );
    assert!(agent.metric("mesh_agent_machine_certificate_expiry_timestamp_seconds") > 0.0);

    let left = world.meshctl_json(&["machine", "leave", "-o", "json"]);
    assert_eq!(left["units"][0], "web.service", "{left}");
    drop((proxy, app));
    for gone in ["units/identity", "units/proxies/web.env", "state/tokens"] {
        assert!(!world.path(gone).exists(), "{gone}");
    }
    assert_eq!(agent.metric("mesh_agent_units{state=\"redirected\"}"), 0.0);
    let output = world.meshctl(&["machine", "status"]);
    assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
    // Again, with another key.
    let first = status["keySha256"].clone();
    assert_ne!(world.key(), first.as_str().unwrap());
}

#[test]
fn machine_that_may_not_join_is_told_what_to_do() {
    require_root!();
    let world = World::start();
    let _agent = world.start_agent();
    // The identity service gets to know of a change a moment later.
    let refused = |file: &str, expected: &str| {
        eventually(expected, || {
            let output = world.join_attempt(file);
            assert!(!output.status.success(), "{expected}");
            let errors = text(&output.stderr);
            errors.contains(expected).then_some(()).ok_or(errors)
        });
        assert!(!world.path("units/identity/membership.json").exists());
    };
    let other = world.admit(&"0".repeat(64));
    refused(&other, "this machine has no key; run `meshctl machine key`");
    let key = world.key();
    assert_eq!(world.key(), key);
    refused(&other, &format!("but the key of this machine is {key}"));
    world.meshctl_in_cluster(&["machine", "dismiss", MACHINE]);

    let file = world.admit(&key);
    let with = |field: &str, value: &str| {
        let mut document: Value = serde_norway::from_str(&file).unwrap();
        *document.pointer_mut(field).unwrap() = value.into();
        serde_norway::to_string(&document).unwrap()
    };
    refused(
        &with("/tokenExpires", "2026-01-02T03:04:05Z"),
        "has expired at 2026-01-02T03:04:05Z, and the clock of this machine says",
    );
    refused(&with("/tokenExpires", "soon"), "field tokenExpires");
    refused(&with("/token", "mesh-join.db-2.00"), "field token ");
    refused(
        &with("/token", "mesh-join.db-1.00"),
        "the token to join with is unknown or was replaced",
    );
    refused(
        &with("/mesh/identity/address", "10.78.0.2:1"),
        "cannot connect to the identity service at 10.78.0.2:1",
    );
    let stranger = TestCa::new().anchor_pem().to_owned();
    refused(
        &with("/mesh/trustAnchors", &stranger),
        "another mesh, or anchors that were replaced",
    );
    refused(
        &with("/mesh/trustAnchors", "PEM"),
        "field mesh.trustAnchors",
    );
    refused(
        &with(
            "/mesh/identity/name",
            "other.linkerd.serviceaccount.identity.linkerd.cluster.local",
        ),
        "no TLS connection with the identity service",
    );
    let cgroup = format!("{}/web.service", world.unit_root());
    let enrol = ["machine", "enrol", "web.service", "--cgroup", &cgroup];
    let output = world.meshctl(&[&enrol[..], &["--service-account", ACCOUNT]].concat());
    assert_eq!(output.status.code(), Some(65), "{}", output_text(&output));
    assert!(text(&output.stderr).contains("has not joined a mesh; run `meshctl machine join`"));

    // The second file replaces the token of the first, and a machine joins once.
    let second = world.admit(&key);
    refused(&file, "is unknown or was replaced");
    world.meshctl_in_cluster(&["machine", "dismiss", MACHINE]);
    refused(&second, "machine \"db-1\" is not admitted");
    let third = world.admit(&key);
    world.join_with(&third);
    let output = feed(
        &mut world.meshctl_command(&["machine", "join", "-"]),
        &third,
    );
    assert_eq!(output.status.code(), Some(65), "{}", output_text(&output));
    let errors = text(&output.stderr);
    assert!(
        errors.contains("has joined trust domain cluster.local as db-1 already"),
        "{errors}"
    );
    let listed = world.meshctl_in_cluster(&["machine", "admissions"]);
    assert!(
        listed.contains(&key) && listed.contains(ACCOUNT),
        "{listed}"
    );
}

#[test]
fn certificate_of_the_machine_is_renewed_while_it_is_admitted() {
    require_root!();
    let world = World::start();
    let agent = world.start_agent();
    world.join();
    let record = world.path("units/identity/membership.json");
    let read = || -> Value { serde_json::from_slice(&fs::read(&record).unwrap()).unwrap() };
    let first = read();
    let key = world.key();
    drop(agent);
    let age = |days: u64| {
        let mut record_of = read();
        let issued = record_of["issued"].as_u64().unwrap();
        record_of["issued"] = (issued - days * DAY).into();
        fs::write(&record, record_of.to_string()).unwrap();
    };
    // More than a third of its life is over.
    age(20);
    let agent = world.start_agent();
    let renewals = "mesh_agent_machine_certificate_renewals_total";
    eventually("another certificate", || {
        read()["chain"][0] != first["chain"][0]
    });
    eventually("the renewal in the metrics", || {
        agent.metric(&format!("{renewals}{{result=\"renewed\"}}")) == 1.0
    });
    assert_eq!(world.key(), key);
    assert!(read()["expires"].as_u64() >= first["expires"].as_u64());

    drop(agent);
    age(20);
    let renewed = read();
    world.meshctl_in_cluster(&["machine", "dismiss", MACHINE]);
    let agent = world.start_agent();
    eventually("a renewal that failed", || {
        agent.metric(&format!("{renewals}{{result=\"failed\"}}")) >= 1.0
    });
    let status = world.meshctl_json(&["machine", "status", "-o", "json"]);
    let failure = status["renewalFailure"].as_str().unwrap();
    assert!(
        failure.contains("machine \"db-1\" is not admitted"),
        "{failure}"
    );
    assert!(failure.contains(&format!("meshctl machine admit db-1 --key-sha256 {key}")));
    assert_eq!(read(), renewed);

    // An expired one is replaced by joining again; units keep what they have meanwhile.
    drop(agent);
    let mut expired = read();
    expired["expires"] = 1.into();
    fs::write(&record, expired.to_string()).unwrap();
    let _agent = world.start_agent();
    world.join();
    assert!(read()["expires"].as_u64() > Some(1));
}

#[test]
fn machine_follows_a_rotation_of_the_trust_anchors() {
    require_root!();
    let world = World::start();
    let _agent = world.start_agent();
    world.join();
    world.enrol();
    let environment = || fs::read_to_string(world.path("units/proxies/web.env")).unwrap();
    let both = world.add_anchor();
    eventually("both anchors in the environment of the proxy", || {
        environment().contains(both.trim())
    });
    let status = world.meshctl(&["machine", "status"]);
    assert!(status.status.success(), "{}", output_text(&status));
}

#[test]
fn damaged_files_of_the_membership_are_reported_and_the_key_stays() {
    require_root!();
    let world = World::start();
    let agent = world.start_agent();
    world.join();
    world.enrol();
    let environment = fs::read_to_string(world.path("units/proxies/web.env")).unwrap();
    drop(agent);
    let key = world.path("units/identity/key.pem");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let agent = world.start_agent();
    assert!(agent.metric("mesh_agent_sweep_failures") >= 1.0);
    let output = world.meshctl(&["machine", "key"]);
    let errors = text(&output.stderr);
    assert!(
        errors.contains("can be read by other users (mode 644)"),
        "{errors}"
    );
    let kept = fs::read_to_string(world.path("units/proxies/web.env")).unwrap();
    assert_eq!(kept, environment);
}
