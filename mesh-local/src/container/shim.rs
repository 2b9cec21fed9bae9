//! The program `meshctl local exec-stub`: sets up or enters a container and executes its program.
//! The node executes itself again instead of running code between fork and exec, so that the shim
//! has one thread, no locks and ordinary error handling. [`ShimTask::Create`] sets up a container;
//! [`ShimTask::Exec`] enters a running one, for probes and `exec`.

use std::ffi::CString;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use mesh_runtime::log::chain;
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{Gid, Uid};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::cgroup;
use crate::file::{self, FileError};

mod root;

pub use root::Bind;

/// The task of the shim, in JSON in the file of its argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShimTask {
    #[serde(rename = "Start")]
    Create(CreateSpec),
    #[serde(rename = "Join")]
    Exec(ExecSpec),
}

/// Create a container and execute its program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateSpec {
    pub cgroup: PathBuf,
    /// The network namespace of the pod; `None` in the host network.
    pub netns: Option<PathBuf>,
    pub hostname: String,
    /// An empty directory where the file system of the container is mounted, visible only in its
    /// mount namespace.
    pub scratch: PathBuf,
    pub binds: Vec<Bind>,
    /// Files with contents specific to the container.
    pub files: Vec<(PathBuf, String)>,
    pub program: Program,
    /// The file for the error if the program cannot be started.
    pub failure: PathBuf,
}

/// Execute a program in a running container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    pub cgroup: PathBuf,
    /// The first process of the container, whose namespaces are entered.
    pub pid: u32,
    pub program: Program,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    #[serde(rename = "folder")]
    pub working_directory: PathBuf,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub no_new_privileges: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    #[error("parse the task {path}, which another version may have written")]
    Parse {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error(transparent)]
    File(#[from] FileError),
    #[error("open the namespace {path}; has the container exited?")]
    Namespace { path: PathBuf, source: io::Error },
    #[error("enter {what}")]
    Enter { what: String, source: nix::Error },
    #[error("{0:?} contains a NUL byte, which arguments and variables cannot")]
    ZeroByte(String),
    #[error("switch to user {uid} and group {gid}")]
    User {
        uid: u32,
        gid: u32,
        source: nix::Error,
    },
    #[error("program {program:?} not found on this machine; install it, or set another command")]
    NotFound { program: String },
    #[error("run {program:?}")]
    Exec { program: String, source: nix::Error },
}

/// Returns the command that executes this program as the shim of a task.
pub(super) fn command(task: &Path) -> Command {
    // The path of the executable could lead to a program that was rebuilt in the meantime.
    let mut command = Command::new("/proc/self/exe");
    command.args(["local", "exec-stub"]).arg(task).env_clear();
    command
}

/// Performs the task of a file. Returns only if it fails.
pub fn run(path: &Path) -> ShimError {
    let task = match read(path) {
        Ok(task) => task,
        Err(error) => return error,
    };
    match task {
        ShimTask::Exec(task) => exec(&task),
        ShimTask::Create(task) => {
            // Opened first, because the path is inaccessible in the container.
            let failure = fs::File::create(&task.failure);
            let error = create(&task);
            if let Ok(mut file) = failure {
                // The error is also returned; the file adds it to the status of the pod.
                let _ = file.write_all(chain(&error).as_bytes());
            }
            error
        }
    }
}

/// Enters a running container and executes the program. Returns only if it fails.
pub fn exec(task: &ExecSpec) -> ShimError {
    let enter = || -> Result<(), ShimError> {
        cgroup::join(&task.cgroup)?;
        let kinds = [
            ("net", CloneFlags::CLONE_NEWNET),
            ("uts", CloneFlags::CLONE_NEWUTS),
            ("mnt", CloneFlags::CLONE_NEWNS),
        ];
        // All files are opened first, because /proc differs in the mount namespace of the
        // container.
        let mut files = Vec::new();
        for (name, kind) in kinds {
            let path = PathBuf::from(format!("/proc/{}/ns/{name}", task.pid));
            files.push((open_namespace(&path)?, kind, path));
        }
        for (file, kind, path) in files {
            setns(file, kind).map_err(|source| ShimError::Enter {
                what: path.display().to_string(),
                source,
            })?;
        }
        Ok(())
    };
    match enter() {
        Ok(()) => exec_program(&task.program),
        Err(error) => error,
    }
}

fn read(path: &Path) -> Result<ShimTask, ShimError> {
    let text = fs::read(path).map_err(file::failed("read the task", path))?;
    serde_json::from_slice(&text).map_err(|source| ShimError::Parse {
        path: path.to_owned(),
        source,
    })
}

fn create(task: &CreateSpec) -> ShimError {
    let build = || -> Result<(), ShimError> {
        cgroup::join(&task.cgroup)?;
        // The container leaves the session of the node, so that it receives no signals of its
        // terminal.
        nix::unistd::setsid().map_err(entering("a new session"))?;
        if let Some(path) = &task.netns {
            setns(open_namespace(path)?, CloneFlags::CLONE_NEWNET)
                .map_err(entering("the pod's network namespace"))?;
        }
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)
            .map_err(entering("new mount and UTS namespaces"))?;
        nix::unistd::sethostname(&task.hostname).map_err(entering("the container's host name"))?;
        Ok(root::enter(task)?)
    };
    match build() {
        Ok(()) => exec_program(&task.program),
        Err(error) => error,
    }
}

fn entering(what: &'static str) -> impl Fn(nix::Error) -> ShimError {
    move |source| ShimError::Enter {
        what: what.to_owned(),
        source,
    }
}

fn open_namespace(path: &Path) -> Result<fs::File, ShimError> {
    fs::File::open(path).map_err(|source| ShimError::Namespace {
        path: path.to_owned(),
        source,
    })
}

fn exec_program(program: &Program) -> ShimError {
    match prepare(program) {
        Err(error) => error,
        Ok((command, env)) => execute(program, &command, &env),
    }
}

/// Changes working directory, user and privileges, and converts command and environment to C
/// strings.
fn prepare(program: &Program) -> Result<(Vec<CString>, Vec<CString>), ShimError> {
    let &Program { uid, gid, .. } = program;
    let user_error = |source| ShimError::User { uid, gid, source };
    let directory = &program.working_directory;
    std::env::set_current_dir(directory)
        .map_err(file::failed("change to the working directory", directory))?;
    let groups: Vec<Gid> = program
        .groups
        .iter()
        .map(|gid| Gid::from_raw(*gid))
        .collect();
    nix::unistd::setgroups(&groups).map_err(user_error)?;
    nix::unistd::setgid(Gid::from_raw(gid)).map_err(user_error)?;
    nix::unistd::setuid(Uid::from_raw(uid)).map_err(user_error)?;
    if program.no_new_privileges {
        nix::sys::prctl::set_no_new_privs().map_err(entering("the no_new_privs mode"))?;
    }
    let text =
        |text: &str| CString::new(text).map_err(|_position| ShimError::ZeroByte(text.to_owned()));
    let command = program.command.iter().map(|part| text(part));
    let env = program
        .env
        .iter()
        .map(|(name, value)| text(&format!("{name}={value}")));
    Ok((
        command.collect::<Result<_, _>>()?,
        env.collect::<Result<_, _>>()?,
    ))
}

/// Executes the program, which is looked up in the container's PATH as in a shell.
fn execute(program: &Program, command: &[CString], env: &[CString]) -> ShimError {
    let name = program.command.first().cloned().unwrap_or_default();
    let path = program.env.iter().find(|(name, _)| name == "PATH");
    let directories: Vec<&str> = path
        .map(|(_, value)| value.split(':').collect())
        .unwrap_or_default();
    let candidates: Vec<PathBuf> = if name.contains('/') {
        vec![PathBuf::from(&name)]
    } else {
        directories
            .iter()
            .map(|directory| Path::new(directory).join(&name))
            .collect()
    };
    let mut exec_error = None;
    for candidate in candidates {
        let Ok(file) = CString::new(candidate.as_os_str().as_bytes()) else {
            return ShimError::ZeroByte(name);
        };
        let Err(error) = nix::unistd::execve(&file, command, env);
        if !matches!(error, nix::Error::ENOENT | nix::Error::ENOTDIR) {
            exec_error = Some(error);
        }
    }
    match exec_error {
        Some(source) => ShimError::Exec {
            program: name,
            source,
        },
        None => ShimError::NotFound { program: name },
    }
}
