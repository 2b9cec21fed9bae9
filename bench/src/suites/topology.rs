//! Where the suites shoot: client pod and server pod with our proxies, and servers that are reached
//! in different ways. Which way it is decides the port.
//!
//! A port that the agent of a pod skips passes its proxy by, and what the control plane says of a
//! port decides whether there is TLS between the proxies. So one pair of proxies is enough for
//! every position.

mod applications;
mod relay;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
};

use anyhow::bail;

pub(super) use self::applications::LARGE_PATH;
use super::{Suite, tools::Tools};
use crate::testbed::{
    Agent, ProxyPair, ProxyProcesses, SkippedPorts, Testbed, Tier,
    pod::{Container, CpuRole, Pods},
    process::Process,
    proxies::{self, ControlPlanes, PortSettings},
    usage::run_time,
};

/// A service of the mesh whose only endpoint is the server, as `mesh-bench control` knows it.
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// Keeps the network apart from those of the benchmark's systems, which count from zero.
const NETWORK: u8 = 100;

const CLIENT: Container<'_> = Container {
    name: "load",
    cpu_role: CpuRole::Load,
    user: None,
};

/// What is between client and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Position {
    /// Nothing.
    Direct,
    /// The client's proxy.
    Outbound,
    /// The server's proxy; the client is not in the mesh.
    Inbound,
    /// The server's proxy; the client speaks the mesh's TLS itself.
    InboundTls,
    /// Both proxies, with mutual TLS between them.
    Both,
}

/// A server that a suite needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Application {
    /// Answers every HTTP/2 request.
    Http2,
    /// The interoperability server of grpc-go.
    Grpc,
    /// Echoes messages.
    WebSocket,
    /// nginx, HTTP/1.1
    Web,
    /// Reads whatever comes, and answers nothing.
    Sink,
}

pub(super) struct Topology<'l> {
    testbed: &'l Testbed,
    // Ended in this order: clients' side first.
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

    /// As the result's line and file call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Outbound => "outbound",
            Self::Inbound => "inbound",
            Self::InboundTls => "inbound tls",
            Self::Both => "both",
        }
    }

    /// As a person would say it.
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
    const ALL: [Self; 5] = [
        Self::Http2,
        Self::Grpc,
        Self::WebSocket,
        Self::Web,
        Self::Sink,
    ];

    /// Where it listens for those who come in this way.
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
    /// Starts what these suites need, and waits until it serves.
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
        for application in Application::ALL.into_iter().filter(wanted) {
            applications.extend(applications::start(
                testbed,
                tools,
                &pods.server,
                application,
            )?);
        }
        let skipped = SkippedPorts {
            inbound: ports(Position::skips_server_proxy),
            outbound: ports(Position::skips_client_proxy),
        };
        let agent = Agent::start(testbed, &pods, Tier::Full, &skipped)?;
        let known = PortSettings {
            clear: ports(Position::has_no_tls),
            ..PortSettings::default()
        };
        let (control, proxies) = proxies::start(testbed, &pods, &known, None)?;
        let relay = if suites.contains(&Suite::H2spec) {
            Some(relay::start(
                testbed,
                &pods,
                Application::Http2.port(Position::InboundTls),
            )?)
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

    /// What a client in the client pod connects to.
    pub(super) fn target(&self, application: Application, position: Position) -> SocketAddr {
        let port = application.port(position);
        match position {
            Position::Direct | Position::Inbound => (self.pods.server.ip, port).into(),
            // There the relay listens.
            Position::InboundTls => (Ipv4Addr::LOCALHOST, port).into(),
            Position::Outbound | Position::Both => (SERVICE, port).into(),
        }
    }

    /// A command in the client pod.
    pub(super) fn client(&self, program: impl AsRef<Path>) -> anyhow::Result<Command> {
        self.pods.client.command(CLIENT, program.as_ref())
    }

    /// The same for the clients that are ours.
    pub(super) fn bench_client(&self) -> anyhow::Result<Command> {
        self.client(&self.testbed.programs.bench)
    }

    /// Seconds that each proxy has run.
    pub(super) fn run_times(&self) -> anyhow::Result<ProxyPair<f64>> {
        Ok(ProxyPair {
            outbound: run_time(self.proxies.outbound.id())?,
            inbound: run_time(self.proxies.inbound.id())?,
        })
    }

    /// Fails once the user wanted to stop.
    pub(super) fn check_interrupt(&self) -> anyhow::Result<()> {
        self.testbed.check_interrupt()
    }

    /// Fails when a proxy has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        for proxy in [&mut self.proxies.outbound, &mut self.proxies.inbound] {
            if let Some(status) = proxy.exit_status()? {
                bail!("a proxy ended: {status}\n{}", proxy.command_and_log());
            }
        }
        Ok(())
    }
}

/// All ports of the positions that are like this.
fn ports(like: fn(Position) -> bool) -> Vec<u16> {
    let positions = || Position::ALL.into_iter().filter(|position| like(*position));
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
