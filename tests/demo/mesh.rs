//! The mesh of the demo: where its application runs ([`Place`]: a local node or a cluster), and
//! `meshctl`, which asks both the same questions.

mod cluster;
mod local;

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use serde_json::Value;

pub(crate) use self::{cluster::Cluster, local::Local};

/// The namespace of the application, in every place.
const NAMESPACE: &str = "demo";

/// The annotation that asks for the mesh, as the namespace manifest has it.
const ASK: &str = "linkerd.io/inject: enabled";
const DO_NOT_ASK: &str = "linkerd.io/inject: disabled";

/// A condition of the demo that does not hold in this time never will.
const NEVER: Duration = Duration::from_secs(120);
/// Between two looks at such a condition.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Where the application of the demo runs.
pub(crate) trait Place {
    /// Makes the mesh and the application of these manifests ready to start, without the wish to be
    /// meshed.
    fn prepare(&self, manifests: &Path) -> anyhow::Result<()>;
    /// Starts the application, unmeshed.
    fn up(&self) -> anyhow::Result<()>;
    /// Puts the wish to be meshed back, as a user who annotates a namespace, and starts the pods
    /// again.
    fn ask_for_mesh(&self) -> anyhow::Result<()>;
    fn add_policy(&self, manifest: &Path) -> anyhow::Result<()>;
    fn remove_policy(&self, manifest: &Path) -> anyhow::Result<()>;
    /// The names of the application's pods that run.
    fn pods(&self) -> anyhow::Result<Vec<String>>;
    /// A program in a pod.
    fn exec(&self, pod: &str, command: &[&str]) -> Command;
    /// Tells meshctl which mesh is meant.
    fn choose(&self, meshctl: &mut Command);
    /// Removes everything the demo made; does nothing when there is nothing.
    fn down(&self) -> anyhow::Result<()>;
    /// What to type to look around.
    fn ways_to_look(&self, meshctl: &str) -> String;
}

pub(crate) struct Mesh {
    meshctl: PathBuf,
    pub(crate) place: Box<dyn Place>,
}

impl Mesh {
    pub(crate) fn new(meshctl: PathBuf, place: Box<dyn Place>) -> Self {
        Self { meshctl, place }
    }

    /// Runs meshctl and returns what it printed.
    pub(crate) fn run(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.meshctl);
        self.place.choose(&mut command);
        succeed(command.args(args).stdin(Stdio::null()))
    }

    pub(crate) fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        let text = self.run(args)?;
        serde_json::from_str(&text)
            .with_context(|| format!("meshctl {} printed no JSON", args.join(" ")))
    }

    /// Runs a program in a pod and returns what it printed.
    pub(crate) fn exec(&self, pod: &str, command: &[&str]) -> anyhow::Result<String> {
        succeed(&mut self.exec_command(pod, command))
    }

    /// A program in a pod, to be started and waited for by the caller.
    pub(crate) fn exec_command(&self, pod: &str, command: &[&str]) -> Command {
        let mut command = self.place.exec(pod, command);
        command.stdin(Stdio::null());
        command
    }

    /// The metrics of a pod's proxy, one sample a line, without comments.
    pub(crate) fn proxy_metrics(&self, pod: &str) -> anyhow::Result<Vec<String>> {
        let text = self.run(&["diagnostics", "proxy-metrics", pod])?;
        Ok(text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(str::to_owned)
            .collect())
    }

    /// The names of the pods whose name begins so, in alphabetical order.
    pub(crate) fn pods(&self, prefix: &str) -> anyhow::Result<Vec<String>> {
        let mut names = self.place.pods()?;
        names.retain(|name| name.starts_with(prefix));
        names.sort();
        Ok(names)
    }

    pub(crate) fn ways_to_look(&self) -> String {
        self.place.ways_to_look(&self.meshctl.display().to_string())
    }
}

/// Runs a command to its end; what it printed, or an error with everything it said.
fn succeed(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .output()
        .with_context(|| format!("run {}", shown(command)))?;
    judge(command, output)
}

fn judge(command: &Command, output: Output) -> anyhow::Result<String> {
    if !output.status.success() {
        bail!(
            "`{}`: {}\n{}{}",
            shown(command),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words = std::iter::once(name).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Waits until `look` finds something, and says how long that took.
pub(crate) fn until<T>(
    what: &str,
    mut look: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<(T, Duration)> {
    let start = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok((found, start.elapsed()));
        }
        if start.elapsed() > NEVER {
            bail!("{what} did not happen within {} s", NEVER.as_secs());
        }
        std::thread::park_timeout(LOOK_AGAIN);
    }
}
