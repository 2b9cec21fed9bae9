//! `mesh-init` under the three program names of Linkerd's image, as the injector and the chart
//! start it in pods without an agent.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use mesh_core::node::Tier;
use mesh_test_support::command::{Words, built, output_text};
use mesh_test_support::program::Program;
use mesh_test_support::require_root;

use super::fixture::{APP, PORT, PROXY_ADDRESSES, both};
use crate::harness::node::{APPLICATION, Node, PROXY, Pod};

/// Timeout of requests to the admin server.
const TIMEOUT: Duration = Duration::from_secs(30);

const FIREWALLS: [(&str, &str); 3] = [
    (
        "the chart's flags for nft",
        "--firewall-bin-path iptables-nft --firewall-save-bin-path iptables-nft-save",
    ),
    ("the mode by its own flag", "--iptables-mode=nft"),
    ("legacy, the default", ""),
];

const FLAGS: &str = "--incoming-proxy-port 4143 --outgoing-proxy-port 4140 --proxy-uid 2102 \
    --inbound-ports-to-ignore 4190,4191,8100 --outbound-ports-to-ignore 7100,7150-7160 \
    --log-level warning";

/// Creates a directory with the program under its names, as in the image.
fn image() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for name in [
        "linkerd2-proxy-init",
        "linkerd2-network-validator",
        "linkerd-await",
    ] {
        symlink(built("mesh-init"), dir.path().join(name)).expect("a link");
    }
    dir
}

fn helper(image: &tempfile::TempDir, name: &str) -> PathBuf {
    image.path().join(name)
}

/// Runs a helper in the pod.
fn run_in(pod: &Pod<'_>, program: &Path, flags: impl Words) -> Output {
    let mut command = pod.namespace.command("");
    command.arg(program).args(flags.words());
    command.output().expect("the helper runs")
}

/// Returns the server that a connection reached, and for the proxy the original destination.
fn reached(process: Program) -> String {
    let event = process.next_event();
    let greeting = &event["greeting"];
    match greeting["reached"].as_str() {
        Some("proxy") => format!("proxy for {}", greeting["original"].as_str().unwrap_or("?")),
        Some(other) => other.to_owned(),
        None => event.to_string(),
    }
}

#[test]
fn proxy_init_redirects_pod_without_agent() {
    require_root!();
    let image = image();
    // The agent enrols none of these pods, which have no annotation of the injector.
    let node = Node::start(Tier::Nft);
    let peer = node.plain_pod("peer");
    let servers = peer.serve(
        APPLICATION,
        "--greet direct",
        [PORT, 7155].map(both).join(" "),
    );
    for (number, (what, firewall)) in FIREWALLS.iter().enumerate() {
        let pod = node.plain_pod(&format!("app{number}"));
        let flags = format!("{firewall} {FLAGS}");
        let output = run_in(&pod, &helper(&image, "linkerd2-proxy-init"), flags);
        assert!(output.status.success(), "{what}: {}", output_text(&output));
        let proxy = pod.serve(PROXY, "--greet proxy", PROXY_ADDRESSES);
        let app = pod.serve(APPLICATION, "--greet app", both(8100));
        let v4 = format!("{}:{PORT}", peer.v4);
        let v6 = format!("[{}]:{PORT}", peer.v6);
        let connect = |target: &str| reached(pod.app(["connect", target]));
        assert_eq!(connect(&v4), format!("proxy for {v4}"), "{what}");
        assert_eq!(connect(&v6), format!("proxy for {v6}"), "{what}");
        let in_range = connect(&format!("{}:7155", peer.v4));
        assert_eq!(in_range, "direct", "{what}: a skipped range");
        let own = pod.proxy(["connect", &v4]);
        assert_eq!(reached(own), "direct", "{what}: the proxy's own");
        let arrive = |port: u16| reached(peer.app(format!("connect {}:{port}", pod.v4)));
        assert_eq!(arrive(APP), format!("proxy for {}:{APP}", pod.v4), "{what}");
        assert_eq!(arrive(8100), "app", "{what}: a skipped port");
        drop((proxy, app));
    }
    drop(servers);
}

#[test]
fn proxy_init_simulates_rules_and_reports_missing_capability() {
    require_root!();
    let image = image();
    let node = Node::start(Tier::Nft);
    let pod = node.plain_pod("app");
    let init = helper(&image, "linkerd2-proxy-init");
    let flags = format!("--iptables-mode nft {FLAGS}");
    let simulated = run_in(&pod, &init, format!("--simulate {flags}"));
    assert!(simulated.status.success(), "{}", output_text(&simulated));
    let script = String::from_utf8_lossy(&simulated.stdout).into_owned();
    assert!(
        script.contains("meta skuid 2102 counter accept"),
        "{script}"
    );
    let inside = &pod.namespace;
    assert_eq!(inside.run("nft list tables"), "", "nothing was changed");
    // nft accepts the printed script; loading it gives the same table that the program creates
    // itself.
    let file = image.path().join("script.nft");
    std::fs::write(&file, &script).expect("a file");
    inside.run(format!("nft -f {}", file.display()));
    let by_nft = inside.run("nft -s list ruleset");
    inside.run("nft flush ruleset");
    let applied = run_in(&pod, &init, &flags);
    assert!(applied.status.success(), "{}", output_text(&applied));
    assert_eq!(inside.run("nft -s list ruleset"), by_nft);

    // As a container without NET_ADMIN.
    let line = format!("--reuid=65534 --clear-groups {} {flags}", init.display());
    let output = run_in(&pod, Path::new("setpriv"), line);
    let printed = output_text(&output);
    assert!(!output.status.success(), "{printed}");
    assert!(
        printed.contains("it takes the capability NET_ADMIN"),
        "{printed}"
    );
    let wrong = run_in(&pod, &init, "--incoming-proxy-port 0");
    assert_eq!(wrong.status.code(), Some(2), "{}", output_text(&wrong));
}

#[test]
fn proxy_init_without_ipv6_redirects_only_ipv4() {
    require_root!();
    let image = image();
    let node = Node::start(Tier::Nft);
    let (peer, pod) = (node.plain_pod("peer"), node.plain_pod("app"));
    let server = peer.serve(APPLICATION, "--greet direct", both(PORT));
    // As the chart writes it with disableIPv6, its default.
    let flags = format!("{} --ipv6=false {FLAGS}", FIREWALLS[0].1);
    let output = run_in(&pod, &helper(&image, "linkerd2-proxy-init"), flags);
    assert!(output.status.success(), "{}", output_text(&output));
    let proxy = pod.serve(PROXY, "--greet proxy", "127.0.0.1:4140");
    let connect = |target: &str| reached(pod.app(["connect", target]));
    let v4 = format!("{}:{PORT}", peer.v4);
    assert_eq!(connect(&v4), format!("proxy for {v4}"));
    assert_eq!(connect(&format!("[{}]:{PORT}", peer.v6)), "direct");
    drop((server, proxy));
}

#[test]
fn network_validator_detects_missing_redirection() {
    require_root!();
    let image = image();
    let node = Node::start(Tier::Nft);
    let validator = helper(&image, "linkerd2-network-validator");
    let run = |pod: &Pod<'_>, connect: &str| {
        // The chart's flags; without redirection the address responds immediately, so that the test
        // need not wait for the timeout.
        let log = "--log-format plain --log-level debug";
        let addresses = format!("--listen-addr 0.0.0.0:4140 --connect-addr {connect}");
        run_in(pod, &validator, format!("{log} --timeout 10s {addresses}"))
    };
    let meshed = node.meshed_pod("meshed", &[]);
    let output = run(&meshed, "1.1.1.1:20001");
    assert!(output.status.success(), "{}", output_text(&output));

    let plain = node.plain_pod("plain");
    // Has no listener: the connection is refused immediately.
    let output = run(&plain, &format!("{}:20001", meshed.v4));
    let printed = output_text(&output);
    assert_eq!(output.status.code(), Some(95), "{printed}");
    assert!(
        printed.contains("the pod's connections are not redirected"),
        "{printed}"
    );
    // Another server listens there.
    let address = format!("0.0.0.0:{PORT}");
    let other = plain.serve(APPLICATION, "--greet direct", address);
    let output = run(&plain, &format!("{}:{PORT}", plain.v4));
    assert_eq!(output.status.code(), Some(95), "{}", output_text(&output));
    drop(other);
}

/// The request lines received by an admin server, available after its last response.
struct RecordedRequests(Receiver<Vec<String>>);

impl RecordedRequests {
    fn lines(self) -> Vec<String> {
        let lines = self.0.recv_timeout(TIMEOUT);
        lines.expect("as many requests as responses")
    }
}

/// Starts an admin server that responds with these statuses in turn.
fn mock_admin_server(statuses: &'static [u16]) -> (SocketAddr, RecordedRequests) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut requests = Vec::new();
        for status in statuses {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut line = String::new();
            let mut reader = BufReader::new(stream.try_clone().expect("a copy"));
            reader.read_line(&mut line).expect("a request");
            while line.ends_with("\r\n") && {
                let mut header = String::new();
                reader.read_line(&mut header).expect("a header");
                header != "\r\n"
            } {}
            requests.push(line.trim().to_owned());
            let text =
                format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(text.as_bytes()).expect("the client reads");
        }
        // The receiver is gone if the test has already failed.
        let _ = sender.send(requests);
    });
    (address, RecordedRequests(receiver))
}

#[test]
fn await_waits_for_proxy_and_runs_program() {
    let image = image();
    let await_ = |args: &[&str], port: u16| {
        Command::new(helper(&image, "linkerd-await"))
            .args([&format!("--port={port}"), "--backoff=10ms"])
            .args(args)
            .env_remove("LINKERD_AWAIT_DISABLED")
            .output()
            .expect("the helper runs")
    };
    // As a container hook: exits successfully once the proxy is ready.
    let (address, requests) = mock_admin_server(&[503, 200]);
    let output = await_(&["--timeout=2m"], address.port());
    assert!(output.status.success(), "{}", output_text(&output));
    assert_eq!(requests.lines(), ["GET /ready HTTP/1.1"; 2]);

    // Executes the program.
    let (address, requests) = mock_admin_server(&[200]);
    let output = await_(&["--", "sh", "-c", "echo ran; exit 7"], address.port());
    assert_eq!(output.status.code(), Some(7), "{}", output_text(&output));
    assert_eq!(output.stdout, b"ran\n");
    requests.lines();

    // As in a Job: requests the proxy's shutdown when the program has exited, and returns its exit
    // code.
    let (address, requests) = mock_admin_server(&[200, 200]);
    let output = await_(&["--shutdown", "--", "sh", "-c", "exit 3"], address.port());
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    let requests = requests.lines();
    assert_eq!(requests, ["GET /ready HTTP/1.1", "POST /shutdown HTTP/1.1"]);

    // The listener is closed: no response.
    let output = await_(&["--timeout=50ms"], address.port());
    let printed = output_text(&output);
    assert_eq!(output.status.code(), Some(69), "{printed}");
    assert!(printed.contains("did not report ready within"), "{printed}");
}

#[test]
fn await_forwards_signals_and_can_be_disabled() {
    let image = image();
    let (address, requests) = mock_admin_server(&[200, 200]);
    let mut command = Command::new(helper(&image, "linkerd-await"));
    command
        .args([&format!("--port={}", address.port()), "--shutdown", "--"])
        .args(["sh", "-c"])
        .arg("trap 'exit 5' TERM; echo ready; while :; do read line; done");
    let program = Program::start(&mut command);
    assert_eq!(program.next_line().as_deref(), Some("ready"));
    program.terminate();
    // Closes standard input: a shell that continues to read handles the signal after it.
    let (status, _) = program.finish();
    assert_eq!(status.code(), Some(5), "{status}");
    assert_eq!(requests.lines().len(), 2);

    let output = Command::new(helper(&image, "linkerd-await"))
        .args(["--port=1", "--verbose", "--", "echo", "ran"])
        .env("LINKERD_AWAIT_DISABLED", "no proxy in this pod")
        .output()
        .expect("the helper runs");
    let printed = output_text(&output);
    assert!(output.status.success(), "{printed}");
    assert_eq!(output.stdout, b"ran\n");
    assert!(
        printed.contains("LINKERD_AWAIT_DISABLED is set"),
        "{printed}"
    );
}
