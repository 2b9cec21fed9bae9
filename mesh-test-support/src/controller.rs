//! Starts a controller, or a part of the viz extension, on free ports. It is killed when the test
//! ends.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::command::built;
use crate::eventually::eventually_async as eventually;
use crate::http;
use crate::network::free_address;
use crate::program::Program;

/// Sufficient for a loaded host; a test that passes does not wait this long.
const TIMEOUT: Duration = Duration::from_secs(30);

pub struct Controller {
    pub grpc: SocketAddr,
    pub admin: SocketAddr,
    pub program: Program,
}

/// A directory of manifests.
#[derive(Debug)]
pub struct ManifestDir(TempDir);

impl ManifestDir {
    #[expect(
        clippy::new_without_default,
        reason = "it creates a directory, which a default would hide"
    )]
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Replaces a file atomically, like editors.
    pub fn write(&self, name: &str, text: &str) {
        let draft = self.path().join(format!(".{name}"));
        fs::write(&draft, text).expect("the file is written");
        fs::rename(draft, self.path().join(name)).expect("the file is renamed");
    }

    pub fn delete(&self, name: &str) {
        fs::remove_file(self.path().join(name)).expect("the file exists");
    }
}

impl Controller {
    /// Starts a command of `mesh-controller` or `mesh-viz` without waiting. The names of the
    /// address flags differ between services.
    pub fn start(service: &str, grpc_flag: &str, admin_flag: &str, args: &[String]) -> Self {
        let (grpc, admin) = (free_address(), free_address());
        let program = match service {
            "metrics-api" | "web" => "mesh-viz",
            _ => "mesh-controller",
        };
        let mut command = Command::new(built(program));
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

    pub async fn destination(dirs: &[&ManifestDir]) -> Self {
        let started = Self::start("destination", "--addr", "--metrics-addr", &sources(dirs));
        started.ready().await
    }

    pub async fn policy(dirs: &[&ManifestDir]) -> Self {
        let started = Self::start("policy", "--grpc-addr", "--admin-addr", &sources(dirs));
        started.ready().await
    }

    pub async fn ready(self) -> Self {
        eventually("the controller to be ready", async || {
            self.admin_get("/ready")
                .is_some_and(|(status, _)| status == 200)
        })
        .await;
        self
    }

    pub async fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(format!("http://{}", self.grpc)).expect("a URI");
        eventually("a gRPC connection", async || endpoint.connect().await.ok()).await
    }

    /// Waits until a log line contains the text.
    pub async fn logged(&self, text: &str) -> String {
        self.program.logged(text).await
    }

    /// Returns status and body; `None` while the port is closed.
    pub fn admin_get(&self, path: &str) -> Option<(u16, String)> {
        let response = http::request(self.admin, &format!("GET {path}")).ok()?;
        let (status, body) = http::status_and_body(&response)?;
        Some((status, body.to_owned()))
    }
}

/// Returns the next message; `None` if the stream ended regularly.
pub async fn next<M>(stream: &mut Streaming<M>) -> Option<M> {
    tokio::time::timeout(TIMEOUT, stream.message())
        .await
        .expect("timed out waiting for a message")
        .expect("the stream does not fail")
}

/// Waits for a message that satisfies the predicate.
pub async fn next_where<M: std::fmt::Debug>(
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
