//! What systemd knows of units, by `systemctl show`.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

/// The properties of a unit that checks use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unit {
    /// `loaded`, `not-found`, `masked` or another.
    pub(crate) load: String,
    /// `active`, `inactive`, `failed`, `activating` or another.
    pub(crate) active: String,
    /// More exactly, as `auto-restart`.
    pub(crate) sub: String,
    /// `enabled`, `disabled` or another; empty of a unit without a file.
    pub(crate) file_state: String,
    /// The file that it is loaded from.
    pub(crate) file: Option<PathBuf>,
    /// Whether a file has changed since systemd read it.
    pub(crate) needs_reload: bool,
    /// The path of its cgroup with a slash before it; empty while it does not run.
    pub(crate) cgroup: String,
    /// The user of its processes; empty for root.
    pub(crate) user: String,
    /// `success`, `exit-code` or why it ended otherwise.
    pub(crate) result: String,
    /// The exit code of its last process.
    pub(crate) exit_code: Option<u32>,
    /// The files of its environment, in the order that they are read.
    pub(crate) environment_files: Vec<PathBuf>,
}

/// systemd responds in milliseconds, unless it is busy with a transaction.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The last lines of a log that are shown.
const LOG_LINES: &str = "3";

const PROPERTIES: &str = "--property=LoadState,ActiveState,SubState,UnitFileState,FragmentPath,NeedDaemonReload,ControlGroup,User,Result,ExecMainStatus,EnvironmentFiles";

/// Returns the units of these names, in their order.
pub(crate) async fn show(names: &[String]) -> Result<Vec<Unit>, String> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut command = Command::new("systemctl");
    command.args(["show", PROPERTIES, "--"]).args(names);
    let output = run(command, "systemctl").await?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("systemctl show failed: {}", errors.trim()));
    }
    let units = parse(&String::from_utf8_lossy(&output.stdout));
    if units.len() != names.len() {
        return Err(format!(
            "systemctl show described {} units of {}",
            units.len(),
            names.len()
        ));
    }
    Ok(units)
}

/// Returns the last lines that a unit has logged; nothing where there is no journal.
pub(crate) async fn last_log(unit: &str) -> Vec<String> {
    let mut command = Command::new("journalctl");
    command.args(["--unit", unit, "--lines", LOG_LINES]);
    command.args(["--output", "cat", "--quiet", "--no-pager"]);
    let output = run(command, "journalctl").await.ok();
    let output = output.filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

async fn run(mut command: Command, program: &str) -> Result<Output, String> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(TIMEOUT, command.output()).await;
    let output = output
        .map_err(|_elapsed| format!("{program} did not respond within {} s", TIMEOUT.as_secs()))?;
    output.map_err(|error| format!("cannot run {program}: {error}"))
}

/// Reads units, with an empty line between two.
fn parse(shown: &str) -> Vec<Unit> {
    let blocks = shown.split("\n\n").map(str::trim);
    let blocks = blocks.filter(|block| !block.is_empty());
    blocks.map(unit).collect()
}

fn unit(block: &str) -> Unit {
    let mut unit = Unit::default();
    for (name, value) in block.lines().filter_map(|line| line.split_once('=')) {
        let text = value.to_owned();
        match name {
            "LoadState" => unit.load = text,
            "ActiveState" => unit.active = text,
            "SubState" => unit.sub = text,
            "UnitFileState" => unit.file_state = text,
            "FragmentPath" if !value.is_empty() => unit.file = Some(value.into()),
            "NeedDaemonReload" => unit.needs_reload = value == "yes",
            "ControlGroup" => unit.cgroup = text,
            "User" => unit.user = text,
            "Result" => unit.result = text,
            "ExecMainStatus" => unit.exit_code = value.parse().ok(),
            // Once for each file: `PATH (ignore_errors=no)`.
            "EnvironmentFiles" => {
                let path = value.rsplit_once(" (").map_or(value, |(path, _)| path);
                unit.environment_files.push(path.into());
            }
            _ => {}
        }
    }
    unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_in_the_order_of_the_response() {
        let shown = "\
LoadState=loaded
ActiveState=activating
SubState=auto-restart
UnitFileState=disabled
FragmentPath=/usr/lib/systemd/system/mesh-proxy@.service
NeedDaemonReload=yes
ControlGroup=/mesh.slice/mesh-proxy@web.service
User=mesh-proxy
Result=exit-code
ExecMainStatus=64
EnvironmentFiles=/var/lib/mesh/proxies/web.env (ignore_errors=no)
EnvironmentFiles=/etc/mesh/a (b).env (ignore_errors=yes)

LoadState=not-found
ActiveState=inactive
FragmentPath=
";
        let units = parse(shown);
        let [proxy, absent] = &units[..] else {
            panic!("{units:?}");
        };
        assert_eq!(proxy.active, "activating");
        assert_eq!((proxy.exit_code, proxy.needs_reload), (Some(64), true));
        let files = ["/var/lib/mesh/proxies/web.env", "/etc/mesh/a (b).env"];
        assert_eq!(proxy.environment_files, files.map(PathBuf::from));
        assert_eq!((&*absent.load, &absent.file), ("not-found", &None));
    }
}
