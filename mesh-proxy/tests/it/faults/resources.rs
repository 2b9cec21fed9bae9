//! Descriptors, CPU time and system calls that the proxy is denied.

use std::fs;
use std::time::Duration;

use mesh_test_support::campaign::{Choices, measured};
use mesh_test_support::command::{are_installed, run};
use mesh_test_support::program::Program;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{interval, sleep};

use super::Scene;
use crate::harness::{AS_PROXY_USER, Pod, eventually};
use crate::load::{PORT, assert_none_failed};

/// The number of descriptors that a pod's proxy has open.
pub(super) fn descriptors(pod: &Pod) -> usize {
    let open = fs::read_dir(format!("/proc/{}/fd", pod.proxy().id()));
    open.expect("the proxy runs").count()
}

/// The proxy may open a few files more; ten times that number of connections come.
#[tokio::test]
async fn accepting_survives_exhausted_descriptors_and_continues() {
    const SPARE: usize = 30;
    let Some(scene) = Scene::new(1).await else {
        return;
    };
    if !are_installed(&["prlimit"]) {
        return;
    }
    let server = &scene.servers[0];
    let load = "h2load --h1 -n 500 -c 4 http://10.96.0.1/";
    assert_none_failed(&scene.client.run(load).await, 500);
    let limit = descriptors(server) + SPARE;
    let id = server.proxy().id();
    // By the proxy's user: for another one it takes a capability that containers lack.
    run(format!(
        "{AS_PROXY_USER} prlimit --pid {id} --nofile={limit}"
    ));
    let outsider = scene.mesh.pod("outsider");
    let mut silent = Vec::new();
    for _ in 0..SPARE * 10 {
        // The kernel completes handshakes up to the backlog of the listener.
        silent.push(
            outsider
                .connect(server.addr(PORT))
                .await
                .expect("a connection"),
        );
    }
    let line = server
        .proxy()
        .logged("Server failed to accept connection")
        .await;
    assert!(line.contains("os error 24"), "{line}");
    drop(silent);
    eventually("connections are accepted again", async || {
        let answer = outsider.get(server.addr(PORT), "web", "/").await;
        answer.starts_with("HTTP/1.1 200")
    })
    .await;
    assert_none_failed(&scene.client.run(load).await, 500);
    measured(format!(
        "{} connections with {SPARE} descriptors before",
        SPARE * 10
    ));
}

/// Both proxies are stopped for nine tenths of the time.
#[tokio::test]
async fn proxies_with_a_tenth_of_a_cpu_fail_no_request() {
    const PERIOD: Duration = Duration::from_millis(100);
    const SHARE: Duration = Duration::from_millis(10);
    let Some(scene) = Scene::new(1).await else {
        return;
    };
    let signal = |signal: Signal| {
        for pod in scene.pods() {
            pod.proxy().signal(signal);
        }
    };
    let starve = async {
        let mut periods = interval(PERIOD);
        loop {
            periods.tick().await;
            signal(Signal::SIGCONT);
            sleep(SHARE).await;
            signal(Signal::SIGSTOP);
        }
    };
    let load = async {
        let connections = "h2load --h1 -n 200 -c 200 http://10.96.0.1/";
        assert_none_failed(&scene.client.run(connections).await, 200);
        let requests = "h2load --h1 -n 1000 -c 8 http://10.96.0.1/";
        assert_none_failed(&scene.client.run(requests).await, 1000);
    };
    tokio::select! {
        () = starve => (),
        () = load => (),
    }
    signal(Signal::SIGCONT);
}

/// Errors that `accept(2)` passes on from the network, and interrupted or refused calls.
#[tokio::test]
async fn failing_system_calls_lose_no_request() {
    const FAILING: [(&str, Errno); 5] = [
        // First, while the server's proxy has no connection to its application.
        ("connect", Errno::ENOBUFS),
        ("accept4", Errno::ECONNABORTED),
        ("accept4", Errno::EPROTO),
        ("accept4", Errno::ENOBUFS),
        ("accept4", Errno::EINTR),
    ];
    let Some(scene) = Scene::new(1).await else {
        return;
    };
    if !are_installed(&["strace"]) {
        return;
    }
    let mut choices = Choices::new();
    let mut first = || 1 + choices.below(4);
    for (call, error) in FAILING {
        let injected: Vec<_> = scene
            .pods()
            .map(|pod| inject(pod, call, error, first()))
            .collect();
        for tracer in &injected {
            tracer.attached().await;
        }
        let load = "h2load --h1 -n 120 -c 120 http://10.96.0.1/";
        assert_none_failed(&scene.client.run(load).await, 120);
        if call == "accept4" {
            let logged = format!("(os error {})", error as i32);
            scene.client.proxy().logged(&logged).await;
        }
    }
    measured(format!(
        "{} errors, each injected at every third call",
        FAILING.len()
    ));
}

/// strace, which makes every third call of a proxy fail from the given one on.
struct Tracer {
    program: Program,
    traced: u32,
}

fn inject(pod: &Pod, call: &str, error: Errno, first: usize) -> Tracer {
    let traced = pod.proxy().id();
    let line = format!(
        "strace -f -o /dev/null -p {traced} -e trace={call} -e inject={call}:error={error:?}:when={first}+3"
    );
    Tracer {
        program: pod.launch(line),
        traced,
    }
}

impl Tracer {
    async fn attached(&self) {
        eventually("strace has attached", async || {
            let status = fs::read_to_string(format!("/proc/{}/status", self.traced));
            let status = status.expect("the proxy runs");
            let mut lines = status.lines();
            let tracer = lines.find_map(|line| line.strip_prefix("TracerPid:"));
            tracer.is_some_and(|tracer| tracer.trim() != "0")
        })
        .await;
    }
}

impl Drop for Tracer {
    /// Lets strace detach, which a killed one does too, but not before the next one attaches.
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.program.id().cast_signed());
        let _ended = kill(pid, Signal::SIGINT);
        self.program.exit();
    }
}
