//! The table of modules whose tests are measured.

use std::fmt;

/// A module, and the tests that judge its mutants.
#[derive(Debug)]
pub(super) struct Module {
    /// Name on the command line.
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    /// Globs of its files, relative to the repository.
    pub(super) files: &'static [&'static str],
    /// Globs of files that `files` has and that are not part of it.
    pub(super) without: &'static [&'static str],
    /// Parts of the names of its own tests, which are unit tests of the package; all if empty.
    pub(super) tests: &'static [&'static str],
    /// Seconds of CPU time after which a run of the tests ends, and the mutant counts as found:
    /// several times what the tests take, since a mutant may loop.
    pub(super) timeout: u32,
}

#[rustfmt::skip] // a table, one module a block
pub(super) const MODULES: &[Module] = &[
    Module {
        name: "http2", package: "mesh-http2", timeout: 60,
        files: &["mesh-http2/src/**/*.rs"], without: &[],
        tests: &[],
    },
    Module {
        name: "policy", package: "mesh-core", timeout: 60,
        files: &["mesh-core/src/policy/**/*.rs"], without: &[],
        tests: &[],
    },
    Module {
        name: "routes", package: "mesh-core", timeout: 60,
        files: &["mesh-core/src/route.rs", "mesh-core/src/route/**/*.rs"], without: &[],
        tests: &[],
    },
    Module {
        name: "records", package: "mesh-proxy", timeout: 120,
        files: &["mesh-proxy/src/transport/tls/**/*.rs"], without: &[],
        tests: &["transport::tls", "tls::tests"],
    },
    Module {
        name: "http1", package: "mesh-proxy", timeout: 120,
        files: &["mesh-proxy/src/http/http1.rs", "mesh-proxy/src/http/http1/**/*.rs"], without: &[],
        tests: &[
            "http::", "tests::transparency", "tests::lenient", "tests::line_ends", "tests::uploads",
            "tests::restarts", "tests::reused_addresses", "tests::orig_proto", "tests::http1_bodies",
        ],
    },
    Module {
        name: "retries", package: "mesh-proxy", timeout: 120,
        files: &["mesh-proxy/src/retry.rs", "mesh-proxy/src/retry/**/*.rs"], without: &[],
        tests: &["retry::", "tests::retries", "tests::restarts", "tests::transparency::repeats"],
    },
    Module {
        name: "breaker", package: "mesh-proxy", timeout: 120,
        files: &["mesh-proxy/src/balance/breaker*.rs", "mesh-proxy/src/balance/breaker/*.rs"], without: &[],
        tests: &["balance::", "tests::breaker"],
    },
    Module {
        name: "rate-limit", package: "mesh-proxy", timeout: 120,
        files: &["mesh-proxy/src/limits/rate_limit.rs"], without: &[],
        tests: &["limits::rate_limit"],
    },
    Module {
        name: "balance", package: "mesh-proxy", timeout: 120,
        files: &["mesh-proxy/src/balance.rs", "mesh-proxy/src/balance/*.rs"],
        without: &["mesh-proxy/src/balance/breaker*.rs"],
        tests: &["balance::", "tests::queue", "tests::breaker"],
    },
];

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<10}  {}", self.name, self.files.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn modules_name_files_that_exist_and_are_listed_once() {
        let root = crate::workspace::root().expect("a checkout");
        let mut names = HashSet::new();
        for module in MODULES {
            assert!(names.insert(module.name), "{} twice", module.name);
            for glob in module.files.iter().chain(module.without) {
                // Up to the first wildcard: a file, a directory, or the start of a file's name.
                let fixed = glob.split('*').next().expect("a part");
                let exists = root.join(fixed).exists() || fixed.ends_with("balance/breaker");
                assert!(exists, "{glob}");
                assert!(glob.starts_with(module.package), "{glob}");
            }
        }
    }
}
