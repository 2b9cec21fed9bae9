//! The transaction's messages, and the descriptions of differences.

use std::collections::BTreeMap;

use super::*;
use crate::netlink::messages;
use crate::redirect::{PodRef, RedirectSpec};
use crate::rules::Directions;

fn rules(pairs: &[(&str, &str)], directions: Directions) -> Rules {
    let annotations = pairs
        .iter()
        .map(|(key, value)| (format!("config.linkerd.io/{key}"), (*value).to_owned()))
        .collect();
    let spec = RedirectSpec::from_annotations(&PodRef::default(), &annotations).unwrap();
    Rules::new(&spec, directions)
}

/// Returns kind (without the subsystem), flags and comment of each message of the transaction.
fn outline(rules: &Rules) -> Vec<(u16, u16, Option<String>)> {
    let (bytes, _, _) = replacement(rules).finish();
    messages(&bytes)
        .map(|message| {
            let user_data =
                Attributes::after(message.body, FAMILY_HEADER_LENGTH).find(RULE_USER_DATA);
            let kind = message.kind & 0xff;
            let comment = user_data.filter(|_| kind == NEW_RULE).and_then(comment);
            (kind, message.flags & !REQUEST, comment)
        })
        .collect()
}

#[test]
fn one_transaction_replaces_the_table() {
    let rule = |text: &str| (NEW_RULE, CREATE | APPEND, Some(text.to_owned()));
    let outline = outline(&rules(
        &[("skip-inbound-ports", "80"), ("skip-subnets", "10.0.0.0/8")],
        Directions::Both,
    ));
    let mut expect = vec![
        (BATCH_BEGIN, 0, None),
        (NEW_TABLE, CREATE, None),
        (DELETE_TABLE, 0, None),
        (NEW_TABLE, CREATE, None),
        (NEW_CHAIN, CREATE, None),
        rule("skip port 80"),
        rule("skip ports 4190-4191"),
        rule("skip source 10.0.0.0/8"),
        rule("everything else to the proxy, port 4143"),
        (NEW_CHAIN, CREATE, None),
        rule("check address 192.0.2.1 to the proxy, port 4140"),
        rule("check address 2001:db8::1 to the proxy, port 4140"),
        rule("proxy user 2102"),
        rule("loopback"),
        rule("skip ports 4567-4568"),
        rule("everything else to the proxy, port 4140"),
        (BATCH_END, 0, None),
    ];
    let last = expect.len() - 2;
    expect[last].1 |= ACKNOWLEDGE;
    assert_eq!(outline, expect);
}

#[test]
fn ipv6_passes_before_all_other_rules_if_the_proxy_does_not_listen_on_it() {
    let outline = |ipv6: bool| {
        let spec = RedirectSpec::from_annotations(&PodRef::default(), &BTreeMap::new()).unwrap();
        let spec = RedirectSpec { ipv6, ..spec };
        outline(&Rules::new(&spec, Directions::Both))
    };
    let (redirected, passed) = (outline(true), outline(false));
    assert_eq!(passed.len(), redirected.len() + 2);
    let chains = passed.iter().enumerate();
    let chains = chains.filter(|(_, (kind, ..))| *kind == NEW_CHAIN);
    for (at, _) in chains {
        let (kind, _, first) = &passed[at + 1];
        assert_eq!((*kind, first.as_deref()), (NEW_RULE, Some("IPv6")));
    }
}

#[test]
fn split_tier_has_no_outbound_chain() {
    let outline = outline(&rules(&[], Directions::InboundOnly));
    let chains = outline.iter().filter(|(kind, ..)| *kind == NEW_CHAIN);
    assert_eq!(chains.count(), 1);
    let acknowledged: Vec<_> = outline
        .iter()
        .filter(|(_, flags, _)| flags & ACKNOWLEDGE != 0)
        .collect();
    assert_eq!(acknowledged.len(), 1);
    let comment = "everything else to the proxy, port 4143";
    assert_eq!(acknowledged[0].2.as_deref(), Some(comment));
}

#[test]
fn first_difference_is_described() {
    let rules = rules(&[], Directions::InboundOnly);
    let intact = expected(&rules);
    assert_eq!(difference(&intact, &intact), None);
    let check = |found: &[(String, String)], expect: &str| {
        assert_eq!(difference(&intact, found).unwrap(), expect);
    };
    check(&[], "it is missing or empty");
    check(
        &intact[..1],
        "the rule \"skip ports 4567-4568\" of chain inbound is missing",
    );
    let foreign = (INBOUND_CHAIN.to_owned(), "a foreign rule".to_owned());
    check(
        &[std::slice::from_ref(&foreign), &intact[..]].concat(),
        "chain inbound has \"a foreign rule\" instead of \"skip ports 4190-4191\"",
    );
    check(
        &[&intact[..], &[foreign]].concat(),
        "chain inbound has the extra rule \"a foreign rule\"",
    );
}
