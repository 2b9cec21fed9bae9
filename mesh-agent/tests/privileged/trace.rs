//! Traces: which decisions a traced pod reports, and when it stops.

use mesh_agent::ebpf::Programs;
use mesh_agent::redirect::Tier;
use mesh_core::redirection::{Hook, RedirectionEvent};
use mesh_test_support::eventually::eventually;
use mesh_test_support::program::Program;
use serde_json::json;

use crate::Case;
use crate::actor::refused;
use crate::env::{Pod, TestEnv, enrolled};

pub(super) const CASES: &[Case] = &[
    (
        "a traced pod reports its connections, and its neighbour none",
        traced_pod,
    ),
    (
        "decisions of every kind are reported with their verdicts",
        verdicts,
    ),
    (
        "a trace ends with its client, and when an agent starts",
        ends,
    ),
    ("traces that cannot be are refused", refusals),
    (
        "a full log drops decisions, and their number is known",
        full_log,
    ),
];

const WEB: &str = "192.0.2.10:80";
const OTHER: &str = "192.0.2.20:80";
const WEB_V6: &str = "[2001:db8::10]:80";

fn start_trace(pod: &Pod) -> Program {
    let trace = pod.env.start_command(&["trace", "--pod", &pod.name()]);
    assert_eq!(trace.next_event(), json!({"tracing": pod.name()}));
    trace
}

fn next(trace: &Program) -> RedirectionEvent {
    serde_json::from_value(trace.next_event()).unwrap()
}

fn is_traced(pod: &Pod) -> bool {
    let programs = Programs::open(&pod.env.pin_dir()).unwrap();
    let pods = programs.pods().unwrap();
    let found = pods
        .iter()
        .find(|found| found.cookie == pod.redirect.cookie);
    found.unwrap().traced
}

fn traced_pod() {
    let env = TestEnv::new();
    let _agent = env.start_agent(Tier::Full);
    let (pod, neighbour) = (env.pod(), env.pod());
    pod.enrol();
    neighbour.enrol();
    let trace = start_trace(&pod);
    assert!(is_traced(&pod) && !is_traced(&neighbour));

    let (mut proxy, mut app) = (neighbour.proxy(), neighbour.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    app.assert_redirected(OTHER, &mut proxy, outbound);

    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let outbound = proxy.listen("127.0.0.1:4140");
    let client = app.connect(WEB);
    proxy.accept(outbound).id();
    let source = Some(client.local());
    let listener = Some("198.18.0.1:4140".parse().unwrap());
    let events = [next(&trace), next(&trace), next(&trace)];
    let found: Vec<_> = events
        .iter()
        .map(|event| {
            (
                event.hook,
                event.source,
                event.destination,
                event.redirected_to,
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            (Hook::Connect, None, WEB.parse().unwrap(), listener),
            (
                Hook::Lookup,
                source,
                "198.18.0.1:4140".parse().unwrap(),
                listener
            ),
            (Hook::Accept, source, WEB.parse().unwrap(), listener),
        ]
    );
    for pair in events.windows(2) {
        assert!(pair[0].monotonic_ns <= pair[1].monotonic_ns, "{events:?}");
    }
    for event in &events {
        assert_eq!(event.verdict, "outbound-redirected");
    }

    // An enrolment with other settings does not end the trace.
    pod.enrol();
    app.connect(WEB_V6);
    assert_eq!(next(&trace).destination, WEB_V6.parse().unwrap());
}

fn verdicts() {
    let env = TestEnv::new();
    let _agent = env.start_agent(Tier::Full);
    let pod = env.pod();
    pod.enrol();
    let (mut proxy, mut app) = (pod.proxy(), pod.app());
    let trace = start_trace(&pod);

    assert_eq!(app.connect(WEB), refused());
    assert_eq!(next(&trace).verdict, "outbound-redirected");
    let event = next(&trace);
    assert_eq!(
        (event.hook, &*event.verdict),
        (Hook::Lookup, "outbound-refused")
    );
    assert_eq!(event.redirected_to, None);

    app.connect("192.0.2.10:4568");
    let event = next(&trace);
    assert_eq!(event.verdict, "outbound-skipped-port");
    assert_eq!(event.redirected_to, None);

    let inbound = proxy.listen("0.0.0.0:4143");
    app.connect_from("198.18.0.2:0", "198.18.0.1:8080");
    assert_eq!(next(&trace).verdict, "outbound-local");
    let event = next(&trace);
    assert_eq!(event.verdict, "inbound-closed-port");
    assert_eq!(event.redirected_to, None);

    app.listen("0.0.0.0:8080");
    let client = app.connect_from("198.18.0.2:0", "198.18.0.1:8080");
    proxy.accept(inbound).id();
    // The connection is within the pod's namespace: its connect comes first.
    let event = next(&trace);
    assert_eq!(
        (event.hook, &*event.verdict),
        (Hook::Connect, "outbound-local")
    );
    let event = next(&trace);
    assert_eq!(
        (event.hook, &*event.verdict),
        (Hook::Lookup, "inbound-steered")
    );
    assert_eq!(event.source, Some(client.local()));
    assert_eq!(event.destination, "198.18.0.1:8080".parse().unwrap());
    assert_eq!(
        event.redirected_to,
        Some("198.18.0.1:4143".parse().unwrap())
    );

    proxy.connect(WEB);
    assert_eq!(next(&trace).verdict, "outbound-proxy");
}

fn ends() {
    let env = TestEnv::new();
    let mut agent = env.start_agent(Tier::Full);
    let pod = env.pod();
    pod.enrol();
    let ended = || eventually("the end of the trace", || (!is_traced(&pod)).then_some(()));

    // A trace continues while the pod has another.
    let (mut first, mut second) = (start_trace(&pod), start_trace(&pod));
    first.kill();
    pod.app().connect(WEB);
    assert_eq!(next(&second).hook, Hook::Connect);
    assert!(is_traced(&pod));
    second.kill();
    ended();

    let name = pod.name();
    let with_stdin = env.start_command(&["trace", "--pod", &name, "--stdin"]);
    with_stdin.next_event();
    let (status, _) = with_stdin.finish();
    assert!(status.success());
    ended();

    let orphan = start_trace(&pod);
    agent.kill();
    let (status, _) = orphan.finish();
    assert_eq!(status.code(), Some(1));
    assert!(is_traced(&pod), "no agent has ended it");
    let _agent = env.start_agent(Tier::Full);
    assert!(!is_traced(&pod));
}

fn refusals() {
    let env = TestEnv::new();
    let agent = env.start_agent(Tier::Full);
    let pod = env.pod();
    let name = pod.name();
    let trace = ["trace", "--pod", &name];
    let refuses = |expected: &str| {
        let error = env.failure(&trace);
        assert!(error.contains(expected), "{error}");
    };
    refuses("is not enrolled");
    pod.enrol();
    let mut traces: Vec<Program> = (0..8).map(|_| start_trace(&pod)).collect();
    refuses("8 traces are in progress on this node");
    traces.pop();
    // The agent notices the end of a client on its own.
    let replacement = eventually("a place for another trace", || {
        let trace = env.start_command(&trace);
        trace.next_line().is_some().then_some(trace)
    });
    drop((replacement, traces));

    // As pinned by an older agent.
    std::fs::remove_file(env.pin_dir().join("v1/maps/AYA_LOGS")).unwrap();
    refuses("are of a version that reports no decisions");
    drop(agent);
    refuses("does not listen");
    let _agent = env.start_agent(Tier::Nft);
    let plain = env.pod();
    plain.enrol();
    let error = env.failure(&["trace", "--pod", &plain.name()]);
    assert!(
        error.contains("tier nft, which has no kernel programs"),
        "{error}"
    );
}

fn full_log() {
    const CONNECTIONS: u32 = 2_000;
    let (pod, programs) = enrolled();
    let cookie = pod.redirect.cookie;
    let mut app = pod.app();
    let mut log = programs.trace_log().unwrap();
    programs.start_trace(cookie).unwrap();
    // Refused, since no proxy listens: two decisions each.
    app.start_connections("192.0.2.10:80", CONNECTIONS);
    let attempts = log.attempts(cookie).unwrap();
    let read = log.read().len() as u64;
    assert_eq!(attempts, u64::from(2 * CONNECTIONS));
    assert!(read > 0 && read < attempts, "{read} of {attempts}");
    programs.stop_trace(cookie).unwrap();
    assert_eq!(log.attempts(cookie), None);
    app.start_connections("192.0.2.10:80", 1);
    assert_eq!(log.read(), []);
}
