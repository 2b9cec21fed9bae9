//! Starts a controller on free ports. It is killed when the test ends.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mesh_test_support::http;
use mesh_test_support::network::free_address;
use mesh_test_support::program::Program;
use tonic::Streaming;
use tonic::transport::Channel;

pub(crate) use mesh_test_support::eventually::eventually_async as eventually;

/// Sufficient for a loaded host; a test that passes does not wait this long.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Controller {
    pub(crate) grpc: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) program: Program,
}

/// A directory of manifests.
pub(crate) struct ManifestDir(tempfile::TempDir);

impl ManifestDir {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Replaces a file atomically, like editors.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let draft = self.path().join(format!(".{name}"));
        fs::write(&draft, text).unwrap();
        fs::rename(draft, self.path().join(name)).unwrap();
    }

    pub(crate) fn delete(&self, name: &str) {
        fs::remove_file(self.path().join(name)).unwrap();
    }
}

impl Controller {
    /// Starts `mesh-controller <service>` without waiting. The names of the address flags differ
    /// between services.
    pub(crate) fn start(service: &str, grpc_flag: &str, admin_flag: &str, args: &[String]) -> Self {
        let (grpc, admin) = (free_address(), free_address());
        let mut command = Command::new(env!("CARGO_BIN_EXE_mesh-controller"));
        command
            .arg(service)
            .args([
                format!("{grpc_flag}={grpc}"),
                format!("{admin_flag}={admin}"),
            ])
            .arg("--log-level=debug,h2=info,tower=info,hyper=info")
            .args(args);
        Self {
            grpc,
            admin,
            program: Program::start(&mut command),
        }
    }

    pub(crate) async fn destination(dirs: &[&ManifestDir]) -> Self {
        let started = Self::start("destination", "--addr", "--metrics-addr", &sources(dirs));
        started.ready().await
    }

    pub(crate) async fn policy(dirs: &[&ManifestDir]) -> Self {
        let started = Self::start("policy", "--grpc-addr", "--admin-addr", &sources(dirs));
        started.ready().await
    }

    pub(crate) async fn ready(self) -> Self {
        eventually("the controller to be ready", async || {
            self.admin_get("/ready")
                .is_some_and(|(status, _)| status == 200)
        })
        .await;
        self
    }

    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(format!("http://{}", self.grpc)).unwrap();
        eventually("a gRPC connection", async || endpoint.connect().await.ok()).await
    }

    /// Waits until a log line contains the text.
    pub(crate) async fn logged(&self, text: &str) -> String {
        self.program.logged(text).await
    }

    /// Returns status and body; `None` while the port is closed.
    pub(crate) fn admin_get(&self, path: &str) -> Option<(u16, String)> {
        let response = http::request(self.admin, &format!("GET {path}")).ok()?;
        let (status, body) = http::status_and_body(&response)?;
        Some((status, body.to_owned()))
    }
}

/// Returns the next message; `None` if the stream ended regularly.
pub(crate) async fn next<M>(stream: &mut Streaming<M>) -> Option<M> {
    tokio::time::timeout(TIMEOUT, stream.message())
        .await
        .expect("timed out waiting for a message")
        .unwrap()
}

/// Waits for a message that satisfies the predicate.
pub(crate) async fn next_where<M: std::fmt::Debug>(
    stream: &mut Streaming<M>,
    predicate: impl Fn(&M) -> bool,
) -> M {
    loop {
        let message = next(stream).await.expect("the stream ended");
        if predicate(&message) {
            return message;
        }
    }
}

fn sources(dirs: &[&ManifestDir]) -> Vec<String> {
    dirs.iter()
        .map(|dir| format!("--source-dir={}", dir.path().display()))
        .collect()
}
