//! Finds the pod that the connection goes to, and reads the facts about it.

use std::net::SocketAddr;

use mesh_k8s::values::Values;

use super::super::facts::{Choice, Fact, Facts, Server};
use super::super::report::{dialled_by_proxy, is_arrival};
use super::candidate::{Candidate, of_labels};
use super::observers::Observers;
use super::workload;
use crate::mesh::Mesh;
use crate::mesh::controllers::{self, QueryContext, Source};

pub(super) async fn read(
    mesh: &Mesh,
    values: &Values,
    facts: &mut Facts,
    candidates: &[Candidate],
    observers: &Observers,
) {
    let chosen = choose(facts, candidates, observers);
    facts.server = match chosen {
        Ok((candidate, by)) => {
            Box::pin(describe(mesh, values, facts, &candidate, by, observers)).await
        }
        Err(reason) => Err(reason),
    };
}

fn choose(
    facts: &Facts,
    candidates: &[Candidate],
    observers: &Observers,
) -> Fact<(Candidate, Choice)> {
    if let Ok(Some(tapped)) = &facts.client_tap {
        let of_tap = of_labels(tapped.destination, &tapped.destination_labels);
        let known = candidates
            .iter()
            .find(|it| it.address == tapped.destination);
        let found = known.cloned().or(of_tap);
        return found
            .map(|candidate| (candidate, Choice::Reported))
            .ok_or_else(|| format!("{} is not the address of a pod", tapped.destination));
    }
    let addresses: Vec<SocketAddr> = candidates.iter().map(|it| it.address).collect();
    let events = facts.client_kernel.as_ref();
    let seen = events
        .ok()
        .and_then(|events| dialled_by_proxy(events, &addresses));
    let seen = candidates.iter().find(|it| Some(it.address) == seen);
    // The event of the proxy's connect(2) may be read later than the event of its arrival.
    let arrived = || {
        let mut arrived = candidates
            .iter()
            .filter(|it| has_arrival(facts, it, observers));
        // Several: the proxy or another process of the pod connected to each.
        arrived.next().filter(|_| arrived.next().is_none())
    };
    match (seen.or_else(arrived), candidates) {
        (Some(candidate), _) => Ok((candidate.clone(), Choice::Seen)),
        (None, [candidate]) => Ok((candidate.clone(), Choice::Only)),
        (None, [first, ..]) => Ok((first.clone(), Choice::Example)),
        (None, []) => Err(match facts.discovery.endpoints.as_ref().map(Vec::len) {
            Ok(0) if facts.target.service.is_some() => "the target has no endpoints".to_owned(),
            Ok(_) => format!("{} is not the address of a pod", facts.target.address),
            Err(reason) => format!("the endpoints are unknown: {reason}"),
        }),
    }
}

/// Whether the kernel saw a connection of the client arrive at the endpoint.
fn has_arrival(facts: &Facts, candidate: &Candidate, observers: &Observers) -> bool {
    let events = observers.kernel_of(candidate).unwrap_or_default();
    let mut events = events.iter();
    events.any(|event| is_arrival(event, facts.client.ip, candidate.address.ip()))
}

async fn describe(
    mesh: &Mesh,
    values: &Values,
    facts: &Facts,
    candidate: &Candidate,
    chosen_by: Choice,
    observers: &Observers,
) -> Fact<Server> {
    let Candidate {
        address,
        namespace,
        name,
    } = candidate;
    let text = |error: anyhow::Error| format!("{error:#}");
    let pod = workload::pod(mesh, namespace, name).await.map_err(text)?;
    let agent = workload::agent(mesh, &workload::node(mesh, &pod)).await;
    let pod = workload::read(mesh, values, &pod, agent.as_ref());
    let query = QueryContext {
        source: Source::Mesh { mesh, pod: None },
        token: "",
    };
    let workload_name = serde_json::json!({ "ns": namespace, "pod": name }).to_string();
    let policy = controllers::inbound_policy(&query, &workload_name, address.port()).await;
    Ok(Server {
        pod: pod.map_err(text)?,
        address: *address,
        chosen_by,
        kernel: observers.kernel_of(candidate),
        // As the proxy completes it.
        policy: policy.map(|policy| policy.completed()).map_err(text),
        tap: observers.tap_of_server(facts),
    })
}
