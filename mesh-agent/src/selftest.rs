//! The eBPF self-test: tests whether redirection by eBPF works on this kernel, instead of inferring
//! it from the version. It loads the real programs, separately from the production set, into a
//! scratch cgroup and a scratch network namespace, where two worker processes act as application
//! and proxy. The daemon runs it before it chooses a tier; [`best_tier`] evaluates the result.
//!
//! ```text
//! agent ──spawns──▶ proxy worker (uid 2102, cgroup …/proxy): listens on 4140 and 4143
//!   │               ▲ redirected and steered connections
//!   └────spawns──▶ application worker (cgroup …/application): runs the checks
//! ```
//!
//! The workers run this program again, because a process belongs to one cgroup as a whole: a
//! program that calls [`run`] must call [`worker`] when its first argument is [`WORKER_ARGUMENT`].

mod application;
mod env;
mod outcome;
mod protocol;
mod proxy;

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{alarm, getppid};
use thiserror::Error;

use crate::ebpf::{self, Object};
use crate::redirect::Tier;
use crate::sys::netns::NetnsError;
use env::SelfTestEnv;

pub use outcome::{CheckResult, Direction, Outcome};

/// A worker is terminated after this number of seconds. All checks together take less than one;
/// without the limit a blocked worker would keep the agent from choosing a tier at all.
const WORKER_TIMEOUT_SECONDS: u32 = 60;

pub const WORKER_ARGUMENT: &str = "selftest-worker";

/// The self-test's program and scratch locations.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A program that passes [`WORKER_ARGUMENT`] to [`worker`]: usually this one.
    pub program: PathBuf,
    /// Pins of the self-test, separate from the production set and removed at the end.
    pub pin_dir: PathBuf,
    /// A cgroup2 directory for a scratch cgroup.
    pub cgroup_parent: PathBuf,
}

#[derive(Debug, Error)]
pub enum Error {
    #[error("the self-test cannot {action} {path}")]
    Scratch {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("the self-test cannot create a network namespace (it takes CAP_SYS_ADMIN)")]
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
    #[error("the self-test's {role} worker wrote an unexpected line: {line:?}")]
    Unexpected { role: &'static str, line: String },
}

/// Runs every check. An error means that the test could not be run, which counts like a failed one.
pub fn run(object: &Object, settings: &Settings) -> Result<Vec<CheckResult>, Error> {
    let env = SelfTestEnv::build(object, settings)?;
    let (mut proxy, mut output) = spawn(settings, &env, "proxy", &env.proxy_cgroup())?;
    let checks =
        wait_for_proxy(&mut proxy, &mut output).and_then(|()| run_application(settings, &env));
    // Killing can fail, because the worker has another user id by now and that takes CAP_KILL.
    // Waiting closes the worker's standard input, which terminates it too.
    let _ = proxy.kill();
    let _ = proxy.wait();
    drop(env);
    checks
}

/// Runs a worker: role, network namespace, cgroup and the agent's process id are arguments.
pub fn worker(arguments: &[String]) -> io::Result<()> {
    let [role, netns, cgroup, agent] = arguments else {
        return Err(io::Error::other(format!(
            "a {WORKER_ARGUMENT} takes role, namespace, cgroup and the agent's process id, and is started by the agent"
        )));
    };
    alarm::set(WORKER_TIMEOUT_SECONDS);
    exit_with_stdin();
    let result = exit_with_parent(agent)
        .and_then(|()| env::enter(Path::new(netns), Path::new(cgroup)))
        .and_then(|()| match role.as_str() {
            "proxy" => {
                proxy::become_user()?;
                exit_with_parent(agent)?;
                proxy::serve()
            }
            "application" => application::run(),
            other => Err(io::Error::other(format!("has no role {other}"))),
        });
    if let Err(error) = &result {
        use io::Write;
        // Without an agent the pipe has no reader, and the error is dropped.
        let _ = writeln!(io::stdout(), "{}{error}", protocol::FAILED);
    }
    result
}

/// Terminates a worker with its agent, even one that is killed. The kernel clears this setting when
/// the user id changes, so it must be set again then.
fn exit_with_parent(agent: &str) -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    // An agent killed before that call sends no signal: the worker has another parent.
    if getppid().to_string() != agent {
        return Err(io::Error::other("lost its agent"));
    }
    Ok(())
}

/// Terminates a worker when its standard input closes, which happens with the agent's exit: the
/// worker has another user id, and an agent in a container may lack CAP_KILL to signal it.
#[expect(
    clippy::exit,
    reason = "a worker has nothing to clean up, and its other threads wait for connections"
)]
fn exit_with_stdin() {
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        process::exit(0);
    });
}

/// Removes the pins of a killed self-test, and its cgroups if `cgroup_parent` is known.
pub fn clear(pin_dir: &Path, cgroup_parent: Option<&Path>) -> Result<(), Error> {
    env::clear(pin_dir, cgroup_parent)
}

/// Returns the best tier that these results allow: `None` when not even outbound redirection works.
pub fn best_tier(checks: &[CheckResult]) -> Option<Tier> {
    let all_passed = |direction: Direction| {
        let mut selected = checks
            .iter()
            .filter(|check| check.direction == direction)
            .peekable();
        selected.peek().is_some()
            && selected.all(|check| !matches!(check.outcome, Outcome::Failed(_)))
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
    env: &SelfTestEnv,
    role: &'static str,
    cgroup: &Path,
) -> Result<(Child, BufReader<ChildStdout>), Error> {
    let failed = |source| Error::Worker { role, source };
    let mut child = Command::new(&settings.program)
        .arg(WORKER_ARGUMENT)
        .arg(role)
        .arg(env.netns())
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

fn wait_for_proxy(proxy: &mut Child, output: &mut BufReader<ChildStdout>) -> Result<(), Error> {
    let role = "proxy";
    let mut line = String::new();
    match output.read_line(&mut line) {
        Ok(0) => Err(ended(role, proxy.wait())),
        Ok(_) if line.trim() == protocol::READY => Ok(()),
        Ok(_) if line.starts_with(protocol::FAILED) => Err(failed(role, &line)),
        Ok(_) => Err(Error::Unexpected { role, line }),
        Err(source) => Err(Error::Worker { role, source }),
    }
}

/// Runs the application worker until it exits and collects its reports, one line per check.
fn run_application(settings: &Settings, env: &SelfTestEnv) -> Result<Vec<CheckResult>, Error> {
    let role = "application";
    let (mut child, lines) = spawn(settings, env, role, &env.application_cgroup())?;
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

fn failed(role: &'static str, line: &str) -> Error {
    let reason = line.trim().trim_start_matches(protocol::FAILED).to_owned();
    Error::WorkerFailed { role, reason }
}

fn ended(role: &'static str, status: io::Result<ExitStatus>) -> Error {
    match status {
        Ok(status) if status.signal() == Some(Signal::SIGALRM as i32) => Error::WorkerFailed {
            role,
            reason: format!("took longer than {WORKER_TIMEOUT_SECONDS} s"),
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

    fn check(direction: Direction, outcome: Outcome) -> CheckResult {
        CheckResult {
            name: "a check".into(),
            direction,
            outcome,
        }
    }

    #[test]
    fn worker_timeout_is_distinguished_from_early_exit() {
        let output = |script: &str| {
            let status = Command::new("sh").args(["-c", script]).status();
            ended("proxy", status).to_string()
        };
        let timeout = "the self-test's proxy worker took longer than 60 s";
        assert_eq!(output("kill -ALRM $$"), timeout);
        let early = "the self-test's proxy worker ended early (exit status: 3)";
        assert_eq!(output("exit 3"), early);
    }

    #[test]
    fn best_tier_depends_on_outcomes_per_direction() {
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
