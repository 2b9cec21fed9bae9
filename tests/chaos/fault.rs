//! A fault of the campaign: its description, how it is planted here, the mesh's promise under it,
//! and the tests that judge the promise. `table` lists all of them.

use crate::table;

/// A row of docs/reliability.md.
pub(crate) struct Fault {
    pub(crate) number: u8,
    /// Its description.
    pub(crate) name: &'static str,
    /// How the tests cause it on one machine or a cluster.
    pub(crate) planted: &'static str,
    pub(crate) promise: &'static str,
    /// None if it cannot be planted; the limit then has the reason.
    pub(crate) tests: &'static [Test],
    /// The parts that are not planted, or do not hold, and why. Empty if there are none.
    pub(crate) limit: &'static str,
}

/// A test, named by its file and the name of its function or case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Test {
    /// Such as `tests/it/mesh/faults.rs::requests_succeed_when_agent_is_killed`.
    pub(crate) path: &'static str,
    pub(crate) place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// This machine, among the ordinary tests.
    Local,
    /// The cluster of `MESH_TEST_CLUSTER`.
    Cluster,
    /// That cluster, with `--long`.
    LongCluster,
}

/// Faults of one part of the mesh.
pub(crate) struct Group {
    pub(crate) title: &'static str,
    pub(crate) faults: &'static [Fault],
}

impl Test {
    /// Returns the file, relative to the checkout, and the name in it.
    pub(crate) fn parts(&self) -> (&'static str, &'static str) {
        self.path.split_once("::").unwrap_or((self.path, ""))
    }
}

impl Place {
    pub(crate) fn is_on_cluster(self) -> bool {
        matches!(self, Self::Cluster | Self::LongCluster)
    }

    pub(crate) fn is_long(self) -> bool {
        matches!(self, Self::LongCluster)
    }

    /// The needs of the test besides this machine, for lists.
    pub(crate) fn note(self) -> &'static str {
        match self {
            Self::Local => "",
            Self::Cluster => "cluster",
            Self::LongCluster => "cluster, long",
        }
    }
}

/// Returns every fault in the order of their numbers.
pub(crate) fn all() -> impl Iterator<Item = &'static Fault> {
    table::GROUPS.iter().flat_map(|group| group.faults)
}

pub(crate) const fn local(path: &'static str) -> Test {
    let place = Place::Local;
    Test { path, place }
}

pub(crate) const fn cluster(path: &'static str) -> Test {
    let place = Place::Cluster;
    Test { path, place }
}

pub(crate) const fn long_cluster(path: &'static str) -> Test {
    let place = Place::LongCluster;
    Test { path, place }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(file: &str) -> String {
        let root = xtask::workspace::root().expect("the test runs in a checkout");
        fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    /// Whether the file has a test function of this name, or a case of a test program with its own
    /// `main`.
    fn has_test(text: &str, name: &str) -> bool {
        let function = format!("fn {name}(");
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let is_function = lines.iter().enumerate().any(|(at, line)| {
            let above = lines[..at].iter().rev().take(3);
            line.contains(&function)
                && above
                    .take_while(|line| line.starts_with("#["))
                    .any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
        });
        is_function || text.contains(&format!("\"{name}\","))
    }

    #[test]
    fn every_number_from_1_to_52_has_a_row() {
        let numbers: Vec<u8> = all().map(|fault| fault.number).collect();
        assert_eq!(numbers, (1..=52).collect::<Vec<u8>>());
    }

    #[test]
    fn every_named_test_exists() {
        let tests = all().flat_map(|fault| fault.tests);
        let missing: Vec<&str> = tests
            .filter(|test| {
                let (file, name) = test.parts();
                !has_test(&read(file), name)
            })
            .map(|test| test.path)
            .collect();
        assert!(missing.is_empty(), "no such tests: {missing:#?}");
    }

    #[test]
    fn fault_without_test_has_a_reason() {
        for fault in all().filter(|fault| fault.tests.is_empty()) {
            assert!(!fault.limit.is_empty(), "{}: {}", fault.number, fault.name);
        }
    }

    #[test]
    fn only_functions_with_a_test_attribute_are_tests() {
        let text = "#[test]\nfn one() {}\n#[tokio::test(start_paused = true)]\nasync fn two() {}\nfn three() {}\n(\"a case\", four),\n";
        for name in ["one", "two", "a case"] {
            assert!(has_test(text, name), "{name}");
        }
        for name in ["three", "four", "on"] {
            assert!(!has_test(text, name), "{name}");
        }
    }
}
