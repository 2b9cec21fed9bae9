//! Installs Debian packages without prompts, removals or started services. Used by `setup`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::Context;

use super::packages::Package;
use crate::command::{captured_stdout, observe, run};
use crate::workspace::find_program;

/// Older package lists often name versions that the mirror no longer has.
const LIST_AGE: Duration = Duration::from_hours(24);

/// Called by every package script that starts a service; exit status 101 means "not allowed".
const POLICY_FILE: &str = "/usr/sbin/policy-rc.d";
const POLICY: &str =
    "#!/bin/sh\n# Written by `cargo xtask setup` for the time of one installation, by process ";

pub(crate) fn is_here() -> bool {
    find_program("apt-get").is_some()
}

/// Returns whether the package lists offer a package. Refreshes old lists first.
pub(crate) fn offers(package: &str) -> anyhow::Result<bool> {
    refresh_old_lists()?;
    let known =
        captured_stdout(Command::new("apt-cache").args(["policy", package])).unwrap_or_default();
    Ok(has_candidate(&known))
}

/// Installs packages, each with its reason on a line of its own.
pub(crate) fn install(packages: &[&Package]) -> anyhow::Result<()> {
    for package in packages {
        eprintln!(
            "    installing  {:<26} for the {}: {}",
            package.name, package.need, package.why
        );
    }
    let names: Vec<&str> = packages.iter().map(|package| package.name).collect();
    install_names(&names)?;
    for service in packages.iter().filter_map(|package| package.service) {
        keep_from_starting_at_boot(service)?;
    }
    Ok(())
}

/// Installs packages by name. The caller has printed the reason.
pub(crate) fn install_names(names: &[&str]) -> anyhow::Result<()> {
    refresh_old_lists()?;
    let services_stay_off = ServicePolicy::deny()?;
    let mut command = apt_get();
    // --no-remove: an installation must not remove packages of the user.
    command
        .args(["install", "--no-install-recommends", "--no-remove"])
        .args(names);
    let installed = run("apt-get install", &mut command).with_context(|| {
        format!("install {}; a broken or half-configured system is repaired by `apt-get --fix-broken install`", names.join(" "))
    });
    drop(services_stay_off);
    installed
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command
        .args(["--yes", "--quiet", "-o", "DPkg::Lock::Timeout=300"])
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Ubuntu's needrestart would restart services of the machine.
        .env("NEEDRESTART_SUSPEND", "1")
        .env("RUNLEVEL", "1");
    command
}

/// A source that does not respond is ignored: another one may have the package, and otherwise
/// `install` fails with the package's name.
fn refresh_old_lists() -> anyhow::Result<()> {
    if age_of_lists().is_some_and(|age| age < LIST_AGE) {
        return Ok(());
    }
    eprintln!("    the package lists are missing or older than a day: apt-get update");
    let finished = observe("apt-get update", apt_get().arg("update"), |_| ())?;
    for line in finished
        .lines
        .iter()
        .filter(|line| line.starts_with("E:") || line.starts_with("W:"))
    {
        eprintln!("    {line}");
    }
    Ok(())
}

/// Returns the age of the package lists. apt sets the date of each list to the server's, so that
/// only the download directory has the time of the update.
fn age_of_lists() -> Option<Duration> {
    let directory = Path::new("/var/lib/apt/lists");
    let filled = fs::read_dir(directory)
        .ok()?
        .flatten()
        .any(|entry| entry.file_name().to_string_lossy().contains("Packages"));
    let fetched = directory
        .join("partial")
        .metadata()
        .and_then(|found| found.modified())
        .ok()?;
    filled.then(|| {
        SystemTime::now()
            .duration_since(fetched)
            .unwrap_or_default()
    })
}

fn has_candidate(policy: &str) -> bool {
    policy
        .lines()
        .find_map(|line| line.trim().strip_prefix("Candidate:"))
        .is_some_and(|version| version.trim() != "(none)")
}

/// Otherwise nginx, Redis and MariaDB would occupy their ports after the next boot of a developer's
/// machine.
fn keep_from_starting_at_boot(service: &str) -> anyhow::Result<()> {
    let mut command = if find_program("systemctl").is_some() {
        let mut systemctl = Command::new("systemctl");
        systemctl.args(["disable", "--quiet", service]);
        systemctl
    } else {
        let mut update_rc = Command::new("update-rc.d");
        update_rc.args([service, "disable"]);
        update_rc
    };
    run(&format!("disable {service}"), &mut command)
        .with_context(|| format!("keep {service} from starting at boot"))
}

/// Prevents package scripts from starting services until dropped. An administrator's policy is
/// kept.
struct ServicePolicy {
    ours: bool,
}

impl ServicePolicy {
    fn deny() -> anyhow::Result<Self> {
        if Path::new(POLICY_FILE).exists() {
            eprintln!(
                "    {POLICY_FILE} exists and decides whether package scripts start services"
            );
            return Ok(Self { ours: false });
        }
        let policy = format!("{POLICY}{}\nexit 101\n", std::process::id());
        fs::write(POLICY_FILE, policy).with_context(|| format!("write {POLICY_FILE}"))?;
        let policy = Self { ours: true };
        fs::set_permissions(POLICY_FILE, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("make {POLICY_FILE} executable"))?;
        Ok(policy)
    }
}

impl Drop for ServicePolicy {
    fn drop(&mut self) {
        if self.ours
            && let Err(error) = fs::remove_file(POLICY_FILE)
        {
            eprintln!("    remove {POLICY_FILE} by hand, it keeps services from starting: {error}");
        }
    }
}

/// Removes the policy of an interrupted installation, which would keep services from starting after
/// package upgrades.
pub(crate) fn remove_leftover_policy() -> anyhow::Result<()> {
    let Some(writer) = fs::read_to_string(POLICY_FILE)
        .ok()
        .and_then(|policy| writer(&policy))
    else {
        return Ok(());
    };
    if Path::new(&format!("/proc/{writer}")).exists() {
        return Ok(());
    }
    fs::remove_file(POLICY_FILE)
        .with_context(|| format!("remove {POLICY_FILE} of an interrupted installation"))
}

/// Returns the process that wrote the policy, if xtask did.
fn writer(policy: &str) -> Option<u32> {
    policy.strip_prefix(POLICY)?.lines().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_file_is_recognised_as_own() {
        assert_eq!(writer(&format!("{POLICY}42\nexit 101\n")), Some(42));
        assert_eq!(writer("#!/bin/sh\nexit 101\n"), None);
    }

    #[test]
    fn package_with_candidate_is_available() {
        assert!(has_candidate(
            "wrk:\n  Installed: (none)\n  Candidate: 4.1.0-3+b2\n"
        ));
        assert!(!has_candidate(
            "rustc-web:\n  Installed: (none)\n  Candidate: (none)\n"
        ));
        assert!(!has_candidate(""));
    }
}
