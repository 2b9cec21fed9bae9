//! Renders the profile of mesh-proxy as text, Markdown and JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::benchmark::profile::Profile;
use crate::testbed::ProxyPair;

/// Smaller shares are omitted.
const LEAST: f64 = 0.01;

/// Two lines for each proxy: by library and by function.
pub(super) fn text(profile: &ProxyPair<Profile>) -> String {
    let mut text = String::new();
    for (side, profile) in [("out", &profile.outbound), ("in", &profile.inbound)] {
        // Writing to a string does not fail.
        let _written = writeln!(
            text,
            "  mesh-proxy CPU time, {side}: {}",
            shares(&profile.groups)
        );
        let _written = writeln!(
            text,
            "      hottest functions: {}",
            shares(&profile.symbols)
        );
    }
    text
}

/// A Markdown table of the same shares.
pub(super) fn markdown(profile: &ProxyPair<Profile>) -> String {
    let mut text = String::from(
        "\n| CPU time of mesh-proxy | by library | by function, without the kernel |\n|---|---|---|\n",
    );
    for (side, profile) in [("out", &profile.outbound), ("in", &profile.inbound)] {
        let functions = shares(&profile.symbols).replace('|', "\\|");
        let _written = writeln!(
            text,
            "| {side} | {} | {} |",
            shares(&profile.groups),
            functions.replace('<', "&lt;")
        );
    }
    text
}

pub(super) fn json(profile: &ProxyPair<Profile>) -> Value {
    let side = |profile: &Profile| {
        json!({
            "libraries": object(&profile.groups),
            "functions": object(&profile.symbols),
        })
    };
    json!({ "out": side(&profile.outbound), "in": side(&profile.inbound) })
}

fn object(shares: &[(String, f64)]) -> Value {
    let shares = shares
        .iter()
        .map(|(name, share)| (name.clone(), json!(share)));
    Value::Object(shares.collect())
}

fn shares(shares: &[(String, f64)]) -> String {
    let worth = shares.iter().filter(|(_, share)| *share >= LEAST);
    let worth = worth.map(|(name, share)| format!("{name} {:.0} %", share * 100.0));
    worth.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_below_one_percent_are_omitted() {
        let list = [("kernel".to_owned(), 0.48), ("h2".to_owned(), 0.004)];
        assert_eq!(shares(&list), "kernel 48 %");
    }
}
