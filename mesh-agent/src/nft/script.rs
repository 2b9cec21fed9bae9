//! The rules as input of `nft -f`, which `linkerd2-proxy-init --simulate` prints. The kernel
//! receives them over netlink.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::{INBOUND_CHAIN, OUTBOUND_CHAIN, TABLE};
use crate::rules::{Match, Rule, Rules, Verdict};

pub fn script(rules: &Rules) -> String {
    let mut chains = vec![(INBOUND_CHAIN, "prerouting", &rules.inbound)];
    if let Some(outbound) = &rules.outbound {
        chains.push((OUTBOUND_CHAIN, "output", outbound));
    }
    let mut text = format!("table inet {TABLE} {{\n");
    for (name, hook, rules) in chains {
        text.push_str(&format!(
            "\tchain {name} {{\n\t\ttype nat hook {hook} priority -100; policy accept;\n"
        ));
        for rule in rules {
            text.push_str(&format!("\t\t{}\n", statement(rule)));
        }
        text.push_str("\t}\n");
    }
    text.push_str("}\n");
    text
}

fn statement(rule: &Rule) -> String {
    let matches = match &rule.matches {
        Match::OwnerUser(user) => format!("meta skuid {user}"),
        Match::OwnerGroup(group) => format!("meta skgid {group}"),
        Match::LeavesThroughLoopback => "oif lo".to_owned(),
        Match::TcpDestinationPort(range) => format!("tcp dport {}", ports(range)),
        Match::Source(subnet) => format!("{} saddr {subnet}", family(subnet.addr())),
        Match::TcpDestination(address, port) => {
            format!("{} daddr {address} tcp dport {port}", family(*address))
        }
        Match::Ipv6 => "meta nfproto ipv6".to_owned(),
        Match::Tcp => "meta l4proto tcp".to_owned(),
    };
    let verdict = match rule.verdict {
        Verdict::Pass => "accept".to_owned(),
        Verdict::Redirect(port) => format!("redirect to :{port}"),
    };
    format!("{matches} counter {verdict} comment \"{rule}\"")
}

fn family(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "ip",
        IpAddr::V6(_) => "ip6",
    }
}

fn ports(range: &RangeInclusive<u16>) -> String {
    match (range.start(), range.end()) {
        (low, high) if low == high => low.to_string(),
        (low, high) => format!("{low}-{high}"),
    }
}
