//! What the commands of `meshctl local` do: bring a node up, ask it, take it down.

use std::{
    fs, io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use ipnet::Ipv4Net;
use mesh_core::node::Tier;

use crate::{
    clean::{self, CleanError},
    container::stub::{self, Join, StubError, Task},
    host::{self, HostError},
    instance::{FindError, Instance, Name},
    manifest::{self, Key, ReadError},
    network::{self, Chosen, NetworkError},
    node::control::{Answer, NodeStatus, Request, Target},
    settings::{Settings, SettingsError},
};

/// What `up` was told.
#[derive(Clone, Debug)]
pub struct Options {
    pub manifests: PathBuf,
    pub bin_dir: PathBuf,
    pub cni_path: Vec<PathBuf>,
    pub tier: Option<Tier>,
    pub mesh: bool,
    pub ipv6: bool,
    pub pod_cidr: Option<Ipv4Net>,
    pub service_cidr: Option<Ipv4Net>,
}

/// A daemon that was started; dropping it does not end it.
pub struct Daemon {
    instance: Instance,
    child: Child,
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Clean(#[from] CleanError),
    #[error(transparent)]
    Manifests(#[from] ReadError),
    #[error(
        "the node {0} is already up; change it with: meshctl local apply, or take it down first"
    )]
    AlreadyUp(Name),
    #[error("not found: {}; build the whole mesh, or say where its programs are with --bin-dir", list(.0))]
    MissingPrograms(Vec<PathBuf>),
    #[error("{what} {path}")]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("start the node's daemon")]
    Start(#[source] io::Error),
    #[error("the node could not start: {0}")]
    Failed(String),
    #[error(
        "the node {name} does not answer; it is not up, or its daemon died (then `meshctl local down` clears what it left)"
    )]
    Unreachable {
        name: Name,
        #[source]
        source: io::Error,
    },
    #[error("{0}")]
    Refused(String),
    #[error(
        "the node {name} answered something that cannot be read: {answer:?}; is it of another version?"
    )]
    Answer { name: Name, answer: String },
    #[error("read the container's task {path}")]
    Task {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Starts a node's daemon. What an earlier one of the name left behind is cleared first.
pub async fn start(instance: &Instance, options: Options) -> Result<Daemon, ClientError> {
    host::check()?;
    let manifests = fs::canonicalize(&options.manifests).map_err(|source| ClientError::File {
        what: "find the folder of manifests",
        path: options.manifests.clone(),
        source,
    })?;
    // Fails early when the folder cannot be read at all; what is wrong in it the node reports.
    manifest::read_folder(&manifests)?;
    let lock = network::Lock::take()?;
    if status(instance).is_ok() {
        return Err(ClientError::AlreadyUp(instance.name().clone()));
    }
    if instance.state().exists() {
        clean::clean(instance).await?;
    }
    let chosen = Chosen {
        pods_v4: options.pod_cidr,
        services_v4: options.service_cidr,
    };
    let others = Instance::all()?;
    let ipv6 = options.ipv6 && host::has_ipv6();
    let settings = Settings {
        manifests,
        bin_dir: options.bin_dir,
        cni_path: options.cni_path,
        tier: options.tier,
        network: network::choose(&lock, &others, ipv6, chosen)?,
        mesh: options.mesh,
    };
    let missing = settings.missing_programs();
    if settings.mesh && !missing.is_empty() {
        return Err(ClientError::MissingPrograms(missing));
    }
    settings.write(instance)?;
    let child = spawn(instance)?;
    Ok(Daemon {
        instance: instance.clone(),
        child,
    })
}

fn spawn(instance: &Instance) -> Result<Child, ClientError> {
    let path = instance.daemon_log();
    let file_error = |source| ClientError::File {
        what: "open the log",
        path: path.clone(),
        source,
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(file_error)?;
    }
    let log = fs::File::create(&path).map_err(file_error)?;
    let second = log.try_clone().map_err(file_error)?;
    // Not the path: a program that is rebuilt meanwhile has another.
    Command::new("/proc/self/exe")
        .args(["local", "run", instance.name().as_str()])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(second)
        .spawn()
        .map_err(ClientError::Start)
}

impl Daemon {
    /// The node's state, or nothing while it is starting.
    pub fn poll(&mut self) -> Result<Option<NodeStatus>, ClientError> {
        if let Ok(Some(_)) = self.child.try_wait() {
            let failure = fs::read_to_string(self.instance.failure()).unwrap_or_default();
            let log = self.instance.daemon_log();
            return Err(ClientError::Failed(if failure.is_empty() {
                format!("its daemon ended; its log is {}", log.display())
            } else {
                failure
            }));
        }
        match status(&self.instance) {
            Ok(status) => Ok(Some(status)),
            Err(ClientError::Unreachable { .. } | ClientError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

pub fn status(instance: &Instance) -> Result<NodeStatus, ClientError> {
    as_status(instance, ask(instance, &Request::Status)?)
}

/// Makes the node read its manifests again.
pub fn apply(instance: &Instance) -> Result<NodeStatus, ClientError> {
    as_status(instance, ask(instance, &Request::Apply)?)
}

/// Ends the node and removes everything of it, whether its daemon lives or not.
pub async fn down(instance: &Instance) -> Result<(), ClientError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(HostError::NotRoot.into());
    }
    match ask(instance, &Request::Stop) {
        Ok(_) | Err(ClientError::Unreachable { .. } | ClientError::Refused(_)) => {}
        Err(error) => return Err(error),
    }
    clean::clean(instance).await?;
    Ok(())
}

/// Enters a container and becomes the command. Returns only to say why that failed.
pub fn exec(
    instance: &Instance,
    pod: Key,
    container: Option<String>,
    command: Vec<String>,
) -> ExecError {
    let join = match prepare_exec(instance, pod, container, command) {
        Ok(join) => join,
        Err(error) => return ExecError::Client(error),
    };
    ExecError::Stub(stub::join(&join))
}

#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error(transparent)]
    Client(ClientError),
    #[error(transparent)]
    Stub(StubError),
}

fn prepare_exec(
    instance: &Instance,
    pod: Key,
    container: Option<String>,
    command: Vec<String>,
) -> Result<Join, ClientError> {
    let target = target(instance, pod, container)?;
    let task_error = |source| ClientError::Task {
        path: target.task.clone(),
        source,
    };
    let text = fs::read(&target.task).map_err(task_error)?;
    let task: Task = serde_json::from_slice(&text).map_err(|error| task_error(error.into()))?;
    let Task::Start(start) = task else {
        let other = io::Error::other("it is no container's");
        return Err(task_error(other));
    };
    let mut program = start.program;
    program.command = command;
    // The terminal is the caller's.
    if let Ok(term) = std::env::var("TERM") {
        program.env.push(("TERM".into(), term));
    }
    Ok(Join {
        cgroup: start.cgroup,
        pid: target.pid,
        program,
    })
}

fn target(instance: &Instance, pod: Key, container: Option<String>) -> Result<Target, ClientError> {
    match ask(instance, &Request::Target { pod, container })? {
        Answer::Target(target) => Ok(*target),
        other => Err(unexpected(instance, other)),
    }
}

fn as_status(instance: &Instance, answer: Answer) -> Result<NodeStatus, ClientError> {
    match answer {
        Answer::Status(status) => Ok(*status),
        other => Err(unexpected(instance, other)),
    }
}

fn unexpected(instance: &Instance, answer: Answer) -> ClientError {
    match answer {
        Answer::Refused(message) => ClientError::Refused(message),
        other => ClientError::Answer {
            name: instance.name().clone(),
            answer: format!("{other:?}"),
        },
    }
}

/// One question. Blocking: whoever asks has nothing else to do.
fn ask(instance: &Instance, request: &Request) -> Result<Answer, ClientError> {
    let talk = || -> io::Result<String> {
        let mut stream = UnixStream::connect(instance.control_socket())?;
        let line = serde_json::to_string(request)?;
        io::Write::write_all(&mut stream, format!("{line}\n").as_bytes())?;
        let answer = io::read_to_string(stream)?;
        if answer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(answer)
    };
    let name = instance.name().clone();
    let answer = talk().map_err(|source| ClientError::Unreachable {
        name: name.clone(),
        source,
    })?;
    serde_json::from_str(&answer).map_err(|_invalid| ClientError::Answer { name, answer })
}

fn list(paths: &[PathBuf]) -> String {
    let texts: Vec<String> = paths
        .iter()
        .map(|path| Path::display(path).to_string())
        .collect();
    texts.join(", ")
}
