//! A running system under test: client pod, server pod, the applications, and between them a pair
//! of proxies of one kind, or a direct connection.

mod applications;
mod envoy;
mod haproxy;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, bail};

use super::metric::SystemUnderTest;
use super::workload::Service;
use crate::testbed::pod::{Container, CpuRole, Pods};
use crate::testbed::process::Process;
use crate::testbed::proxies::{self, ControlPlanes, PortSettings, ProxySettings};
use crate::testbed::usage::{self, Memory};
use crate::testbed::{Agent, Cpus, ProxyPair, ProxyProcesses, SkippedPorts, Testbed, Tier};

/// Port offsets of the listeners of Envoy and HAProxy: clients connect to them without redirection.
const OUT: u16 = 10_000;
const IN: u16 = 20_000;

/// Service addresses. The second byte selects the kind of service in `mesh-bench control`.
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const MANY_ENDPOINTS: Ipv4Addr = Ipv4Addr::new(10, 100, 0, 1);
/// The service that leads to the same server by a route with a retry policy.
pub(crate) const RETRIED: Ipv4Addr = Ipv4Addr::new(10, 101, 0, 1);

/// The container of clients in a pod.
pub(crate) const CLIENT: Container<'_> = Container::root("load", CpuRole::Load);

pub(crate) struct System {
    pub(crate) sut: SystemUnderTest,
    // Dropped in this order: proxies before applications.
    proxies: Option<ProxyProcesses>,
    control: Option<ControlPlanes>,
    _applications: Vec<Process>,
    agent: Option<Rc<Agent>>,
    pub(crate) pods: Pods,
}

impl System {
    /// Starts the system and waits until it is ready.
    pub(crate) fn start(testbed: &Testbed, sut: SystemUnderTest) -> anyhow::Result<Self> {
        Self::start_on(testbed, testbed.cpus, sut, &ProxySettings::default())
    }

    /// Starts the system with settings, which only mesh-proxy has.
    pub(crate) fn start_with(
        testbed: &Testbed,
        sut: SystemUnderTest,
        settings: &ProxySettings<'_>,
    ) -> anyhow::Result<Self> {
        Self::start_on(testbed, testbed.cpus, sut, settings)
    }

    /// Starts the system on these CPUs, which also say how many workers the proxies have.
    pub(crate) fn start_on(
        testbed: &Testbed,
        cpus: Cpus,
        sut: SystemUnderTest,
        settings: &ProxySettings<'_>,
    ) -> anyhow::Result<Self> {
        let started = || -> anyhow::Result<Self> {
            let mut system = Self::without_proxies(testbed, cpus, sut)?;
            match sut {
                SystemUnderTest::Direct => {}
                SystemUnderTest::MeshProxy => {
                    let none = SkippedPorts::default();
                    let agent = Agent::start(testbed, &system.pods, Tier::Full, &none)?;
                    system.agent = Some(Rc::new(agent));
                    system.start_mesh_proxies(testbed, settings)?;
                }
                SystemUnderTest::Envoy => {
                    system.proxies = Some(envoy::start(testbed, &system.pods)?);
                }
                SystemUnderTest::Haproxy => {
                    system.proxies = Some(haproxy::start(testbed, &system.pods)?);
                }
                SystemUnderTest::Plain | SystemUnderTest::Iptables => {
                    bail!("{sut} is not a system of its own")
                }
            }
            Ok(system)
        };
        started().with_context(|| format!("start {sut}"))
    }

    /// Starts a second pair of mesh-proxy in pods of its own, redirected by the same agent.
    pub(crate) fn start_second(&self, testbed: &Testbed) -> anyhow::Result<Self> {
        let mut system = Self::without_proxies(testbed, testbed.cpus, SystemUnderTest::Plain)?;
        let agent = self.agent.as_ref().context("an agent runs")?;
        agent.enrol_pair(&system.pods, &SkippedPorts::default())?;
        system.agent = Some(Rc::clone(agent));
        system.start_mesh_proxies(testbed, &ProxySettings::default())?;
        Ok(system)
    }

    fn without_proxies(
        testbed: &Testbed,
        cpus: Cpus,
        sut: SystemUnderTest,
    ) -> anyhow::Result<Self> {
        let pods = Pods::new(&sut.name().to_lowercase(), number(sut), cpus)?;
        Ok(Self {
            sut,
            proxies: None,
            control: None,
            _applications: applications::start(testbed, &pods.server)?,
            agent: None,
            pods,
        })
    }

    fn start_mesh_proxies(
        &mut self,
        testbed: &Testbed,
        settings: &ProxySettings<'_>,
    ) -> anyhow::Result<()> {
        let (control, proxies) = proxies::start(testbed, &self.pods, &ports(), settings)?;
        (self.control, self.proxies) = (Some(control), Some(proxies));
        Ok(())
    }

    /// Returns the control planes of its proxies.
    pub(crate) fn control(&mut self) -> anyhow::Result<&mut ControlPlanes> {
        let control = self.control.as_mut();
        control.context("the system has no control plane")
    }

    /// Returns the address that a client in the client pod connects to.
    pub(crate) fn target(&self, service: Service) -> SocketAddr {
        let port = service.port();
        match self.sut {
            SystemUnderTest::Direct => (self.pods.server.ip, port).into(),
            SystemUnderTest::MeshProxy if service == Service::EchoFullHandshake => {
                (MANY_ENDPOINTS, port).into()
            }
            SystemUnderTest::MeshProxy | SystemUnderTest::Plain | SystemUnderTest::Iptables => {
                (SERVICE, port).into()
            }
            SystemUnderTest::Envoy | SystemUnderTest::Haproxy => {
                (Ipv4Addr::LOCALHOST, OUT + port).into()
            }
        }
    }

    /// Ends both proxies and starts them again with these settings; everything else keeps running.
    pub(crate) fn restart(
        &mut self,
        testbed: &Testbed,
        settings: &ProxySettings<'_>,
    ) -> anyhow::Result<()> {
        self.stop_proxies();
        let started = proxies::start_pair(testbed, &self.pods, settings);
        self.proxies = Some(started.with_context(|| format!("restart {}", self.sut))?);
        Ok(())
    }

    pub(crate) fn stop_proxies(&mut self) {
        self.proxies = None;
    }

    /// Returns the process IDs of the proxies.
    pub(crate) fn processes(&self) -> Option<ProxyPair<u32>> {
        self.proxies.as_ref().map(ProxyProcesses::ids)
    }

    /// Returns the CPU seconds of each proxy.
    pub(crate) fn run_times(&self) -> anyhow::Result<Option<ProxyPair<f64>>> {
        self.each(usage::run_time)
    }

    pub(crate) fn memory(&self) -> anyhow::Result<Option<ProxyPair<Memory>>> {
        self.each(usage::memory)
    }

    /// Fails if a proxy has exited.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match &mut self.proxies {
            Some(proxies) => proxies.check(self.sut.name()),
            None => Ok(()),
        }
    }

    /// Applies a function to the process of each proxy.
    pub(crate) fn each<T>(
        &self,
        read: fn(u32) -> anyhow::Result<T>,
    ) -> anyhow::Result<Option<ProxyPair<T>>> {
        let processes = self.processes();
        processes.map(|ids| ids.try_map(read)).transpose()
    }
}

/// A proxy that can be started repeatedly, with the control plane and agent that it needs.
pub(crate) struct StartableProxy {
    sut: SystemUnderTest,
    _control: Option<Process>,
    _agent: Option<Agent>,
    pods: Pods,
}

impl StartableProxy {
    pub(crate) fn prepare(testbed: &Testbed, sut: SystemUnderTest) -> anyhow::Result<Self> {
        let pods = Pods::new(&sut.name().to_lowercase(), number(sut), testbed.cpus)?;
        let mut proxy = Self {
            sut,
            _control: None,
            _agent: None,
            pods,
        };
        if sut == SystemUnderTest::MeshProxy {
            let (pods, none) = (&proxy.pods, SkippedPorts::default());
            let agent = Agent::start(testbed, pods, Tier::Full, &none)?;
            let control = proxies::control(testbed, pods, &pods.client, &ports(), None)?;
            (proxy._agent, proxy._control) = (Some(agent), Some(control));
        }
        Ok(proxy)
    }

    /// Returns a command that starts the proxy, reports the time until it is ready, and kills it.
    pub(crate) fn command(&self, testbed: &Testbed) -> anyhow::Result<Command> {
        match self.sut {
            SystemUnderTest::MeshProxy => proxies::timed_start(testbed, &self.pods.client),
            SystemUnderTest::Envoy => envoy::timed_start(testbed, &self.pods),
            SystemUnderTest::Haproxy => haproxy::timed_start(testbed, &self.pods),
            SystemUnderTest::Direct | SystemUnderTest::Plain | SystemUnderTest::Iptables => {
                bail!("{} has no proxies", self.sut)
            }
        }
    }
}

/// Returns the third byte of the system's network, so that running systems use separate networks.
fn number(sut: SystemUnderTest) -> u8 {
    sut as u8
}

/// Returns the port settings of the workloads.
fn ports() -> PortSettings {
    let opaque = [Service::Bulk, Service::Echo, Service::EchoFullHandshake];
    PortSettings {
        opaque: opaque.map(Service::port).to_vec(),
        plain: vec![Service::Plain.port()],
        clear: Vec::new(),
    }
}
