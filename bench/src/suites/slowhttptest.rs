//! slowhttptest: thousands of clients that are slow on purpose, and beside them an honest one, of
//! which every request must be served.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::Context;

use super::{
    honest::{self, Honest},
    outcome::{Case, Outcome},
    range::{LARGE_PATH, Range},
};
use crate::testbed::process::Process;

/// Slow clients, and how many of them begin in a second.
const CLIENTS: u32 = 4000;
const RATE: u32 = 500;
/// How long each attack lasts: longer than the proxies wait for a head.
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

/// What slowhttptest saw with a fresh connection each second.
#[derive(Debug, PartialEq, Eq)]
struct Probes {
    seconds: usize,
    unavailable: usize,
}

/// Fills a folder with the suite's reports.
pub(super) fn run(
    range: &Range<'_>,
    target: SocketAddr,
    name: &str,
    folder: &Path,
) -> anyhow::Result<Outcome> {
    // Old statistics must not pass for new ones.
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let before = honest::alone(range, target, name)?;
    let mut cases = Vec::new();
    let mut meanwhile = Vec::new();
    let mut report = format!("before: {}\n", before.said());
    for attack in &ATTACKS {
        let prefix = folder.join(attack.name);
        let process = Process::start(
            &format!("{name}-{}", attack.name),
            &mut attack.command(range, target, &prefix)?,
        )?;
        // An honest client that could not even connect says so by its end.
        let seen = honest::beside(range, target, name, SECONDS);
        let (status, output) = process.finish()?;
        let statistics = prefix.with_extension("csv");
        let statistics = fs::read_to_string(&statistics)
            .with_context(|| format!("slowhttptest wrote no statistics: {status}\n{output}"))?;
        let probes = read_probes(&statistics);
        let case = judge(attack.name, &seen, &probes);
        report += &format!("{}: {}\n", case.name, case.said);
        if let Ok(seen) = &seen {
            meanwhile.extend(seen.p99);
        }
        cases.push(case);
    }
    let file: PathBuf = folder.join("summary.txt");
    fs::write(&file, report).with_context(|| format!("write {}", file.display()))?;
    Ok(Outcome {
        cases,
        file,
        note: Some(format!(
            "p99 of the honest client {}, before {}",
            honest::time(meanwhile.into_iter().reduce(f64::max)),
            honest::time(before.p99)
        )),
    })
}

impl Attack {
    fn command(
        &self,
        range: &Range<'_>,
        target: SocketAddr,
        prefix: &Path,
    ) -> anyhow::Result<std::process::Command> {
        let mut command = range.client("slowhttptest")?;
        command
            .args(self.arguments)
            .args(["-c", &CLIENTS.to_string(), "-r", &RATE.to_string()])
            .args(["-l", &SECONDS.to_string(), "-g", "-o"])
            .arg(prefix)
            .args(["-u", &format!("http://{target}{}", self.path)]);
        Ok(command)
    }
}

/// A line for each second: seconds, closed, pending, connected, and the last column is 0 when the
/// probe got no answer.
fn read_probes(statistics: &str) -> Probes {
    let lines = statistics.lines().skip(1);
    let last: Vec<&str> = lines.filter_map(|line| line.rsplit(',').next()).collect();
    Probes {
        seconds: last.len(),
        unavailable: last.iter().filter(|value| value.trim() == "0").count(),
    }
}

/// Every request of the honest client must have been served, and every probe answered.
fn judge(name: &str, honest: &anyhow::Result<Honest>, probes: &Probes) -> Case {
    let honest = match honest {
        Ok(honest) => honest,
        Err(error) => {
            return Case {
                name: name.to_owned(),
                passed: false,
                said: format!("the honest client: {error:#}"),
            };
        }
    };
    Case {
        name: name.to_owned(),
        passed: honest.is_unharmed() && probes.seconds > 0 && probes.unavailable == 0,
        said: format!(
            "{}; {} of {} new connections were not served in time",
            honest.said(),
            probes.unavailable,
            probes.seconds
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATISTICS: &str = "Seconds,Closed,Pending,Connected,Service Available\n0,0,1,0,200\n1,0,1,77,0\n2,3,0,9,200\n";

    #[test]
    fn statistics_are_read() {
        let probes = read_probes(STATISTICS);
        assert_eq!(
            probes,
            Probes {
                seconds: 3,
                unavailable: 1
            }
        );
    }

    #[test]
    fn only_a_client_that_lost_nothing_was_unharmed() {
        let well = || Honest {
            served: 7,
            failed: 0,
            failure: None,
            p99: None,
        };
        let passed = |honest: Honest, seconds: usize, unavailable: usize| {
            let probes = Probes {
                seconds,
                unavailable,
            };
            judge("slow-body", &Ok(honest), &probes).passed
        };
        assert!(passed(well(), 60, 0));
        assert!(!passed(well(), 60, 1));
        assert!(!passed(well(), 0, 0));
        assert!(!passed(
            Honest {
                failed: 1,
                ..well()
            },
            60,
            0
        ));
        assert!(!passed(
            Honest {
                served: 0,
                ..well()
            },
            60,
            0
        ));
        let gone = judge(
            "slow-body",
            &Err(anyhow::anyhow!("refused")),
            &read_probes(""),
        );
        assert_eq!(
            (gone.passed, gone.said.as_str()),
            (false, "the honest client: refused")
        );
    }
}
