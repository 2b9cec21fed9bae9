//! The demo's local node, driven through `meshctl` as a user would.

use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use serde_json::Value;

/// Where the demo's copy of the manifests is, so that `--keep` and `--down` find it again. A reboot clears it.
const FOLDER: &str = "/run/mesh-demo";

/// The node's name, so that other nodes of the machine are left alone.
const NAME: &str = "mesh-demo";

/// The annotation that asks for the mesh, as the namespace manifest has it.
const ASK: &str = "linkerd.io/inject: enabled";
const DO_NOT_ASK: &str = "linkerd.io/inject: disabled";

/// A condition of the demo that does not hold in this time never will.
const NEVER: Duration = Duration::from_secs(60);
/// Between two looks at such a condition.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

pub(crate) struct Mesh {
    pub(crate) meshctl: PathBuf,
    dir: PathBuf,
}

impl Mesh {
    pub(crate) fn of_programs(programs: &Path) -> anyhow::Result<Self> {
        let meshctl = programs.join("meshctl");
        if !meshctl.exists() {
            bail!(
                "{} is not there: run `cargo xtask build --dev` first",
                meshctl.display()
            );
        }
        Ok(Self {
            meshctl,
            dir: PathBuf::from(FOLDER),
        })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Copies the manifests into the demo's folder, without the wish to be meshed.
    pub(crate) fn write_manifests(&self, from: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.dir)
            .with_context(|| format!("create {}", self.dir.display()))?;
        for entry in std::fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
            let path = entry?.path();
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("read {}", path.display()))?;
            let name = path.file_name().context("a manifest has a name")?;
            std::fs::write(self.dir.join(name), text.replace(ASK, DO_NOT_ASK))?;
        }
        Ok(())
    }

    /// Puts the wish to be meshed back, as a user who annotates a namespace.
    pub(crate) fn ask_for_mesh(&self) -> anyhow::Result<()> {
        let manifest = self.dir.join("00-namespace.yaml");
        let text = std::fs::read_to_string(&manifest)?;
        std::fs::write(&manifest, text.replace(DO_NOT_ASK, ASK))?;
        self.run(&["local", "apply", FOLDER]).map(|_| ())
    }

    pub(crate) fn up(&self) -> anyhow::Result<()> {
        self.run(&["local", "up", FOLDER, "--name", NAME])
            .map(|_| ())
    }

    /// Removes the node and its folder; does nothing when there is none. In a process group of its own, so that a second Ctrl-C cannot stop it halfway.
    pub(crate) fn down(&self) -> anyhow::Result<()> {
        if !self.dir.exists() {
            return Ok(());
        }
        let output = self
            .command(&["local", "down", FOLDER])
            .process_group(0)
            .output()
            .context("run meshctl")?;
        succeed(&["local", "down"], output)?;
        std::fs::remove_dir_all(&self.dir).with_context(|| format!("remove {}", self.dir.display()))
    }

    /// Runs meshctl and returns what it printed.
    pub(crate) fn run(&self, args: &[&str]) -> anyhow::Result<String> {
        succeed(args, self.command(args).output().context("run meshctl")?)
    }

    pub(crate) fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        let text = self.run(args)?;
        serde_json::from_str(&text)
            .with_context(|| format!("meshctl {} printed no JSON", args.join(" ")))
    }

    /// Runs a program in a pod and returns what it printed.
    pub(crate) fn exec(&self, pod: &str, command: &[&str]) -> anyhow::Result<String> {
        self.run(&[&["local", "exec", pod, "--"], command].concat())
    }

    /// A program in a pod, to be started and waited for by the caller.
    pub(crate) fn exec_command(&self, pod: &str, command: &[&str]) -> Command {
        self.command(&[&["local", "exec", pod, "--"], command].concat())
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
        let status = self.json(&["local", "status", "-o", "json"])?;
        let pods = status["pods"]
            .as_array()
            .context("the node's status lists its pods")?;
        let mut names: Vec<String> = pods
            .iter()
            .filter_map(|pod| pod["name"].as_str())
            .filter(|name| name.starts_with(prefix))
            .map(str::to_owned)
            .collect();
        names.sort();
        Ok(names)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.meshctl);
        command
            .args(args)
            .env("MESHCTL_LOCAL", NAME)
            .stdin(Stdio::null());
        command
    }
}

fn succeed(args: &[&str], output: Output) -> anyhow::Result<String> {
    if !output.status.success() {
        bail!(
            "`meshctl {}`: {}\n{}{}",
            args.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
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
