//! Packaged programs that run in pods.

use std::process::{Child, Command, Stdio};

use super::{Pod, eventually, within};

/// A server process; dropping it kills it.
pub(crate) struct Program {
    child: Child,
}

impl Program {
    /// Starts a server and waits until its port accepts.
    pub(crate) async fn serve(pod: &Pod, port: u16, mut command: Command) -> Self {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = pod.spawn(async move { command.spawn() }).await.unwrap();
        let program = Self { child };
        eventually("the program listens", || async {
            pod.connect(([127, 0, 0, 1], port)).await.ok()
        })
        .await;
        program
    }

    /// Runs a client to its end and returns what it printed. A client that fails fails the test.
    pub(crate) async fn run(pod: &Pod, mut command: Command) -> String {
        command.stdin(Stdio::null());
        let shown = format!("{command:?}");
        let waited = pod.spawn(async move {
            // Waiting on a thread of its own would put the child outside the pod's namespace.
            let child = command
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            tokio::task::spawn_blocking(move || child.wait_with_output())
                .await
                .unwrap()
        });
        let output = within(&shown, waited).await.unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{shown}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Whether a program can be started here; says so when it cannot.
    pub(crate) fn is_installed(name: &str) -> bool {
        let found = Command::new("sh")
            .args(["-c", "command -v \"$0\"", name])
            .output();
        let installed = found.is_ok_and(|output| output.status.success());
        if !installed {
            println!("skipped: {name} is not installed");
        }
        installed
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
