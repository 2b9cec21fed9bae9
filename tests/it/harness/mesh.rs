//! A whole mesh for one test: a local node, driven through `meshctl` as a user would.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use mesh_test_support::command::{Words, built, output_text, text};
use mesh_test_support::program::Program;
use serde_json::Value;

/// Numbers the nodes of this test process.
static NEXT: AtomicU16 = AtomicU16::new(1);

pub(crate) struct Mesh {
    name: String,
    dir: tempfile::TempDir,
    meshctl: PathBuf,
}

impl Mesh {
    /// Starts a node with these manifests (file name and text) and waits until everything is ready.
    pub(crate) fn up(manifests: &[(&str, &str)]) -> Self {
        Self::up_with(manifests, &[])
    }

    /// The same, with further options of `meshctl local up`.
    pub(crate) fn up_with(manifests: &[(&str, &str)], options: &[&str]) -> Self {
        Self::up_by(built("meshctl"), manifests, options)
    }

    /// The same, by another meshctl than this release's.
    pub(crate) fn up_by(meshctl: PathBuf, manifests: &[(&str, &str)], options: &[&str]) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("it{:x}-{number}", std::process::id() & 0xffff);
        let dir = tempfile::Builder::new()
            .prefix(&name)
            .tempdir()
            .expect("a temporary directory");
        let mesh = Self { name, dir, meshctl };
        for (file, text) in manifests {
            mesh.write(file, text);
        }
        let up = ["local", "up", mesh.directory(), "--name", &mesh.name];
        mesh.meshctl([&up[..], options].concat());
        mesh
    }

    /// Adds or replaces a manifest, which running controllers reload.
    pub(crate) fn write(&self, file: &str, text: &str) {
        std::fs::write(self.dir.path().join(file), text).expect("a manifest");
    }

    pub(crate) fn remove(&self, file: &str) {
        std::fs::remove_file(self.dir.path().join(file)).expect("the manifest was there");
    }

    fn directory(&self) -> &str {
        self.dir
            .path()
            .to_str()
            .expect("temporary directories have plain names")
    }

    /// Runs meshctl, which must succeed, and returns its output.
    pub(crate) fn meshctl(&self, args: impl Words) -> String {
        let output = self.try_meshctl(&args);
        let (args, shown) = (args.words(), output_text(&output));
        assert!(output.status.success(), "meshctl {args:?}: {shown}");
        text(&output.stdout)
    }

    pub(crate) fn try_meshctl(&self, args: impl Words) -> Output {
        self.command(args).output().expect("meshctl runs")
    }

    pub(crate) fn json(&self, args: impl Words) -> Value {
        let text = self.meshctl(&args);
        let args = args.words();
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("meshctl {args:?}: {error}: {text}"))
    }

    /// Runs a program in a pod and returns its output, with exit status and standard error if it
    /// failed.
    pub(crate) fn exec(&self, pod: &str, command: impl Words) -> String {
        let output = self.in_pod(pod, command).output().expect("meshctl runs");
        let mut printed = text(&output.stdout);
        if !output.status.success() {
            printed += &format!("[{}] {}", output.status, text(&output.stderr));
        }
        printed
    }

    /// Starts a program in a pod whose output is read later.
    pub(crate) fn start(&self, pod: &str, command: impl Words) -> Program {
        Program::start(self.in_pod(pod, command).stderr(Stdio::null()))
    }

    fn in_pod(&self, pod: &str, command: impl Words) -> Command {
        let place = vec!["local", "exec", pod, "--"];
        self.command([place, command.words()].concat())
    }

    /// Starts meshctl, whose output is read later.
    pub(crate) fn start_meshctl(&self, args: impl Words) -> Program {
        Program::start(&mut self.command(args))
    }

    /// The name of the node.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The primary address of a pod.
    pub(crate) fn address(&self, namespace: &str, name: &str) -> String {
        let status = self.json("local status -o json");
        let mut pods = status["pods"]
            .as_array()
            .expect("the status lists pods")
            .iter();
        let pod = pods.find(|pod| pod["name"] == name && pod["namespace"] == namespace);
        let address = pod.and_then(|pod| pod["ips"][0].as_str());
        address
            .unwrap_or_else(|| panic!("{namespace}/{name} has no address: {status}"))
            .to_owned()
    }

    /// The metrics of a pod's proxy, one sample a line, without comments.
    pub(crate) fn metrics(&self, pod: &str) -> Vec<String> {
        let text = self.meshctl(["diagnostics", "proxy-metrics", pod]);
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .map(str::to_owned)
            .collect()
    }

    /// The processes of this program that the node runs, by their cgroup.
    pub(crate) fn processes(&self, program: &str) -> Vec<u32> {
        let own = format!("/mesh-local/{}/", self.name);
        let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid: &u32| {
            let read =
                |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let name = text(&read("cmdline"));
            let name = name.split('\0').next().unwrap_or_default();
            Path::new(name).ends_with(program) && text(&read("cgroup")).contains(&own)
        })
        .collect()
    }

    fn command(&self, args: impl Words) -> Command {
        let mut command = Command::new(&self.meshctl);
        command
            .args(args.words())
            .env("MESHCTL_LOCAL", &self.name)
            .stdin(Stdio::null());
        command
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        let output = self.try_meshctl(["local", "down", self.directory()]);
        if !output.status.success() && !std::thread::panicking() {
            panic!("the node could not be removed: {}", output_text(&output));
        }
    }
}
