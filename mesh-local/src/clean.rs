//! Removes a node from the machine, based on its name and its state directory. `down` uses this
//! after the daemon has stopped, and the next `up` or `down` after a crash. Every step succeeds if
//! there is nothing to remove, and all steps are tried even if some fail.

use std::path::{Path, PathBuf};
use std::{fs, io};

use mesh_runtime::log::chain;
use nix::mount::{MntFlags, umount2};

use crate::cni::{CniChain, Sandbox};
use crate::host::{self, HostError};
use crate::node_paths::NodePaths;
use crate::settings::{Program, Settings};
use crate::{cgroup, command, netns, network, pod};

#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("node {node} could not be removed completely: {}", .causes.join("; "))]
    Incomplete { node: String, causes: Vec<String> },
}

/// Removes processes, networks, redirection, rules, device and state, in this order.
pub async fn clean(paths: &NodePaths) -> Result<(), CleanError> {
    let cgroup2 = host::cgroup2()?;
    let settings = Settings::read(paths).ok();
    let mut causes = Vec::new();
    let mut record = |what: &str, outcome: Result<(), String>| {
        if let Err(cause) = outcome {
            causes.push(format!("{what}: {cause}"));
        }
    };
    // The daemon is in this cgroup, too: afterwards no process of the node is running.
    let root = paths.cgroup(&cgroup2);
    let outcome = cgroup::remove(&root).await;
    record("processes", outcome.map_err(|error| chain(&error)));
    if let Some(settings) = &settings {
        for outcome in delete_sandboxes(paths, settings).await {
            record("pod network", outcome);
        }
    }
    record("network namespaces", remove_netns(&paths.netns_dir()));
    if let Some(settings) = &settings {
        if settings.mesh {
            let outcome = uninstall_agent(paths, settings, &root.join("pods")).await;
            record("redirection", outcome);
        }
        let outcome = network::tear_down(&settings.network).await;
        record("network device", outcome.map_err(|error| chain(&error)));
    }
    record("nftables table", remove_table(&paths.nft_table()).await);
    record("pins", remove_tree(&paths.pin_dir()));
    record("mounts", unmount_below(paths.state()));
    let pods = fs::read_dir(paths.pods()).into_iter().flatten().flatten();
    for directory in pods {
        let outcome = pod::remove_directory(&directory.path());
        record("pod directory", outcome.map_err(|error| error.to_string()));
    }
    if causes.is_empty() {
        // The state directory is removed last, because the steps above depend on it.
        remove_tree(paths.state()).map_err(|cause| CleanError::Incomplete {
            node: paths.name().to_string(),
            causes: vec![cause],
        })?;
        remove_empty(&cgroup2.join("mesh-local"));
        if let Some(pins) = paths.pin_dir().parent() {
            remove_empty(pins);
        }
        return Ok(());
    }
    Err(CleanError::Incomplete {
        node: paths.name().to_string(),
        causes,
    })
}

/// Releases resources of plugins outside the network namespaces of pods, such as host ports.
async fn delete_sandboxes(paths: &NodePaths, settings: &Settings) -> Vec<Result<(), String>> {
    let plugins = CniChain::new(paths, settings);
    let mut outcomes = Vec::new();
    for directory in fs::read_dir(paths.pods()).into_iter().flatten().flatten() {
        let text = fs::read(directory.path().join(pod::SANDBOX_FILE)).unwrap_or_default();
        // The file does not exist if the network of the pod was not set up.
        if let Ok(sandbox) = serde_json::from_slice::<Sandbox>(&text) {
            let outcome = plugins.delete(&sandbox).await;
            outcomes.push(outcome.map_err(|error| chain(&error)));
        }
    }
    outcomes
}

fn remove_netns(directory: &Path) -> Result<(), String> {
    for file in fs::read_dir(directory).into_iter().flatten().flatten() {
        netns::remove(&file.path()).map_err(|error| chain(&error))?;
    }
    Ok(())
}

async fn uninstall_agent(
    paths: &NodePaths,
    settings: &Settings,
    cgroup_root: &Path,
) -> Result<(), String> {
    let agent = settings.program(Program::Agent);
    if !agent.is_file() {
        return Err(format!(
            "{} does not exist; restore it and try again",
            agent.display()
        ));
    }
    let text = |path: PathBuf| path.display().to_string();
    let args = [
        "uninstall".to_owned(),
        "--cgroup-root".to_owned(),
        text(cgroup_root.to_owned()),
        "--pin-dir".to_owned(),
        text(paths.pin_dir()),
        "--socket".to_owned(),
        text(paths.agent_socket()),
        "--state-dir".to_owned(),
        text(paths.agent_state()),
    ];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    command::run(&text(agent), &args, b"")
        .await
        .map(drop)
        .map_err(|error| chain(&error))
}

async fn remove_table(table: &str) -> Result<(), String> {
    // The table is added first, so that deleting it succeeds even if it did not exist.
    let script = format!("table inet {table} {{}}\ndelete table inet {table}\n");
    command::run("nft", &["-f", "-"], script.as_bytes())
        .await
        .map(drop)
        .map_err(|error| chain(&error))
}

/// Unmounts all file systems below a directory, innermost first.
fn unmount_below(directory: &Path) -> Result<(), String> {
    let mounts = fs::read_to_string("/proc/self/mounts").map_err(|error| error.to_string())?;
    let below = mounts.lines().filter_map(|line| {
        let target = Path::new(line.split(' ').nth(1)?);
        target.starts_with(directory).then(|| target.to_owned())
    });
    let mut below: Vec<PathBuf> = below.collect();
    below.sort_by_key(|target| std::cmp::Reverse(target.components().count()));
    for target in below {
        umount2(&target, MntFlags::MNT_DETACH)
            .map_err(|error| format!("{}: {error}", target.display()))?;
    }
    Ok(())
}

fn remove_tree(path: &Path) -> Result<(), String> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Removes a directory that all nodes share, if it is empty.
fn remove_empty(path: &Path) {
    let _ = fs::remove_dir(path);
}
