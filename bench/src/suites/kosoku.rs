//! kosoku: Autobahn's WebSocket cases, of which a proxy must not change a single outcome.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use serde_json::Value;

use super::{
    outcome::{Case, Outcome},
    topology::Topology,
};
use crate::testbed::process::Process;

/// Cases at a time. Many allow half a second for an answer, which those that carry megabytes would
/// take from the others.
const PARALLEL: &str = "1";
/// What conforms to the protocol, by the suite's own words.
const CONFORMING: [&str; 3] = ["OK", "NON-STRICT", "INFORMATIONAL"];

/// Fills a directory with the suite's report, pages to look at included.
pub(super) fn run(
    topology: &Topology<'_>,
    program: &Path,
    target: SocketAddr,
    name: &str,
    directory: PathBuf,
) -> anyhow::Result<Outcome> {
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("remove {}", directory.display()))?;
    }
    let mut command = topology.client(program)?;
    command
        .args(["-m", "fuzzingclient", "-p", PARALLEL, "-o"])
        .arg(&directory)
        .arg(format!("ws://{target}"));
    // It ends with an error when a case failed; what matters is the report.
    let process = Process::start(name, &mut command)?;
    let log = process.log().to_owned();
    let (status, output) = process.finish()?;
    let file = directory.join("index.json");
    let report = fs::read_to_string(&file).with_context(|| {
        let log = fs::read_to_string(&log).unwrap_or_default();
        format!("kosoku wrote no report: {status}\n{output}{log}")
    })?;
    let report = serde_json::from_str(&report).context("kosoku's report is JSON")?;
    let cases = read(&report)?;
    if cases.is_empty() {
        bail!("kosoku ran no case: {status}\n{output}");
    }
    Ok(Outcome::new(cases, file))
}

/// The cases of all agents. There is one, but a server that refuses a handshake does not say who it
/// is.
fn read(report: &Value) -> anyhow::Result<Vec<Case>> {
    let agents = report.as_object().context("an object of agents")?;
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
