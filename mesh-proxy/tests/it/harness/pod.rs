//! A pod: a network namespace, and a thread inside it that runs what the test wants to run there.

use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::thread::JoinHandle;

use nix::sched::{CloneFlags, setns};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::control::ControlPlane;
use super::net::Namespace;
use super::proxy::Proxy;
use super::{eventually, within};

/// One pod. Applications are tasks on its thread; the proxy is a process.
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) ip: Ipv4Addr,
    pub(crate) ip6: Ipv6Addr,
    pub(crate) control: ControlPlane,
    proxy: Option<Proxy>,
    inside: Inside,
    // Last: the namespace goes when nothing is in it any more.
    namespace: Namespace,
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
        Self {
            name: name.to_owned(),
            ip,
            ip6,
            control,
            proxy: None,
            inside: Inside::enter(&namespace),
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
        pod.proxy().ready(&pod).await;
        pod.redirect();
        pod
    }

    /// Adds a proxy that gets no traffic, and does not wait for it.
    pub(crate) async fn with_proxy(mut self, environment: &[(&str, &str)]) -> Self {
        let control = self.control.clone();
        within("the control plane listens", self.spawn(control.serve())).await;
        self.proxy = Some(Proxy::start(&self, &self.namespace, environment));
        let admin = ([127, 0, 0, 1], 4191);
        eventually("the proxy answers", || self.try_get(admin, "/live")).await;
        self
    }

    /// Redirects the pod's traffic to its proxy.
    pub(crate) fn redirect(&self) {
        self.namespace.redirect();
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("the pod is meshed")
    }

    pub(crate) fn proxy_mut(&mut self) -> &mut Proxy {
        self.proxy.as_mut().expect("the pod is meshed")
    }

    /// The identity that its proxy is given.
    pub(crate) fn identity(&self) -> String {
        format!(
            "{}.test.serviceaccount.identity.linkerd.cluster.local",
            self.name
        )
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
    pub(crate) async fn connect(&self, addr: impl Into<SocketAddr>) -> std::io::Result<TcpStream> {
        let addr = addr.into();
        within("connecting", self.spawn(TcpStream::connect(addr))).await
    }

    /// Sends `request` on a connection of its own and returns all that comes back until the server
    /// closes.
    pub(crate) async fn exchange(
        &self,
        addr: impl Into<SocketAddr>,
        request: impl Into<Vec<u8>>,
    ) -> String {
        let (addr, request) = (addr.into(), request.into());
        let answered = self.spawn(async move {
            let mut tcp = TcpStream::connect(addr).await.unwrap();
            tcp.write_all(&request).await.unwrap();
            let mut answer = Vec::new();
            // A reset ends the answer like a close; what came before it counts.
            let _ = tcp.read_to_end(&mut answer).await;
            String::from_utf8_lossy(&answer).into_owned()
        });
        within("an answer", answered).await
    }

    /// `GET path` with this host, on a connection of its own.
    pub(crate) async fn get(&self, addr: impl Into<SocketAddr>, host: &str, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        self.exchange(addr, request).await
    }

    /// The same, or `None` when the connection is refused.
    pub(super) async fn try_get(&self, addr: impl Into<SocketAddr>, path: &str) -> Option<String> {
        let addr = addr.into();
        let request = format!("GET {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\r\n");
        self.spawn(async move {
            let mut tcp = TcpStream::connect(addr).await.ok()?;
            tcp.write_all(request.as_bytes()).await.ok()?;
            let mut answer = String::new();
            tcp.read_to_string(&mut answer).await.ok()?;
            Some(answer)
        })
        .await
    }

    /// What the proxy's admin interface says.
    pub(crate) async fn metrics(&self) -> String {
        self.get(([127, 0, 0, 1], 4191), "admin", "/metrics").await
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
    fn enter(namespace: &Namespace) -> Self {
        let path = format!("/run/netns/{}", namespace.name);
        let (send_handle, handle) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let file = File::open(path).unwrap();
            setns(file.as_fd(), CloneFlags::CLONE_NEWNET).unwrap();
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
