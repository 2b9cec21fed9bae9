//! Runs programs of the machine, such as `ip` and `nft`, to completion.

use std::io;
use std::path::Path;
use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("{program} is not installed; it is part of the Debian package {package}")]
    Missing {
        program: String,
        package: &'static str,
    },
    #[error("run {line}")]
    Run { line: String, source: io::Error },
    #[error("{line} failed: {message}")]
    Failed { line: String, message: String },
}

/// Runs a program to completion and returns its standard output.
pub async fn run(program: &str, args: &[&str], input: &[u8]) -> Result<String, CommandError> {
    let line = || format!("{program} {}", args.join(" "));
    let run_error = |source: io::Error| {
        if source.kind() == io::ErrorKind::NotFound {
            CommandError::Missing {
                program: program.to_owned(),
                package: package_of(program),
            }
        } else {
            CommandError::Run {
                line: line(),
                source,
            }
        }
    };
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(run_error)?;
    if let Some(mut stdin) = child.stdin.take() {
        // The write fails if the program exits without reading its input; its exit status shows
        // whether that was an error.
        let _ = stdin.write_all(input).await;
    }
    let output = child.wait_with_output().await.map_err(run_error)?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message.trim();
        return Err(CommandError::Failed {
            line: line(),
            message: if message.is_empty() {
                output.status.to_string()
            } else {
                message.to_owned()
            },
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns whether the program is in `PATH`.
pub fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| is_executable(&directory.join(program)))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Returns the Debian package of a program.
fn package_of(program: &str) -> &'static str {
    match program {
        "ip" => "iproute2",
        "nft" => "nftables",
        "dnsmasq" => "dnsmasq-base",
        _ => "containernetworking-plugins",
    }
}
