//! CPU time that proxies are denied, and the descriptors they have open.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::{interval, sleep};

use super::Scene;
use crate::harness::Pod;
use crate::load::assert_none_failed;

/// The number of descriptors that a pod's proxy has open.
pub(super) fn descriptors(pod: &Pod) -> usize {
    let open = fs::read_dir(format!("/proc/{}/fd", pod.proxy().id()));
    open.expect("the proxy runs").count()
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
