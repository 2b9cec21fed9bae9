//! A pod: a network namespace, and a thread inside it that runs what the test wants to run there.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::thread::JoinHandle;

use mesh_test_support::command::{Words, feed, output_text, succeed};
use mesh_test_support::http::message;
use mesh_test_support::network::Namespace;
use mesh_test_support::program::Program;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::control::ControlPlane;
use super::{eventually, net, proxy, within};

/// The proxy's admin interface, from inside the pod.
const ADMIN: ([u8; 4], u16) = ([127, 0, 0, 1], 4191);

/// One pod. Applications are tasks on its thread; the proxy is a process.
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) ip: Ipv4Addr,
    pub(crate) ip6: Ipv6Addr,
    pub(crate) control: ControlPlane,
    proxy: Option<(Program, TempDir)>,
    inside: Inside,
    // Last: the namespace goes when nothing is in it any more.
    namespace: Arc<Namespace>,
}

/// The thread in the namespace.
struct Inside {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Pod {
    pub(super) fn new(
        name: &str,
        namespace: Namespace,
        ip: Ipv4Addr,
        ip6: Ipv6Addr,
        control: ControlPlane,
    ) -> Self {
        let namespace = Arc::new(namespace);
        Self {
            name: name.to_owned(),
            ip,
            ip6,
            control,
            proxy: None,
            inside: Inside::enter(namespace.clone()),
            namespace,
        }
    }

    /// Adds a proxy, waits until it is ready, and redirects the pod's traffic to it.
    pub(crate) async fn meshed(self) -> Self {
        self.meshed_with(&[]).await
    }

    /// The same with more environment.
    pub(crate) async fn meshed_with(self, environment: &[(&str, &str)]) -> Self {
        let pod = self.with_proxy(environment).await;
        pod.wait_for_proxy("/ready").await;
        pod.redirect();
        pod
    }

    /// Adds a proxy that gets no traffic, and does not wait for it.
    pub(crate) async fn with_proxy(mut self, environment: &[(&str, &str)]) -> Self {
        let control = self.control.clone();
        within("the control plane listens", self.spawn(control.serve())).await;
        self.proxy = Some(proxy::start(&self, &self.namespace, environment));
        self.wait_for_proxy("/live").await;
        self
    }

    pub(crate) async fn wait_for_proxy(&self, path: &str) {
        eventually(&format!("{path} of the proxy"), || async {
            let request = message(&format!("GET {path}"), "admin").into();
            let answer = self.try_exchange(ADMIN.into(), request).await;
            answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
        })
        .await;
    }

    /// Redirects the pod's traffic to its proxy.
    pub(crate) fn redirect(&self) {
        net::redirect(&self.namespace);
    }

    /// Drops what arrives in the pod and matches these expressions of nftables, until
    /// [`mend`](Self::mend).
    pub(crate) fn drop_packets(&self, matching: &[&str]) {
        let mut table =
            "table inet fault {\nchain input {\ntype filter hook input priority 0;\n".to_owned();
        for matching in matching {
            table += &format!("{matching} drop\n");
        }
        table += "}\n}\n";
        let output = feed(&mut self.namespace.command("nft -f -"), &table);
        assert!(output.status.success(), "{}", output_text(&output));
    }

    pub(crate) fn mend(&self) {
        self.namespace.run("nft delete table inet fault");
    }

    /// Resets every established connection of the pod, and returns their number.
    pub(crate) fn reset_connections(&self) -> usize {
        let listed = self
            .namespace
            .run("ss --kill --tcp --no-header state established");
        listed.lines().count()
    }

    pub(crate) fn proxy(&self) -> &Program {
        &self.proxy.as_ref().expect("the pod is meshed").0
    }

    /// Waits for a line of the access log that contains the text.
    pub(crate) async fn access_logged(&self, text: &str) -> String {
        let (_program, files) = self.proxy.as_ref().expect("the pod is meshed");
        let file = files.path().join(proxy::ACCESS_LOG);
        eventually("a line of the access log", || async {
            let log = std::fs::read_to_string(&file).unwrap();
            log.lines()
                .find(|line| line.contains(text))
                .map(str::to_owned)
        })
        .await
    }

    pub(crate) fn proxy_mut(&mut self) -> &mut Program {
        &mut self.proxy.as_mut().expect("the pod is meshed").0
    }

    /// Starts a program in the pod.
    pub(crate) fn launch(&self, line: impl Words) -> Program {
        Program::start(self.namespace.command(line).stderr(Stdio::null()))
    }

    /// Starts a server in the pod and waits until its port accepts.
    pub(crate) async fn serve(&self, port: u16, line: impl Words) -> Program {
        let program = self.launch(line);
        eventually("the program listens", || async {
            self.connect(([127, 0, 0, 1], port)).await.ok()
        })
        .await;
        program
    }

    /// Runs a program in the pod to its end, which must succeed, and returns what it printed.
    pub(crate) async fn run(&self, line: impl Words) -> String {
        let mut command = self.namespace.command(line);
        let shown = format!("{command:?}");
        let ended = tokio::task::spawn_blocking(move || succeed(&mut command));
        within(&shown, ended).await.unwrap()
    }

    /// The identity that its proxy is given.
    pub(crate) fn identity(&self) -> String {
        let (name, domain) = (&self.name, self.control.trust_domain());
        format!("{name}.test.serviceaccount.identity.linkerd.{domain}")
    }

    pub(crate) fn addr(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip.into(), port)
    }

    pub(crate) fn addr6(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip6.into(), port)
    }

    /// Runs a task in the pod. It may outlive the call; a panic in it fails the test where it is
    /// awaited.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.inside.handle.spawn(task)
    }

    /// Runs a task in the pod to its end.
    pub(crate) async fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match self.start(task).await {
            Ok(value) => value,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// A connection from inside the pod.
    pub(crate) async fn connect(&self, addr: impl Into<SocketAddr>) -> io::Result<TcpStream> {
        let addr = addr.into();
        within("connecting", self.spawn(TcpStream::connect(addr))).await
    }

    /// Accepts connections to a port and serves each in a task of its own.
    pub(crate) async fn listen<S: Future<Output = ()> + Send + 'static>(
        &self,
        port: u16,
        serve: impl Fn(TcpStream) -> S + Send + 'static,
    ) {
        let listener = self.spawn(TcpListener::bind(("::", port))).await.unwrap();
        self.start(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(tcp));
            }
        });
    }

    /// Sends `request` on a connection of its own and returns all that comes back until the server
    /// closes.
    pub(crate) async fn exchange(
        &self,
        addr: impl Into<SocketAddr>,
        request: impl Into<Vec<u8>>,
    ) -> String {
        let answered = self.try_exchange(addr.into(), request.into());
        within("an answer", answered).await.unwrap()
    }

    async fn try_exchange(&self, addr: SocketAddr, request: Vec<u8>) -> io::Result<String> {
        self.spawn(async move {
            let mut answer = Vec::new();
            let mut tcp = match TcpStream::connect(addr).await {
                // A proxy accepts first, and may reset before `connect` returns.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Ok(String::new());
                }
                connected => connected?,
            };
            // A reset ends the exchange like a close; what came before it counts.
            if tcp.write_all(&request).await.is_ok() {
                let _ = tcp.read_to_end(&mut answer).await;
            }
            Ok(String::from_utf8_lossy(&answer).into_owned())
        })
        .await
    }

    /// `GET path` with this host, on a connection of its own.
    pub(crate) async fn get(&self, addr: impl Into<SocketAddr>, host: &str, path: &str) -> String {
        self.exchange(addr, message(&format!("GET {path}"), host))
            .await
    }

    /// What the proxy's admin interface says.
    pub(crate) async fn metrics(&self) -> String {
        self.get(ADMIN, "admin", "/metrics").await
    }

    /// Waits for samples whose name and labels include all of `parts`, and returns their sum.
    pub(crate) async fn metric(&self, parts: &[&str]) -> f64 {
        eventually(&format!("metric {parts:?}"), || async {
            sample(&self.metrics().await, parts)
        })
        .await
    }
}

/// The sum of the samples that include all of `parts`; the first of them is the beginning of the
/// name. `None` when there is no such sample.
pub(crate) fn sample(metrics: &str, parts: &[&str]) -> Option<f64> {
    let matches = |line: &&str| {
        line.starts_with(parts[0]) && parts[1..].iter().all(|part| line.contains(part))
    };
    let lines = metrics.lines().filter(matches);
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.reduce(|sum, value| sum + value)
}

impl Inside {
    fn enter(namespace: Arc<Namespace>) -> Self {
        let (send_handle, handle) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            namespace.join();
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            send_handle.send(runtime.handle().clone()).unwrap();
            // Ends when the pod is dropped, whichever way.
            let _ = runtime.block_on(stopped);
        });
        Self {
            handle: handle.recv().unwrap(),
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
