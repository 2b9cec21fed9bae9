//! Cgroups of the node, its pods and their containers: made, emptied and removed.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("make the cgroup {path}")]
    Make {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("kill what runs in the cgroup {path}")]
    Kill {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("remove the cgroup {path}")]
    Remove {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("join the cgroup {path}")]
    Join {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the cgroup {path} still has processes 10 s after they were killed")]
    StillAlive { path: PathBuf },
}

/// A killed process is gone within moments, unless it hangs in the kernel.
const DEATH: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

pub fn make(path: &Path) -> Result<(), CgroupError> {
    fs::create_dir_all(path).map_err(|source| CgroupError::Make {
        path: path.to_owned(),
        source,
    })
}

/// Moves the calling process.
pub fn join(path: &Path) -> Result<(), CgroupError> {
    fs::write(path.join("cgroup.procs"), "0\n").map_err(|source| CgroupError::Join {
        path: path.to_owned(),
        source,
    })
}

/// Kills everything in the cgroup and below it, and waits until it is gone. A cgroup that does not
/// exist is empty.
pub async fn kill(path: &Path) -> Result<(), CgroupError> {
    match fs::write(path.join("cgroup.kill"), "1\n") {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.exists() => return Ok(()),
        Err(source) => {
            return Err(CgroupError::Kill {
                path: path.to_owned(),
                source,
            });
        }
        Ok(()) => {}
    }
    let emptied = async {
        while is_populated(path) {
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(DEATH, emptied)
        .await
        .map_err(|_elapsed| CgroupError::StillAlive {
            path: path.to_owned(),
        })
}

/// Kills what is left, then removes the cgroup with those below it.
pub async fn remove(path: &Path) -> Result<(), CgroupError> {
    kill(path).await?;
    remove_tree(path).map_err(|source| CgroupError::Remove {
        path: path.to_owned(),
        source,
    })
}

/// Does any process live in it or below it?
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
