//! What `meshctl local exec-stub` does: enters a container's world and becomes its program.
//!
//! The node starts its own executable again instead of forking, so that everything between fork and
//! exec is ordinary code: one thread, no locks, errors that can be told. [`Task::Start`] builds a
//! container, [`Task::Join`] enters one that runs, for probes and `exec`.

use std::{
    ffi::CString,
    fs,
    io::{self, Write as _},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use nix::{
    sched::{CloneFlags, setns, unshare},
    unistd::{Gid, Uid},
};
use serde::{Deserialize, Serialize};

use crate::cgroup::{self, CgroupError};

mod root;

pub use root::Bind;

/// One run of the stub, as it lies in the file that its argument names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    Start(Start),
    Join(Join),
}

/// Build a container and run its program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    pub cgroup: PathBuf,
    /// Absent in the host's network.
    pub netns: Option<PathBuf>,
    pub hostname: String,
    /// An empty folder of the machine, where the container's own files are put together. Nothing of
    /// it is seen outside.
    pub scratch: PathBuf,
    pub binds: Vec<Bind>,
    /// Files with a content of the container's own.
    pub files: Vec<(PathBuf, String)>,
    pub program: Program,
    /// Where to say why the program could not be started.
    pub failure: PathBuf,
}

/// Run a program in a container that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    pub cgroup: PathBuf,
    /// Of the container's first process, whose namespaces are entered.
    pub pid: u32,
    pub program: Program,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    pub folder: PathBuf,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub no_new_privileges: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum StubError {
    #[error("read the task {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the task {path} is not what this version writes")]
    Parse {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("open the namespace {path}; has the container ended?")]
    Namespace {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("enter {what}")]
    Enter {
        what: String,
        #[source]
        source: nix::Error,
    },
    #[error("{what} {path}")]
    Files {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{0:?} holds a zero byte, which no argument or variable can")]
    ZeroByte(String),
    #[error("become user {uid} and group {gid}")]
    User {
        uid: u32,
        gid: u32,
        #[source]
        source: nix::Error,
    },
    #[error(
        "the program {program:?} is not on this machine; install it, or name another in command"
    )]
    NotFound { program: String },
    #[error("run {program:?}")]
    Exec {
        program: String,
        #[source]
        source: nix::Error,
    },
}

/// Does what the file says. Returns only to say why it could not.
pub fn run(path: &Path) -> StubError {
    let task = match read(path) {
        Ok(task) => task,
        Err(error) => return error,
    };
    match task {
        Task::Join(task) => join(&task),
        Task::Start(task) => {
            // Opened now, for the place is out of reach afterwards.
            let failure = fs::File::create(&task.failure);
            let error = start(&task);
            if let Ok(mut file) = failure {
                // The error is also returned; the file only adds it to the pod's status.
                let _ = file.write_all(describe(&error).as_bytes());
            }
            error
        }
    }
}

/// Enters a running container and becomes the program there.
pub fn join(task: &Join) -> StubError {
    let enter = || -> Result<(), StubError> {
        cgroup::join(&task.cgroup)?;
        let kinds = [
            ("net", CloneFlags::CLONE_NEWNET),
            ("uts", CloneFlags::CLONE_NEWUTS),
            ("mnt", CloneFlags::CLONE_NEWNS),
        ];
        // All are opened first: behind the mount namespace there is another /proc.
        let mut files = Vec::new();
        for (name, kind) in kinds {
            let path = PathBuf::from(format!("/proc/{}/ns/{name}", task.pid));
            files.push((open_namespace(&path)?, kind, path));
        }
        for (file, kind, path) in files {
            setns(file, kind).map_err(|source| StubError::Enter {
                what: path.display().to_string(),
                source,
            })?;
        }
        Ok(())
    };
    match enter() {
        Ok(()) => become_program(&task.program),
        Err(error) => error,
    }
}

/// The error and its causes on one line.
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

fn read(path: &Path) -> Result<Task, StubError> {
    let text = fs::read(path).map_err(|source| StubError::Read {
        path: path.to_owned(),
        source,
    })?;
    serde_json::from_slice(&text).map_err(|source| StubError::Parse {
        path: path.to_owned(),
        source,
    })
}

fn start(task: &Start) -> StubError {
    let build = || -> Result<(), StubError> {
        cgroup::join(&task.cgroup)?;
        // A session of its own: a signal from the node's terminal is not for the container.
        nix::unistd::setsid().map_err(entering("a session of its own"))?;
        if let Some(path) = &task.netns {
            setns(open_namespace(path)?, CloneFlags::CLONE_NEWNET)
                .map_err(entering("the pod's network namespace"))?;
        }
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)
            .map_err(entering("namespaces of its own"))?;
        nix::unistd::sethostname(&task.hostname).map_err(entering("a host name of its own"))?;
        root::enter(task)
    };
    match build() {
        Ok(()) => become_program(&task.program),
        Err(error) => error,
    }
}

fn entering(what: &'static str) -> impl Fn(nix::Error) -> StubError {
    move |source| StubError::Enter {
        what: what.to_owned(),
        source,
    }
}

fn open_namespace(path: &Path) -> Result<fs::File, StubError> {
    fs::File::open(path).map_err(|source| StubError::Namespace {
        path: path.to_owned(),
        source,
    })
}

fn become_program(program: &Program) -> StubError {
    match prepare(program) {
        Err(error) => error,
        Ok((command, env)) => exec(program, &command, &env),
    }
}

/// Gives up what the container is not to have, and turns the texts into what the kernel takes.
fn prepare(program: &Program) -> Result<(Vec<CString>, Vec<CString>), StubError> {
    let &Program { uid, gid, .. } = program;
    let user_error = |source| StubError::User { uid, gid, source };
    std::env::set_current_dir(&program.folder).map_err(|source| StubError::Files {
        what: "change to the working directory",
        path: program.folder.clone(),
        source,
    })?;
    let groups: Vec<Gid> = program
        .groups
        .iter()
        .map(|gid| Gid::from_raw(*gid))
        .collect();
    nix::unistd::setgroups(&groups).map_err(user_error)?;
    nix::unistd::setgid(Gid::from_raw(gid)).map_err(user_error)?;
    nix::unistd::setuid(Uid::from_raw(uid)).map_err(user_error)?;
    if program.no_new_privileges {
        nix::sys::prctl::set_no_new_privs().map_err(entering("a state without new privileges"))?;
    }
    let text =
        |text: &str| CString::new(text).map_err(|_position| StubError::ZeroByte(text.to_owned()));
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

/// Looks the program up in the container's own PATH, as a shell would.
fn exec(program: &Program, command: &[CString], env: &[CString]) -> StubError {
    let name = program.command.first().cloned().unwrap_or_default();
    let path = program.env.iter().find(|(name, _)| name == "PATH");
    let folders: Vec<&str> = path
        .map(|(_, value)| value.split(':').collect())
        .unwrap_or_default();
    let candidates: Vec<PathBuf> = if name.contains('/') {
        vec![PathBuf::from(&name)]
    } else {
        folders
            .iter()
            .map(|folder| Path::new(folder).join(&name))
            .collect()
    };
    let mut refused = None;
    for candidate in candidates {
        let Ok(file) = CString::new(candidate.as_os_str().as_bytes()) else {
            return StubError::ZeroByte(name);
        };
        let Err(error) = nix::unistd::execve(&file, command, env);
        if !matches!(error, nix::Error::ENOENT | nix::Error::ENOTDIR) {
            refused = Some(error);
        }
    }
    match refused {
        Some(source) => StubError::Exec {
            program: name,
            source,
        },
        None => StubError::NotFound { program: name },
    }
}
