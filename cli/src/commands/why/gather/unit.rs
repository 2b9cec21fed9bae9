//! The facts about a systemd unit of this machine, without an API server: the decisions of its
//! agent, and the controllers' responses to the unit's proxy. The command asks them with the
//! proxy's token. No connection is made.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use mesh_core::annotation;
use mesh_core::endpoint::Endpoint;
use mesh_core::identity::Identity;
use mesh_core::machine::{UnitConnection, UnitState};
use mesh_core::node::{Request, Response, Tier};
use mesh_core::policy::inbound::ServerPolicy;
use mesh_core::ports::PortSet;
use mesh_core::redirection::RedirectionEvent;
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::super::facts::{
    Choice, Connection, Enrolment, Fact, Facts, Inbound, Place, Server, Target, Workload,
    WorkloadKind,
};
use super::super::question::{Host, TargetName};
use super::candidate::{self, Candidate};
use super::discovery;
use super::target::{DEFAULT_PORT, number};
use crate::exit::Failure;
use crate::facts::host::Unit;
use crate::gather::host;
use crate::host::control_plane::Controllers;
use crate::host::environment::proxy_variable;
use crate::mesh::controllers::{self, QueryContext, Source};

/// Two attempts of a resolver with its usual settings.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
const NO_CONNECTION: &str = "`meshctl machine why` makes no connection";
const NOT_ASKED: &str = "only its cluster knows, which is not asked";

/// Returns the facts about a connection of the unit.
pub(in super::super) async fn exchange(
    unit: &Unit,
    wanted: &TargetName,
    socket: &Path,
) -> anyhow::Result<Facts> {
    let target = resolve(unit, wanted).await?;
    let address = target.address;
    let kernel = decision(unit, address, socket).await;
    let controllers = Box::pin(controllers_of(unit)).await;
    let load = async {
        Ok(discovery::loads(
            unit.metrics.as_deref().map_err(Clone::clone)?,
        ))
    };
    let discovery = match &controllers {
        Ok(controllers) => {
            let tokens = ["DESTINATION_CONTEXT", "POLICY_WORKLOAD"].map(|name| value(unit, name));
            let source = Source::Host(controllers);
            let [destination, policy] = [0, 1].map(|at: usize| QueryContext {
                source,
                token: &tokens[at],
            });
            let domain = cluster_domain(unit);
            let asking = discovery::ask(&destination, &policy, &domain, &target, load);
            Box::pin(asking).await
        }
        Err(reason) => discovery::unknown(reason, load.await),
    };
    let mut facts = Facts {
        place: Place::Machine,
        client: workload(unit, address.ip()),
        target,
        request: None,
        connection: Connection::NotMade(NO_CONNECTION.to_owned()),
        client_kernel: kernel.map(|event| vec![event]),
        discovery,
        client_tap: Err(NO_CONNECTION.to_owned()),
        server: Err(String::new()),
    };
    facts.server = match &controllers {
        Ok(controllers) => Box::pin(server(&facts, controllers)).await,
        Err(reason) => Err(reason.clone()),
    };
    Ok(facts)
}

/// Returns the facts about connections to the unit.
pub(in super::super) async fn inbound(unit: &Unit) -> Inbound {
    let mut ports: Vec<u16> = unit.status.listening.iter().map(SocketAddr::port).collect();
    ports.sort_unstable();
    ports.dedup();
    let controllers = Box::pin(controllers_of(unit)).await;
    let name = value(unit, "POLICY_WORKLOAD");
    let mut policies = BTreeMap::new();
    for port in ports {
        let policy = match &controllers {
            Ok(controllers) => Box::pin(policy_of(controllers, &name, port)).await,
            Err(reason) => Err(reason.clone()),
        };
        policies.insert(port, policy);
    }
    Inbound {
        unit: workload(unit, Ipv4Addr::UNSPECIFIED.into()),
        policies,
    }
}

/// Returns the target's address as a process of the unit finds it.
async fn resolve(unit: &Unit, wanted: &TargetName) -> anyhow::Result<Target> {
    let port = number(wanted.port.as_ref(), DEFAULT_PORT)?;
    let target = |authority: String, address: SocketAddr, note| Target {
        authority,
        service: None,
        address,
        note,
    };
    let name = match &wanted.host {
        Host::Ip(ip) => {
            let address = SocketAddr::new(*ip, port);
            return Ok(target(address.to_string(), address, None));
        }
        Host::Name(name) => name,
    };
    let in_cluster = format!("{name}.svc.{}", cluster_domain(unit));
    for host in [name, &in_cluster] {
        #[expect(
            clippy::disallowed_methods,
            reason = "the resolver of the C library is the one of the unit, and meshctl is not static"
        )]
        let lookup = lookup_host((host.as_str(), port));
        let found = timeout(RESOLVE_TIMEOUT, lookup).await;
        if let Ok(Ok(mut found)) = found
            && let Some(address) = found.next()
        {
            let note = format!("{host} is {} for this machine", address.ip());
            return Ok(target(format!("{name}:{port}"), address, Some(note)));
        }
    }
    let message = format!(
        "this machine resolves neither {name} nor {in_cluster}, and so does the unit: name the address, as IP:PORT, or have the cluster's DNS answer here"
    );
    Err(Failure::Input(message).into())
}

/// Asks the agent what the kernel programs decide.
async fn decision(unit: &Unit, destination: SocketAddr, socket: &Path) -> Fact<RedirectionEvent> {
    let connection = UnitConnection {
        unit: unit.name().to_owned(),
        destination,
    };
    match host::ask(socket, Request::DecideUnit(connection)).await? {
        Response::Decided(event) => Ok(event),
        other => Err(host::unexpected(&other)),
    }
}

/// Returns the controllers for the proxy of a unit.
async fn controllers_of(unit: &Unit) -> Fact<Controllers> {
    let connect = Box::pin(Controllers::of_proxy(unit.services(), || {
        Some((unit.identity()?, unit.token_path()?))
    }));
    let controllers = connect.await;
    controllers.map_err(|error| format!("the controllers cannot be asked: {error:#}"))
}

async fn policy_of(controllers: &Controllers, workload: &str, port: u16) -> Fact<ServerPolicy> {
    let query = QueryContext {
        source: Source::Host(controllers),
        token: "",
    };
    let policy = controllers::inbound_policy(&query, workload, port).await;
    policy
        .map(|policy| policy.completed())
        .map_err(|error| format!("{error:#}"))
}

/// Returns the endpoint that the proxy would connect to, as far as there is only one.
async fn server(facts: &Facts, controllers: &Controllers) -> Fact<Server> {
    let endpoints = facts.discovery.endpoints.as_ref();
    let endpoints = endpoints.map_err(|reason| format!("the endpoints are unknown: {reason}"))?;
    let Some((endpoint, others)) = endpoints.split_first() else {
        return Err(format!(
            "{} is not the address of a pod or an ExternalWorkload",
            facts.target.address
        ));
    };
    let (workload, name) = peer(endpoint)?;
    let policy = Box::pin(policy_of(controllers, &name, endpoint.addr.port())).await;
    Ok(Server {
        address: endpoint.addr,
        chosen_by: match others {
            [] => Choice::Only,
            _ => Choice::Example,
        },
        kernel: Err(NOT_ASKED.to_owned()),
        tap: Err(NO_CONNECTION.to_owned()),
        pod: workload,
        policy,
    })
}

/// Returns the workload of an endpoint as discovery describes it, and its name for the policy
/// controller.
fn peer(endpoint: &Endpoint) -> Fact<(Workload, String)> {
    let labels = &endpoint.labels;
    let of_pod = candidate::of_labels(endpoint.addr, labels);
    let external = labels.get("namespace").zip(labels.get("external_workload"));
    let (kind, namespace, name) = match (of_pod, external) {
        (
            Some(Candidate {
                namespace, name, ..
            }),
            _,
        ) => (WorkloadKind::Pod, namespace, name),
        (None, Some((namespace, name))) => (
            WorkloadKind::External,
            namespace.to_owned(),
            name.to_owned(),
        ),
        (None, None) => {
            return Err(format!(
                "{} is the address of no pod and no ExternalWorkload",
                endpoint.addr
            ));
        }
    };
    let key = match kind {
        WorkloadKind::External => "external_workload",
        WorkloadKind::Pod | WorkloadKind::Unit => "pod",
    };
    let policy_name = serde_json::json!({ "ns": namespace, key: name }).to_string();
    let workload = Workload {
        kind,
        service_account: labels.get("serviceaccount").unwrap_or_default().to_owned(),
        namespace,
        name,
        ip: endpoint.addr.ip(),
        identity: endpoint.tls.as_ref().map(|tls| tls.id.clone()),
        enrolment: Err(NOT_ASKED.to_owned()),
        skip_outbound: PortSet::default(),
        skip_inbound: PortSet::default(),
    };
    Ok((workload, policy_name))
}

/// Returns the unit as a client of an address.
fn workload(unit: &Unit, destination: IpAddr) -> Workload {
    let status = &unit.status;
    let identity = status.identity.as_ref();
    let account = identity.map(|identity| identity.service_account.as_str());
    let (namespace, service_account) = account
        .and_then(|account| account.split_once('/'))
        .unwrap_or_default();
    let ports = |key: &str| {
        let text = status.annotations.get(key).map(String::as_str);
        let text = text.unwrap_or(annotation::DEFAULT_SKIP_PORTS);
        text.parse().unwrap_or_default()
    };
    Workload {
        kind: WorkloadKind::Unit,
        namespace: namespace.to_owned(),
        name: status.unit.clone(),
        service_account: service_account.to_owned(),
        ip: source_towards(destination).unwrap_or(destination),
        identity: unit.identity().and_then(|name| Identity::parse(&name).ok()),
        enrolment: Ok(match status.state {
            UnitState::Redirected => Enrolment::Enrolled(Tier::Full),
            UnitState::Waiting => Enrolment::Waiting("its proxy has not listened yet".to_owned()),
        }),
        skip_outbound: ports(annotation::SKIP_OUTBOUND_PORTS),
        skip_inbound: ports(annotation::SKIP_INBOUND_PORTS),
    }
}

/// Returns the address of this machine that the server sees.
fn source_towards(destination: IpAddr) -> Option<IpAddr> {
    let any: SocketAddr = match destination {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    // Selects a route; UDP sends nothing.
    socket.connect((destination, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Returns a variable of the proxy, empty if it is not set.
fn value(unit: &Unit, name: &str) -> String {
    let environment = unit.environment();
    environment
        .get(&proxy_variable(name))
        .cloned()
        .unwrap_or_default()
}

/// Returns the domain of the cluster's Services.
fn cluster_domain(unit: &Unit) -> String {
    let suffixes = value(unit, "DESTINATION_PROFILE_SUFFIXES");
    let mut suffixes = suffixes.split(',').map(|it| it.trim().trim_matches('.'));
    let domain = suffixes.find_map(|suffix| suffix.strip_prefix("svc."));
    domain.unwrap_or("cluster.local").to_owned()
}
