//! Finding a pod's sandbox by a process in a cgroup that is named as kubelet does, and enrolling it
//! in place. Objects of the API server may make false claims.

use std::fs;
use std::net::IpAddr;

use mesh_agent::node::Node as Redirections;
use mesh_agent::redirect::Tier;
use mesh_agent::sandbox::{Sandbox, SandboxFinder, SandboxPending};
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
    start_in(machine, &format!("pod{uid}/c0ffee"), namespace)
}

fn start_in(machine: &Machine, cgroup: &str, namespace: &Namespace) -> Program {
    let cgroup = machine.cgroup().join(cgroup);
    fs::create_dir_all(&cgroup).unwrap();
    // The shell enters the cgroup and then executes the waiting program.
    let script = format!(
        "echo $$ > {}/cgroup.procs && exec sleep 1000",
        cgroup.display()
    );
    Program::start(&mut namespace.command(["sh", "-c", &script]))
}

fn find(uid: &str, addresses: &[IpAddr]) -> Result<Sandbox, SandboxPending> {
    SandboxFinder::default().find(uid, addresses).unwrap()
}

/// The redirections of a node where an agent has run.
fn offline(node: &Node) -> Redirections {
    node.start(Tier::Nft).kill();
    Redirections::open_offline(&node.state_dir(), &node.pin_dir()).unwrap()
}

fn attachment(sandbox: &Sandbox, uid: &str, addresses: &[IpAddr]) -> Attachment {
    Attachment {
        id: AttachmentId {
            container_id: sandbox.container_id.clone(),
            network: IN_PLACE.to_owned(),
            interface: "eth0".to_owned(),
        },
        netns: sandbox.netns.clone(),
        pod: PodRef {
            namespace: "shop".to_owned(),
            name: "web-0".to_owned(),
            uid: uid.to_owned(),
        },
        addresses: addresses.to_vec(),
        annotations: [("linkerd.io/proxy-version".to_owned(), "x".to_owned())].into(),
    }
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
        Err(SandboxPending::NoAddress),
        "before the pod's status has an address"
    );
    let other: IpAddr = "10.241.0.99".parse().unwrap();
    assert_eq!(
        find(&uid, &[other]),
        Err(SandboxPending::AddressMismatch(vec![other]))
    );

    let node = Node::new();
    let redirections = offline(&node);
    let attachment = attachment(&sandbox, &uid, &known);
    let id = attachment.id.clone();
    node.host
        .enter(|| redirections.enrol_in_place(&attachment))
        .unwrap();
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

#[test]
fn static_pod_older_than_the_agent_is_found_by_the_hash_of_its_manifest() {
    require_root!();
    let pair = Pair::new();
    let machine = Machine::new();
    let hash = "9c0a2f1d4e5b6a7c8d9e0f1a2b3c4d5e";
    let _process = start(&machine, hash, &pair.pod);
    let known = [pair.pod_v4];
    let sandbox = eventually("the static pod's sandbox", || find(hash, &known).ok());
    let node = Node::new();
    let redirections = offline(&node);
    let attachment = attachment(&sandbox, hash, &known);
    let enrolled = node.host.enter(|| redirections.enrol_in_place(&attachment));
    enrolled.unwrap();
    assert!(pair.pod.run("nft list ruleset").contains("mesh_redirect"));
}

#[test]
fn pod_that_claims_the_uid_of_another_does_not_get_that_sandbox() {
    require_root!();
    let pair = Pair::new();
    let machine = Machine::new();
    let uid = format!("0f3c9d8e-6b1a-4d5e-9f00-{}", unique_name());
    let _victim = start(&machine, &uid, &pair.pod);
    let sandbox = eventually("the victim's sandbox", || find(&uid, &[pair.pod_v4]).ok());
    // The claimant's own address, and its status before the kubelet has reported one.
    let own: IpAddr = "10.241.0.99".parse().unwrap();
    let mismatch = SandboxPending::AddressMismatch(vec![own]);
    assert_eq!(find(&uid, &[own]), Err(mismatch));
    assert_eq!(find(&uid, &[]), Err(SandboxPending::NoAddress));

    let node = Node::new();
    let redirections = offline(&node);
    let enrol = |attachment: &Attachment| {
        node.host.enter(|| {
            let result = redirections.enrol_in_place(attachment);
            result.map_err(|error| error.to_string())
        })
    };
    for addresses in [&[][..], &[own]] {
        let error = enrol(&attachment(&sandbox, &uid, addresses)).unwrap_err();
        assert!(error.contains("none of the addresses"), "{error}");
    }
    assert!(pair.pod.run("nft list ruleset").is_empty());
    // A namespace that is enrolled stays with its pod, whatever address another one reports.
    let victim = attachment(&sandbox, &uid, &[pair.pod_v4]);
    enrol(&victim).unwrap();
    let mut claimant = victim.clone();
    claimant.pod.name = "claimant".to_owned();
    let error = enrol(&claimant).unwrap_err();
    assert!(error.contains("belongs to another pod"), "{error}");
    enrol(&victim).unwrap();
}

#[test]
fn address_that_another_pod_has_taken_does_not_make_its_namespace_the_sandbox() {
    require_root!();
    let pair = Pair::new();
    let machine = Machine::new();
    let uid = format!("0f3c9d8e-6b1a-4d5e-9f00-{}", unique_name());
    let other = "aaaaaaaa-6b1a-4d5e-9f00-112233445566";
    // A pod with NET_ADMIN adds the address to its interface.
    let thief = Namespace::new();
    thief.link("eth0", &pair.peer, "eth1");
    thief.add_address(pair.pod_v4, 24, "eth0");
    let _thief = start(&machine, other, &thief);
    let known = [pair.pod_v4];
    let of_thief = eventually("the thief's own sandbox", || find(other, &known).ok());
    assert_eq!(of_thief.netns, thief.path());
    // A container that may create cgroups makes one with the victim's name.
    let nested = format!("pod{other}/c0ffee/pod{uid}/c0ffee");
    let _nested = start_in(&machine, &nested, &thief);
    assert_eq!(find(&uid, &known), Err(SandboxPending::NoProcess));
    let _victim = start(&machine, &uid, &pair.pod);
    let found = eventually("the victim's sandbox", || find(&uid, &known).ok());
    assert_eq!(found.netns, pair.pod.path());
    // A process of the victim's pod enters the thief's namespace.
    let _guest = start(&machine, &uid, &thief);
    eventually("two namespaces with the address", || {
        let found = find(&uid, &known);
        let is_ambiguous = found == Err(SandboxPending::Ambiguous(known.to_vec()));
        is_ambiguous.then_some(()).ok_or(format!("{found:?}"))
    });
}
