//! Removes a node from the machine, knowing nothing but its name and its state folder.
//!
//! Used by `down` after the daemon has stopped, and by the next `up` or `down` after a daemon that
//! died. Every step works when its thing is already gone, and one that fails does not keep the
//! others from being tried.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::mount::{MntFlags, umount2};

use crate::{
    cgroup,
    cni::{Chain, Sandbox},
    command,
    container::stub::describe,
    host::{self, HostError},
    instance::Instance,
    netns, network, pod,
    settings::{Program, Settings},
};

#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("some things of the node {node} could not be removed: {}", .causes.join("; "))]
    Incomplete { node: String, causes: Vec<String> },
}

/// Removes processes, networks, redirection, rules, device and state, in this order.
pub async fn clean(instance: &Instance) -> Result<(), CleanError> {
    let cgroup2 = host::cgroup2()?;
    let settings = Settings::read(instance).ok();
    let mut causes = Vec::new();
    let mut tried = |what: &str, outcome: Result<(), String>| {
        if let Err(cause) = outcome {
            causes.push(format!("{what}: {cause}"));
        }
    };
    // The daemon is in there too: from here on nothing of the node runs.
    let root = instance.cgroup(&cgroup2);
    let outcome = cgroup::remove(&root).await;
    tried("processes", outcome.map_err(|error| describe(&error)));
    if let Some(settings) = &settings {
        for outcome in delete_sandboxes(instance, settings).await {
            tried("pod network", outcome);
        }
    }
    tried("network namespaces", remove_netns(&instance.netns_dir()));
    if let Some(settings) = &settings {
        if settings.mesh {
            let outcome = uninstall_agent(instance, settings, &root.join("pods")).await;
            tried("redirection", outcome);
        }
        let outcome = network::tear_down(&settings.network).await;
        tried("network device", outcome.map_err(|error| describe(&error)));
    }
    tried("nftables table", remove_table(&instance.nft_table()).await);
    tried("pins", remove_tree(&instance.pin_dir()));
    tried("mounts", unmount_below(instance.state()));
    let pods = fs::read_dir(instance.pods())
        .into_iter()
        .flatten()
        .flatten();
    for folder in pods {
        let outcome = pod::remove_folder(&folder.path());
        tried("pod folder", outcome.map_err(|error| error.to_string()));
    }
    if causes.is_empty() {
        // Last, for everything above is found through it.
        remove_tree(instance.state()).map_err(|cause| CleanError::Incomplete {
            node: instance.name().to_string(),
            causes: vec![cause],
        })?;
        remove_empty(&cgroup2.join("mesh-local"));
        if let Some(pins) = instance.pin_dir().parent() {
            remove_empty(pins);
        }
        return Ok(());
    }
    Err(CleanError::Incomplete {
        node: instance.name().to_string(),
        causes,
    })
}

/// Gives back what plugins keep outside the pod: host ports.
async fn delete_sandboxes(instance: &Instance, settings: &Settings) -> Vec<Result<(), String>> {
    let chain = Chain::new(instance, settings);
    let mut outcomes = Vec::new();
    for folder in fs::read_dir(instance.pods())
        .into_iter()
        .flatten()
        .flatten()
    {
        let text = fs::read(folder.path().join(pod::SANDBOX_FILE)).unwrap_or_default();
        // A pod that was never given a network has nothing to give back.
        if let Ok(sandbox) = serde_json::from_slice::<Sandbox>(&text) {
            let outcome = chain.delete(&sandbox).await;
            outcomes.push(outcome.map_err(|error| describe(&error)));
        }
    }
    outcomes
}

fn remove_netns(folder: &Path) -> Result<(), String> {
    for file in fs::read_dir(folder).into_iter().flatten().flatten() {
        netns::remove(&file.path()).map_err(|error| describe(&error))?;
    }
    Ok(())
}

async fn uninstall_agent(
    instance: &Instance,
    settings: &Settings,
    cgroup_root: &Path,
) -> Result<(), String> {
    let agent = settings.program(Program::Agent);
    if !agent.is_file() {
        return Err(format!(
            "{} is gone; put it back and try again",
            agent.display()
        ));
    }
    let text = |path: PathBuf| path.display().to_string();
    let args = [
        "uninstall".to_owned(),
        "--cgroup-root".to_owned(),
        text(cgroup_root.to_owned()),
        "--pin-dir".to_owned(),
        text(instance.pin_dir()),
        "--socket".to_owned(),
        text(instance.agent_socket()),
        "--state-dir".to_owned(),
        text(instance.agent_state()),
    ];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    command::run(&text(agent), &args, b"")
        .await
        .map(drop)
        .map_err(|error| describe(&error))
}

async fn remove_table(table: &str) -> Result<(), String> {
    // Adding the table first makes removing it right whether it was there or not.
    let script = format!("table inet {table} {{}}\ndelete table inet {table}\n");
    command::run("nft", &["-f", "-"], script.as_bytes())
        .await
        .map(drop)
        .map_err(|error| describe(&error))
}

/// Takes off whatever is still mounted in the state folder, the innermost first.
fn unmount_below(folder: &Path) -> Result<(), String> {
    let mounts = fs::read_to_string("/proc/self/mounts").map_err(|error| error.to_string())?;
    let below = mounts.lines().filter_map(|line| {
        let target = Path::new(line.split(' ').nth(1)?);
        target.starts_with(folder).then(|| target.to_owned())
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

/// The parents are shared by all nodes; the last one to go takes them along.
fn remove_empty(path: &Path) {
    let _ = fs::remove_dir(path);
}
