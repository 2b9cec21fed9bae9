//! Finding a pod's sandbox by a process in a cgroup that is named as kubelet does.

use std::fs;
use std::net::IpAddr;

use mesh_agent::node::Node as Redirections;
use mesh_agent::redirect::Tier;
use mesh_agent::sandbox::{SandboxFinder, SandboxPending};
use mesh_core::node::{Attachment, AttachmentId, IN_PLACE, PodRef};
use mesh_test_support::eventually::eventually;
use mesh_test_support::machine::{Machine, unique_name};
use mesh_test_support::network::Namespace;
use mesh_test_support::program::Program;
use mesh_test_support::require_root;

use crate::agent::Node;
use crate::network::Pair;

/// Starts a process that waits in a namespace, in the cgroup of one of the pod's containers.
fn start(machine: &Machine, uid: &str, namespace: &Namespace) -> Program {
    let cgroup = machine.cgroup().join(format!("pod{uid}/c0ffee"));
    fs::create_dir_all(&cgroup).unwrap();
    // The shell enters the cgroup and then executes the waiting program.
    let script = format!(
        "echo $$ > {}/cgroup.procs && exec sleep 1000",
        cgroup.display()
    );
    Program::start(&mut namespace.command(["sh", "-c", &script]))
}

fn find(uid: &str, addresses: &[IpAddr]) -> Result<mesh_agent::sandbox::Sandbox, SandboxPending> {
    SandboxFinder::default().find(uid, addresses).unwrap()
}

#[test]
fn running_pod_is_found_by_uid_and_enrolled_in_place() {
    require_root!();
    let pair = Pair::new();
    let machine = Machine::new();
    let uid = format!("0f3c9d8e-6b1a-4d5e-9f00-{}", unique_name());
    assert_eq!(find(&uid, &[]), Err(SandboxPending::NoProcess));
    let process = start(&machine, &uid, &pair.pod);
    let known = [pair.pod_v4];
    // The process needs a few milliseconds to enter its cgroup.
    let sandbox = eventually("the sandbox of the container", || find(&uid, &known).ok());
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
    let redirections = Redirections::open_offline(&node.state_dir(), &node.pin_dir()).unwrap();
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
    node.host.enter(|| redirections.add(&attachment)).unwrap();
    assert!(pair.pod.run("nft list ruleset").contains("mesh_redirect"));
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
    assert!(pair.pod.run("nft list ruleset").is_empty());
}
