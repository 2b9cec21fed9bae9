//! slowhttptest: thousands of slow clients, and an honest client in parallel whose requests must
//! all succeed.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::Run;
use super::honest_client::{self, HonestClientStats};
use super::outcome::{Case, Outcome};
use super::topology::LARGE_PATH;
use crate::testbed::process::Process;

/// Number of slow clients, and new connections per second.
const CLIENTS: u32 = 4000;
const RATE: u32 = 500;
/// Duration of each attack: longer than the proxies' header timeout.
const SECONDS: u32 = 60;

struct Attack {
    name: &'static str,
    path: &'static str,
    arguments: &'static [&'static str],
}

const ATTACKS: [Attack; 4] = [
    Attack {
        name: "slow-headers",
        path: "/",
        arguments: &["-H", "-t", "GET", "-i", "10"],
    },
    Attack {
        name: "slow-body",
        path: "/",
        arguments: &["-B", "-t", "POST", "-s", "8192", "-i", "10"],
    },
    Attack {
        name: "slow-read",
        path: LARGE_PATH,
        arguments: &[
            "-X", "-t", "GET", "-w", "512", "-y", "1024", "-n", "5", "-z", "32", "-k", "3",
        ],
    },
    Attack {
        name: "range",
        path: LARGE_PATH,
        arguments: &["-R", "-t", "HEAD", "-a", "10", "-b", "3000"],
    },
];

/// Results of slowhttptest's probe connections, one per second.
struct Probes {
    seconds: usize,
    unavailable: usize,
}

/// Writes the suite's reports into a directory.
pub(super) fn run(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let directory = &run.report;
    // Statistics of an earlier run must not be read.
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))?;
    }
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    let before = honest_client::measure_alone(run)?;
    let mut cases = Vec::new();
    let mut meanwhile = Vec::new();
    let mut report = format!("before: {}\n", before.summary());
    for attack in &ATTACKS {
        let prefix = directory.join(attack.name);
        let name = format!("{}-{}", run.name, attack.name);
        let process = Process::start(&name, &mut attack.command(run, &prefix)?)?;
        // The result is an error if the honest client could not connect.
        let seen = honest_client::measure_during_attack(run, SECONDS);
        let (status, output) = process.finish()?;
        let statistics = prefix.with_extension("csv");
        let statistics = fs::read_to_string(&statistics)
            .with_context(|| format!("slowhttptest wrote no statistics: {status}\n{output}"))?;
        let probes = read_probes(&statistics);
        let case = evaluate(attack.name, &seen, &probes);
        report += &format!("{}: {}\n", case.name, case.message);
        if let Ok(seen) = &seen {
            meanwhile.extend(seen.p99);
        }
        cases.push(case);
    }
    let file = directory.join("summary.txt");
    fs::write(&file, report).with_context(|| format!("write {}", file.display()))?;
    Ok(Outcome {
        cases,
        file,
        note: Some(format!(
            "p99 of the honest client {}, before {}",
            honest_client::time(meanwhile.into_iter().reduce(f64::max)),
            honest_client::time(before.p99)
        )),
    })
}

impl Attack {
    fn command(&self, run: &Run<'_>, prefix: &Path) -> anyhow::Result<Command> {
        let mut command = run.topology.client("slowhttptest")?;
        command
            .args(self.arguments)
            .args(["-c", &CLIENTS.to_string(), "-r", &RATE.to_string()])
            .args(["-l", &SECONDS.to_string(), "-g", "-o"])
            .arg(prefix)
            .args(["-u", &format!("http://{}{}", run.target, self.path)]);
        Ok(command)
    }
}

/// Parses a line for each second: seconds, closed, pending, connected; the last column is 0 if the
/// probe got no response.
fn read_probes(statistics: &str) -> Probes {
    let lines = statistics.lines().skip(1);
    let last: Vec<&str> = lines.filter_map(|line| line.rsplit(',').next()).collect();
    Probes {
        seconds: last.len(),
        unavailable: last.iter().filter(|value| value.trim() == "0").count(),
    }
}

/// A case passes if every request of the honest client and every probe succeeded.
fn evaluate(name: &str, honest: &anyhow::Result<HonestClientStats>, probes: &Probes) -> Case {
    let (passed, message) = match honest {
        Ok(honest) => (
            honest.is_unharmed() && probes.seconds > 0 && probes.unavailable == 0,
            format!(
                "{}; {} of {} new connections were not served in time",
                honest.summary(),
                probes.unavailable,
                probes.seconds
            ),
        ),
        Err(error) => (false, format!("the honest client: {error:#}")),
    };
    Case {
        name: name.to_owned(),
        passed,
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATISTICS: &str = "Seconds,Closed,Pending,Connected,Service Available\n0,0,1,0,200\n1,0,1,77,0\n2,3,0,9,200\n";

    #[test]
    fn slowhttptest_statistics_are_parsed() {
        let probes = read_probes(STATISTICS);
        assert_eq!((probes.seconds, probes.unavailable), (3, 1));
    }

    #[test]
    fn case_passes_only_if_all_requests_and_probes_succeed() {
        for (served, failed, seconds, unavailable, expected) in [
            (7, 0, 60, 0, true),
            (7, 0, 60, 1, false),
            (7, 0, 0, 0, false),
            (7, 1, 60, 0, false),
            (0, 0, 60, 0, false),
        ] {
            let honest = Ok(HonestClientStats::new(served, failed, None));
            let probes = Probes {
                seconds,
                unavailable,
            };
            let case = evaluate("slow-body", &honest, &probes);
            assert_eq!(case.passed, expected, "{}", case.message);
        }
        let refused = Err(anyhow::anyhow!("refused"));
        let gone = evaluate("slow-body", &refused, &read_probes(""));
        assert!(!gone.passed);
        assert_eq!(gone.message, "the honest client: refused");
    }
}
