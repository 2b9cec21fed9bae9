//! Gathers facts about this machine as a host of systemd units, without an API server: from its
//! agent, systemd, the files and processes of proxies, and the services of the control plane.

mod proxy;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use mesh_core::machine::{MembershipStatus, UnitStatus};
use mesh_core::node::{NodeStatus, Request, Response};
use tokio::time::timeout;

use super::machine;
use crate::clients;
use crate::facts::host::{AGENT_UNIT, OwnUnit, PROXY_TEMPLATE, Reached, Unit};
use crate::facts::{Agent, Environment, Fact, Facts, Mode};
use crate::host::control_plane::Service;
use crate::host::systemd;
use crate::node::agent;
use crate::resource::Scope;

/// The agent's thread may be waiting for systemd, for ten seconds.
const AGENT_TIMEOUT: Duration = Duration::from_secs(15);
/// The name that systemd knows an instance of [`PROXY_TEMPLATE`] by, which need not exist.
const PROXY_EXAMPLE: &str = "mesh-proxy@example.service";

/// Gathers the facts about all units, or about the selected one.
pub(crate) async fn facts(socket: &Path, selected: Option<&str>) -> Facts {
    let mut facts = Facts::new(Environment::Machine, Mode::Host, "", Scope::All);
    facts.machine = machine::read();
    let host = &mut facts.host;
    let init = fs::read_to_string("/proc/1/comm");
    host.init = init
        .map(|name| name.trim().to_owned())
        .map_err(|error| format!("cannot read the name of process 1: {error}"));
    host.own_units = Box::pin(own_units()).await;
    host.agent = status(socket).await;
    if let Err(reason) = &host.agent {
        // One reason for all that only the agent knows.
        host.membership = Err(reason.clone());
        host.units = Err(reason.clone());
        host.agent_log = systemd::last_log(AGENT_UNIT).await;
        return facts;
    }
    let node = nix::sys::utsname::uname();
    let node = node.map(|names| names.nodename().to_string_lossy().into_owned());
    // The row about repairs is the one of nodes.
    facts.agents = vec![Agent {
        node: node.unwrap_or_default(),
        status: host.agent.clone(),
        pods: Ok(Vec::new()),
    }];
    host.membership = membership(socket).await;
    host.units = match units(socket).await {
        Ok(statuses) => {
            host.enrolled = statuses.iter().map(|status| status.unit.clone()).collect();
            Ok(Box::pin(proxy::units(statuses, &facts.machine, selected)).await)
        }
        Err(reason) => Err(reason),
    };
    let member = host.membership.as_ref().ok().and_then(Option::as_ref);
    let used = used_services(member, host.units.as_deref().unwrap_or_default());
    let identity = used.iter().find(|(_, it)| it.service == "identity");
    host.clocks = match identity {
        Some((_, service)) => text(Box::pin(service.clocks()).await),
        None => Ok(None),
    };
    let reached = used
        .into_iter()
        .map(|(user, service)| Box::pin(reach(user, service)));
    host.services = clients::concurrently(reached).await;
    facts
}

async fn status(socket: &Path) -> Fact<NodeStatus> {
    match ask(socket, Request::Status).await? {
        Response::Status(status) => Ok(*status),
        other => Err(unexpected(&other)),
    }
}

async fn membership(socket: &Path) -> Fact<Option<MembershipStatus>> {
    match ask(socket, Request::Membership).await? {
        Response::Membership(status) => Ok(status.map(|status| *status)),
        other => Err(unexpected(&other)),
    }
}

async fn units(socket: &Path) -> Fact<Vec<UnitStatus>> {
    match ask(socket, Request::Units).await? {
        Response::Units(units) => Ok(units),
        other => Err(unexpected(&other)),
    }
}

/// Sends a request to the agent.
pub(crate) async fn ask(socket: &Path, request: Request) -> Fact<Response> {
    let asking = agent::request(socket, &request);
    let response = timeout(AGENT_TIMEOUT, asking).await;
    let response = response.map_err(|_elapsed| {
        format!(
            "the agent at {} did not respond within {} s",
            socket.display(),
            AGENT_TIMEOUT.as_secs()
        )
    })?;
    text(response)
}

/// Returns why a response that does not fit its request was sent.
pub(crate) fn unexpected(response: &Response) -> String {
    match response {
        Response::Refused(refusal) => refusal.message.clone(),
        other => format!("unexpected response of the agent (another version?): {other:?}"),
    }
}

fn text<T>(result: anyhow::Result<T>) -> Fact<T> {
    result.map_err(|error| format!("{error:#}"))
}

async fn own_units() -> Fact<BTreeMap<&'static str, OwnUnit>> {
    let names = [AGENT_UNIT, PROXY_EXAMPLE].map(str::to_owned);
    let units = systemd::show(&names).await?;
    let units = [AGENT_UNIT, PROXY_TEMPLATE].into_iter().zip(units);
    let with_text = |(name, unit): (&'static str, systemd::Unit)| {
        let text = match &unit.file {
            Some(path) => fs::read_to_string(path)
                .map_err(|error| format!("cannot read {}: {error}", path.display())),
            None => Err(format!("systemd has no unit {name}")),
        };
        (name, OwnUnit { unit, text })
    };
    Ok(units.map(with_text).collect())
}

/// Returns the services that the agent and the proxies use, each once, with the first user.
fn used_services(member: Option<&MembershipStatus>, units: &[Unit]) -> Vec<(String, Service)> {
    let mut used: Vec<(String, Service)> = Vec::new();
    let of_agent = member.into_iter().flat_map(|member| {
        member.services.iter().map(|service| Service {
            service: service.service.clone(),
            address: service.address.clone(),
            name: service.name.clone(),
            anchors: member.trust_anchors.clone(),
        })
    });
    let of_agent = of_agent.map(|service| ("the agent".to_owned(), service));
    let of_units = units.iter().flat_map(|unit| {
        let user = format!("the proxy of {}", unit.name());
        let services = unit.services().into_iter();
        services.map(move |service| (user.clone(), service))
    });
    for (user, service) in of_agent.chain(of_units) {
        let is_known = used.iter().any(|(_, known)| *known == service);
        if !is_known {
            used.push((user, service));
        }
    }
    used
}

async fn reach(user: String, service: Service) -> Reached {
    let chain = if service.name.is_empty() {
        service.dial().await.map(|_connection| None)
    } else {
        service.chain().await.map(Some)
    };
    Reached {
        service,
        user,
        chain: text(chain),
    }
}
