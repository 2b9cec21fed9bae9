//! CIDR blocks with exceptions, which four kinds have.

use ipnet::IpNet;

use super::Node;
use crate::crd::network_authentication::{ExceptionError, check_exception, parse_cidr};

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
                self::exception(&exception, block, except);
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

fn exception(node: &Node<'_>, block: IpNet, except: IpNet) {
    match check_exception(block, except) {
        Ok(()) => {}
        Err(ExceptionError::WholeBlock(_)) => node.invalid(
            &format!("excepts the whole of {block}"),
            "except a part of the block, or remove the network",
        ),
        Err(ExceptionError::Outside(_)) => node.invalid(
            &format!("is not in {block}"),
            "except a part of the block, or remove the exception",
        ),
    }
}
