//! Runs the node's `iptables-save` and `iptables-restore`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Family, IptablesError};

/// The directories of the programs. The container runtime that starts the plugin may set any PATH.
const DIRECTORIES: [&str; 5] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"];
/// The explicit variants first: the plain name may be either variant, and this tier exists for
/// kernels that have only the legacy tables.
const VARIANTS: [&str; 3] = ["-legacy", "-nft", ""];
/// Seconds to wait for the lock that the legacy programs share; less than the plugin's deadline.
const LOCK_WAIT: &str = "3";

pub(super) struct Program {
    save: PathBuf,
    restore: PathBuf,
}

impl Program {
    pub(super) fn find(family: Family) -> Result<Self, IptablesError> {
        let stem = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        for variant in VARIANTS {
            for directory in DIRECTORIES {
                let directory = Path::new(directory);
                let save = directory.join(format!("{stem}{variant}-save"));
                let restore = directory.join(format!("{stem}{variant}-restore"));
                if save.exists() && restore.exists() {
                    return Ok(Self { save, restore });
                }
            }
        }
        Err(IptablesError::NoProgram {
            names: VARIANTS
                .map(|variant| format!("{stem}{variant}-restore"))
                .join(", "),
            directories: DIRECTORIES.join(", "),
        })
    }

    pub(super) fn save(&self) -> Result<String, IptablesError> {
        let mut command = Command::new(&self.save);
        command.args(["-t", "nat"]);
        run(command, &self.save, "")
    }

    pub(super) fn restore(&self, script: &str) -> Result<(), IptablesError> {
        let mut command = Command::new(&self.restore);
        command.args(["--noflush", "-w", LOCK_WAIT]);
        run(command, &self.restore, script).map(drop)
    }
}

fn run(mut command: Command, program: &Path, input: &str) -> Result<String, IptablesError> {
    let failed = |source| IptablesError::Run {
        program: program.display().to_string(),
        source,
    };
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that rejects its input closes the pipe; its message is better than EPIPE.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(IptablesError::Failed {
        program: program.display().to_string(),
        message: first_error_line(&String::from_utf8_lossy(&output.stderr)),
    })
}

/// Returns the first line that is not a warning; the programs print usage hints after it.
fn first_error_line(stderr: &str) -> String {
    let mut lines = stderr
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let line = lines.find(|line| !line.starts_with('#'));
    line.unwrap_or("it printed no error").to_owned()
}
