//! Creates, empties and removes the cgroups of the node, its pods and their containers.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use crate::file::{self, FileError};

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the cgroup {path} still has processes 10 s after they were killed")]
    StillAlive { path: PathBuf },
}

/// A killed process exits within milliseconds unless it is blocked in the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub fn create(path: &Path) -> Result<(), FileError> {
    fs::create_dir_all(path).map_err(file::failed("create the cgroup", path))
}

/// Moves the calling process to the cgroup.
pub fn join(path: &Path) -> Result<(), FileError> {
    fs::write(path.join("cgroup.procs"), "0\n").map_err(file::failed("join the cgroup", path))
}

/// Kills all processes in the cgroup and its descendants, and waits until they have exited. A
/// cgroup that does not exist is empty.
pub async fn kill(path: &Path) -> Result<(), CgroupError> {
    match fs::write(path.join("cgroup.kill"), "1\n") {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.exists() => return Ok(()),
        killed => killed.map_err(file::failed("kill the processes of the cgroup", path))?,
    }
    let emptied = async {
        while is_populated(path) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(KILL_TIMEOUT, emptied)
        .await
        .map_err(|_elapsed| CgroupError::StillAlive {
            path: path.to_owned(),
        })
}

/// Kills all processes, then removes the cgroup and its descendants.
pub async fn remove(path: &Path) -> Result<(), CgroupError> {
    kill(path).await?;
    remove_tree(path).map_err(file::failed("remove the cgroup", path))?;
    Ok(())
}

/// Returns whether the cgroup or a descendant has a process.
pub fn is_populated(path: &Path) -> bool {
    fs::read_to_string(path.join("cgroup.events"))
        .is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
}

fn remove_tree(path: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}
