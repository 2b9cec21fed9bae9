//! The real binary, with the environment that an injector would set.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;

use super::control::PORT;
use super::eventually;
use super::net::Namespace;
use super::pod::Pod;

/// A running proxy. Dropping it kills it; its log is shown when the test fails.
pub(crate) struct Proxy {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    _files: tempfile::TempDir,
}

impl Proxy {
    pub(super) fn start(pod: &Pod, namespace: &Namespace, more: &[(&str, &str)]) -> Self {
        let files = tempfile::tempdir().unwrap();
        // The proxy's user must be able to read its token.
        std::fs::set_permissions(files.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let token = files.path().join("token");
        std::fs::write(&token, "the-token").unwrap();

        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &namespace.name])
            .args(["setpriv", "--reuid=2102", "--regid=2102", "--clear-groups"])
            .arg(env!("CARGO_BIN_EXE_mesh-proxy"))
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LINKERD2_PROXY_IDENTITY_TOKEN_FILE", token);
        for (name, value) in environment(pod) {
            command.env(format!("LINKERD2_PROXY_{name}"), value);
        }
        for (name, value) in more {
            let ours = name.starts_with("MESH_PROXY_");
            let prefix = if ours { "" } else { "LINKERD2_PROXY_" };
            command.env(format!("{prefix}{name}"), value);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let collected = log.clone();
        std::thread::spawn(move || lines.for_each(|line| collected.lock().extend(line)));
        Self {
            child,
            log,
            _files: files,
        }
    }

    /// Waits until the proxy is ready.
    pub(super) async fn ready(&self, pod: &Pod) {
        eventually("the proxy is ready", || async {
            let answer = pod.try_get(([127, 0, 0, 1], 4191), "/ready").await?;
            answer.starts_with("HTTP/1.1 200").then_some(())
        })
        .await;
    }

    /// Asks the proxy to stop, as the kubelet does.
    pub(crate) fn terminate(&self) {
        kill(self.pid(), Signal::SIGTERM).unwrap();
    }

    /// Waits for the proxy's end.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let child = Mutex::new(&mut self.child);
        eventually("the proxy ends", || async {
            child.lock().try_wait().unwrap()
        })
        .await
    }

    /// Whether the log has a line with this text by now.
    pub(crate) async fn logged(&self, text: &str) {
        eventually(&format!("{text:?} in the log"), || async {
            self.log
                .lock()
                .iter()
                .any(|line| line.contains(text))
                .then_some(())
        })
        .await;
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            for line in self.log.lock().iter() {
                println!("{line}");
            }
        }
    }
}

fn environment(pod: &Pod) -> Vec<(&'static str, String)> {
    let control = format!("localhost.:{PORT}");
    vec![
        ("LOG", "warn,mesh=debug".to_owned()),
        ("DESTINATION_SVC_ADDR", control.clone()),
        ("POLICY_SVC_ADDR", control.clone()),
        ("IDENTITY_SVC_ADDR", control),
        ("DESTINATION_CONTEXT", pod.name.clone()),
        ("POLICY_WORKLOAD", pod.name.clone()),
        ("DESTINATION_PROFILE_NETWORKS", "10.0.0.0/8".to_owned()),
        ("POLICY_CLUSTER_NETWORKS", "10.0.0.0/8".to_owned()),
        ("IDENTITY_TRUST_ANCHORS", pod.control.anchors()),
        ("IDENTITY_LOCAL_NAME", pod.identity()),
        ("INBOUND_DEFAULT_POLICY", "all-unauthenticated".to_owned()),
        ("INBOUND_IPS", format!("{},{}", pod.ip, pod.ip6)),
        (
            "OUTBOUND_LISTEN_ADDRS",
            "127.0.0.1:4140,[::1]:4140".to_owned(),
        ),
        ("INBOUND_LISTEN_ADDR", "[::]:4143".to_owned()),
        ("ADMIN_LISTEN_ADDR", "[::]:4191".to_owned()),
        ("CORES", "1".to_owned()),
    ]
}
