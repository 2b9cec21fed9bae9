//! The operations of `meshctl local`: start, query, change and stop a node.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{fs, io};

use ipnet::Ipv4Net;
use mesh_core::node::Tier;

use crate::clean::{self, CleanError};
use crate::container::shim::{self, CreateSpec, ExecSpec, ShimError, ShimTask};
use crate::file::{self, FileError};
use crate::host::{self, HostError};
use crate::manifest::{self, ObjectKey};
use crate::network::{self, AddressOverrides, NetworkError};
use crate::node::control::{NodeStatus, Request, Response, Target};
use crate::node_paths::{FindError, Name, NodePaths};
use crate::observer::Observer;
use crate::settings::{self, Settings, SettingsError};

/// The options of `meshctl local up`.
#[derive(Clone, Debug)]
pub struct UpOptions {
    pub manifests: PathBuf,
    pub bin_dir: PathBuf,
    pub cni_path: Vec<PathBuf>,
    pub tier: Option<Tier>,
    pub mesh: bool,
    pub ipv6: bool,
    pub pod_cidr: Option<Ipv4Net>,
    pub service_cidr: Option<Ipv4Net>,
}

/// A started daemon. Dropping this does not stop the daemon.
pub struct Daemon {
    paths: NodePaths,
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
    Manifests(FileError),
    #[error("node {0} is already up; change it with: meshctl local apply, or take it down first")]
    AlreadyUp(Name),
    #[error("not found: {}; build the whole mesh, or set the directory of its programs with --bin-dir", list(.0))]
    MissingPrograms(Vec<PathBuf>),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("start the node's daemon")]
    Start(#[source] io::Error),
    #[error("the node failed to start: {0}")]
    Failed(String),
    #[error(
        "node {name} is unreachable; it is not up, or its daemon crashed (then clean up with `meshctl local down`)"
    )]
    Unreachable { name: Name, source: io::Error },
    #[error("only root may tap the proxies of local node {0}; run the command as root")]
    ObserverNotRoot(Name),
    #[error("{0}")]
    Refused(String),
    #[error("invalid response of node {name}: {response:?}; is it of another version?")]
    InvalidResponse { name: Name, response: String },
}

/// Starts the daemon of a node, after cleaning up after an earlier one of the same name.
pub async fn start(paths: &NodePaths, options: UpOptions) -> Result<Daemon, ClientError> {
    host::check()?;
    let manifests = fs::canonicalize(&options.manifests).map_err(file::failed(
        "find the directory of manifests",
        &options.manifests,
    ))?;
    // Fails early if the directory is unreadable. The node reports invalid manifests.
    manifest::read_directory(&manifests).map_err(ClientError::Manifests)?;
    let lock = network::Lock::take()?;
    if status(paths).is_ok() {
        return Err(ClientError::AlreadyUp(paths.name().clone()));
    }
    if paths.state().exists() {
        clean::clean(paths).await?;
    }
    let overrides = AddressOverrides {
        pods_v4: options.pod_cidr,
        services_v4: options.service_cidr,
    };
    let others = NodePaths::all()?;
    let ipv6 = options.ipv6 && host::has_ipv6();
    let settings = Settings {
        manifests,
        bin_dir: options.bin_dir,
        cni_path: options.cni_path,
        tier: options.tier,
        network: network::allocate(&lock, &settings::networks(&others), ipv6, overrides)?,
        mesh: options.mesh,
    };
    let missing = settings.missing_programs();
    if settings.mesh && !missing.is_empty() {
        return Err(ClientError::MissingPrograms(missing));
    }
    settings.write(paths)?;
    let child = spawn(paths)?;
    Ok(Daemon {
        paths: paths.clone(),
        child,
    })
}

fn spawn(paths: &NodePaths) -> Result<Child, ClientError> {
    let path = paths.daemon_log();
    let file_error = file::failed("open the log", &path);
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(&file_error)?;
    }
    let log = fs::File::create(&path).map_err(&file_error)?;
    let second = log.try_clone().map_err(file_error)?;
    // The path of the executable could lead to a program that was rebuilt in the meantime.
    Command::new("/proc/self/exe")
        .args(["local", "run", paths.name().as_str()])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(second)
        .spawn()
        .map_err(ClientError::Start)
}

impl Daemon {
    /// Returns the state of the node, or `None` while it is starting.
    pub fn poll(&mut self) -> Result<Option<NodeStatus>, ClientError> {
        if let Ok(Some(_)) = self.child.try_wait() {
            let failure = fs::read_to_string(self.paths.failure()).unwrap_or_default();
            let log = self.paths.daemon_log();
            return Err(ClientError::Failed(if failure.is_empty() {
                format!("its daemon exited; its log is {}", log.display())
            } else {
                failure
            }));
        }
        match status(&self.paths) {
            Ok(status) => Ok(Some(status)),
            Err(ClientError::Unreachable { .. } | ClientError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

pub fn status(paths: &NodePaths) -> Result<NodeStatus, ClientError> {
    as_status(paths, request(paths, &Request::Status)?)
}

/// Requests the node to reload its manifests.
pub fn apply(paths: &NodePaths) -> Result<NodeStatus, ClientError> {
    as_status(paths, request(paths, &Request::Apply)?)
}

/// Returns a token that makes the caller the observer of the node's proxies. The caller must be
/// root.
pub fn observer(paths: &NodePaths) -> Result<Observer, ClientError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(ClientError::ObserverNotRoot(paths.name().clone()));
    }
    match request(paths, &Request::Observer)? {
        Response::Observer(observer) => Ok(*observer),
        other => Err(unexpected(paths, other)),
    }
}

/// Stops the node and removes everything it created, even if its daemon has crashed.
pub async fn down(paths: &NodePaths) -> Result<(), ClientError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(HostError::NotRoot.into());
    }
    match request(paths, &Request::Stop) {
        Ok(_) | Err(ClientError::Unreachable { .. } | ClientError::Refused(_)) => {}
        Err(error) => return Err(error),
    }
    clean::clean(paths).await?;
    Ok(())
}

/// Executes a command in a container. Returns only if that fails.
pub fn exec(
    paths: &NodePaths,
    pod: ObjectKey,
    container: Option<String>,
    command: Vec<String>,
) -> ExecError {
    let spec = match prepare_exec(paths, pod, container, command) {
        Ok(spec) => spec,
        Err(error) => return ExecError::Client(error),
    };
    ExecError::Shim(shim::exec(&spec))
}

#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error(transparent)]
    Client(ClientError),
    #[error(transparent)]
    Shim(ShimError),
}

fn prepare_exec(
    paths: &NodePaths,
    pod: ObjectKey,
    container: Option<String>,
    command: Vec<String>,
) -> Result<ExecSpec, ClientError> {
    let target = target(paths, pod, container)?;
    let start = creation(&target)?;
    let mut program = start.program;
    program.command = command;
    // The command uses the terminal of the caller.
    if let Ok(term) = std::env::var("TERM") {
        program.env.push(("TERM".into(), term));
    }
    Ok(ExecSpec {
        cgroup: start.cgroup,
        pid: target.pid,
        program,
    })
}

/// Returns the cgroup of a container.
pub fn cgroup(
    paths: &NodePaths,
    pod: ObjectKey,
    container: Option<String>,
) -> Result<PathBuf, ClientError> {
    let target = target(paths, pod, container)?;
    Ok(creation(&target)?.cgroup)
}

/// Reads the task that has created a container.
fn creation(target: &Target) -> Result<CreateSpec, ClientError> {
    let task_error = file::failed("read the container's task", &target.task);
    let text = fs::read(&target.task).map_err(&task_error)?;
    match serde_json::from_slice(&text).map_err(|error| task_error(error.into()))? {
        ShimTask::Create(start) => Ok(start),
        ShimTask::Exec(_) => {
            let other = io::Error::other("not the task of a container");
            Err(task_error(other).into())
        }
    }
}

fn target(
    paths: &NodePaths,
    pod: ObjectKey,
    container: Option<String>,
) -> Result<Target, ClientError> {
    match request(paths, &Request::Target { pod, container })? {
        Response::Target(target) => Ok(*target),
        other => Err(unexpected(paths, other)),
    }
}

fn as_status(paths: &NodePaths, response: Response) -> Result<NodeStatus, ClientError> {
    match response {
        Response::Status(status) => Ok(*status),
        other => Err(unexpected(paths, other)),
    }
}

fn unexpected(paths: &NodePaths, response: Response) -> ClientError {
    match response {
        Response::Refused(message) => ClientError::Refused(message),
        other => ClientError::InvalidResponse {
            name: paths.name().clone(),
            response: format!("{other:?}"),
        },
    }
}

/// Sends a request and waits for the response, blocking.
fn request(paths: &NodePaths, request: &Request) -> Result<Response, ClientError> {
    let exchange = || -> io::Result<String> {
        let mut stream = UnixStream::connect(paths.control_socket())?;
        let line = serde_json::to_string(request)?;
        io::Write::write_all(&mut stream, format!("{line}\n").as_bytes())?;
        let response = io::read_to_string(stream)?;
        if response.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(response)
    };
    let name = paths.name().clone();
    let response = exchange().map_err(|source| ClientError::Unreachable {
        name: name.clone(),
        source,
    })?;
    serde_json::from_str(&response)
        .map_err(|_invalid| ClientError::InvalidResponse { name, response })
}

fn list(paths: &[PathBuf]) -> String {
    let texts: Vec<String> = paths
        .iter()
        .map(|path| Path::display(path).to_string())
        .collect();
    texts.join(", ")
}
