//! Finding a pod's sandbox by a process in a cgroup that is named as kubelet does.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command};

use mesh_agent::node::Node as Redirections;
use mesh_agent::redirect::Tier;
use mesh_agent::sandbox::{SandboxFinder, SandboxPending};
use mesh_core::node::{Attachment, AttachmentId, IN_PLACE, PodRef};

use crate::agent::{Node, cgroup2_mount};
use crate::network::{Pair, unique};
use crate::skipped;

/// A process that waits in a namespace, in the cgroup of one of the pod's containers.
struct Process {
    child: Child,
    cgroup: PathBuf,
}

impl Process {
    fn start(uid: &str, netns: &str) -> Self {
        let root = cgroup2_mount().join(unique("mesh-test-kubepods"));
        let cgroup = root.join(format!("pod{uid}/c0ffee"));
        fs::create_dir_all(&cgroup).unwrap();
        // The shell enters the cgroup and then executes the waiting program.
        let script = format!(
            "echo $$ > {}/cgroup.procs && exec ip netns exec {netns} sleep 1000",
            cgroup.display()
        );
        let child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
        Self { child, cgroup }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for directory in self.cgroup.ancestors().take(3) {
            let _ = fs::remove_dir(directory);
        }
    }
}

fn find(uid: &str, addresses: &[IpAddr]) -> Result<mesh_agent::sandbox::Sandbox, SandboxPending> {
    SandboxFinder::default().find(uid, addresses).unwrap()
}

#[test]
fn running_pod_is_found_by_uid_and_enrolled_in_place() {
    if skipped("running_pod_is_found_by_uid_and_enrolled_in_place") {
        return;
    }
    let pair = Pair::new();
    let uid = unique("0f3c9d8e-6b1a-4d5e-9f00-");
    assert_eq!(find(&uid, &[]), Err(SandboxPending::NoProcess));
    let process = Process::start(&uid, &pair.pod.name);
    let known = [pair.pod_v4];
    // The process needs a few milliseconds to enter its namespace.
    let sandbox = mesh_test_support::eventually::eventually("the sandbox of the container", || {
        find(&uid, &known).ok()
    });
    assert_eq!(
        sandbox.netns,
        pair.pod.path(),
        "the path, which outlives the process"
    );
    assert_eq!(sandbox.container_id, "c0ffee");
    assert_eq!(
        find(&uid, &[]),
        Ok(sandbox.clone()),
        "before the pod's status has an address"
    );
    let other: IpAddr = "10.241.0.99".parse().unwrap();
    assert_eq!(
        find(&uid, &[other]),
        Err(SandboxPending::AddressMismatch(vec![other]))
    );

    let node = Node::new();
    let agent = node.start(Tier::Nft);
    agent.kill();
    let redirections = Redirections::open_offline(&node.state_dir(), &node.pin_dir).unwrap();
    let id = AttachmentId {
        container_id: sandbox.container_id,
        network: IN_PLACE.to_owned(),
        interface: "eth0".to_owned(),
    };
    let attachment = Attachment {
        id: id.clone(),
        netns: sandbox.netns,
        pod: PodRef {
            namespace: "shop".to_owned(),
            name: "web-0".to_owned(),
            uid,
        },
        addresses: known.to_vec(),
        annotations: [("linkerd.io/proxy-version".to_owned(), "x".to_owned())].into(),
    };
    node.host.run_in(|| redirections.add(&attachment)).unwrap();
    assert!(pair.pod.exec("nft list ruleset").contains("mesh_redirect"));
    drop(process);
    assert_eq!(
        redirections.pods().unwrap().len(),
        1,
        "its container may restart"
    );

    // The runtime passes the network's name; the agent that enrolled the pod did not have it.
    let del = AttachmentId {
        network: "pods".to_owned(),
        ..id
    };
    redirections.del(&del).unwrap();
    assert_eq!(node.records(), Vec::<String>::new());
    assert!(pair.pod.exec("nft list ruleset").is_empty());
}
