//! CIDR blocks that others contain, of one object or of several EgressNetworks.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::finding::Finding;
use super::objects::{Object, Objects, POLICY, list, text};

/// A block with its exceptions.
struct Block {
    net: IpNet,
    except: Vec<IpNet>,
}

pub(super) fn analyze(objects: &Objects, findings: &mut Vec<Finding>) {
    for kind in ["NetworkAuthentication", "EgressNetwork"] {
        for object in objects.of(POLICY, kind) {
            let networks = &object.spec()["networks"];
            contained(object, "spec.networks", networks, findings);
        }
    }
    for object in objects.of(POLICY, "ServerAuthorization") {
        let networks = &object.spec()["client"]["networks"];
        contained(object, "spec.client.networks", networks, findings);
    }
    for network in objects.of(POLICY, "EgressNetwork") {
        let others = objects.of(POLICY, "EgressNetwork");
        for other in others.filter(|other| {
            other.namespace == network.namespace && other.full_name() != network.full_name()
        }) {
            overlap(network, other, findings);
        }
    }
}

/// Returns the blocks with their positions; the webhook reports malformed ones.
fn blocks(networks: &Value) -> impl Iterator<Item = (usize, Block)> {
    let numbered = list(networks).iter().enumerate();
    numbered.filter_map(|(at, network)| {
        let except = list(&network["except"]).iter().filter_map(parse);
        let block = Block {
            net: parse(&network["cidr"])?,
            except: except.collect(),
        };
        Some((at, block))
    })
}

fn parse(value: &Value) -> Option<IpNet> {
    let value = text(value);
    let address = || value.parse::<IpAddr>().ok().map(IpNet::from);
    let block = value.parse::<IpNet>().ok().or_else(address);
    block.map(|block| block.trunc())
}

impl Block {
    /// Returns whether all addresses of `other` are in the block.
    fn contains(&self, other: &Self) -> bool {
        let overlaps = |except: &IpNet| except.contains(&other.net) || other.net.contains(except);
        self.net.contains(&other.net) && !self.except.iter().any(overlaps)
    }
}

/// Reports a block that another one of the list contains.
fn contained(object: &Object, field: &str, networks: &Value, findings: &mut Vec<Finding>) {
    for (at, block) in blocks(networks) {
        let outer = blocks(networks).find(|(other_at, other)| {
            let is_equal = other.net == block.net && block.contains(other);
            // The first of equal blocks counts.
            *other_at != at && other.contains(&block) && (!is_equal || *other_at < at)
        });
        let Some((outer_at, outer)) = outer else {
            continue;
        };
        let exceptions = match block.except.first() {
            Some(except) => format!(", also {except}, which it excepts"),
            None => String::new(),
        };
        findings.push(Finding::new(
            object,
            format!("{field}[{at}]"),
            "no-effect",
            format!(
                "{} has no effect: {field}[{outer_at}], {}, has all of its addresses{exceptions}",
                block.net, outer.net
            ),
            "remove it, or except it from the larger block",
        ));
    }
}

/// Reports the blocks of an EgressNetwork whose addresses another one of the namespace has. The
/// longest prefix wins, then the oldest object.
fn overlap(network: &Object, other: &Object, findings: &mut Vec<Finding>) {
    let (own, others) = (&network.spec()["networks"], &other.spec()["networks"]);
    if own.is_null() && others.is_null() && other.is_older(network) {
        findings.push(Finding::new(
            network,
            "spec.networks",
            "conflict",
            format!(
                "EgressNetwork {} also has all addresses outside of the cluster and wins, as it is older, or first by name",
                other.name
            ),
            "merge the two, or list the networks of one",
        ));
    }
    for (at, block) in blocks(own) {
        let mut report = |code, problem: String, fix: String| {
            let field = format!("spec.networks[{at}].cidr");
            findings.push(Finding::new(network, field, code, problem, fix));
        };
        for (_, wins) in blocks(others).filter(|(_, other)| block.contains(other)) {
            if wins.net != block.net {
                report(
                    "overlap",
                    format!(
                        "does not apply to {}, which EgressNetwork {} has with a longer prefix",
                        wins.net, other.name
                    ),
                    format!("if this is intended, add {} to except", wins.net),
                );
            } else if other.is_older(network) {
                report(
                    "conflict",
                    format!(
                        "EgressNetwork {} also has {} and wins, as it is older, or first by name",
                        other.name, block.net
                    ),
                    "remove the block from one of them".to_owned(),
                );
            }
        }
    }
}
