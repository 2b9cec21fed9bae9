//! Does redirection by eBPF work on this kernel? Tried out, not read off the version: the real
//! programs are loaded beside the production set into a scratch cgroup and a scratch network
//! namespace, and two worker processes play application and proxy in it. The daemon runs it before
//! it chooses a tier; [`best_tier`] reads the result.
//!
//! ```text
//! agent ──spawns──▶ proxy worker (uid 2102, cgroup …/proxy): listens on 4140 and 4143, reports what it sees
//!   │               ▲ redirected and steered connections
//!   └────spawns──▶ application worker (cgroup …/app): connects in every way, one check after another
//! ```
//!
//! The workers are this program again, because a process belongs to one cgroup as a whole: a
//! program that calls [`run`] must call [`worker`] when its first argument is [`WORKER_ARGUMENT`].

mod application;
mod protocol;
mod proxy;
mod stage;

use std::{
    io::{self, BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{self, Child, ChildStdout, Command, ExitStatus, Stdio},
    thread,
};

use nix::{
    sys::{prctl::set_pdeathsig, signal::Signal},
    unistd::{alarm, getppid},
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    ebpf::{self, Object},
    redirect::Tier,
    sys::netns::NetnsError,
};

use stage::Stage;

/// Seconds after which a worker ends, whatever it waits for: all checks together take less than
/// one, and an agent that waited for ever would keep its node without the mesh, and without any
/// redirection that does work there.
const PATIENCE: u32 = 60;

/// The first argument of a worker.
pub const WORKER_ARGUMENT: &str = "selftest-worker";

/// Where the self-test may work.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A program that hands [`WORKER_ARGUMENT`] on to [`worker`]: usually this one.
    pub program: PathBuf,
    /// Pins of the self-test, beside the production set and removed at the end.
    pub pin_dir: PathBuf,
    /// A cgroup2 directory below which a scratch cgroup is made.
    pub cgroup_parent: PathBuf,
}

/// What a tier needs a check to pass for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    Outbound,
    Inbound,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Passed,
    Failed(String),
    /// The kernel lacks what would have been redirected, so nothing can go wrong with it.
    Unsupported(String),
}

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    pub direction: Direction,
    pub outcome: Outcome,
}

#[derive(Debug, Error)]
pub enum Error {
    #[error("the self-test cannot {action} {path}")]
    Scratch {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("the self-test cannot make a network namespace (it takes CAP_SYS_ADMIN)")]
    Namespace(#[source] io::Error),
    #[error("the self-test cannot set up its network namespace (it takes CAP_NET_ADMIN)")]
    Addresses(#[source] io::Error),
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error(transparent)]
    Programs(#[from] ebpf::Error),
    #[error("the self-test cannot start its {role} worker")]
    Worker {
        role: &'static str,
        source: io::Error,
    },
    #[error("the self-test's {role} worker ended early ({status})")]
    WorkerEnded { role: &'static str, status: String },
    #[error("the self-test's {role} worker {reason}")]
    WorkerFailed { role: &'static str, reason: String },
    #[error("the self-test's {role} worker said something else than expected: {line:?}")]
    Unexpected { role: &'static str, line: String },
}

/// Runs every check. An error means that the test could not be made, which is no better than a
/// failed one.
pub fn run(object: &Object, settings: &Settings) -> Result<Vec<Check>, Error> {
    let stage = Stage::build(object, settings)?;
    let (mut proxy, mut said) = spawn(settings, &stage, "proxy", &stage.proxy_cgroup())?;
    let checks = wait_for_proxy(&mut proxy, &mut said).and_then(|()| observe(settings, &stage));
    // Killing may be refused, because the worker is another user by now and that takes CAP_KILL.
    // Waiting closes the worker's input, which ends it too.
    let _ = proxy.kill();
    let _ = proxy.wait();
    drop(stage);
    checks
}

/// The body of a worker process: role, network namespace, cgroup and the agent's process id are its
/// arguments.
pub fn worker(arguments: &[String]) -> io::Result<()> {
    let [role, netns, cgroup, agent] = arguments else {
        return Err(io::Error::other(format!(
            "a {WORKER_ARGUMENT} takes role, namespace, cgroup and the agent's process id, and is started by the agent"
        )));
    };
    alarm::set(PATIENCE);
    end_with_input();
    let result = end_with(agent)
        .and_then(|()| stage::enter(Path::new(netns), Path::new(cgroup)))
        .and_then(|()| match role.as_str() {
            "proxy" => {
                proxy::become_user()?;
                end_with(agent)?;
                proxy::serve()
            }
            "application" => application::run(),
            other => Err(io::Error::other(format!("has no role {other}"))),
        });
    if let Err(error) = &result {
        use io::Write;
        // The agent reads it; without an agent nobody does.
        let _ = writeln!(io::stdout(), "{}{error}", protocol::FAILED);
    }
    result
}

/// A worker never outlives its agent, also one that is killed. To be said again after a change of
/// user, with which the kernel forgets it.
fn end_with(agent: &str) -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    // An agent that was killed before that call sends no signal any more: its child has another
    // parent by now.
    if getppid().to_string() != agent {
        return Err(io::Error::other("has lost its agent"));
    }
    Ok(())
}

/// Nor one that may not signal it: the worker is another user, and an agent in a container may lack
/// CAP_KILL. Its input ends with the agent, too.
#[expect(
    clippy::exit,
    reason = "a worker has nothing to put in order, and its other threads wait for connections"
)]
fn end_with_input() {
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        process::exit(0);
    });
}

/// Removes what a self-test left that was killed: its pins and its cgroups below `cgroup_parent`,
/// if that is known.
pub fn clear(pin_dir: &Path, cgroup_parent: Option<&Path>) -> Result<(), Error> {
    stage::clear(pin_dir, cgroup_parent)
}

/// The best tier these results allow: `None` when not even outbound redirection works.
pub fn best_tier(checks: &[Check]) -> Option<Tier> {
    let all_passed = |direction: Direction| {
        let mut of_direction = checks
            .iter()
            .filter(|check| check.direction == direction)
            .peekable();
        of_direction.peek().is_some()
            && of_direction.all(|check| !matches!(check.outcome, Outcome::Failed(_)))
    };
    match (
        all_passed(Direction::Outbound),
        all_passed(Direction::Inbound),
    ) {
        (true, true) => Some(Tier::Full),
        (true, false) => Some(Tier::Split),
        (false, _) => None,
    }
}

fn spawn(
    settings: &Settings,
    stage: &Stage,
    role: &'static str,
    cgroup: &Path,
) -> Result<(Child, BufReader<ChildStdout>), Error> {
    let failed = |source| Error::Worker { role, source };
    let mut child = Command::new(&settings.program)
        .arg(WORKER_ARGUMENT)
        .arg(role)
        .arg(stage.netns())
        .arg(cgroup)
        .arg(process::id().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let stdout = child
        .stdout
        .take()
        .ok_or_else(|| failed(io::Error::other("no standard output")))?;
    Ok((child, BufReader::new(stdout)))
}

fn wait_for_proxy(proxy: &mut Child, said: &mut BufReader<ChildStdout>) -> Result<(), Error> {
    let role = "proxy";
    let mut line = String::new();
    match said.read_line(&mut line) {
        Ok(0) => Err(ended(role, proxy.wait())),
        Ok(_) if line.trim() == protocol::READY => Ok(()),
        Ok(_) if line.starts_with(protocol::FAILED) => Err(failed(role, &line)),
        Ok(_) => Err(Error::Unexpected { role, line }),
        Err(source) => Err(Error::Worker { role, source }),
    }
}

/// Runs the application worker to its end and collects what it reports, a line per check.
fn observe(settings: &Settings, stage: &Stage) -> Result<Vec<Check>, Error> {
    let role = "application";
    let (mut child, lines) = spawn(settings, stage, role, &stage.application_cgroup())?;
    let mut checks = Vec::new();
    let mut result = Ok(());
    for line in lines.lines() {
        match line {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(check) => checks.push(check),
                Err(_) if line.starts_with(protocol::FAILED) => result = Err(failed(role, &line)),
                Err(_) => result = Err(Error::Unexpected { role, line }),
            },
            Err(source) => result = Err(Error::Worker { role, source }),
        }
    }
    let status = child.wait();
    result?;
    match status {
        Ok(status) if status.success() => Ok(checks),
        status => Err(ended(role, status)),
    }
}

/// What a worker said of its end.
fn failed(role: &'static str, line: &str) -> Error {
    let reason = line.trim().trim_start_matches(protocol::FAILED).to_owned();
    Error::WorkerFailed { role, reason }
}

fn ended(role: &'static str, status: io::Result<ExitStatus>) -> Error {
    match status {
        Ok(status) if status.signal() == Some(Signal::SIGALRM as i32) => Error::WorkerFailed {
            role,
            reason: format!("took longer than {PATIENCE} s"),
        },
        Ok(status) => Error::WorkerEnded {
            role,
            status: status.to_string(),
        },
        Err(source) => Error::Worker { role, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(direction: Direction, outcome: Outcome) -> Check {
        Check {
            name: "a check".into(),
            direction,
            outcome,
        }
    }

    #[test]
    fn a_worker_that_took_too_long_is_told_from_one_that_died() {
        let said = |script: &str| {
            let status = Command::new("sh").args(["-c", script]).status();
            ended("proxy", status).to_string()
        };
        assert_eq!(
            said("kill -ALRM $$"),
            "the self-test's proxy worker took longer than 60 s"
        );
        assert_eq!(
            said("exit 3"),
            "the self-test's proxy worker ended early (exit status: 3)"
        );
    }

    #[test]
    fn tiers_by_outcome() {
        use Direction::{Inbound, Outbound};
        let passed = |direction| check(direction, Outcome::Passed);
        let failed = |direction| check(direction, Outcome::Failed("refused".into()));
        let unsupported = |direction| check(direction, Outcome::Unsupported("no MPTCP".into()));
        let table = [
            (vec![passed(Outbound), passed(Inbound)], Some(Tier::Full)),
            (
                vec![passed(Outbound), unsupported(Outbound), passed(Inbound)],
                Some(Tier::Full),
            ),
            (vec![passed(Outbound), failed(Inbound)], Some(Tier::Split)),
            (vec![passed(Outbound)], Some(Tier::Split)),
            (vec![failed(Outbound), passed(Inbound)], None),
            (vec![], None),
        ];
        for (checks, expected) in table {
            assert_eq!(best_tier(&checks), expected, "{checks:?}");
        }
    }
}
