//! Asks systemd for the cgroups of a unit, with `systemctl show`.

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::unit_name::{join, slice_path};

/// systemd responds in milliseconds, unless it is busy with a transaction.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The limit on a response that is read: a few properties.
const MAX_OUTPUT: u64 = 64 * 1024;

/// Runs `systemctl`.
#[derive(Clone, Debug)]
pub(super) struct Systemd {
    program: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    #[error("cannot run {program}; name the cgroup of the unit in the enrolment")]
    Run { program: PathBuf, source: io::Error },
    #[error("systemctl did not respond within {TIMEOUT:?}")]
    TimedOut,
    #[error("systemctl show failed: {0}")]
    Failed(String),
    #[error("systemd has no unit {0}; check the name with systemctl list-units")]
    NoUnit(String),
    #[error("systemd does not say where the cgroup of {0} is")]
    NoCgroup(String),
}

impl Systemd {
    pub(super) fn new(program: PathBuf) -> Self {
        Self { program }
    }

    /// Returns the path of the unit's cgroup below the root of the hierarchy, where it is or will
    /// be, and the paths of the cgroups of the sockets that trigger it: systemd opens these in
    /// processes of the socket unit.
    pub(super) fn cgroups(&self, unit: &str) -> Result<Vec<String>, SystemdError> {
        let shown = self.show(unit)?;
        if !["loaded", "masked"].contains(&value(&shown, "LoadState")) {
            return Err(SystemdError::NoUnit(unit.to_owned()));
        }
        let mut cgroups = vec![cgroup(&shown, unit)?];
        let triggers = value(&shown, "TriggeredBy").split(' ');
        for socket in triggers.filter(|name| name.ends_with(".socket")) {
            cgroups.push(cgroup(&self.show(socket)?, socket)?);
        }
        Ok(cgroups)
    }

    fn show(&self, unit: &str) -> Result<String, SystemdError> {
        let mut child = Command::new(&self.program)
            .args([
                "show",
                "--property=LoadState,Slice,ControlGroup,TriggeredBy",
                "--",
                unit,
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| SystemdError::Run {
                program: self.program.clone(),
                source,
            })?;
        let output = read_within_timeout(&mut child);
        if output.is_none() {
            let _ = child.kill();
        }
        let status = child.wait();
        let (stdout, stderr) = output.ok_or(SystemdError::TimedOut)?;
        match status {
            Ok(status) if status.success() => Ok(stdout),
            _ => Err(SystemdError::Failed(stderr.trim().to_owned())),
        }
    }
}

/// Returns both outputs of the program; `None` if they do not end in time.
fn read_within_timeout(child: &mut Child) -> Option<(String, String)> {
    let (mut stdout, mut stderr) = (child.stdout.take()?, child.stderr.take()?);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let text = |output: &mut dyn Read| {
            let mut text = Vec::new();
            let _ = output.take(MAX_OUTPUT).read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        };
        let _ = sender.send((text(&mut stdout), text(&mut stderr)));
    });
    receiver.recv_timeout(TIMEOUT).ok()
}

fn cgroup(shown: &str, unit: &str) -> Result<String, SystemdError> {
    // Empty while the unit does not run.
    let current = value(shown, "ControlGroup").trim_start_matches('/');
    if !current.is_empty() {
        return Ok(current.to_owned());
    }
    let future = if unit.ends_with(".slice") {
        slice_path(unit)
    } else {
        slice_path(value(shown, "Slice")).map(|slice| join(&slice, unit))
    };
    future.ok_or_else(|| SystemdError::NoCgroup(unit.to_owned()))
}

/// Returns the value of a property, or nothing.
fn value<'a>(shown: &'a str, property: &str) -> &'a str {
    let of_line = |line: &'a str| line.strip_prefix(property)?.strip_prefix('=');
    shown.lines().find_map(of_line).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Returns a program that responds as systemctl does, by the last argument.
    fn systemctl(directory: &std::path::Path, cases: &str) -> Systemd {
        let program = directory.join("systemctl");
        let script = format!("#!/bin/sh\nfor unit; do :; done\ncase $unit in\n{cases}\nesac\n");
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Systemd::new(program)
    }

    #[test]
    fn cgroups_are_of_the_unit_and_its_sockets() {
        let directory = tempfile::tempdir().unwrap();
        let systemd = systemctl(
            directory.path(),
            "web.service) printf 'LoadState=loaded\\nSlice=system-web.slice\\nControlGroup=\\nTriggeredBy=web.socket web.timer\\n';;
             web.socket) printf 'LoadState=loaded\\nSlice=system.slice\\nControlGroup=/system.slice/web.socket\\n';;
             app-x.slice) printf 'LoadState=loaded\\nSlice=app.slice\\nControlGroup=\\n';;
             *) printf 'LoadState=not-found\\nSlice=\\nControlGroup=\\n';;",
        );
        assert_eq!(
            systemd.cgroups("web.service").unwrap(),
            [
                "system.slice/system-web.slice/web.service",
                "system.slice/web.socket"
            ]
        );
        assert_eq!(
            systemd.cgroups("app-x.slice").unwrap(),
            ["app.slice/app-x.slice"]
        );
        let error = systemd.cgroups("absent.service").unwrap_err();
        assert!(matches!(error, SystemdError::NoUnit(_)), "{error}");
    }

    #[test]
    fn failure_and_absence_of_systemctl_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let systemd = systemctl(directory.path(), "*) echo 'no bus' >&2; exit 1;;");
        let error = systemd.cgroups("web.service").unwrap_err().to_string();
        assert_eq!(error, "systemctl show failed: no bus");
        let absent = Systemd::new(directory.path().join("absent"));
        let error = absent.cgroups("web.service").unwrap_err();
        assert!(matches!(error, SystemdError::Run { .. }), "{error}");
    }
}
