//! `meshctl identity rotate` with a real identity service and real proxies. The API server, and
//! the kubelet that writes the identity service's files, are played.

mod cluster;
mod mesh;

use std::process::{Command, Output};

use mesh_test_support::certificates::TestCa;
use mesh_test_support::command::{output_text, text};
use mesh_test_support::eventually::eventually_async as eventually;
use mesh_test_support::program::Program;
use serde_json::{Value, json};

use self::cluster::{ANCHORS, BUNDLE, Cluster, ISSUER, OWN_ANCHOR, ROTATION, Trap};
use self::mesh::Mesh;

pub(crate) use self::cluster::token;

/// The bootstrap has just created the anchor.
const AGAIN: &str = "--again";

/// How often the identity service has numbered anchors.
fn number(cluster: &Cluster) -> u64 {
    cluster.text(BUNDLE, "number").parse().unwrap_or_default()
}

async fn run(mut command: Command) -> Output {
    let ran = tokio::task::spawn_blocking(move || command.output());
    ran.await.expect("it ends").expect("it starts")
}

/// Runs the command until it writes, has the write lost or its response, and kills it. Returns the
/// output of a command that ended without a write.
async fn run_until_write(mesh: &Mesh, args: &[&str], trap: Trap) -> Option<(bool, String)> {
    mesh.cluster.set_trap(trap);
    let mut program = Program::start(&mut mesh.rotate(args));
    eventually("a write, or the end of the command", async || {
        mesh.cluster.trap() == Trap::Sprung || program.exit_status().is_some()
    })
    .await;
    let is_sprung = mesh.cluster.trap() == Trap::Sprung;
    program.kill();
    mesh.cluster.set_trap(Trap::None);
    if is_sprung {
        return None;
    }
    let (status, output) = program.finish();
    Some((status.success(), output))
}

#[tokio::test(flavor = "multi_thread")]
async fn rotation_that_is_killed_at_every_write_is_completed_without_a_restart() {
    let mesh = Mesh::start().await;
    let cluster = &mesh.cluster;
    let old = mesh.anchors();
    let mut first = mesh.proxy("web-0", &old).await;
    let mut second = mesh.proxy("web-1", &old).await;
    let args = [AGAIN, "--wait", "2m", "--to", "remove"];
    let mut kills = 0;
    let output = loop {
        let trap = match kills % 2 {
            0 => Trap::Lost,
            _ => Trap::ResponseLost,
        };
        match run_until_write(&mesh, &args, trap).await {
            Some(ended) => break ended,
            None => kills += 1,
        }
    };
    assert!(output.0, "{}", output.1);
    // The Secret of the rotation, both anchors, the old issuer and anchor in the Secret, the anchor
    // of the mesh, the issuer and the new anchor; each was lost once and made once.
    assert_eq!(kills, 12, "{}", output.1);
    let new = mesh.anchors();
    assert!(!new.contains(old.trim()) && new.contains("BEGIN CERTIFICATE"));
    assert_eq!(cluster.secret(OWN_ANCHOR, "tls.crt"), new);

    // A container that starts again in a pod from before the rotation.
    let restarted = mesh.proxy("web-2", &old).await;
    let current = number(cluster) as f64;
    eventually("the new anchor in the restarted proxy", async || {
        restarted.metric("mesh_trust_bundle_number") == current
    })
    .await;

    // The pods have only the old anchor in their environment.
    let blocked = run(mesh.rotate(&["-o", "json"])).await;
    assert_eq!(blocked.status.code(), Some(1), "{}", output_text(&blocked));
    let report: Value = serde_json::from_str(&text(&blocked.stdout)).unwrap();
    let names = report["rotation"]["blockedBy"].as_array().unwrap().iter();
    let names: Vec<&str> = names.filter_map(|it| it["name"].as_str()).collect();
    assert_eq!(names, ["web-0", "web-1", "web-2"], "{report:#}");
    assert_eq!(
        report["rotation"]["blockedBy"][0]["workload"],
        "deployment/web"
    );
    // The old keys are gone nevertheless.
    let keys = cluster.api.get(ROTATION).unwrap()["data"].clone();
    assert_eq!(keys.get("replaced-issuer.key"), None);
    assert_eq!(keys.get("replaced-anchor.key"), None);
    for proxy in [&mut first, &mut second] {
        assert_eq!(proxy.program.exit_status(), None);
    }
    drop((first, second, restarted));
    let rolled = [
        mesh.proxy("web-0", &new).await,
        mesh.proxy("web-1", &new).await,
        mesh.proxy("web-2", &new).await,
    ];
    let mut kills = 0;
    let (ok, output) = loop {
        let trap = match kills % 2 {
            0 => Trap::Lost,
            _ => Trap::ResponseLost,
        };
        match run_until_write(&mesh, &["--wait", "2m"], trap).await {
            Some(ended) => break ended,
            None => kills += 1,
        }
    };
    assert!(ok && output.contains("in progress"), "{output}");
    // The cross-certificate, and the Secret.
    assert_eq!(kills, 4, "{output}");
    assert_eq!(cluster.api.get(ROTATION), None);
    let issuer = cluster.secret(ISSUER, "crt.pem");
    assert_eq!(issuer.matches("BEGIN CERTIFICATE").count(), 1);
    drop(rolled);
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_rotation_restores_issuer_and_anchors() {
    let mesh = Mesh::start().await;
    let cluster = &mesh.cluster;
    let entries = || {
        let data = |path| cluster.api.get(path).map(|object| object["data"].clone());
        [data(ANCHORS), data(ISSUER), data(OWN_ANCHOR)]
    };
    let before = entries();
    let mut proxy = mesh.proxy("web-0", &mesh.anchors()).await;
    let ended = run(mesh.rotate(&[AGAIN, "--wait", "2m", "--to", "add"])).await;
    assert!(ended.status.success(), "{}", output_text(&ended));
    let stepped = run(mesh.rotate(&["--step"])).await;
    assert!(stepped.status.success(), "{}", output_text(&stepped));
    let switched = run(mesh.rotate(&["--wait", "2m", "--to", "switch"])).await;
    assert!(switched.status.success(), "{}", output_text(&switched));
    assert_ne!(entries()[1], before[1]);
    let shown = run(mesh.rotate(&["--status"])).await;
    assert!(shown.status.success(), "{}", output_text(&shown));
    assert!(
        text(&shown.stdout).contains("remove  next"),
        "{}",
        text(&shown.stdout)
    );

    let number = number(cluster);
    let mut kills = 0;
    let (ok, output) = loop {
        let trap = match kills % 2 {
            0 => Trap::Lost,
            _ => Trap::ResponseLost,
        };
        match run_until_write(&mesh, &["--abort", "--wait", "2m"], trap).await {
            Some(ended) => break ended,
            None => kills += 1,
        }
        // The last one is lost after the rotation has ended.
        if cluster.api.get(ROTATION).is_none() {
            break (true, String::new());
        }
    };
    assert!(ok, "{output}");
    assert_eq!(entries(), before);
    assert_eq!(cluster.api.get(ROTATION), None);
    assert!(self::number(cluster) > number);
    assert_eq!(proxy.program.exit_status(), None);
    let again = run(mesh.rotate(&["--abort"])).await;
    assert_eq!(again.status.code(), Some(65), "{}", output_text(&again));
}

#[tokio::test(flavor = "multi_thread")]
async fn anchors_that_another_program_writes_are_followed_and_not_written() {
    let mesh = Mesh::start().await;
    let cluster = &mesh.cluster;
    let old = mesh.anchors();
    let _proxy = mesh.proxy("web-0", &old).await;
    let write = |anchors: &str| {
        let mut map = cluster.api.get(ANCHORS).unwrap();
        map["metadata"]["labels"] = json!({ "kustomize.toolkit.fluxcd.io/name": "mesh" });
        map["data"]["ca-bundle.crt"] = anchors.into();
        cluster.api.put(ANCHORS, map);
    };
    write(&old);
    let refused = run(mesh.rotate(&[AGAIN])).await;
    assert_eq!(refused.status.code(), Some(65), "{}", output_text(&refused));
    let errors = text(&refused.stderr);
    assert!(errors.contains("written by Flux, from mesh"), "{errors}");

    let new = TestCa::new().anchor_pem().to_owned();
    let file = mesh.directory.path().join("new.crt");
    std::fs::write(&file, &new).unwrap();
    let named = file.to_str().unwrap();
    let status = async |args: &[&str]| {
        let args = [&["--status", "--anchor-cert", named], args].concat();
        let output = run(mesh.rotate(&args)).await;
        (output.status.code(), output_text(&output))
    };
    let (code, output) = status(&["--to", "add"]).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("To do: commit both anchors"), "{output}");
    write(&format!("{old}{new}"));
    let (code, output) = status(&["--to", "add", "--wait", "2m"]).await;
    assert_eq!(code, Some(0), "{output}");
    let (code, output) = status(&["--to", "switch"]).await;
    assert_eq!(code, Some(1), "{output}");
    let (code, output) = status(&[]).await;
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("replace the issuer in Secret"), "{output}");
    let writes = cluster.api.writes("");
    assert!(writes.iter().all(|write| write.client != "meshctl"));
}
