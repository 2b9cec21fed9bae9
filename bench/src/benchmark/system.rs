//! A system under test: client pod, server pod, the applications, and between them a pair of
//! proxies of one make, or nothing.

mod applications;
mod envoy;
mod haproxy;

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Command,
};

use anyhow::{Context, bail};

use super::{metric::Peer, workload::Service};
use crate::testbed::{
    Agent, Both, Lab, Pair, Skipped, Tier,
    pod::{Container, Pods, Side},
    process::Process,
    proxies::{self, Control, Ports, Rotation},
    usage::{self, Memory},
};

/// Where the listeners of a proxy that is not redirected to are.
const OUT: u16 = 10_000;
const IN: u16 = 20_000;

/// Where services of the mesh are: the second byte says which kind, as `mesh-bench control` knows
/// them.
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const CROWDED: Ipv4Addr = Ipv4Addr::new(10, 100, 0, 1);

/// How clients run in a pod.
pub(crate) const CLIENT: Container<'_> = Container {
    name: "load",
    side: Side::Load,
    user: None,
};

pub(crate) struct System {
    pub(crate) peer: Peer,
    // Ended in this order: clients' side first.
    proxies: Option<Pair>,
    pub(crate) control: Option<Control>,
    _applications: Vec<Process>,
    _agent: Option<Agent>,
    pub(crate) pods: Pods,
}

impl System {
    /// Starts everything and waits until it serves.
    pub(crate) fn start(lab: &Lab, peer: Peer) -> anyhow::Result<Self> {
        Self::start_with(lab, peer, None)
    }

    /// Ours, with identities that do not last.
    pub(crate) fn rotating(lab: &Lab, rotation: &Rotation) -> anyhow::Result<Self> {
        Self::start_with(lab, Peer::Ours, Some(rotation))
    }

    fn start_with(lab: &Lab, peer: Peer, rotation: Option<&Rotation>) -> anyhow::Result<Self> {
        let started = || -> anyhow::Result<Self> {
            let pods = Pods::new(&peer.name().to_lowercase(), number(peer), lab.cpus)?;
            let applications = applications::start(lab, &pods.server)?;
            let mut system = Self {
                peer,
                proxies: None,
                control: None,
                _applications: applications,
                _agent: None,
                pods,
            };
            match peer {
                Peer::Direct => {}
                Peer::Ours => {
                    let agent = Agent::start(lab, &system.pods, Tier::Full, &Skipped::default())?;
                    let (control, proxies) = proxies::start(lab, &system.pods, &ports(), rotation)?;
                    system._agent = Some(agent);
                    system.control = Some(control);
                    system.proxies = Some(proxies);
                }
                Peer::Envoy => system.proxies = Some(envoy::start(lab, &system.pods)?),
                Peer::Haproxy => system.proxies = Some(haproxy::start(lab, &system.pods)?),
                Peer::Iptables => bail!("iptables is a way to redirect, and no proxy"),
            }
            Ok(system)
        };
        started().with_context(|| format!("start {peer}"))
    }

    /// What a client in the client pod connects to.
    pub(crate) fn target(&self, service: Service) -> SocketAddr {
        let port = service.port();
        match self.peer {
            Peer::Direct => (self.pods.server.ip, port).into(),
            Peer::Ours if service == Service::EchoAnew => (CROWDED, port).into(),
            Peer::Ours | Peer::Iptables => (SERVICE, port).into(),
            Peer::Envoy | Peer::Haproxy => (Ipv4Addr::LOCALHOST, OUT + port).into(),
        }
    }

    /// The process ids of the proxies.
    pub(crate) fn processes(&self) -> Option<Both<u32>> {
        let proxies = self.proxies.as_ref()?;
        Some(Both {
            out: proxies.out.id(),
            inward: proxies.inward.id(),
        })
    }

    /// Seconds that each proxy has run.
    pub(crate) fn run_times(&self) -> anyhow::Result<Option<Both<f64>>> {
        self.each(usage::run_time)
    }

    pub(crate) fn memory(&self) -> anyhow::Result<Option<Both<Memory>>> {
        self.each(usage::memory)
    }

    /// Fails when a proxy has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let Some(proxies) = &mut self.proxies else {
            return Ok(());
        };
        for proxy in [&mut proxies.out, &mut proxies.inward] {
            if let Some(status) = proxy.ended()? {
                bail!("{} ended: {status}\n{}", self.peer, proxy.complaint());
            }
        }
        Ok(())
    }

    /// What is asked of the process of each proxy.
    pub(crate) fn each<T>(
        &self,
        ask: fn(u32) -> anyhow::Result<T>,
    ) -> anyhow::Result<Option<Both<T>>> {
        let Some(processes) = self.processes() else {
            return Ok(None);
        };
        Ok(Some(Both {
            out: ask(processes.out)?,
            inward: ask(processes.inward)?,
        }))
    }
}

/// A proxy that can be started again and again, with what it needs to become ready.
pub(crate) struct Starting {
    peer: Peer,
    _control: Option<Process>,
    _agent: Option<Agent>,
    pods: Pods,
}

impl Starting {
    pub(crate) fn prepare(lab: &Lab, peer: Peer) -> anyhow::Result<Self> {
        let pods = Pods::new(&peer.name().to_lowercase(), number(peer), lab.cpus)?;
        let (agent, control) = match peer {
            Peer::Ours => (
                Some(Agent::start(lab, &pods, Tier::Full, &Skipped::default())?),
                Some(proxies::control(lab, &pods, &pods.client, &ports(), None)?),
            ),
            _ => (None, None),
        };
        Ok(Self {
            peer,
            _control: control,
            _agent: agent,
            pods,
        })
    }

    /// A program that starts the proxy, says how long it took until it was ready, and ends it.
    pub(crate) fn command(&self, lab: &Lab) -> anyhow::Result<Command> {
        match self.peer {
            Peer::Ours => proxies::timed_start(lab, &self.pods.client),
            Peer::Envoy => envoy::timed_start(lab, &self.pods),
            Peer::Haproxy => haproxy::timed_start(lab, &self.pods),
            Peer::Direct | Peer::Iptables => bail!("{} is no proxy", self.peer),
        }
    }
}

/// Keeps the networks of systems that are alive together apart.
fn number(peer: Peer) -> u8 {
    peer as u8
}

/// What the control planes say of the ports of the workloads.
fn ports() -> Ports {
    let opaque = [Service::Bulk, Service::Echo, Service::EchoAnew];
    Ports {
        opaque: opaque.map(Service::port).to_vec(),
        plain: vec![Service::Plain.port()],
        clear: Vec::new(),
    }
}
