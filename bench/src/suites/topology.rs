//! The topology of the suites: client pod and server pod with proxies, and servers with one port
//! for each position.
//!
//! The agent of a pod does not redirect skipped ports, and the control plane's port settings
//! determine the use of TLS between the proxies. So one pair of proxies serves every position.

mod applications;
mod collector;
mod haproxy;
mod relay;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use clap::ValueEnum;
use serde_json::Value;

use super::Suite;
use super::tools::Tools;
use crate::testbed::pod::{Container, CpuRole, Pods};
use crate::testbed::process::Process;
use crate::testbed::proxies::{self, ControlPlanes, PortSettings, ProxySettings};
use crate::testbed::usage::run_time;
use crate::testbed::{Agent, ProxyPair, ProxyProcesses, SkippedPorts, Testbed, Tier};

pub(super) use self::applications::{INSTRUMENTATION, LARGE_PATH};

/// A service of `mesh-bench control` whose only endpoint is the server.
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// Third byte of the network, distinct from the benchmark's systems, which count from zero.
const NETWORK: u8 = 100;

const CLIENT: Container<'_> = Container::root("load", CpuRole::Load);

/// The proxies between client and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Position {
    /// Nothing.
    Direct,
    /// The client's proxy.
    Outbound,
    /// The server's proxy; the client is not in the mesh.
    Inbound,
    /// The server's proxy; the client itself uses the mesh's TLS.
    InboundTls,
    /// Both proxies, with mutual TLS between them.
    Both,
}

/// A server that a suite needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Application {
    /// Responds to every HTTP/2 request.
    Http2,
    /// The interoperability server of grpc-go.
    Grpc,
    /// Echoes messages.
    WebSocket,
    /// nginx, HTTP/1.1
    Web,
    /// Reads everything and never responds.
    Sink,
    /// Reports a span of each request.
    Traced,
}

pub(super) struct Topology<'l> {
    testbed: &'l Testbed,
    // Dropped in this order: proxies before applications.
    _relay: Option<Process>,
    proxies: ProxyProcesses,
    _control: ControlPlanes,
    _applications: Vec<Process>,
    _agent: Agent,
    pods: Pods,
}

impl Position {
    const ALL: [Self; 5] = [
        Self::Direct,
        Self::Outbound,
        Self::Inbound,
        Self::InboundTls,
        Self::Both,
    ];

    /// Returns the name for result lines and files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Outbound => "outbound",
            Self::Inbound => "inbound",
            Self::InboundTls => "inbound tls",
            Self::Both => "both",
        }
    }

    /// Returns a description for messages.
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::Direct => "the server alone",
            Self::Outbound => "the client's proxy",
            Self::Inbound => "the server's proxy",
            Self::InboundTls => "the server's proxy, over the mesh's TLS",
            Self::Both => "both proxies in line",
        }
    }

    fn skips_client_proxy(self) -> bool {
        matches!(self, Self::Direct | Self::Inbound | Self::InboundTls)
    }

    fn skips_server_proxy(self) -> bool {
        matches!(self, Self::Direct | Self::Outbound)
    }

    fn has_no_tls(self) -> bool {
        matches!(self, Self::Outbound | Self::Inbound)
    }
}

impl Application {
    const ALL: [Self; 6] = [
        Self::Http2,
        Self::Grpc,
        Self::WebSocket,
        Self::Web,
        Self::Sink,
        Self::Traced,
    ];

    /// Returns the application's port for a position.
    fn port(self, position: Position) -> u16 {
        8100 + 10 * self as u16 + position as u16
    }

    fn ports(self) -> impl Iterator<Item = u16> {
        Position::ALL
            .into_iter()
            .map(move |position| self.port(position))
    }
}

impl<'l> Topology<'l> {
    /// Starts the applications and proxies that these suites need, and waits until they are ready.
    pub(super) fn start(
        testbed: &'l Testbed,
        tools: &Tools,
        suites: &[Suite],
    ) -> anyhow::Result<Self> {
        let pods = Pods::new("suites", NETWORK, testbed.cpus)?;
        let wanted = |application: &Application| {
            let needs = |suite: &Suite| suite.applications().contains(application);
            suites.iter().any(needs)
        };
        let mut applications = Vec::new();
        let collector_address = collector::mesh_address(&pods.server);
        let mut settings = ProxySettings::default();
        if suites.contains(&Suite::Jaeger) {
            applications.extend(collector::start(testbed, tools, &pods.server)?);
            settings.environment = vec![
                (collector::ADDRESS_VARIABLE, &collector_address),
                collector::IDENTITY,
            ];
        }
        for application in Application::ALL.into_iter().filter(wanted) {
            let started = applications::start(testbed, tools, &pods.server, application)?;
            applications.extend(started);
        }
        let skipped = SkippedPorts {
            inbound: skipped(Position::skips_server_proxy),
            outbound: skipped(Position::skips_client_proxy),
        };
        let agent = Agent::start(testbed, &pods, Tier::Full, &skipped)?;
        let known = PortSettings {
            clear: ports(Position::has_no_tls),
            ..PortSettings::default()
        };
        let (control, proxies) = proxies::start(testbed, &pods, &known, &settings)?;
        let relay = if suites.contains(&Suite::H2spec) {
            let port = Application::Http2.port(Position::InboundTls);
            Some(relay::start(testbed, &pods, port)?)
        } else {
            None
        };
        Ok(Self {
            testbed,
            _relay: relay,
            proxies,
            _control: control,
            _applications: applications,
            _agent: agent,
            pods,
        })
    }

    /// Returns the address that a client in the client pod connects to.
    pub(super) fn target(&self, application: Application, position: Position) -> SocketAddr {
        let port = application.port(position);
        match position {
            Position::Direct | Position::Inbound => (self.pods.server.ip, port).into(),
            // The relay listens there.
            Position::InboundTls => (Ipv4Addr::LOCALHOST, port).into(),
            Position::Outbound | Position::Both => (SERVICE, port).into(),
        }
    }

    /// Returns a command in the client pod.
    pub(super) fn client(&self, program: impl AsRef<Path>) -> anyhow::Result<Command> {
        self.pods.client.command(CLIENT, program.as_ref())
    }

    /// Returns a `mesh-bench` command in the client pod.
    pub(super) fn bench_client(&self) -> anyhow::Result<Command> {
        self.client(&self.testbed.programs.bench)
    }

    /// Returns the address of Jaeger for applications, by OTLP over HTTP.
    pub(super) fn collector(&self) -> String {
        collector::address(&self.pods.server)
    }

    /// Returns the trace of this number as Jaeger's HTTP API has it, or null before its first span.
    pub(super) fn trace(&self, id: &str) -> anyhow::Result<Value> {
        collector::trace(&self.pods.server, id)
    }

    /// Returns the CPU seconds of each proxy.
    pub(super) fn run_times(&self) -> anyhow::Result<ProxyPair<f64>> {
        self.proxies.ids().try_map(run_time)
    }

    /// Fails once the user has interrupted the program.
    pub(super) fn check_interrupt(&self) -> anyhow::Result<()> {
        self.testbed.check_interrupt()
    }

    /// Fails if a proxy has exited.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        self.proxies.check("a proxy")
    }
}

/// Returns the ports that are not redirected: the applications' in these positions, and the
/// collector's.
fn skipped(is_selected: fn(Position) -> bool) -> Vec<u16> {
    [&ports(is_selected)[..], &collector::PORTS].concat()
}

/// Returns the ports of all applications in the positions that satisfy a predicate.
fn ports(is_selected: fn(Position) -> bool) -> Vec<u16> {
    let positions = || {
        Position::ALL
            .into_iter()
            .filter(|position| is_selected(*position))
    };
    Application::ALL
        .into_iter()
        .flat_map(|application| positions().map(move |position| application.port(position)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_application_and_position_has_its_own_port() {
        let all: HashSet<u16> = Application::ALL
            .into_iter()
            .flat_map(Application::ports)
            .collect();
        assert_eq!(all.len(), Application::ALL.len() * Position::ALL.len());
    }

    #[test]
    fn skipped_ports_match_position() {
        let skipped =
            |position: Position| (position.skips_client_proxy(), position.skips_server_proxy());
        assert_eq!(skipped(Position::Direct), (true, true));
        assert_eq!(skipped(Position::Outbound), (false, true));
        assert_eq!(skipped(Position::Inbound), (true, false));
        assert_eq!(skipped(Position::InboundTls), (true, false));
        assert_eq!(skipped(Position::Both), (false, false));
    }
}
