//! Starts a controller on free ports. It is killed when the test ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Streaming;
use tonic::transport::Channel;

pub(crate) use mesh_test_support::eventually::eventually_async as eventually;

/// Sufficient for a loaded host; a test that passes does not wait this long.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Controller {
    pub(crate) grpc: SocketAddr,
    pub(crate) admin: SocketAddr,
    child: Child,
    // Written by the thread that reads the output of the child process.
    log: Arc<Mutex<String>>,
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
        let (grpc, admin) = (free_addr(), free_addr());
        let mut child = Command::new(env!("CARGO_BIN_EXE_mesh-controller"))
            .arg(service)
            .args([
                format!("{grpc_flag}={grpc}"),
                format!("{admin_flag}={admin}"),
            ])
            .arg("--log-level=debug,h2=info,tower=info,hyper=info")
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::default();
        collect(child.stdout.take().unwrap(), Arc::clone(&log));
        Self {
            grpc,
            admin,
            child,
            log,
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
            let (status, _) = self.admin_get("/ready").await?;
            (status == 200).then_some(())
        })
        .await;
        self
    }

    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(format!("http://{}", self.grpc)).unwrap();
        eventually("a gRPC connection", async || endpoint.connect().await.ok()).await
    }

    /// Returns status and body; `None` while the port is closed.
    pub(crate) async fn admin_get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = tokio::net::TcpStream::connect(self.admin).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await.ok()?;
        let (headers, body) = response.split_once("\r\n\r\n")?;
        let status = headers.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    }

    /// Waits until a log line contains the text.
    pub(crate) async fn logged(&self, text: &str) -> String {
        eventually(&format!("{text:?} to be logged"), async || {
            let log = self.log.lock();
            log.lines()
                .find(|line| line.contains(text))
                .map(str::to_owned)
        })
        .await
    }

    pub(crate) fn times_logged(&self, text: &str) -> usize {
        self.log
            .lock()
            .lines()
            .filter(|line| line.contains(text))
            .count()
    }

    pub(crate) fn terminate(&self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    }

    pub(crate) async fn exit(&mut self) -> ExitStatus {
        let child = &mut self.child;
        eventually("the controller to exit", async || child.try_wait().unwrap()).await
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("{}", self.log.lock());
        }
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

fn free_addr() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

fn collect(output: impl std::io::Read + Send + 'static, log: Arc<Mutex<String>>) {
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let mut log = log.lock();
            log.push_str(&line);
            log.push('\n');
        }
    });
}
