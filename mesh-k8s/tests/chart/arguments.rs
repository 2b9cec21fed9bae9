//! Compares the arguments that the chart passes to the programs with their `--help`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::helm;

/// Values that together render every argument.
const EVERYTHING: [&str; 6] = [
    "policyController: {nodeProbeSources: [hostIPs, podCIDRs]}",
    "meshAgent: {cgroupRoot: /sys/fs/cgroup/kubepods}",
    "proxyInjector: {externalSecret: true, caBundle: x}",
    "{policyValidator: {externalSecret: true, caBundle: x}, profileValidator: {externalSecret: true, caBundle: x}}",
    "{heartbeatUrl: 'https://a.example', prometheusUrl: 'http://a'}",
    "identity: {bundleEndpoint: {enabled: true}}",
];
/// The same for the viz extension.
const VIZ: [&str; 2] = [
    "tap: {ignoreHeaders: [a], externalSecret: true, caBundle: x}",
    "{prometheus: {enabled: false}, prometheusUrl: 'http://a', prometheusCredsSecret: b}",
];
/// The same for the multicluster extension and for the service mirror of one Link.
const MULTICLUSTER: &str = "{enableNamespaceCreation: true, controllers: [{link: {ref: {name: target}}, enableHeadlessServices: true}]}";
const LINK: &str = "{enableNamespaceCreation: true, enableHeadlessServices: true}";

#[test]
fn programs_accept_arguments_of_chart() {
    let test = "programs_accept_arguments_of_chart";
    if !helm::is_available(test) {
        return;
    }
    let programs = [
        ("mesh/controller", "mesh-controller"),
        ("mesh/viz", "mesh-viz"),
        ("mesh/agent", "mesh-agent"),
    ];
    for (_, program) in programs {
        if !built(program).exists() {
            println!("skipped: {test}: {program} is not built");
            return;
        }
    }
    let mut checked = 0;
    let control_plane = EVERYTHING.map(|values| helm::control_plane(values).unwrap());
    let viz = VIZ.map(|values| helm::viz(values).unwrap());
    let multicluster = [
        helm::multicluster(MULTICLUSTER).unwrap(),
        helm::multicluster_link(LINK).unwrap(),
    ];
    let objects = control_plane.iter().chain(&viz).chain(&multicluster);
    for object in objects.flatten() {
        let containers = &helm::pod_spec(object)["containers"];
        for container in containers.as_array().into_iter().flatten() {
            let image = container["image"].as_str().unwrap();
            let program = programs
                .iter()
                .find(|(name, _)| image.starts_with(&format!("{name}:")));
            if let Some((_, program)) = program {
                checked += check(&built(program), container);
            }
        }
    }
    assert!(checked > 110, "{checked} arguments");
}

fn check(program: &Path, container: &Value) -> usize {
    // The DaemonSet for no node has none.
    let args = container["args"].as_array().into_iter().flatten();
    let args: Vec<&str> = args.map(|arg| arg.as_str().unwrap()).collect();
    let (flags, services): (Vec<&str>, Vec<&str>) =
        args.iter().partition(|arg| arg.starts_with("--"));
    let help = Command::new(program)
        .args(services)
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let known: Vec<&str> = help
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
        .collect();
    for flag in &flags {
        let name = flag.split('=').next().unwrap();
        assert!(
            known.contains(&name),
            "{} does not accept {name}:\n{help}",
            program.display()
        );
    }
    flags.len()
}

/// Returns the path of a program that cargo built, in the parent of the directory of tests.
fn built(program: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().join(program)
}
