//! Makes the connection and collects the observations of all parts. A part that fails does not stop
//! the others: the report names the unknown parts and the reasons.

mod attempt;
mod candidate;
mod discovery;
mod exchange;
mod observers;
mod server;
mod target;
pub(super) mod unit;
mod workload;

use std::time::Duration;

use mesh_core::tap::TapDirection;

use self::attempt::Attempt;
use self::observers::Observers;
use super::facts::{Connection, Enrolment, Exchange, Fact, Facts, Place, RequestLine};
use super::question::Question;
use super::report::is_through_proxy;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::resource::MeshPod;

/// Maximum number of requests until the proxies have reported one: a tap may begin later than its
/// source tells.
const MAX_ATTEMPTS: usize = 3;

pub(super) async fn facts(
    mesh: &Mesh,
    question: &Question,
    timeout: Duration,
    global: &Global,
) -> anyhow::Result<Facts> {
    let client = Box::pin(workload::client(mesh, &question.client, global)).await?;
    let pod = workload::pod(mesh, &client.namespace, &client.name).await?;
    let node = workload::node(mesh, &pod);
    let report = Box::pin(workload::agent(mesh, &node)).await;
    let values = Box::pin(mesh.values()).await;
    let mut known = workload::read(mesh, &values, &pod, report.as_ref())?;
    let target = Box::pin(target::resolve(mesh, &values, &question.target, &known)).await?;
    let discovery = Box::pin(discovery::read(mesh, &values, &client, &node, &target)).await;
    let candidates = candidate::all(&discovery);
    let skipped = known.skip_outbound.contains(target.address.port());
    let reason = not_enrolled(&known.enrolment, &client);
    let path = question.request.as_ref().map(|it| it.1.as_str());
    let observers = match &reason {
        Some(reason) => Observers::none(reason),
        None => Box::pin(Observers::start(mesh, &client, &node, &candidates, path)).await,
    };
    // The agent reports the addresses of an enrolled pod. The addresses of any other pod are in its
    // status.
    if let Some(ip) = client.ip {
        known.ip = ip;
    }
    let mut facts = Facts {
        place: place(mesh),
        client: known,
        target,
        request: None,
        connection: Connection::NotMade(reason.clone().unwrap_or_default()),
        client_kernel: Err("nothing was sent".to_owned()),
        discovery,
        client_tap: Err("nothing was sent".to_owned()),
        server: Err("nothing was sent".to_owned()),
    };
    let is_safe = question
        .request
        .as_ref()
        .is_none_or(|(method, _)| method.is_safe());
    let attempts = match (&reason, is_safe) {
        (Some(_), _) => 0,
        (None, true) if !skipped && path.is_some() => MAX_ATTEMPTS,
        (None, _) => 1,
    };
    for _ in 0..attempts {
        let attempt = Attempt {
            mesh,
            client: &client,
            node: &node,
            target: &facts.target,
            request: question.request.as_ref(),
            timeout,
        };
        let (request, connection) = Box::pin(attempt.run()).await;
        facts.request = request;
        facts.connection = connection;
        observers.collect(&mut facts).await;
        if !is_missed(&facts) {
            break;
        }
    }
    if attempts == 0 {
        facts.request = question.request.as_ref().map(RequestLine::unsent);
        facts.client_kernel = Err(reason.unwrap_or_default());
    }
    Box::pin(server::read(
        mesh,
        &values,
        &mut facts,
        &candidates,
        &observers,
    ))
    .await;
    Ok(facts)
}

/// Returns why the agent makes no connections from the pod, if it does not.
fn not_enrolled(enrolment: &Fact<Enrolment>, client: &MeshPod) -> Option<String> {
    match enrolment {
        Ok(Enrolment::Enrolled(_)) => None,
        Ok(Enrolment::Waiting(reason)) => Some(format!("pod {client} is not enrolled: {reason}")),
        Ok(Enrolment::Absent) if !client.is_meshed() => {
            Some(format!("pod {client} is not in the mesh"))
        }
        Ok(Enrolment::Absent) => Some(format!("the node agent does not know pod {client}")),
        Err(reason) => Some(reason.clone()),
    }
}

/// Whether the client's proxy should have reported the request and has not.
fn is_missed(facts: &Facts) -> bool {
    let Connection::Made {
        exchange: Exchange::Response(response),
        ..
    } = &facts.connection
    else {
        return false;
    };
    matches!(facts.client_tap, Ok(None))
        && response.proxy_error.is_none()
        && is_through_proxy(facts)
}

fn place(mesh: &Mesh) -> Place {
    let Mesh::Local(node) = mesh else {
        return Place::Cluster;
    };
    let settings = mesh_local::settings::Settings::read(&node.paths);
    Place::Local {
        manifests: settings.map_or_else(|_| ".".into(), |settings| settings.manifests),
    }
}

/// The direction of the reports of the client's and the server's proxy.
const OF_CLIENT: TapDirection = TapDirection::Outbound;
const OF_SERVER: TapDirection = TapDirection::Inbound;
