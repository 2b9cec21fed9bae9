//! A Kubernetes cluster for tests and suites, driven through `kubectl`, `helm` and `meshctl`.
//! `MESH_TEST_CLUSTER` names its context.

pub mod installation;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

use crate::command::{Words, built, feed, output_text, succeed, text};

/// The context of the cluster, in kubectl's default kubeconfig.
const CONTEXT: &str = "MESH_TEST_CLUSTER";
/// The context of a second cluster, whose pods the first one's can connect to.
const LINKED_CONTEXT: &str = "MESH_TEST_LINKED_CLUSTER";
/// Set by `--long`.
const LONG: &str = "MESH_TEST_LONG";

/// Tests run one at a time, since a mesh is installed into the whole cluster.
static TURN: Mutex<()> = Mutex::new(());

pub struct Cluster {
    context: String,
    /// The program under test.
    meshctl: PathBuf,
    /// `None` for the second of two clusters, which the turn of the first one includes.
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Cluster {
    /// Waits for exclusive use of the cluster. Without a cluster, prints that the test is skipped.
    pub fn acquire(test: &str) -> Option<Self> {
        let Ok(context) = std::env::var(CONTEXT) else {
            println!("skipped: {test}: no cluster; set {CONTEXT} to the context of one");
            return None;
        };
        Some(Self::new(context, built("meshctl")))
    }

    /// Waits for exclusive use of the cluster of a context, whose mesh this `meshctl` operates.
    pub fn new(context: String, meshctl: PathBuf) -> Self {
        Self {
            context,
            meshctl,
            _turn: Some(TURN.lock()),
        }
    }

    /// Like [`Cluster::acquire`], for tests that need two clusters.
    pub fn acquire_two(test: &str) -> Option<(Self, Self)> {
        let Ok(context) = std::env::var(LINKED_CONTEXT) else {
            println!("skipped: {test}: no second cluster; set {LINKED_CONTEXT} to its context");
            return None;
        };
        let first = Self::acquire(test)?;
        let second = Self {
            context,
            meshctl: first.meshctl.clone(),
            _turn: None,
        };
        Some((first, second))
    }

    /// Like [`Cluster::acquire_two`], for tests that take minutes and run only with `--long`.
    pub fn acquire_two_for_long_test(test: &str) -> Option<(Self, Self)> {
        is_long(test).then(|| Self::acquire_two(test))?
    }

    /// Returns the context of the cluster.
    pub fn context(&self) -> &str {
        &self.context
    }

    /// Like [`Cluster::acquire`], for tests that take minutes and run only with `--long`.
    pub fn acquire_for_long_test(test: &str) -> Option<Self> {
        is_long(test).then(|| Self::acquire(test))?
    }

    /// Returns a command with the program's flag for the cluster's context.
    pub fn program(&self, name: &str) -> Command {
        let mut command = match name {
            "meshctl" => Command::new(&self.meshctl),
            _ => Command::new(name),
        };
        let flag = match name {
            "helm" => "--kube-context",
            _ => "--context",
        };
        command.args([flag, &self.context]);
        command.stdin(Stdio::null());
        command
    }

    pub fn kubectl(&self, args: impl Words) -> String {
        succeed(self.program("kubectl").args(args.words()))
    }

    /// Returns whether kubectl succeeded, and its output.
    pub fn try_kubectl(&self, args: impl Words) -> (bool, String) {
        self.attempt("kubectl", args)
    }

    pub fn json(&self, args: impl Words) -> Value {
        let args = [args.words(), vec!["-o", "json"]].concat();
        let text = self.kubectl(&args);
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("kubectl {args:?}: {error}: {text}"))
    }

    pub fn meshctl(&self, args: impl Words) -> String {
        succeed(self.program("meshctl").args(args.words()))
    }

    pub fn try_meshctl(&self, args: impl Words) -> (bool, String) {
        self.attempt("meshctl", args)
    }

    fn attempt(&self, name: &str, args: impl Words) -> (bool, String) {
        let output = self.program(name).args(args.words()).output();
        let output = output.unwrap_or_else(|error| panic!("{name}: {error}"));
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        (output.status.success(), stdout + &stderr)
    }

    /// Applies manifests given as text.
    pub fn apply(&self, manifests: &str) {
        self.feed("apply --server-side -f -", manifests);
    }

    /// Deletes the objects of manifests given as text, if they exist.
    pub fn delete(&self, manifests: &str) {
        self.feed("delete --ignore-not-found --timeout=180s -f -", manifests);
    }

    fn feed(&self, args: &str, manifests: &str) {
        let output = feed(self.program("kubectl").args(args.words()), manifests);
        let shown = output_text(&output);
        assert!(output.status.success(), "kubectl {args}: {shown}");
    }

    /// Runs a program in a workload's container; returns whether it succeeded, and its output.
    pub fn exec(&self, namespace: &str, workload: &str, command: impl Words) -> (bool, String) {
        let place = format!("exec -n {namespace} {workload} -c main --");
        self.try_kubectl([place.words(), command.words()].concat())
    }

    /// Returns the items of a list.
    pub fn list(&self, args: impl Words) -> Vec<Value> {
        let args = [vec!["get"], args.words()].concat();
        match self.json(&args)["items"].take() {
            Value::Array(items) => items,
            other => panic!("kubectl {args:?} gave no list: {other}"),
        }
    }

    /// Returns the pods of a selection, such as `-n shop -l app=web`, that are not terminating.
    pub fn pods(&self, selection: &str) -> Vec<Value> {
        let mut pods = self.list(format!("pods {selection}"));
        pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        pods
    }

    pub fn rolled_out(&self, namespace: &str, workload: &str) {
        self.kubectl(format!(
            "rollout status -n {namespace} {workload} --timeout=180s"
        ));
    }

    /// Deletes a namespace and waits until all of its objects are deleted.
    pub fn delete_namespace(&self, name: &str) {
        self.kubectl(format!(
            "delete namespace {name} --ignore-not-found --timeout=180s"
        ));
    }
}

/// Returns whether tests that take minutes run. If not, prints that this one is skipped.
fn is_long(test: &str) -> bool {
    let is_long = std::env::var_os(LONG).is_some();
    if !is_long {
        println!("skipped: {test}: takes minutes; `cargo xtask test --e2e --long` runs it");
    }
    is_long
}

/// Succeeds if the text contains the part; otherwise the text is the reason.
pub fn contains(text: String, part: &str) -> Result<(), String> {
    if text.contains(part) {
        Ok(())
    } else {
        Err(text)
    }
}
