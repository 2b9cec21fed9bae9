//! The redirection of a pod as a list of packet-filter rules, independent of the packet filter.
//!
//! Linkerd's interception contract, after two rules of this project. IPv6 passes if the proxy is
//! not configured to listen on it. A connection that leaves the pod to the check address is
//! redirected to the outbound port, whichever process made it (see `mesh_ebpf_common::verdict`).
//! Outbound connections then pass unredirected if the proxy made them, if they use loopback, or if
//! their port is skipped; all others are redirected to the outbound port. Inbound connections pass
//! if their port is skipped (always including the proxy's admin and control ports) or their source
//! is; all others are redirected to the inbound port. The first match wins. Modules `nft` and
//! `iptables` translate the list; the eBPF programs decide the same from the maps.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use mesh_ebpf_common::verdict::{CHECK_PORT, CHECK_V4, CHECK_V6};

use crate::redirect::{PortSet, RedirectSpec};

/// The directions that the packet filter redirects; kernel programs may do the outbound one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directions {
    Both,
    InboundOnly,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// For connections of the pod's processes; absent when the kernel programs redirect them.
    pub outbound: Option<Vec<Rule>>,
    /// For connections from outside of the pod.
    pub inbound: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub matches: Match,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    OwnerUser(u32),
    OwnerGroup(u32),
    LeavesThroughLoopback,
    TcpDestinationPort(RangeInclusive<u16>),
    Source(IpNet),
    TcpDestination(IpAddr, u16),
    Ipv6,
    Tcp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Do not redirect the connection.
    Pass,
    /// Redirect it to this port of the pod.
    Redirect(u16),
}

impl Rules {
    pub fn new(spec: &RedirectSpec, directions: Directions) -> Self {
        let mut rules = Self {
            outbound: (directions == Directions::Both).then(|| outbound(spec)),
            inbound: inbound(spec),
        };
        if !spec.ipv6 {
            rules.exempt_ipv6();
        }
        rules
    }

    pub fn redirect_inbound_only(&mut self, only: &PortSet, port: u16) {
        self.inbound
            .retain(|rule| matches!(rule.verdict, Verdict::Pass));
        self.inbound.extend(only.ranges().iter().map(|range| Rule {
            matches: Match::TcpDestinationPort(range.clone()),
            verdict: Verdict::Redirect(port),
        }));
    }

    fn exempt_ipv6(&mut self) {
        self.inbound.insert(0, pass(Match::Ipv6));
        if let Some(outbound) = &mut self.outbound {
            outbound.insert(0, pass(Match::Ipv6));
        }
    }
}

fn outbound(spec: &RedirectSpec) -> Vec<Rule> {
    let mut rules: Vec<Rule> = [IpAddr::from(CHECK_V4), IpAddr::from(CHECK_V6)]
        .map(|address| Rule {
            matches: Match::TcpDestination(address, CHECK_PORT),
            verdict: Verdict::Redirect(spec.outbound_port),
        })
        .into();
    // User and group 0 are never the proxy's: they would exempt every root process.
    if spec.proxy_uid > 0 {
        rules.push(pass(Match::OwnerUser(spec.proxy_uid)));
    }
    if let Some(group) = spec.proxy_gid.filter(|group| *group > 0) {
        rules.push(pass(Match::OwnerGroup(group)));
    }
    rules.push(pass(Match::LeavesThroughLoopback));
    rules.extend(ports(spec.skip_outbound.ranges()));
    rules.push(redirect(spec.outbound_port));
    rules
}

fn inbound(spec: &RedirectSpec) -> Vec<Rule> {
    let mut rules: Vec<Rule> = ports(spec.skip_inbound.ranges()).collect();
    rules.extend(
        spec.skip_subnets
            .iter()
            .map(|subnet| pass(Match::Source(*subnet))),
    );
    rules.push(redirect(spec.inbound_port));
    rules
}

fn ports(ranges: &[RangeInclusive<u16>]) -> impl Iterator<Item = Rule> {
    ranges
        .iter()
        .map(|range| pass(Match::TcpDestinationPort(range.clone())))
}

fn pass(matches: Match) -> Rule {
    Rule {
        matches,
        verdict: Verdict::Pass,
    }
}

fn redirect(port: u16) -> Rule {
    Rule {
        matches: Match::Tcp,
        verdict: Verdict::Redirect(port),
    }
}

/// Describes the rule, for the comment that an administrator reads next to it.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skip = match self.verdict {
            Verdict::Pass => "skip ",
            Verdict::Redirect(_) => "",
        };
        match &self.matches {
            Match::OwnerUser(user) => write!(f, "proxy user {user}")?,
            Match::OwnerGroup(group) => write!(f, "proxy group {group}")?,
            Match::LeavesThroughLoopback => write!(f, "loopback")?,
            Match::TcpDestinationPort(range) if range.start() == range.end() => {
                write!(f, "{skip}port {}", range.start())?;
            }
            Match::TcpDestinationPort(range) => {
                write!(f, "{skip}ports {}-{}", range.start(), range.end())?;
            }
            Match::Source(subnet) => write!(f, "skip source {subnet}")?,
            Match::TcpDestination(address, _) => write!(f, "check address {address}")?,
            Match::Ipv6 => write!(f, "IPv6")?,
            Match::Tcp => write!(f, "everything else")?,
        }
        match self.verdict {
            Verdict::Pass => Ok(()),
            Verdict::Redirect(port) => write!(f, " to the proxy, port {port}"),
        }
    }
}
