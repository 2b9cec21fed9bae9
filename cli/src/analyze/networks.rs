//! CIDR blocks that others contain, of one object or of several EgressNetworks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use mesh_core::policy::inbound::Network;
use mesh_objects::model::EgressNetwork;
use mesh_objects::policy::egress::network_of_address;
use serde_json::Value;

use super::finding::Finding;
use super::objects::{Object, Objects, POLICY, list, text};

/// All addresses of each family.
const EVERYTHING: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0)),
];

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
        overlap(objects, network, findings);
    }
}

/// Returns the blocks with their positions; the webhook reports malformed ones.
fn blocks(networks: &Value) -> impl Iterator<Item = (usize, Network)> {
    let numbered = list(networks).iter().enumerate();
    numbered.filter_map(|(at, network)| {
        let except = list(&network["except"]).iter().filter_map(parse);
        let block = Network {
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

/// Returns whether all addresses of `inner` are in the block.
fn has_all_of(block: &Network, inner: IpNet) -> bool {
    let overlaps = |except: &IpNet| except.contains(&inner) || inner.contains(except);
    block.net.contains(&inner) && !block.except.iter().any(overlaps)
}

/// Reports a block that another one of the list contains.
fn contained(object: &Object, field: &str, networks: &Value, findings: &mut Vec<Finding>) {
    for (at, block) in blocks(networks) {
        let outer = blocks(networks).find(|(other_at, other)| {
            let is_equal = other.net == block.net && has_all_of(&block, other.net);
            // The first of equal blocks counts.
            *other_at != at && has_all_of(other, block.net) && (!is_equal || *other_at < at)
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

/// Reports an EgressNetwork whose addresses another one of its namespace gets.
fn overlap(objects: &Objects, object: &Object, findings: &mut Vec<Finding>) {
    let Some(network) = object.egress_network() else {
        return;
    };
    let all = || objects.store().egress_networks_in(&network.name.namespace);
    let others = || all().filter(|other| other.name != network.name);
    let inner_blocks = inner_blocks(all());
    // The cluster networks, which no EgressNetwork has by default, are unknown here.
    let winner = |within: IpNet| {
        let address = outside(within, &inner_blocks)?;
        network_of_address(all(), address, &[])
    };
    let Some(blocks) = &network.networks else {
        let winner = EVERYTHING.into_iter().find_map(winner);
        let mut others = others().filter(|other| other.networks.is_none());
        if let Some(other) = others.find(|other| Some(&other.name) == winner.map(|it| &it.name)) {
            findings.push(Finding::new(
                object,
                "spec.networks",
                "conflict",
                format!(
                    "EgressNetwork {} also has all addresses outside of the cluster and wins, as it is older, or first by name",
                    other.name.name
                ),
                "merge the two, or list the networks of one",
            ));
        }
        return;
    };
    for (at, block) in blocks.iter().enumerate() {
        for other in others() {
            let inner = other.networks.iter().flatten();
            for inner in inner.filter(|inner| has_all_of(block, inner.net)) {
                if winner(inner.net).is_none_or(|winner| winner.name != other.name) {
                    continue;
                }
                let other = &other.name.name;
                let (code, problem, fix) = if inner.net == block.net {
                    (
                        "conflict",
                        format!(
                            "EgressNetwork {other} also has {} and wins, as it is older, or first by name",
                            block.net
                        ),
                        "remove the block from one of them".to_owned(),
                    )
                } else {
                    (
                        "overlap",
                        format!(
                            "does not apply to {}, which EgressNetwork {other} has with a longer prefix",
                            inner.net
                        ),
                        format!("if this is intended, add {} to except", inner.net),
                    )
                };
                let field = format!("spec.networks[{at}].cidr");
                findings.push(Finding::new(object, field, code, problem, fix));
            }
        }
    }
}

/// The blocks and exceptions of networks: where another network may begin to apply.
fn inner_blocks<'a>(networks: impl Iterator<Item = &'a EgressNetwork>) -> Vec<IpNet> {
    let blocks = networks.flat_map(|network| network.networks.iter().flatten());
    blocks
        .flat_map(|block| block.except.iter().chain([&block.net]))
        .copied()
        .collect()
}

/// Returns an address of a block that is in no smaller one of these.
fn outside(block: IpNet, blocks: &[IpNet]) -> Option<IpAddr> {
    let mut smaller = blocks
        .iter()
        .filter(|inner| **inner != block && block.contains(*inner))
        .peekable();
    if smaller.peek().is_none() {
        return Some(block.network());
    }
    // Halves are searched until one has no smaller block, or is one.
    let halves = block.subnets(block.prefix_len() + 1).ok()?;
    let blocks: Vec<IpNet> = smaller.copied().collect();
    halves
        .filter(|half| !blocks.contains(half))
        .find_map(|half| outside(half, &blocks))
}
