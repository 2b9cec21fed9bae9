//! Faults of every kind on a real cluster, one after the other: `meshctl check` reports each, and
//! the steps of its hint repair it.
//!
//! Faults and repairs are shell commands of an operator. Each step of a repair must occur, except
//! for names, in the advice of the failed row, in its section of docs/operations/checks.md, or in a
//! section that this one links to.

mod agents;
mod authority;
mod combined;
mod control_plane;
mod data_plane;
mod guide;
mod identity;
pub(crate) mod report;
pub(crate) mod shell;
mod webhook;

use std::time::Instant;

use self::guide::Guide;
use self::report::Report;
use self::shell::Shell;
use mesh_test_support::cluster::Cluster;
use mesh_test_support::cluster::installation::Installation;
use mesh_test_support::eventually::eventually;

use crate::node::Nodes;

/// A fault, the check that reports it, and its repair.
struct Fault {
    name: &'static str,
    /// The commands that cause the fault.
    plant: &'static [&'static str],
    /// The row that reports the fault, and a part of its detail.
    check: &'static str,
    detail: &'static str,
    /// Other rows that the fault affects. Any further failed row fails the test.
    related: &'static [&'static str],
    /// The steps of the hint, verbatim.
    repair_steps: &'static [&'static str],
    /// Values for names in capitals, and commands for steps that are sentences.
    substitutions: &'static [(&'static str, &'static str)],
}

/// The workload that faults affect, and its Service.
const APPLICATION: &str = include_str!("faults/application.yaml");
const NAMESPACE: &str = "faults";

const CHECK: &str = "check --proxy";

/// The faults of each part of the mesh.
const TABLES: [&[Fault]; 5] = [
    control_plane::FAULTS,
    identity::FAULTS,
    webhook::FAULTS,
    agents::FAULTS,
    data_plane::FAULTS,
];

/// How many faults of each table a short run plants. The last one of a table may prepare a combined
/// fault.
const SAMPLES: usize = 2;

#[test]
fn check_reports_faults_of_every_part_and_their_hints_repair_them() {
    let Some(cluster) = Cluster::acquire("planted faults") else {
        return;
    };
    let samples = TABLES.map(|table| &table[table.len() - SAMPLES..]);
    plant_and_repair(&cluster, &samples, true);
}

#[test]
fn check_reports_every_fault_and_its_hint_repairs_it() {
    let Some(cluster) = Cluster::acquire_for_long_test("each planted fault alone") else {
        return;
    };
    plant_and_repair(&cluster, &TABLES, true);
}

/// Needs no cluster: the guide alone documents the repairs.
#[test]
fn guide_documents_every_repair_step() {
    let guide = Guide::read();
    let tables = TABLES
        .into_iter()
        .chain([control_plane::SLOW, agents::SLOW]);
    for fault in tables.flatten() {
        guide.assert_covers(fault, "");
    }
}

#[test]
fn check_reports_slow_faults_and_their_hints_repair_them() {
    let Some(cluster) = Cluster::acquire_for_long_test("planted faults that take their time")
    else {
        return;
    };
    // Some are planted on a node.
    let _nodes = Nodes::observe(&cluster);
    plant_and_repair(&cluster, &[control_plane::SLOW, agents::SLOW], false);
}

/// Causes the faults one after the other on a healthy installation, and finally the combined ones
/// if `with_combined` is set.
fn plant_and_repair(cluster: &Cluster, tables: &[&[Fault]], with_combined: bool) {
    let guide = Guide::read();
    let _mesh = Installation::by_helm(cluster, &[]);
    cluster.apply(APPLICATION);
    cluster.rolled_out(NAMESPACE, "deployment/web");
    let shell = Shell::new(cluster);
    authority::write_certificates(&shell);
    wait_until_healthy(cluster, CHECK, "the mesh is healthy");

    let mut count = 0;
    for fault in tables.iter().copied().flatten() {
        let start = Instant::now();
        for command in fault.plant {
            shell.run(command);
        }
        eventually(&format!("{}: it is reported", fault.name), || {
            let report = Report::fetch(cluster, CHECK);
            let row = report.matching_row(fault);
            row.map(|row| guide.assert_covers(fault, &row.advice))
        });
        let named = start.elapsed();
        for step in fault.repair_steps {
            shell.run(&guide::command(step, fault));
        }
        wait_until_healthy(cluster, CHECK, fault.name);
        count += 1;
        println!(
            "{}: reported by {} after {:.1} s, repaired after {:.1} s",
            fault.name,
            fault.check,
            named.as_secs_f32(),
            start.elapsed().as_secs_f32()
        );
    }
    if with_combined {
        count += plant_combined(cluster, &shell);
    }
    println!("{count} faults reported and repaired");
    cluster.delete_namespace(NAMESPACE);
}

/// Causes all combined faults at the same time; returns their number.
fn plant_combined(cluster: &Cluster, shell: &Shell) -> usize {
    let start = Instant::now();
    let all = || combined::FAULTS.iter().chain(combined::REPAIRED);
    for fault in all() {
        shell.run(fault.plant);
    }
    eventually("every fault is reported", || {
        let report = Report::fetch(cluster, CHECK);
        all().try_for_each(|fault| report.row_with_detail(fault.check, fault.detail).map(drop))
    });
    for fault in all() {
        shell.run(fault.repair);
    }
    wait_until_healthy(cluster, CHECK, "faults that were planted together");
    println!(
        "{} together, in {:.1} s",
        all().count(),
        start.elapsed().as_secs_f32()
    );
    shell.run("kubectl delete namespace faults-label faults-excluded");
    all().count()
}

/// Waits until no row of a check has a problem.
pub(crate) fn wait_until_healthy(cluster: &Cluster, check: &str, what: &str) {
    eventually(&format!("{what}: it is healthy"), || {
        let report = Report::fetch(cluster, check);
        if report.not_in_order().is_empty() {
            Ok(())
        } else {
            Err(report.to_string())
        }
    });
}
