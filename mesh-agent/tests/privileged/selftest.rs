//! The agent's self-test and its choice of a tier. `cargo xtask test --kernel` runs them on other
//! kernels, and collects the lines that begin with `kernel:`.

use std::env;
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
        "the agent chooses the best tier, and it and those below work",
        chooses_best_tier,
    ),
];

fn passes_for_full_tier() {
    let machine = Machine::new();
    let settings = Settings {
        program: env::current_exe().unwrap(),
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
fn chooses_best_tier() {
    let best = best_tier_of_kernel();
    let machine = Machine::new();
    let choose = |forced: Option<Tier>| {
        tier::choose(&tier::Settings {
            forced,
            cgroup_root: Some(machine.cgroup().to_owned()),
            pin_dir: machine.pins(),
            bpf_object: None,
            guard: GuardMode::Drop,
            program: env::current_exe().unwrap(),
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
    let mut working = Vec::new();
    for tier in Tier::ALL {
        match choose(Some(tier)) {
            Ok(_) => {
                println!("kernel: tier {tier} works");
                working.push(tier);
            }
            Err(error) => println!("kernel: {error}"),
        }
    }
    let choice = chosen.unwrap();
    assert_eq!(choice.tier, best);
    let expected = Tier::ALL.into_iter().skip_while(|tier| *tier != best);
    assert_eq!(working, expected.collect::<Vec<_>>());
    if best != Tier::Full {
        assert!(!machine.pins().exists(), "no program is pinned");
    }
}

/// Returns the best tier that this kernel allows. The runner of other kernels knows one that allows
/// less than the full one.
fn best_tier_of_kernel() -> Tier {
    let name = env::var("MESH_TEST_TIER").unwrap_or_else(|_unset| Tier::Full.to_string());
    let named = Tier::ALL.into_iter().find(|tier| tier.as_str() == name);
    named.expect("MESH_TEST_TIER is a tier")
}
