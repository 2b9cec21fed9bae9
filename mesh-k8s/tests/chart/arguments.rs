//! The arguments that the chart gives the programs, held against what the programs say they take.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::helm;

/// Values that render every argument there is.
const EVERYTHING: [&str; 2] = [
    "meshAgent: {cgroupRoot: /sys/fs/cgroup/kubepods}",
    "proxyInjector: {externalSecret: true, caBundle: x}",
];

#[test]
fn programs_take_the_arguments_they_are_given() {
    let test = "programs_take_the_arguments_they_are_given";
    if !helm::is_there(test) {
        return;
    }
    let programs = [
        ("mesh/controller", "mesh-controller"),
        ("mesh/agent", "mesh-agent"),
    ];
    for (_, program) in programs {
        if !built(program).exists() {
            println!("skipped: {test}: {program} is not built");
            return;
        }
    }
    let mut checked = 0;
    for values in EVERYTHING {
        for object in helm::control_plane(values).unwrap() {
            let containers = &object["spec"]["template"]["spec"]["containers"];
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
    }
    assert!(checked > 50, "{checked} arguments");
}

fn check(program: &Path, container: &Value) -> usize {
    let args: Vec<&str> = container["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|arg| arg.as_str().unwrap())
        .collect();
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
            "{} takes no {name}:\n{help}",
            program.display()
        );
    }
    flags.len()
}

/// Where cargo puts a program: beside the directory of the tests.
fn built(program: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().join(program)
}
