//! The interoperability tests of gRPC that need no credentials, and both soaks.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context;

use super::Run;
use super::outcome::{Case, Outcome};
use crate::testbed::process::Process;

const CASES: &str = "\
    empty_unary large_unary client_streaming server_streaming ping_pong empty_stream \
    timeout_on_sleeping_server cancel_after_begin cancel_after_first_response \
    status_code_and_message special_status_message custom_metadata unimplemented_method \
    unimplemented_service rpc_soak channel_soak";

/// Options of both soaks: calls with hundreds of KiB in both directions, on one connection or on a
/// new one each. None may fail. The generous timeouts make the result independent of the machine's
/// speed.
const SOAK: [&str; 3] = [
    "--soak_iterations=500",
    "--soak_per_iteration_max_acceptable_latency_ms=10000",
    "--soak_overall_timeout_seconds=300",
];

pub(super) fn run(run: Run<'_>, program: &Path) -> anyhow::Result<Outcome> {
    let (target, file) = (run.target, run.report);
    let mut cases = Vec::new();
    let mut report = String::new();
    for test in CASES.split(' ') {
        let mut command = run.topology.client(program)?;
        command
            .arg(format!("--server_host={}", target.ip()))
            .arg(format!("--server_port={}", target.port()))
            .arg(format!("--test_case={test}"))
            .args(SOAK);
        let process = Process::start(&format!("{}-{test}", run.name), &mut command)?;
        let log = process.log().to_owned();
        let (status, output) = process.finish()?;
        let log = fs::read_to_string(&log).with_context(|| format!("read {}", log.display()))?;
        // Writing to a string does not fail.
        let _written = writeln!(report, "== {test}: {status}\n{output}{log}");
        cases.push(Case {
            name: test.to_owned(),
            passed: status.success(),
            message: last_line(&log).to_owned(),
        });
    }
    fs::write(&file, report).with_context(|| format!("write {}", file.display()))?;
    Ok(Outcome::new(cases, file))
}

/// Returns the last non-empty line, which contains the failure.
fn last_line(log: &str) -> &str {
    let mut lines = log.lines().rev();
    lines
        .find(|line| !line.trim().is_empty())
        .unwrap_or("no output")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn interop_suite_has_fourteen_cases_and_two_soaks() {
        let cases: HashSet<&str> = CASES.split(' ').collect();
        assert_eq!(cases.len(), 16);
        let soaks = cases.iter().filter(|case| case.ends_with("_soak"));
        assert_eq!(soaks.count(), 2);
    }

    #[test]
    fn last_nonempty_log_line_is_the_failure_message() {
        assert_eq!(last_line("a\nFATAL: b\n\n"), "FATAL: b");
        assert_eq!(last_line(""), "no output");
    }
}
