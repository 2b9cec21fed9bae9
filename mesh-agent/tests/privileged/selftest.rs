//! The agent's self-test, which passes on every kernel that these tests run on.

use std::time::Instant;

use mesh_agent::ebpf::Object;
use mesh_agent::redirect::Tier;
use mesh_agent::selftest::{self, Settings, best_tier};
use mesh_test_support::machine::{Machine, cgroup2};

use crate::Case;

pub(super) const CASES: &[Case] = &[("the self-test chooses the full tier", full_tier)];

fn full_tier() {
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
