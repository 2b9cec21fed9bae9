//! smugglex: attempts to make two HTTP/1 parsers disagree about the end of a request.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use super::Run;
use super::outcome::{Case, Outcome, report};

/// Every check for a server without TLS, opt-in checks included.
const CHECKS: &str = "cl-te,te-cl,te-te,h2c,h2,cl-edge,cl-0,0-cl,parser-discrepancy";
/// Prefix of the diagnostic of a check that could not run.
const BROKEN: &str = "check_failed";

pub(super) fn run(run: Run<'_>, program: &Path) -> anyhow::Result<Outcome> {
    let (target, file) = (run.target, run.report);
    let mut command = run.topology.client(program)?;
    command
        .args(["--no-color", "--checks", CHECKS, "--output"])
        .arg(&file)
        .arg(format!("http://{target}/"));
    let (report, _said) = report("smugglex", &run.name, &mut command, &file)?;
    let report = serde_json::from_str(&report).context("parse smugglex's report")?;
    let cases = read(&report)?;
    if cases.len() != CHECKS.split(',').count() {
        bail!("smugglex ran {} checks, expected {CHECKS}", cases.len());
    }
    Ok(Outcome::new(cases, file))
}

fn read(report: &Value) -> anyhow::Result<Vec<Case>> {
    let checks = report["checks"]
        .as_array()
        .context("the report has no checks")?;
    checks.iter().map(case).collect()
}

/// Parses a check. A check that could not run has failed.
fn case(check: &Value) -> anyhow::Result<Case> {
    let name = check["check_type"]
        .as_str()
        .context("a check has no check_type")?;
    let vulnerable = check["vulnerable"]
        .as_bool()
        .with_context(|| format!("{name} has no field vulnerable"))?;
    let diagnostics = check["diagnostics"].as_array().into_iter().flatten();
    let broken = diagnostics
        .filter_map(Value::as_str)
        .find(|diagnostic| diagnostic.starts_with(BROKEN));
    let message = match (vulnerable, broken) {
        (true, _) => format!("vulnerable: {}", check["payload"]),
        (false, Some(broken)) => broken.to_owned(),
        (false, None) => String::new(),
    };
    Ok(Case {
        name: name.to_owned(),
        passed: message.is_empty(),
        message,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn vulnerable_and_unfinished_checks_fail() {
        let report = json!({ "checks": [
            { "check_type": "cl-te", "vulnerable": false },
            { "check_type": "te-cl", "vulnerable": true, "payload": "POST /" },
            { "check_type": "h2c", "vulnerable": false, "diagnostics": ["check_failed: refused"] },
            { "check_type": "cl-0", "vulnerable": false, "diagnostics": ["no_shift"] },
        ]});
        let cases = read(&report).expect("a report");
        let passed: Vec<bool> = cases.iter().map(|case| case.passed).collect();
        assert_eq!(passed, [true, false, false, true]);
        assert!(cases[1].message.contains("POST /"), "{}", cases[1].message);
        assert!(read(&json!({})).is_err());
        assert!(read(&json!({ "checks": [{ "check_type": "x" }] })).is_err());
    }
}
