//! Writes the input of `iptables-restore`, and compares the rules with the output of
//! `iptables-save`. Pure.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::Family;
use crate::rules::{Match, Rule, Rules, Verdict};

pub const INBOUND_CHAIN: &str = "MESH_PROXY_INBOUND";
pub const OUTBOUND_CHAIN: &str = "MESH_PROXY_OUTBOUND";
/// `XT_MULTI_PORTS`: one multiport match has 15 ports, and a range counts as two.
const MULTIPORT_LIMIT: usize = 15;

/// A chain of the mesh: the built-in chain that jumps to it, its name and its rules.
struct Chain<'a> {
    hook: &'static str,
    name: &'static str,
    rules: &'a [Rule],
}

/// Writes the mesh's chains. With `--noflush`, declaring a chain empties only that one.
pub(super) fn replacement(rules: &Rules, family: Family, existing: &str) -> String {
    let chains = chains(rules);
    let mut script = "*nat\n".to_owned();
    for chain in &chains {
        script.push_str(&format!(":{} - [0:0]\n", chain.name));
    }
    for chain in &chains {
        for line in lines(chain, family) {
            script.push_str(&line);
            script.push('\n');
        }
        if !has_line(existing, &jump(chain)) {
            script.push_str(&jump(chain));
            script.push('\n');
        }
    }
    script.push_str("COMMIT\n");
    script
}

/// Removes the mesh's chains and every jump to them; `None` when there are none.
pub(super) fn removal(existing: &str) -> Option<String> {
    let mut script = String::new();
    for (hook, name) in [("PREROUTING", INBOUND_CHAIN), ("OUTPUT", OUTBOUND_CHAIN)] {
        let jump = format!("{hook} -j {name}");
        let jumps = existing.lines().filter(|line| {
            line.strip_prefix("-A ")
                .is_some_and(|rest| rest.trim() == jump)
        });
        for _ in jumps {
            script.push_str(&format!("-D {jump}\n"));
        }
        if existing
            .lines()
            .any(|line| line.starts_with(&format!(":{name} ")))
        {
            script.push_str(&format!("-F {name}\n-X {name}\n"));
        }
    }
    (!script.is_empty()).then(|| format!("*nat\n{script}COMMIT\n"))
}

/// Describes the first difference between the rules and the existing ones.
pub(super) fn difference(rules: &Rules, family: Family, existing: &str) -> Option<String> {
    for chain in chains(rules) {
        if !has_line(existing, &jump(&chain)) {
            return Some(format!(
                "{} does not jump to {} ({family:?})",
                chain.hook, chain.name
            ));
        }
        let start = format!("-A {} ", chain.name);
        let found: Vec<&str> = existing
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with(&start))
            .collect();
        let expected = lines(&chain, family);
        if found != expected {
            let missing = expected.iter().find(|line| !found.contains(&line.as_str()));
            return Some(match missing {
                Some(line) => format!("\"{line}\" is missing ({family:?})"),
                None => format!("chain {} has foreign rules ({family:?})", chain.name),
            });
        }
    }
    None
}

fn chains(rules: &Rules) -> Vec<Chain<'_>> {
    let mut chains = vec![Chain {
        hook: "PREROUTING",
        name: INBOUND_CHAIN,
        rules: &rules.inbound,
    }];
    if let Some(outbound) = &rules.outbound {
        chains.push(Chain {
            hook: "OUTPUT",
            name: OUTBOUND_CHAIN,
            rules: outbound,
        });
    }
    chains
}

fn jump(chain: &Chain<'_>) -> String {
    format!("-A {} -j {}", chain.hook, chain.name)
}

fn has_line(text: &str, expected: &str) -> bool {
    text.lines().any(|line| line.trim() == expected)
}

/// Returns the chain's rules in the format of `iptables-save`, to compare them.
fn lines(chain: &Chain<'_>, family: Family) -> Vec<String> {
    let mut lines = Vec::new();
    let mut ports: Vec<&RangeInclusive<u16>> = Vec::new();
    for rule in chain.rules {
        // Only skipped ports can share a line, since they have the same target.
        if let (Match::TcpDestinationPort(range), Verdict::Pass) = (&rule.matches, rule.verdict) {
            if multiport_size(&ports) + multiport_size(&[range]) > MULTIPORT_LIMIT {
                lines.push(multiport(chain.name, &ports));
                ports.clear();
            }
            ports.push(range);
            continue;
        }
        if !ports.is_empty() {
            lines.push(multiport(chain.name, &ports));
            ports.clear();
        }
        lines.extend(line(chain.name, rule, family));
    }
    if !ports.is_empty() {
        lines.push(multiport(chain.name, &ports));
    }
    lines
}

fn line(chain: &str, rule: &Rule, family: Family) -> Option<String> {
    let matches = match &rule.matches {
        Match::OwnerUser(user) => format!("-m owner --uid-owner {user}"),
        Match::OwnerGroup(group) => format!("-m owner --gid-owner {group}"),
        Match::LeavesThroughLoopback => "-o lo".to_owned(),
        Match::TcpDestinationPort(range) => multiport_match(&[range]),
        Match::Source(subnet) => match (subnet, family) {
            (IpNet::V4(_), Family::V4) | (IpNet::V6(_), Family::V6) => {
                format!("-s {}", subnet.trunc())
            }
            _ => return None,
        },
        Match::TcpDestination(address, port) => match (address, family) {
            (IpAddr::V4(_), Family::V4) | (IpAddr::V6(_), Family::V6) => {
                format!("-d {} -p tcp -m tcp --dport {port}", IpNet::from(*address))
            }
            _ => return None,
        },
        Match::Ipv6 if family == Family::V4 => return None,
        Match::Ipv6 => String::new(),
        Match::Tcp => "-p tcp".to_owned(),
    };
    let target = match rule.verdict {
        Verdict::Pass => "RETURN".to_owned(),
        Verdict::Redirect(port) => format!("REDIRECT --to-ports {port}"),
    };
    let words = [&format!("-A {chain}"), &matches, &format!("-j {target}")];
    let words = words.into_iter().filter(|word| !word.is_empty());
    Some(words.map(String::as_str).collect::<Vec<_>>().join(" "))
}

fn multiport(chain: &str, ports: &[&RangeInclusive<u16>]) -> String {
    format!("-A {chain} {} -j RETURN", multiport_match(ports))
}

fn multiport_match(ports: &[&RangeInclusive<u16>]) -> String {
    let list: Vec<String> = ports
        .iter()
        .map(|range| match (range.start(), range.end()) {
            (low, high) if low == high => low.to_string(),
            (low, high) => format!("{low}:{high}"),
        })
        .collect();
    format!("-p tcp -m multiport --dports {}", list.join(","))
}

fn multiport_size(ports: &[&RangeInclusive<u16>]) -> usize {
    ports
        .iter()
        .map(|range| if range.start() == range.end() { 1 } else { 2 })
        .sum()
}

#[cfg(test)]
mod tests;
