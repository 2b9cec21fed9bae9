//! The agent's self-test and its choice of a tier. `cargo xtask test --kernel` runs them on other
//! kernels, and collects the lines that begin with `kernel:`.

use std::time::Instant;

use mesh_agent::ebpf::Object;
use mesh_agent::redirect::{GuardMode, Tier};
use mesh_agent::selftest::{self, Settings, best_tier};
use mesh_agent::tier;
use mesh_test_support::machine::{Machine, cgroup2};

use crate::Case;

pub(super) const CASES: &[Case] = &[
    ("the self-test chooses the full tier", passes_for_full_tier),
    (
        "every tier works, and the agent chooses the full one",
        chooses_full_tier,
    ),
];

fn passes_for_full_tier() {
    let machine = Machine::new();
    let settings = Settings {
        program: std::env::current_exe().unwrap(),
        pin_dir: machine.pins(),
        cgroup_parent: cgroup2().unwrap(),
    };
    let started = Instant::now();
    let checks = selftest::run(&Object::open(None).unwrap(), &settings).unwrap();
    println!("{} checks in {:?}", checks.len(), started.elapsed());
    for check in &checks {
        println!("  {check:?}");
    }
    assert_eq!(best_tier(&checks), Some(Tier::Full));
    assert!(!settings.pin_dir.exists(), "no pins are left");
}

/// Prints which tiers and which guard the kernel allows before it judges, so that a kernel that
/// lacks something is described completely.
fn chooses_full_tier() {
    let machine = Machine::new();
    let choose = |forced: Option<Tier>| {
        tier::choose(&tier::Settings {
            forced,
            cgroup_root: Some(machine.cgroup().to_owned()),
            pin_dir: machine.pins(),
            bpf_object: None,
            guard: GuardMode::Drop,
            program: std::env::current_exe().unwrap(),
            pin_problem: None,
        })
    };
    let chosen = choose(None);
    match &chosen {
        Ok(choice) => {
            println!("kernel: chosen tier {}: {}", choice.tier, choice.reason);
            for check in &choice.self_test {
                println!(
                    "kernel: check {}: {:?} {}",
                    check.name, check.outcome, check.detail
                );
            }
            match &choice.guard.problem {
                None => println!("kernel: guard works"),
                Some(problem) => println!("kernel: no guard: {problem}"),
            }
        }
        Err(error) => println!("kernel: no tier: {error}"),
    }
    let mut missing = Vec::new();
    for tier in Tier::ALL {
        match choose(Some(tier)) {
            Ok(_) => println!("kernel: tier {tier} works"),
            Err(error) => {
                println!("kernel: {error}");
                missing.push(tier);
            }
        }
    }
    assert_eq!(chosen.unwrap().tier, Tier::Full);
    assert_eq!(missing, [], "tiers that do not work");
}
