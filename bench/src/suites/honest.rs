//! The honest client beside an attack: what it does, and what it saw. Whatever the attack, each of
//! its requests must be served.

use std::net::SocketAddr;

use anyhow::Context;
use serde_json::Value;

use super::range::Range;
use crate::testbed::process::Process;

/// How long it is watched before any attack.
const ALONE: u32 = 10;

/// So many requests a second, over so many connections.
const RATE: u32 = 200;
const CONNECTIONS: u32 = 8;

/// What it saw.
#[derive(Debug, PartialEq)]
pub(super) struct Honest {
    pub(super) served: u64,
    pub(super) failed: u64,
    /// Why the first of them failed.
    pub(super) failure: Option<String>,
    /// Milliseconds; absent when nothing was served.
    pub(super) p99: Option<f64>,
}

/// What it sees without an attack.
pub(super) fn alone(range: &Range<'_>, target: SocketAddr, name: &str) -> anyhow::Result<Honest> {
    run(range, target, &format!("{name}-alone"), ALONE)
}

/// What it sees for so long.
pub(super) fn beside(
    range: &Range<'_>,
    target: SocketAddr,
    name: &str,
    seconds: u32,
) -> anyhow::Result<Honest> {
    run(range, target, &format!("{name}-honest"), seconds)
}

fn run(range: &Range<'_>, target: SocketAddr, name: &str, seconds: u32) -> anyhow::Result<Honest> {
    let mut command = range.own_client()?;
    command
        .args(["load", "rate", "--target", &target.to_string()])
        .args(["--rate", &RATE.to_string()])
        .args(["--connections", &CONNECTIONS.to_string()])
        .args(["--seconds", &seconds.to_string()]);
    read(&Process::start(name, &mut command)?.output()?)
}

fn read(said: &str) -> anyhow::Result<Honest> {
    let said: Value = serde_json::from_str(said).with_context(|| format!("{said:?} is JSON"))?;
    let count = |name: &str| {
        said[name]
            .as_u64()
            .with_context(|| format!("{name} in {said}"))
    };
    Ok(Honest {
        served: count("operations")?,
        failed: count("failed")?,
        failure: said["failure"].as_str().map(str::to_owned),
        p99: said["p99"].as_f64().map(|micros| micros / 1e3),
    })
}

/// A p99 as a person reads it.
pub(super) fn time(p99: Option<f64>) -> String {
    p99.map_or("none".to_owned(), |p99| format!("{p99:.1} ms"))
}

impl Honest {
    /// Whether all its requests were served.
    pub(super) fn is_unharmed(&self) -> bool {
        self.served > 0 && self.failed == 0
    }

    pub(super) fn said(&self) -> String {
        let Self { served, failed, .. } = self;
        let mut said = format!("{served} honest requests served, {failed} failed");
        if let Some(failure) = &self.failure {
            said += &format!(" (the first: {failure})");
        }
        if let Some(p99) = self.p99 {
            said += &format!(", p99 {p99:.1} ms");
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_says_is_read() {
        let honest =
            read(r#"{"operations": 7, "failed": 1, "failure": "HTTP/1.1 503", "p99": 1500.0}"#);
        let honest = honest.expect("a client's words");
        assert_eq!(
            honest,
            Honest {
                served: 7,
                failed: 1,
                failure: Some("HTTP/1.1 503".to_owned()),
                p99: Some(1.5)
            }
        );
        assert_eq!(
            honest.said(),
            "7 honest requests served, 1 failed (the first: HTTP/1.1 503), p99 1.5 ms"
        );
        assert!(!honest.is_unharmed());
        assert!(read("{}").is_err());
    }

    #[test]
    fn a_client_that_was_not_served_was_harmed() {
        let honest = |served, failed| Honest {
            served,
            failed,
            failure: None,
            p99: None,
        };
        assert!(honest(7, 0).is_unharmed());
        assert!(!honest(7, 1).is_unharmed());
        assert!(!honest(0, 0).is_unharmed());
    }
}
