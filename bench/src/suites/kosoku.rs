//! kosoku: Autobahn's WebSocket cases. A proxy must not change the outcome of any.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use super::Run;
use super::outcome::{Case, Outcome};
use crate::testbed::process::Process;

/// Concurrent cases. Many have a timeout of half a second, which concurrent cases with megabytes of
/// data would exceed.
const PARALLEL: &str = "1";
/// Behaviours that the suite classifies as conforming.
const CONFORMING: [&str; 3] = ["OK", "NON-STRICT", "INFORMATIONAL"];

/// Writes the suite's report into a directory, HTML pages included.
pub(super) fn run(run: Run<'_>, program: &Path) -> anyhow::Result<Outcome> {
    let (target, directory) = (run.target, run.report);
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("remove {}", directory.display()))?;
    }
    let mut command = run.topology.client(program)?;
    command
        .args(["-m", "fuzzingclient", "-p", PARALLEL, "-o"])
        .arg(&directory)
        .arg(format!("ws://{target}"));
    // The exit status is an error if a case failed; the report is authoritative.
    let process = Process::start(&run.name, &mut command)?;
    let log = process.log().to_owned();
    let (status, output) = process.finish()?;
    let file = directory.join("index.json");
    let report = fs::read_to_string(&file).with_context(|| {
        let log = fs::read_to_string(&log).unwrap_or_default();
        format!("kosoku wrote no report: {status}\n{output}{log}")
    })?;
    let report = serde_json::from_str(&report).context("parse kosoku's report")?;
    let cases = read(&report)?;
    if cases.is_empty() {
        bail!("kosoku ran no case: {status}\n{output}");
    }
    Ok(Outcome::new(cases, file))
}

/// Parses the cases of all agents. There is one server, but it has no agent name in cases where it
/// refuses the handshake.
fn read(report: &Value) -> anyhow::Result<Vec<Case>> {
    let agents = report
        .as_object()
        .context("the report is not an object of agents")?;
    let cases = agents
        .values()
        .filter_map(Value::as_object)
        .flatten()
        .map(|(name, case)| {
            let word = |field: &str| {
                case[field]
                    .as_str()
                    .with_context(|| format!("{name} has no {field}"))
            };
            let (behaviour, close) = (word("behavior")?, word("behaviorClose")?);
            Ok(Case {
                name: name.clone(),
                passed: CONFORMING.contains(&behaviour) && CONFORMING.contains(&close),
                message: format!("{behaviour}, close {close} {}", case["remoteCloseCode"]),
            })
        });
    cases.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn report_cases_are_parsed() {
        let report = json!({
            "a server": {
                "1.1.1": { "behavior": "OK", "behaviorClose": "OK", "remoteCloseCode": 1000 },
                "1.1.2": { "behavior": "NON-STRICT", "behaviorClose": "OK", "remoteCloseCode": null },
            },
            "": { "2.1": { "behavior": "OK", "behaviorClose": "FAILED", "remoteCloseCode": 1002 } },
        });
        let mut cases = read(&report).expect("a report");
        cases.sort_by(|a, b| a.name.cmp(&b.name));
        let message: Vec<&str> = cases.iter().map(|case| case.message.as_str()).collect();
        assert_eq!(
            message,
            [
                "OK, close OK 1000",
                "NON-STRICT, close OK null",
                "OK, close FAILED 1002"
            ]
        );
        let passed: Vec<bool> = cases.iter().map(|case| case.passed).collect();
        assert_eq!(passed, [true, true, false]);
        assert!(read(&json!({ "a": { "1": {} } })).is_err());
    }
}
