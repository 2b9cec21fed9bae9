//! nf_tables expressions: one rule as instructions of the kernel's register machine.
//!
//! Numbers come from `linux/netfilter/nf_tables.h`; the comment after each is its name there.
//! Registers have the byte order of the loaded value: network order for ports and addresses, host
//! order for user ids and interface indexes.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::netlink::Message;
use crate::rules::{Match, Rule, Verdict};

const LIST_ELEMENT: u16 = 1; // NFTA_LIST_ELEM
const EXPRESSION_NAME: u16 = 1; // NFTA_EXPR_NAME
const EXPRESSION_DATA: u16 = 2; // NFTA_EXPR_DATA
const DATA_VALUE: u16 = 1; // NFTA_DATA_VALUE
const DATA_VERDICT: u16 = 2; // NFTA_DATA_VERDICT
const VERDICT_CODE: u16 = 1; // NFTA_VERDICT_CODE
const VERDICT_ACCEPT: u32 = 1; // NF_ACCEPT

const REGISTER_VERDICT: u32 = 0; // NFT_REG_VERDICT
const REGISTER: u32 = 1; // NFT_REG_1, the only one used

/// `LOOPBACK_IFINDEX`: loopback has the first index in every network namespace.
const LOOPBACK_INDEX: u32 = 1;

/// Keys of the `meta` expression.
#[derive(Clone, Copy)]
enum Meta {
    OutputInterface = 5,  // NFT_META_OIF
    OwnerUser = 10,       // NFT_META_SKUID
    OwnerGroup = 11,      // NFT_META_SKGID
    NetworkProtocol = 15, // NFT_META_NFPROTO
    Transport = 16,       // NFT_META_L4PROTO
}

#[derive(Clone, Copy)]
enum Compare {
    Equal = 0,   // NFT_CMP_EQ
    AtMost = 3,  // NFT_CMP_LTE
    AtLeast = 5, // NFT_CMP_GTE
}

#[derive(Clone, Copy)]
enum Header {
    Network = 1,   // NFT_PAYLOAD_NETWORK_HEADER
    Transport = 2, // NFT_PAYLOAD_TRANSPORT_HEADER
}

/// Writes the elements of `NFTA_RULE_EXPRESSIONS`.
pub(super) fn write(list: Message, rule: &Rule) -> Message {
    let list = match &rule.matches {
        Match::OwnerUser(user) => meta_is(list, Meta::OwnerUser, &user.to_ne_bytes()),
        Match::OwnerGroup(group) => meta_is(list, Meta::OwnerGroup, &group.to_ne_bytes()),
        Match::LeavesThroughLoopback => {
            meta_is(list, Meta::OutputInterface, &LOOPBACK_INDEX.to_ne_bytes())
        }
        Match::TcpDestinationPort(ports) => destination_port(tcp(list), ports),
        Match::Source(subnet) => source(list, subnet),
        Match::TcpDestination(address, port) => {
            destination_port(destination(tcp(list), *address), &(*port..=*port))
        }
        Match::Ipv6 => meta_is(list, Meta::NetworkProtocol, &[libc::NFPROTO_IPV6 as u8]),
        Match::Tcp => tcp(list),
    };
    let list = counter(list);
    match rule.verdict {
        Verdict::Pass => accept(list),
        Verdict::Redirect(port) => redirect(list, port),
    }
}

fn tcp(list: Message) -> Message {
    meta_is(list, Meta::Transport, &[libc::IPPROTO_TCP as u8])
}

fn destination_port(list: Message, ports: &RangeInclusive<u16>) -> Message {
    // The destination port is in bytes 2 and 3 of a TCP header.
    let list = payload(list, Header::Transport, 2, 2);
    let (low, high) = (ports.start().to_be_bytes(), ports.end().to_be_bytes());
    if low == high {
        return compare(list, Compare::Equal, &low);
    }
    let list = compare(list, Compare::AtLeast, &low);
    compare(list, Compare::AtMost, &high)
}

fn source(list: Message, subnet: &IpNet) -> Message {
    // The source address is at offset 12 of an IPv4 header and 8 of an IPv6 header.
    let (protocol, offset, mask, address) = match subnet {
        IpNet::V4(v4) => (
            libc::NFPROTO_IPV4,
            12,
            v4.netmask().octets().to_vec(),
            v4.network().octets().to_vec(),
        ),
        IpNet::V6(v6) => (
            libc::NFPROTO_IPV6,
            8,
            v6.netmask().octets().to_vec(),
            v6.network().octets().to_vec(),
        ),
    };
    let length = address.len() as u32;
    let list = meta_is(list, Meta::NetworkProtocol, &[protocol as u8]);
    let list = payload(list, Header::Network, offset, length);
    let list = mask_register(list, &mask);
    compare(list, Compare::Equal, &address)
}

fn destination(list: Message, address: IpAddr) -> Message {
    // The destination address is at offset 16 of an IPv4 header and 24 of an IPv6 header.
    let (protocol, offset, address) = match address {
        IpAddr::V4(v4) => (libc::NFPROTO_IPV4, 16, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::NFPROTO_IPV6, 24, v6.octets().to_vec()),
    };
    let list = meta_is(list, Meta::NetworkProtocol, &[protocol as u8]);
    let list = payload(list, Header::Network, offset, address.len() as u32);
    compare(list, Compare::Equal, &address)
}

fn meta_is(list: Message, key: Meta, value: &[u8]) -> Message {
    let list = expression(list, "meta", |data| {
        // NFTA_META_DREG, NFTA_META_KEY
        data.number(1, REGISTER).number(2, key as u32)
    });
    compare(list, Compare::Equal, value)
}

fn compare(list: Message, operator: Compare, value: &[u8]) -> Message {
    expression(list, "cmp", |data| {
        // NFTA_CMP_SREG, NFTA_CMP_OP, NFTA_CMP_DATA
        data.number(1, REGISTER)
            .number(2, operator as u32)
            .nested(3, |inner| inner.attribute(DATA_VALUE, value))
    })
}

fn payload(list: Message, header: Header, offset: u32, length: u32) -> Message {
    expression(list, "payload", |data| {
        // NFTA_PAYLOAD_DREG, _BASE, _OFFSET, _LEN
        data.number(1, REGISTER)
            .number(2, header as u32)
            .number(3, offset)
            .number(4, length)
    })
}

fn mask_register(list: Message, mask: &[u8]) -> Message {
    expression(list, "bitwise", |data| {
        // NFTA_BITWISE_SREG, _DREG, _LEN, _MASK, _XOR
        data.number(1, REGISTER)
            .number(2, REGISTER)
            .number(3, mask.len() as u32)
            .nested(4, |inner| inner.attribute(DATA_VALUE, mask))
            .nested(5, |inner| inner.attribute(DATA_VALUE, &vec![0; mask.len()]))
    })
}

/// Counts the connections that matched the rule, for `nft list table inet mesh_redirect`.
fn counter(list: Message) -> Message {
    expression(list, "counter", |data| data)
}

fn accept(list: Message) -> Message {
    expression(list, "immediate", |data| {
        // NFTA_IMMEDIATE_DREG, NFTA_IMMEDIATE_DATA
        data.number(1, REGISTER_VERDICT).nested(2, |inner| {
            inner.nested(DATA_VERDICT, |verdict| {
                verdict.number(VERDICT_CODE, VERDICT_ACCEPT)
            })
        })
    })
}

fn redirect(list: Message, port: u16) -> Message {
    let list = expression(list, "immediate", |data| {
        data.number(1, REGISTER)
            .nested(2, |inner| inner.attribute(DATA_VALUE, &port.to_be_bytes()))
    });
    // NFTA_REDIR_REG_PROTO_MIN
    expression(list, "redir", |data| data.number(1, REGISTER))
}

fn expression(list: Message, name: &str, fill: impl FnOnce(Message) -> Message) -> Message {
    list.nested(LIST_ELEMENT, |element| {
        element
            .text(EXPRESSION_NAME, name)
            .nested(EXPRESSION_DATA, fill)
    })
}
