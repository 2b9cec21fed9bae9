//! Redirection by nftables inside the pod's network namespace: all of the `nft` tier and the
//! inbound direction of `split`.
//!
//! The mesh has one table, `inet mesh_redirect`, written and removed in one kernel transaction over
//! netlink; the host need not have the `nft` program. The table is always replaced as a whole, so
//! applying is idempotent. Needs nf_tables with NAT for the inet family (Linux 5.2) and connection
//! tracking; module `tier` tests for them. [`Table`] must be opened on a thread inside the pod's
//! namespace.

mod expression;
mod script;

use std::io;

use crate::netlink::{Attributes, Message, Socket, SocketError};
use crate::rules::{Rule, Rules};

pub use script::script;

/// The table's name; `nft list table inet mesh_redirect` shows it.
pub const TABLE: &str = "mesh_redirect";
const OUTBOUND_CHAIN: &str = "outbound";
const INBOUND_CHAIN: &str = "inbound";

// Numbers of linux/netfilter/nfnetlink.h and nf_tables.h.
const BATCH_BEGIN: u16 = 0x10; // NFNL_MSG_BATCH_BEGIN
const BATCH_END: u16 = 0x11; // NFNL_MSG_BATCH_END
const SUBSYSTEM: u16 = 10; // NFNL_SUBSYS_NFTABLES
const NEW_TABLE: u16 = 0; // NFT_MSG_NEWTABLE
const DELETE_TABLE: u16 = 2; // NFT_MSG_DELTABLE
const NEW_CHAIN: u16 = 3; // NFT_MSG_NEWCHAIN
const NEW_RULE: u16 = 6; // NFT_MSG_NEWRULE
const GET_RULE: u16 = 7; // NFT_MSG_GETRULE
const RULE_CHAIN: u16 = 2; // NFTA_RULE_CHAIN
const RULE_EXPRESSIONS: u16 = 4; // NFTA_RULE_EXPRESSIONS
const RULE_USER_DATA: u16 = 7; // NFTA_RULE_USERDATA
const FAMILY_HEADER_LENGTH: usize = 4; // struct nfgenmsg
const USER_DATA_COMMENT: u8 = 0; // NFTNL_UDATA_RULE_COMMENT of libnftnl
/// libnftnl: `NFTNL_UDATA_COMMENT_MAXLEN`, the terminating zero included.
const COMMENT_LIMIT: usize = 128;

const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const ACKNOWLEDGE: u16 = libc::NLM_F_ACK as u16;
const CREATE: u16 = libc::NLM_F_CREATE as u16;
const APPEND: u16 = libc::NLM_F_APPEND as u16;
const DUMP: u16 = libc::NLM_F_DUMP as u16;

/// Netfilter hooks of the chains: `NF_INET_PRE_ROUTING`, `NF_INET_LOCAL_OUT`.
const HOOK_PREROUTING: u32 = 0;
const HOOK_OUTPUT: u32 = 3;
/// `NF_IP_PRI_NAT_DST`: the priority of destination NAT, after connection tracking.
const PRIORITY_DESTINATION_NAT: i32 = -100;

#[derive(Debug)]
pub struct Table(Socket);

#[derive(Debug, thiserror::Error)]
pub enum NftError {
    #[error("cannot exchange messages with nf_tables")]
    Socket(#[source] SocketError),
    #[error("nf_tables refused {what}")]
    Refused { what: String, source: SocketError },
    #[error(
        "the table inet {TABLE} differs from the pod's rules: {difference}; another program changed it"
    )]
    Differs { difference: String },
}

/// A transaction: its messages, and a description of each for errors.
struct Transaction {
    bytes: Vec<u8>,
    steps: Vec<String>,
}

impl Table {
    /// Opens the table of the calling thread's namespace.
    pub fn open() -> Result<Self, NftError> {
        Socket::open(libc::NETLINK_NETFILTER)
            .map(Self)
            .map_err(NftError::Socket)
    }

    pub fn replace(&mut self, rules: &Rules) -> Result<(), NftError> {
        self.commit(replacement(rules))
    }

    /// Removes the table. A missing one is not an error.
    pub fn remove(&mut self) -> Result<(), NftError> {
        match self.commit(removal()) {
            Err(NftError::Refused {
                source: SocketError::Refused { source, .. },
                ..
            }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    pub fn verify(&mut self, rules: &Rules) -> Result<(), NftError> {
        let request = message(GET_RULE, DUMP, 1)
            .text(1, TABLE) // NFTA_RULE_TABLE
            .finish();
        let mut found: Vec<(String, String)> = Vec::new();
        self.0
            .dump(&request, |reply| {
                let attributes = Attributes::after(reply.body, FAMILY_HEADER_LENGTH);
                let chain = attributes.clone().find(RULE_CHAIN).map(text);
                let comment = attributes.find(RULE_USER_DATA).and_then(comment);
                found.push((
                    chain.unwrap_or_default(),
                    comment.unwrap_or_else(|| "a foreign rule".to_owned()),
                ));
            })
            .map_err(NftError::Socket)?;
        match difference(&expected(rules), &found) {
            None => Ok(()),
            Some(difference) => Err(NftError::Differs { difference }),
        }
    }

    fn commit(&mut self, transaction: Transaction) -> Result<(), NftError> {
        let (bytes, last, steps) = transaction.finish();
        self.0.transact(&bytes, last).map_err(|source| {
            let sequence = match &source {
                SocketError::Refused { sequence, .. } => *sequence as usize,
                _ => return NftError::Socket(source),
            };
            let what = steps.get(sequence).cloned();
            NftError::Refused {
                what: what.unwrap_or_else(|| "the transaction".to_owned()),
                source,
            }
        })
    }
}

impl Transaction {
    fn new() -> Self {
        Self {
            bytes: batch_edge(BATCH_BEGIN, 0),
            steps: vec!["the transaction".to_owned()],
        }
    }

    /// Adds one message, with its index in the transaction as sequence number.
    fn step(&mut self, what: String, kind: u16, flags: u16, fill: impl FnOnce(Message) -> Message) {
        let sequence = self.steps.len() as u32;
        self.bytes
            .extend(fill(message(kind, flags, sequence)).finish());
        self.steps.push(what);
    }

    /// Closes the transaction; returns its bytes, the sequence number of the last step, and the
    /// descriptions of the steps.
    fn finish(mut self) -> (Vec<u8>, u32, Vec<String>) {
        let last = self.steps.len() as u32 - 1;
        self.bytes.extend(batch_edge(BATCH_END, last + 1));
        (self.bytes, last, self.steps)
    }
}

/// The sequence create, delete, create succeeds whether or not the table exists; none of it is
/// visible before the commit.
fn replacement(rules: &Rules) -> Transaction {
    let mut transaction = Transaction::new();
    let table = |message: Message| message.text(1, TABLE); // NFTA_TABLE_NAME
    transaction.step(format!("table inet {TABLE}"), NEW_TABLE, CREATE, table);
    transaction.step(
        format!("deletion of table inet {TABLE}"),
        DELETE_TABLE,
        0,
        table,
    );
    transaction.step(format!("table inet {TABLE}"), NEW_TABLE, CREATE, table);
    let mut chains = vec![(INBOUND_CHAIN, HOOK_PREROUTING, &rules.inbound)];
    if let Some(outbound) = &rules.outbound {
        chains.push((OUTBOUND_CHAIN, HOOK_OUTPUT, outbound));
    }
    let last = chains
        .iter()
        .map(|(_, _, rules)| rules.len() + 1)
        .sum::<usize>();
    let mut written = 0;
    let mut flags = |extra: u16| {
        written += 1;
        if written == last {
            extra | ACKNOWLEDGE
        } else {
            extra
        }
    };
    for (name, hook, rules) in chains {
        transaction.step(
            format!("NAT chain {name} of table inet {TABLE}"),
            NEW_CHAIN,
            flags(CREATE),
            |message| chain(message, name, hook),
        );
        for rule in rules {
            transaction.step(
                format!("the rule \"{rule}\" of chain {name}"),
                NEW_RULE,
                flags(CREATE | APPEND),
                |message| rule_message(message, name, rule),
            );
        }
    }
    transaction
}

fn removal() -> Transaction {
    let mut transaction = Transaction::new();
    transaction.step(
        format!("deletion of table inet {TABLE}"),
        DELETE_TABLE,
        ACKNOWLEDGE,
        |message| message.text(1, TABLE),
    );
    transaction
}

fn chain(message: Message, name: &str, hook: u32) -> Message {
    // NFTA_CHAIN_TABLE, _NAME, _HOOK { NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY }, _POLICY, _TYPE
    message
        .text(1, TABLE)
        .text(3, name)
        .nested(4, |inner| {
            inner
                .number(1, hook)
                .number(2, PRIORITY_DESTINATION_NAT.cast_unsigned())
        })
        .number(5, libc::NF_ACCEPT as u32)
        .text(7, "nat")
}

fn rule_message(message: Message, chain: &str, rule: &Rule) -> Message {
    let mut user_data = rule.to_string().into_bytes();
    user_data.truncate(COMMENT_LIMIT - 1);
    user_data.push(0);
    let length = user_data.len() as u8;
    user_data.splice(0..0, [USER_DATA_COMMENT, length]);
    message
        .text(1, TABLE)
        .text(RULE_CHAIN, chain)
        .nested(RULE_EXPRESSIONS, |list| expression::write(list, rule))
        .attribute(RULE_USER_DATA, &user_data)
}

fn message(kind: u16, flags: u16, sequence: u32) -> Message {
    let family = [libc::NFPROTO_INET as u8, 0, 0, 0];
    Message::new((SUBSYSTEM << 8) | kind, REQUEST | flags, sequence).family_header(&family)
}

fn batch_edge(kind: u16, sequence: u32) -> Vec<u8> {
    // The last two bytes are the subsystem of the transaction, in network byte order.
    let [high, low] = SUBSYSTEM.to_be_bytes();
    Message::new(kind, REQUEST, sequence)
        .family_header(&[0, 0, high, low])
        .finish()
}

/// Returns the rules as (chain, comment) in the order of the kernel's dump.
fn expected(rules: &Rules) -> Vec<(String, String)> {
    let name = |chain: &str, rule: &Rule| (chain.to_owned(), rule.to_string());
    let inbound = rules.inbound.iter().map(|rule| name(INBOUND_CHAIN, rule));
    let outbound = rules.outbound.iter().flatten();
    inbound
        .chain(outbound.map(|rule| name(OUTBOUND_CHAIN, rule)))
        .collect()
}

fn difference(expected: &[(String, String)], found: &[(String, String)]) -> Option<String> {
    if found.is_empty() {
        return Some("it is missing or empty".to_owned());
    }
    let place = (0..expected.len().max(found.len())).find(|i| expected.get(*i) != found.get(*i))?;
    Some(match (expected.get(place), found.get(place)) {
        (Some((chain, rule)), None) => format!("the rule \"{rule}\" of chain {chain} is missing"),
        (None, Some((chain, rule))) => format!("chain {chain} has the extra rule \"{rule}\""),
        (Some((chain, expected)), Some((_, present))) => {
            format!("chain {chain} has \"{present}\" instead of \"{expected}\"")
        }
        (None, None) => return None,
    })
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned()
}

fn comment(user_data: &[u8]) -> Option<String> {
    let [kind, length, rest @ ..] = user_data else {
        return None;
    };
    (*kind == USER_DATA_COMMENT).then(|| text(&rest[..rest.len().min(usize::from(*length))]))
}

#[cfg(test)]
mod tests;
