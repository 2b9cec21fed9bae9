//! The names of metrics that the programs of this repository export, from the literals of their
//! sources.

use std::collections::HashSet;

use super::tree::Tree;

/// Where metrics are registered.
const SOURCES: [&str; 6] = [
    "control-plane/src/",
    "mesh-agent/src/",
    "mesh-cluster/src/",
    "mesh-proxy/src/",
    "mesh-runtime/src/",
    "viz/src/",
];

const RECORDING_RULES: &str = "helm/linkerd-viz/rules/recording.yaml";

/// Prometheus' own.
const SCRAPES: &str = "up";

/// Suffixes that the library adds to the name of a histogram.
const HISTOGRAM_SUFFIXES: [&str; 3] = ["_bucket", "_count", "_sum"];

/// The protocols in the names of families that a macro composes.
const PROTOCOLS: [&str; 2] = ["grpc", "http"];

/// The shortest part of a composed name; shorter literals are ordinary words.
const SHORTEST_PART: usize = 8;

pub(super) struct Metrics<'a> {
    literals: HashSet<&'a str>,
    recorded: HashSet<&'a str>,
}

impl<'a> Metrics<'a> {
    pub(super) fn of(tree: &'a Tree) -> Self {
        let sources = tree.rust_files();
        let sources = sources.filter(|file| file.is_below(&SOURCES) && !file.is_test());
        let rules = tree.file(RECORDING_RULES);
        let lines = rules.iter().flat_map(|file| file.text.lines());
        Self {
            literals: sources.flat_map(|file| literals(&file.text)).collect(),
            recorded: lines
                .filter_map(|line| line.trim().strip_prefix("- record: "))
                .collect(),
        }
    }

    pub(super) fn are_exported(&self, name: &str) -> bool {
        if name == SCRAPES || self.recorded.contains(name) || self.is_registered(name) {
            return true;
        }
        let mut families = HISTOGRAM_SUFFIXES
            .iter()
            .filter_map(|suffix| name.strip_suffix(suffix));
        families.any(|family| self.is_registered(family))
    }

    /// Whether the name is a literal, or composed of a prefix and a suffix, as the names of
    /// balancers are, or of these around a protocol.
    fn is_registered(&self, name: &str) -> bool {
        if self.literals.contains(name) {
            return true;
        }
        let has = |part: &str| part.len() >= SHORTEST_PART && self.literals.contains(part);
        let mut splits = name.match_indices('_');
        splits.any(|(index, _)| has(&name[..index]) && has(&name[index..]))
            || PROTOCOLS.iter().any(|protocol| {
                name.split_once(protocol)
                    .is_some_and(|(before, after)| has(before) && has(after))
            })
    }
}

/// The string literals that could be names or parts of them.
fn literals(text: &str) -> impl Iterator<Item = &str> {
    let quotes = text.match_indices('"');
    quotes.filter_map(|(index, _)| {
        let (literal, _) = text[index + 1..].split_once('"')?;
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        (!literal.is_empty() && literal.chars().all(is_name)).then_some(literal)
    })
}

mod tests {
    use super::*;

    #[test]
    fn exported_names_are_literals_or_composed() {
        let tree = Tree::of(&[
            (
                "mesh-proxy/src/a.rs",
                r#"family("tcp_open_total"); names!("outbound_http_balancer"); ("_queue_length", "inbound_", "_request_duration_seconds", "total")"#,
            ),
            ("cli/src/b.rs", r#"("not_a_metric_total")"#),
            (RECORDING_RULES, "      - record: a:b:c\n"),
        ]);
        let metrics = Metrics::of(&tree);
        for name in [
            "tcp_open_total",
            "outbound_http_balancer_queue_length",
            "inbound_grpc_request_duration_seconds_bucket",
            "a:b:c",
            "up",
        ] {
            assert!(metrics.are_exported(name), "{name}");
        }
        for name in ["tcp_open", "not_a_metric_total", "tcp_total", "a:b:d"] {
            assert!(!metrics.are_exported(name), "{name}");
        }
    }
}
