//! `mesh-agent dial`: a connection from a pod that the pod's redirection handles as an
//! application's.

use std::fs;
use std::net::SocketAddr;

use mesh_agent::redirect::Tier;
use mesh_ebpf_common::counter::Counter;

use crate::Case;
use crate::actor::{ActorCommand, ActorResponse};
use crate::env::TestEnv;

pub(super) const CASES: &[Case] = &[
    (
        "a dialled connection reaches the proxy, and carries both directions",
        redirected,
    ),
    ("a dial that fails says why", failures),
];

const WEB: &str = "192.0.2.10:80";

fn redirected() {
    let env = TestEnv::new();
    let _agent = env.start_agent(Tier::Full);
    let pod = env.pod();
    pod.enrol();
    let mut proxy = pod.proxy();
    let listener = proxy.listen("127.0.0.1:4140");

    let mut dial = env.start_command(&["dial", "--pod", &pod.name(), WEB]);
    let connected = dial.next_event();
    let local: SocketAddr =
        serde_json::from_value(connected["connected"]["local"].clone()).unwrap();
    let accepted = proxy.accept(listener);
    let id = accepted.id();
    assert_eq!(accepted.peer(), local);
    assert_eq!(proxy.original(id), Some(WEB.parse().unwrap()));
    assert_eq!(pod.count(Counter::OutboundRedirected), 1);
    assert_eq!(pod.count(Counter::OutboundProxy), 0);

    dial.write_line("question");
    let received = proxy.run(ActorCommand::Receive { id });
    assert_eq!(received, ActorResponse::Text("question\n".into()));
    // The proxy receives the end of standard input, and can still respond.
    let commands = [
        ActorCommand::Receive { id },
        ActorCommand::Send {
            id,
            text: "answer".into(),
        },
        ActorCommand::Close { id },
    ];
    for command in &commands {
        proxy.start_command(command);
    }
    assert_eq!(dial.remaining_events(), ["answer"]);
    assert_eq!(proxy.response(), ActorResponse::Text(String::new()));

    let left = fs::read_dir(env.machine.cgroup())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("mesh-dial-"))
        .count();
    assert_eq!(left, 0, "its cgroup is removed");
}

fn failures() {
    let env = TestEnv::new();
    let pod = env.pod();
    let dial = |target: &str| env.failure(&["dial", "--pod", &pod.name(), target]);
    assert!(dial(WEB).contains("does not listen"));
    let _agent = env.start_agent(Tier::Full);
    assert!(dial(WEB).contains("is not enrolled on this node"));
    pod.enrol();
    let error = dial(WEB);
    let expected = format!(
        "cannot connect from pod {} to {WEB}: Connection refused",
        pod.name()
    );
    assert!(error.starts_with(&expected), "{error}");
}
