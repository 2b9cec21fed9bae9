//! Workloads of load that moves between systems that are all alive.

use std::collections::BTreeMap;

use xtask::progress::Progress;

use super::{
    Plan, load,
    machine::Watch,
    metric::Peer,
    row::{Round, Row},
    system::System,
    workload::{Load, Service, Workload},
};
use crate::testbed::Lab;

/// The systems under test that were asked for so far. Starting one takes longer than measuring it
/// once.
pub(super) type Systems = BTreeMap<Peer, System>;

/// Runs rounds until enough of them were quiet.
pub(super) fn row(
    lab: &Lab,
    systems: &mut Systems,
    plan: &Plan,
    workload: &'static Workload,
    service: Service,
    load: Load,
) -> anyhow::Result<Row> {
    let peers = plan.peers(workload);
    for peer in &peers {
        if !systems.contains_key(peer) {
            systems.insert(*peer, System::start(lab, *peer)?);
        }
    }
    // What happens once, happens now: discovery, connections, caches.
    for peer in &peers {
        if let Some(system) = systems.get_mut(peer) {
            load::measure(lab, system, service, load, 1)?;
        }
    }
    rounds(lab, plan, workload, |number, progress| {
        let mut round = Round::default();
        for peer in order(&peers, number) {
            progress.line(&format!("round {}, {peer}", number + 1));
            progress.tick();
            let Some(system) = systems.get_mut(&peer) else {
                continue;
            };
            let (sample, failed) = load::measure(lab, system, service, load, plan.seconds)?;
            round.samples.insert(peer, sample);
            round.failed.insert(peer, failed);
        }
        Ok(round)
    })
}

/// Asks for rounds until enough of them were quiet, or it is clear that the machine is not.
pub(super) fn rounds(
    lab: &Lab,
    plan: &Plan,
    workload: &'static Workload,
    mut measure: impl FnMut(usize, &mut Progress) -> anyhow::Result<Round>,
) -> anyhow::Result<Row> {
    let mut row = Row {
        workload,
        rounds: Vec::new(),
        with_noisy: plan.with_noisy,
        note: None,
    };
    let mut progress = Progress::new(workload.name);
    while row.counted().count() < plan.rounds && row.rounds.len() < plan.attempts() {
        lab.check_interrupt()?;
        let watch = Watch::start(&lab.cgroup)?;
        let mut round = measure(row.rounds.len(), &mut progress)?;
        round.noise = watch.finish()?;
        round.derive();
        row.rounds.push(round);
    }
    progress.finish();
    Ok(row)
}

/// Who is measured when in a round: A B, then B A, so that a drift of the machine hits each as much
/// as the other.
fn order(peers: &[Peer], round: usize) -> Vec<Peer> {
    let mut order = peers.to_vec();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drift_hits_everyone_alike() {
        let peers = [Peer::Direct, Peer::Ours, Peer::Envoy];
        let mut when: BTreeMap<Peer, usize> = BTreeMap::new();
        for round in 0..2 {
            for (place, peer) in order(&peers, round).into_iter().enumerate() {
                *when.entry(peer).or_default() += round * peers.len() + place;
            }
        }
        // The sum of the times at which each was measured is the same.
        assert_eq!(when.values().collect::<Vec<_>>(), [&5, &5, &5]);
    }
}
