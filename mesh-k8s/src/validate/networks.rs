//! CIDR blocks with exceptions, which four kinds have.

use ipnet::IpNet;

use super::Node;
use crate::crd::network_authentication::parse_cidr;

const FIX: &str = "write a block such as 10.0.0.0/8 or fd00::/8, or an address";

/// Checks a list of networks.
pub(super) fn networks(list: &Node<'_>) {
    for network in list.items() {
        if network.object().is_none() {
            continue;
        }
        let block = network.require("cidr", FIX).and_then(|cidr| block(&cidr));
        for exception in network.items_of("except") {
            if let Some((block, except)) = block.zip(self::block(&exception)) {
                check_exception(&exception, block, except);
            }
        }
    }
}

/// Checks a list of networks that must not be empty.
pub(super) fn some_networks(list: &Node<'_>, fix: &str) {
    if list.value().as_array().is_some_and(Vec::is_empty) {
        list.invalid("lists no network", fix);
    }
    networks(list);
}

fn block(node: &Node<'_>) -> Option<IpNet> {
    let block = parse_cidr(node.text()?);
    if block.is_err() {
        node.malformed("is neither an IP address nor a CIDR block", FIX);
    }
    block.ok()
}

fn check_exception(node: &Node<'_>, block: IpNet, except: IpNet) {
    if except.contains(&block) {
        let problem = format!("excepts the whole of {block}");
        node.invalid(
            &problem,
            "except a part of the block, or remove the network",
        );
    } else if !block.contains(&except) {
        let problem = format!("is not in {block}");
        node.invalid(
            &problem,
            "except a part of the block, or remove the exception",
        );
    }
}
