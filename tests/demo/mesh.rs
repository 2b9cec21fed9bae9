//! The mesh of the demo: where its application runs ([`Environment`]: a local node or a cluster),
//! and `meshctl`, which works with both.

mod cluster;
mod local;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, bail};
use mesh_test_support::command::Words;
use mesh_test_support::eventually::try_eventually;
use serde_json::Value;

pub(crate) use self::{cluster::Cluster, local::Local};

/// The namespace of the application.
const NAMESPACE: &str = "demo";

/// The injection annotation in the namespace manifest.
const INJECT_ENABLED: &str = "linkerd.io/inject: enabled";
const INJECT_DISABLED: &str = "linkerd.io/inject: disabled";

/// Where the application of the demo runs.
pub(crate) trait Environment {
    /// Prepares the mesh and the application of these manifests, with injection disabled.
    fn prepare(&self, manifests: &Path) -> anyhow::Result<()>;
    /// Starts the application, unmeshed.
    fn up(&self) -> anyhow::Result<()>;
    /// Enables injection, as a user who annotates a namespace, and restarts the pods.
    fn enable_injection(&self) -> anyhow::Result<()>;
    fn add_policy(&self, manifest: &Path) -> anyhow::Result<()>;
    fn remove_policy(&self, manifest: &Path) -> anyhow::Result<()>;
    /// Returns the names of the application's running pods.
    fn pods(&self) -> anyhow::Result<Vec<String>>;
    /// Returns a command that runs a program in a pod.
    fn exec(&self, pod: &str, command: &[&str]) -> Command;
    /// Selects the mesh for meshctl.
    fn select_mesh(&self, meshctl: &mut Command);
    /// Removes everything that the demo created, if anything.
    fn down(&self) -> anyhow::Result<()>;
    /// Returns commands to inspect the mesh.
    fn inspection_hints(&self, meshctl: &str) -> String;
}

pub(crate) struct Mesh {
    meshctl: PathBuf,
    pub(crate) environment: Box<dyn Environment>,
}

impl Mesh {
    pub(crate) fn new(meshctl: PathBuf, environment: Box<dyn Environment>) -> Self {
        Self {
            meshctl,
            environment,
        }
    }

    /// Runs meshctl and returns its output.
    pub(crate) fn run(&self, args: impl Words) -> anyhow::Result<String> {
        succeed(&mut self.command(args))
    }

    /// Runs meshctl and returns its output, whatever its exit code.
    pub(crate) fn run_any_status(&self, args: impl Words) -> anyhow::Result<String> {
        let output = output(&mut self.command(args))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn command(&self, args: impl Words) -> Command {
        let mut command = Command::new(&self.meshctl);
        self.environment.select_mesh(&mut command);
        command.args(args.words()).stdin(Stdio::null());
        command
    }

    pub(crate) fn json(&self, args: &str) -> anyhow::Result<Value> {
        let text = self.run(args)?;
        serde_json::from_str(&text).with_context(|| format!("meshctl {args} printed no JSON"))
    }

    /// Runs a program in a pod and returns its output.
    pub(crate) fn exec(&self, pod: &str, command: impl Words) -> anyhow::Result<String> {
        succeed(&mut self.exec_command(pod, command))
    }

    /// A program in a pod, to be started and waited for by the caller.
    pub(crate) fn exec_command(&self, pod: &str, command: impl Words) -> Command {
        let mut command = self.environment.exec(pod, &command.words());
        command.stdin(Stdio::null());
        command
    }

    /// The metrics of a pod's proxy, one sample a line, without comments.
    pub(crate) fn proxy_metrics(&self, pod: &str) -> anyhow::Result<Vec<String>> {
        let text = self.run(["diagnostics", "proxy-metrics", pod])?;
        Ok(text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(str::to_owned)
            .collect())
    }

    /// Returns the names of the pods with this prefix, in alphabetical order.
    pub(crate) fn pods(&self, prefix: &str) -> anyhow::Result<Vec<String>> {
        let mut names = self.environment.pods()?;
        names.retain(|name| name.starts_with(prefix));
        names.sort();
        Ok(names)
    }

    pub(crate) fn inspection_hints(&self) -> String {
        self.environment
            .inspection_hints(&self.meshctl.display().to_string())
    }
}

/// Runs a command and returns its output, or an error with output and exit status.
fn succeed(command: &mut Command) -> anyhow::Result<String> {
    let output = output(command)?;
    check_status(command, output)
}

fn output(command: &mut Command) -> anyhow::Result<Output> {
    command
        .output()
        .with_context(|| format!("run {}", display_command(command)))
}

fn check_status(command: &Command, output: Output) -> anyhow::Result<String> {
    if !output.status.success() {
        bail!(
            "`{}`: {}\n{}{}",
            display_command(command),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn display_command(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words = std::iter::once(name).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Polls `look` until it returns a value.
pub(crate) fn wait_until<T>(
    what: &str,
    look: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    try_eventually(what, look)
}
