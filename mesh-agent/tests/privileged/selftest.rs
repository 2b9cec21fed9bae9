//! The agent's self-test, which passes on every kernel that these tests run on.

use std::path::PathBuf;
use std::time::Instant;
use std::{fs, process};

use mesh_agent::ebpf::Object;
use mesh_agent::redirect::Tier;
use mesh_agent::selftest::{self, Settings, best_tier};

use crate::Case;

pub(super) const CASES: &[Case] = &[("the self-test chooses the full tier", full_tier)];

fn full_tier() {
    let settings = Settings {
        program: std::env::current_exe().unwrap(),
        pin_dir: format!("/sys/fs/bpf/mesh-test-{}", process::id()).into(),
        cgroup_parent: cgroup2(),
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

pub(super) fn cgroup2() -> PathBuf {
    fs::read_to_string("/proc/self/mounts")
        .unwrap()
        .lines()
        .find_map(|line| {
            let mut words = line.split(' ');
            let (point, kind) = (words.nth(1)?, words.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(point))
        })
        .expect("a cgroup2 mount")
}
