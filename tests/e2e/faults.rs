//! Faults of every kind, planted on a real cluster one after the other: `meshctl check` names each,
//! and who does what its hint says is rid of it.
//!
//! Plants and repairs are shell commands, as an operator types them. A repair is not the test's own
//! idea: each of its steps is found, word for word but for the names, in the advice of the row that
//! failed, in its section of docs/operations/checks.md, or in one that this section points to.

mod agents;
mod authority;
mod combined;
mod control_plane;
mod data_plane;
mod guide;
mod identity;
mod report;
mod shell;
mod webhook;

use std::time::Instant;

use crate::{
    cluster::{Cluster, wait_until},
    installation::Installation,
    node::Nodes,
};

use self::{guide::Guide, report::Report, shell::Shell};

/// A fault, and what becomes of it.
struct Fault {
    name: &'static str,
    /// What breaks it.
    plant: &'static [&'static str],
    /// The row that names it, and words of it.
    check: &'static str,
    detail: &'static str,
    /// Rows that the fault makes true as well. Any other row that is not in order fails the story.
    related: &'static [&'static str],
    /// The steps of the hint, as they are written there.
    repair_steps: &'static [&'static str],
    /// What its words in capitals stand for; and a command for a step that is a sentence.
    substitutions: &'static [(&'static str, &'static str)],
}

/// What is broken: a workload in the mesh, and its Service.
const APPLICATION: &str = include_str!("faults/application.yaml");
const NAMESPACE: &str = "faults";

#[test]
fn check_reports_every_fault_and_its_hint_repairs_it() {
    let Some(cluster) = Cluster::acquire("planted faults") else {
        return;
    };
    let tables = [
        control_plane::FAULTS,
        identity::FAULTS,
        webhook::FAULTS,
        agents::FAULTS,
        data_plane::FAULTS,
    ];
    plant_and_repair(&cluster, &tables, true);
}

/// Needs no cluster: an operator who reads the guide instead of the row finds the repair as well.
#[test]
fn guide_documents_every_repair_step() {
    let guide = Guide::read();
    let tables = [
        control_plane::FAULTS,
        control_plane::SLOW,
        identity::FAULTS,
        webhook::FAULTS,
        agents::FAULTS,
        agents::SLOW,
        data_plane::FAULTS,
    ];
    for fault in tables.into_iter().flatten() {
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

/// One after the other, on an installation that is healthy before each; at the end those that are
/// planted `together`.
fn plant_and_repair(cluster: &Cluster, tables: &[&[Fault]], with_combined: bool) {
    let guide = Guide::read();
    let _mesh = Installation::by_helm(cluster, &[]);
    cluster.apply(APPLICATION);
    cluster.rolled_out(NAMESPACE, "deployment/web");
    let shell = Shell::new(cluster);
    authority::write_certificates(&shell);
    wait_until_healthy(cluster, "the mesh is healthy");

    let mut count = 0;
    for fault in tables.iter().copied().flatten() {
        let start = Instant::now();
        for command in fault.plant {
            shell.run(command);
        }
        wait_until(&format!("{}: it is named", fault.name), || {
            let report = Report::fetch(cluster);
            let row = report.matching_row(fault)?;
            guide.assert_covers(fault, &row.advice);
            Ok(())
        });
        let named = start.elapsed();
        for step in fault.repair_steps {
            shell.run(&guide::command(step, fault));
        }
        wait_until_healthy(cluster, fault.name);
        count += 1;
        println!(
            "{}: named by {} after {:.1} s, repaired after {:.1} s",
            fault.name,
            fault.check,
            named.as_secs_f32(),
            start.elapsed().as_secs_f32()
        );
    }
    if with_combined {
        count += plant_combined(cluster, &shell);
    }
    println!("{count} faults named and repaired");
    cluster.delete_namespace(NAMESPACE);
}

/// All at once; how many they are.
fn plant_combined(cluster: &Cluster, shell: &Shell) -> usize {
    let start = Instant::now();
    let all = || combined::FAULTS.iter().chain(combined::REPAIRED);
    for fault in all() {
        shell.run(fault.plant);
    }
    wait_until("every fault is named", || {
        let report = Report::fetch(cluster);
        all().try_for_each(|fault| report.has_detail(fault.check, fault.detail))
    });
    for fault in all() {
        shell.run(fault.repair);
    }
    wait_until_healthy(cluster, "faults that were planted together");
    println!(
        "{} together, in {:.1} s",
        all().count(),
        start.elapsed().as_secs_f32()
    );
    shell.run("kubectl delete namespace faults-label faults-excluded");
    all().count()
}

/// Waits until every row is in order.
fn wait_until_healthy(cluster: &Cluster, what: &str) {
    wait_until(&format!("{what}: it is in order"), || {
        let report = Report::fetch(cluster);
        if report.not_in_order().is_empty() {
            Ok(())
        } else {
            Err(report.to_string())
        }
    });
}
