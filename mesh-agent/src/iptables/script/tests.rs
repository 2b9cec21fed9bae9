//! Order, families, the multiport limit, idempotence, removal and foreign changes.

use super::*;
use crate::redirect::{PodRef, RedirectSpec};
use crate::rules::Directions;

fn spec(pairs: &[(&str, &str)]) -> RedirectSpec {
    let annotations = pairs
        .iter()
        .map(|(key, value)| (format!("config.linkerd.io/{key}"), (*value).to_owned()))
        .collect();
    RedirectSpec::from_annotations(&PodRef::default(), &annotations).unwrap()
}

fn rules(pairs: &[(&str, &str)]) -> Rules {
    Rules::new(&spec(pairs), Directions::Both)
}

const EMPTY: &str = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n";

#[test]
fn rules_are_written_in_the_order_of_the_contract() {
    let rules = rules(&[
        ("skip-inbound-ports", "80"),
        ("skip-outbound-ports", "25,9000-9010"),
        ("skip-subnets", "10.0.0.0/8,fd00::/8"),
        ("proxy-gid", "77"),
    ]);
    assert_eq!(
        replacement(&rules, Family::V4, EMPTY),
        "*nat
:MESH_PROXY_INBOUND - [0:0]
:MESH_PROXY_OUTBOUND - [0:0]
-A MESH_PROXY_INBOUND -p tcp -m multiport --dports 80,4190:4191 -j RETURN
-A MESH_PROXY_INBOUND -s 10.0.0.0/8 -j RETURN
-A MESH_PROXY_INBOUND -p tcp -j REDIRECT --to-ports 4143
-A PREROUTING -j MESH_PROXY_INBOUND
-A MESH_PROXY_OUTBOUND -d 192.0.2.1/32 -p tcp -m tcp --dport 20001 -j REDIRECT --to-ports 4140
-A MESH_PROXY_OUTBOUND -m owner --uid-owner 2102 -j RETURN
-A MESH_PROXY_OUTBOUND -m owner --gid-owner 77 -j RETURN
-A MESH_PROXY_OUTBOUND -o lo -j RETURN
-A MESH_PROXY_OUTBOUND -p tcp -m multiport --dports 25,9000:9010 -j RETURN
-A MESH_PROXY_OUTBOUND -p tcp -j REDIRECT --to-ports 4140
-A OUTPUT -j MESH_PROXY_OUTBOUND
COMMIT
"
    );
    let v6 = replacement(&rules, Family::V6, EMPTY);
    assert!(
        v6.contains("-A MESH_PROXY_INBOUND -s fd00::/8 -j RETURN\n") && !v6.contains("10.0.0.0")
    );
    assert!(
        v6.contains("-d 2001:db8::1/128 -p tcp -m tcp --dport 20001") && !v6.contains("192.0.2.1")
    );
}

#[test]
fn long_port_lists_are_split_and_ranges_count_twice() {
    let check = |ports: &str, expect: &[&str]| {
        let found: Vec<String> =
            replacement(&rules(&[("skip-outbound-ports", ports)]), Family::V4, EMPTY)
                .lines()
                .filter(|line| {
                    line.starts_with("-A MESH_PROXY_OUTBOUND") && line.contains("dports")
                })
                .map(|line| line.split_whitespace().nth(7).unwrap().to_owned())
                .collect();
        assert_eq!(found, expect, "{ports}");
    };
    check("", &[]);
    check(
        "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29",
        &["1,3,5,7,9,11,13,15,17,19,21,23,25,27,29"],
    );
    check(
        "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31",
        &["1,3,5,7,9,11,13,15,17,19,21,23,25,27,29", "31"],
    );
    check(
        "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29-31",
        &["1,3,5,7,9,11,13,15,17,19,21,23,25,27", "29:31"],
    );
}

#[test]
fn replacement_does_not_repeat_existing_jumps() {
    let rules = rules(&[]);
    let first = replacement(&rules, Family::V4, EMPTY);
    let second = replacement(&rules, Family::V4, &first);
    assert!(!second.contains("-A PREROUTING") && !second.contains("-A OUTPUT"));
    assert_eq!(difference(&rules, Family::V4, &first), None);
}

#[test]
fn removal_affects_only_mesh_chains() {
    assert_eq!(removal(EMPTY), None);
    let mut existing = replacement(&rules(&[]), Family::V4, EMPTY);
    existing.push_str("-A PREROUTING -j MESH_PROXY_INBOUND\n-A OUTPUT -j SOMEONE\n");
    assert_eq!(
        removal(&existing).unwrap(),
        "*nat
-D PREROUTING -j MESH_PROXY_INBOUND
-D PREROUTING -j MESH_PROXY_INBOUND
-F MESH_PROXY_INBOUND
-X MESH_PROXY_INBOUND
-D OUTPUT -j MESH_PROXY_OUTBOUND
-F MESH_PROXY_OUTBOUND
-X MESH_PROXY_OUTBOUND
COMMIT
"
    );
}

#[test]
fn differences_are_described() {
    let rules = rules(&[]);
    let intact = replacement(&rules, Family::V4, EMPTY);
    let check = |existing: String, expect: &str| {
        assert_eq!(difference(&rules, Family::V4, &existing).unwrap(), expect);
    };
    check(
        EMPTY.to_owned(),
        "PREROUTING does not jump to MESH_PROXY_INBOUND (V4)",
    );
    check(
        intact.replace(
            "-A MESH_PROXY_OUTBOUND -p tcp -j REDIRECT --to-ports 4140\n",
            "",
        ),
        "\"-A MESH_PROXY_OUTBOUND -p tcp -j REDIRECT --to-ports 4140\" is missing (V4)",
    );
    check(
        intact + "-A MESH_PROXY_OUTBOUND -j ACCEPT\n",
        "chain MESH_PROXY_OUTBOUND has foreign rules (V4)",
    );
}

#[test]
fn inbound_ports_can_be_limited_and_ipv6_exempted() {
    let mut spec = spec(&[("skip-inbound-ports", "80")]);
    spec.ipv6 = false;
    let mut rules = Rules::new(&spec, Directions::Both);
    rules.redirect_inbound_only(&"8080,9000-9010".parse().unwrap(), 4143);
    let v4 = replacement(&rules, Family::V4, EMPTY);
    let v6 = replacement(&rules, Family::V6, EMPTY);
    let inbound = |text: &str| -> Vec<String> {
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("-A MESH_PROXY_INBOUND "));
        lines.map(str::to_owned).collect()
    };
    let ports = [
        "-p tcp -m multiport --dports 80,4190:4191 -j RETURN",
        "-p tcp -m multiport --dports 8080 -j REDIRECT --to-ports 4143",
        "-p tcp -m multiport --dports 9000:9010 -j REDIRECT --to-ports 4143",
    ];
    assert_eq!(inbound(&v4), ports);
    assert_eq!(inbound(&v6), [&["-j RETURN"], &ports[..]].concat());
}
