//! The cluster of the tests, selected by the context in `MESH_TEST_CLUSTER` and driven through
//! `kubectl`.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

/// The context of the cluster, in kubectl's default kubeconfig.
const CONTEXT: &str = "MESH_TEST_CLUSTER";
/// Set by `--long`.
const LONG: &str = "MESH_TEST_LONG";

/// Timeout of conditions.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Interval of polls, each of which starts a few processes.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Tests run one at a time, since a mesh is installed into the whole cluster.
static TURN: Mutex<()> = Mutex::new(());

pub(crate) struct Cluster {
    context: String,
    _turn: MutexGuard<'static, ()>,
}

impl Cluster {
    /// Waits for exclusive use of the cluster. Without a cluster, prints that the test is skipped.
    pub(crate) fn acquire(test: &str) -> Option<Self> {
        let Ok(context) = std::env::var(CONTEXT) else {
            println!("skipped: {test}: no cluster; set {CONTEXT} to the context of one");
            return None;
        };
        Some(Self {
            context,
            _turn: TURN.lock(),
        })
    }

    /// Like [`Cluster::acquire`], for tests that take minutes and run only with `--long`.
    pub(crate) fn acquire_for_long_test(test: &str) -> Option<Self> {
        if std::env::var_os(LONG).is_none() {
            println!("skipped: {test}: takes minutes; `cargo xtask test --e2e --long` runs it");
            return None;
        }
        Self::acquire(test)
    }

    /// Returns a command with the program's flag for the cluster's context.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = match name {
            "helm" => {
                let mut command = Command::new(name);
                command.args(["--kube-context", &self.context]);
                command
            }
            "meshctl" => {
                let mut command = Command::new(built("meshctl"));
                command.args(["--context", &self.context]);
                command
            }
            _ => {
                let mut command = Command::new(name);
                command.args(["--context", &self.context]);
                command
            }
        };
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        succeed(self.program("kubectl").args(args))
    }

    /// Returns whether kubectl succeeded, and its output.
    pub(crate) fn try_kubectl(&self, args: &[&str]) -> (bool, String) {
        attempt(self.program("kubectl").args(args))
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let text = self.kubectl(&[args, &["-o", "json"]].concat());
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("kubectl {args:?}: {error}: {text}"))
    }

    pub(crate) fn meshctl(&self, args: &[&str]) -> String {
        succeed(self.program("meshctl").args(args))
    }

    pub(crate) fn try_meshctl(&self, args: &[&str]) -> (bool, String) {
        attempt(self.program("meshctl").args(args))
    }

    /// Applies manifests given as text.
    pub(crate) fn apply(&self, manifests: &str) {
        self.feed(&["apply", "--server-side", "-f", "-"], manifests);
    }

    /// Deletes the objects of manifests given as text, if they exist.
    pub(crate) fn delete(&self, manifests: &str) {
        self.feed(
            &["delete", "--ignore-not-found", "--timeout=180s", "-f", "-"],
            manifests,
        );
    }

    fn feed(&self, args: &[&str], manifests: &str) {
        let mut child = self
            .program("kubectl")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl is on PATH");
        let mut input = child.stdin.take().expect("stdin is piped");
        input
            .write_all(manifests.as_bytes())
            .expect("kubectl reads");
        drop(input);
        let output = child.wait_with_output().expect("kubectl exits");
        assert!(
            output.status.success(),
            "kubectl {args:?}: {}",
            output_text(&output)
        );
    }

    /// Runs a program in a workload's container; returns whether it succeeded, and its output.
    pub(crate) fn exec(&self, namespace: &str, workload: &str, command: &[&str]) -> (bool, String) {
        let place = ["exec", "-n", namespace, workload, "-c", "main", "--"];
        self.try_kubectl(&[&place, command].concat())
    }

    /// Returns the items of a list.
    pub(crate) fn list(&self, args: &[&str]) -> Vec<Value> {
        match self.json(&[&["get"], args].concat())["items"].take() {
            Value::Array(items) => items,
            other => panic!("kubectl get {args:?} gave no list: {other}"),
        }
    }

    pub(crate) fn rolled_out(&self, namespace: &str, workload: &str) {
        self.kubectl(&[
            "rollout",
            "status",
            "-n",
            namespace,
            workload,
            "--timeout=180s",
        ]);
    }

    /// Deletes a namespace and waits until all of its objects are deleted.
    pub(crate) fn delete_namespace(&self, name: &str) {
        self.kubectl(&[
            "delete",
            "namespace",
            name,
            "--ignore-not-found",
            "--timeout=180s",
        ]);
    }
}

/// Waits until a condition holds; until then `look` returns the reason.
pub(crate) fn wait_until(what: &str, mut look: impl FnMut() -> Result<(), String>) {
    let start = Instant::now();
    while let Err(why) = look() {
        assert!(start.elapsed() < TIMEOUT, "timed out: {what}\n{why}");
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// Returns the path of a program of this workspace, built next to the test.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let directory = test.parent().and_then(|deps| deps.parent());
    directory
        .expect("the test is in target/<profile>/deps")
        .join(name)
}

/// Runs a command and returns its output; panics with the output if it fails.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = run(command);
    assert!(
        output.status.success(),
        "{command:?}: {}",
        output_text(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn attempt(command: &mut Command) -> (bool, String) {
    let output = run(command);
    (output.status.success(), output_text(&output))
}

fn run(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn output_text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}
