//! The redirection as unmodified programs observe it: one table of cases, run on every tier.
//!
//! Each case is one behaviour of an application or one failure mode (the numbers refer to the list
//! of traps in docs/operations/redirection-limits.md). It runs real processes in an enrolled pod
//! and describes their observations in one line. The line is the same on every tier, or the
//! difference is part of the case together with its reason; every case runs on every tier.

mod cases;
mod fixture;
mod guard;
mod init_programs;
mod lifecycle;
mod many_connections;
mod source_ports;
mod upgrade;

use mesh_core::node::Tier;
use mesh_test_support::require_root;

use fixture::RedirectFixture;

/// The expected line of a case.
pub(crate) enum Expect {
    /// The same line on every tier.
    Same(&'static str),
    /// The same line except for the addresses that application and proxy observe: without a program
    /// at the socket lookup, the split tier can only redirect to loopback.
    Outbound(&'static str),
    /// Another line on the packet-filter tiers or on the split tier, for a reason.
    Differs {
        full: &'static str,
        split: &'static str,
        filter: &'static str,
        because: &'static str,
    },
}

impl Expect {
    /// Returns the line of a tier, and the reason if it differs from the full tier.
    fn on(&self, tier: Tier) -> (String, &'static str) {
        match (self, tier) {
            (Self::Same(line), _)
            | (Self::Outbound(line), Tier::Full | Tier::Nft | Tier::Iptables) => {
                ((*line).to_owned(), "")
            }
            (Self::Outbound(line), Tier::Split) => (
                by_loopback(line),
                "application and proxy are connected over loopback",
            ),
            (Self::Differs { full, .. }, Tier::Full) => ((*full).to_owned(), ""),
            (Self::Differs { split, because, .. }, Tier::Split) => ((*split).to_owned(), *because),
            (
                Self::Differs {
                    filter, because, ..
                },
                Tier::Nft | Tier::Iptables,
            ) => ((*filter).to_owned(), *because),
        }
    }
}

fn by_loopback(line: &str) -> String {
    let v4 = [
        ("from OWN4", "from 127.0.0.1"),
        ("self OWN4", "self 127.0.0.1"),
    ];
    let v6 = [("from OWN6", "from ::1"), ("self OWN6", "self ::1")];
    v4.iter()
        .chain(&v6)
        .fold(line.to_owned(), |line, (own, loopback)| {
            line.replace(own, loopback)
        })
}

/// One row of the table.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&RedirectFixture<'_>) -> String,
    pub(crate) expect: Expect,
}

fn check(tier: Tier) {
    require_root!();
    let node = crate::harness::node::Node::start(tier);
    let fixture = RedirectFixture::build(&node);
    let mut wrong = Vec::new();
    for case in cases::all() {
        let seen = (case.run)(&fixture);
        let (expected, because) = case.expect.on(tier);
        let difference = if because.is_empty() {
            String::new()
        } else {
            format!(" (not as on the full tier: {because})")
        };
        println!("{tier}: {}: {seen}{difference}", case.name);
        if seen != expected {
            wrong.push(format!(
                "{}\n  expected: {expected}\n  seen:     {seen}",
                case.name
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} case(s) on the {tier} tier:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn redirection_cases_hold_on_full_tier() {
    check(Tier::Full);
}

#[test]
fn redirection_cases_hold_on_split_tier() {
    check(Tier::Split);
}

#[test]
fn redirection_cases_hold_on_nft_tier() {
    check(Tier::Nft);
}

#[test]
fn redirection_cases_hold_on_iptables_tier() {
    check(Tier::Iptables);
}
