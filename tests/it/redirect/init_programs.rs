//! `mesh-init` under the three program names of Linkerd's image, as the injector and the chart
//! start it in pods without an agent.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use mesh_core::node::Tier;

use super::fixture::{APP, PORT, serve};
use crate::harness::node::{Node, Pod};
use crate::harness::process::Process;
use crate::harness::{privileged, program};

/// Timeout of requests to the admin server.
const TIMEOUT: Duration = Duration::from_secs(30);

const FIREWALLS: [(&str, &[&str]); 3] = [
    (
        "the chart's flags for nft",
        &[
            "--firewall-bin-path",
            "iptables-nft",
            "--firewall-save-bin-path",
            "iptables-nft-save",
        ],
    ),
    ("the mode by its own flag", &["--iptables-mode=nft"]),
    ("legacy, the default", &[]),
];

const FLAGS: [&str; 12] = [
    "--incoming-proxy-port",
    "4143",
    "--outgoing-proxy-port",
    "4140",
    "--proxy-uid",
    "2102",
    "--inbound-ports-to-ignore",
    "4190,4191,8100",
    "--outbound-ports-to-ignore",
    "7100,7150-7160",
    "--log-level",
    "warning",
];

/// Creates a directory with the program under its names, as in the image.
fn image() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for name in [
        "linkerd2-proxy-init",
        "linkerd2-network-validator",
        "linkerd-await",
    ] {
        symlink(program("mesh-init"), dir.path().join(name)).expect("a link");
    }
    dir
}

fn helper(image: &tempfile::TempDir, name: &str) -> PathBuf {
    image.path().join(name)
}

/// Runs a helper in the pod.
fn run_in(pod: &Pod<'_>, program: &PathBuf, args: &[&str]) -> Output {
    Command::new("ip")
        .args(["netns", "exec", pod.namespace()])
        .arg(program)
        .args(args)
        .output()
        .expect("ip runs the helper")
}

fn output_text(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Returns the server that a connection reached, and for the proxy the original destination.
fn reached(process: Process) -> String {
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
    if !privileged("linkerd2-proxy-init") {
        return;
    }
    let image = image();
    // The agent enrols none of these pods, which have no annotation of the injector.
    let node = Node::start(Tier::Nft);
    let peer = node.plain_pod("peer");
    let anywhere = |port: u16| [format!("0.0.0.0:{port}"), format!("[::]:{port}")];
    let servers = serve(
        &peer,
        "app",
        0,
        &["--greet", "direct"],
        &[anywhere(PORT), anywhere(7155)].concat(),
    );
    for (number, (what, firewall)) in FIREWALLS.iter().enumerate() {
        let pod = node.plain_pod(&format!("app{number}"));
        let flags = [*firewall, &FLAGS[..]].concat();
        let output = run_in(&pod, &helper(&image, "linkerd2-proxy-init"), &flags);
        assert!(output.status.success(), "{what}: {}", output_text(&output));
        let addresses = ["127.0.0.1:4140", "[::1]:4140", "0.0.0.0:4143", "[::]:4143"];
        let proxy = serve(
            &pod,
            "linkerd-proxy",
            2102,
            &["--greet", "proxy"],
            &addresses.map(str::to_owned),
        );
        let app = serve(&pod, "app", 0, &["--greet", "app"], &anywhere(8100));
        let (v4, v6) = (
            format!("{}:{PORT}", peer.v4),
            format!("[{}]:{PORT}", peer.v6),
        );
        let connect = |target: &str| reached(pod.app(&["connect", target]));
        assert_eq!(connect(&v4), format!("proxy for {v4}"), "{what}");
        assert_eq!(connect(&v6), format!("proxy for {v6}"), "{what}");
        assert_eq!(
            connect(&format!("{}:7155", peer.v4)),
            "direct",
            "{what}: a skipped range"
        );
        let own = pod.probe_as("linkerd-proxy", 2102, &["connect", &v4]);
        assert_eq!(reached(own), "direct", "{what}: the proxy's own");
        let arrive = |port: u16| reached(peer.app(&["connect", &format!("{}:{port}", pod.v4)]));
        assert_eq!(arrive(APP), format!("proxy for {}:{APP}", pod.v4), "{what}");
        assert_eq!(arrive(8100), "app", "{what}: a skipped port");
        drop((proxy, app));
    }
    drop(servers);
}

#[test]
fn proxy_init_simulates_rules_and_reports_missing_capability() {
    if !privileged("linkerd2-proxy-init without rights") {
        return;
    }
    let image = image();
    let node = Node::start(Tier::Nft);
    let pod = node.plain_pod("app");
    let init = helper(&image, "linkerd2-proxy-init");
    let nft = ["--iptables-mode", "nft", "--simulate"];
    let simulated = run_in(&pod, &init, &[&nft[..], &FLAGS].concat());
    assert!(simulated.status.success(), "{}", output_text(&simulated));
    let script = String::from_utf8_lossy(&simulated.stdout).into_owned();
    assert!(
        script.contains("meta skuid 2102 counter accept"),
        "{script}"
    );
    let tables = pod.run("nft", &["list", "tables"]).expect("nft lists");
    assert_eq!(tables, "", "nothing was changed");
    // nft accepts the printed script; loading it gives the same table that the program creates
    // itself.
    let file = image.path().join("script.nft");
    std::fs::write(&file, &script).expect("a file");
    pod.run("nft", &["-f", &file.to_string_lossy()])
        .expect("nft accepts the script");
    let by_nft = pod
        .run("nft", &["-s", "list", "ruleset"])
        .expect("nft lists");
    pod.run("nft", &["flush", "ruleset"]).expect("nft flushes");
    let applied = run_in(
        &pod,
        &init,
        &[&["--iptables-mode", "nft"], &FLAGS[..]].concat(),
    );
    assert!(applied.status.success(), "{}", output_text(&applied));
    let by_us = pod
        .run("nft", &["-s", "list", "ruleset"])
        .expect("nft lists");
    assert_eq!(by_us, by_nft);

    // As a container without NET_ADMIN.
    let output = Command::new("ip")
        .args([
            "netns",
            "exec",
            pod.namespace(),
            "setpriv",
            "--reuid=65534",
            "--clear-groups",
        ])
        .arg(&init)
        .args([&["--iptables-mode", "nft"], &FLAGS[..]].concat())
        .output()
        .expect("ip runs the helper");
    assert!(!output.status.success(), "{}", output_text(&output));
    assert!(
        output_text(&output).contains("it takes the capability NET_ADMIN"),
        "{}",
        output_text(&output)
    );
    let wrong = run_in(&pod, &init, &["--incoming-proxy-port", "0"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", output_text(&wrong));
}

#[test]
fn proxy_init_without_ipv6_redirects_only_ipv4() {
    if !privileged("linkerd2-proxy-init without IPv6") {
        return;
    }
    let image = image();
    let node = Node::start(Tier::Nft);
    let (peer, pod) = (node.plain_pod("peer"), node.plain_pod("app"));
    let anywhere = [format!("0.0.0.0:{PORT}"), format!("[::]:{PORT}")];
    let server = serve(&peer, "app", 0, &["--greet", "direct"], &anywhere);
    // As the chart writes it with disableIPv6, its default.
    let flags = [FIREWALLS[0].1, &["--ipv6=false"], &FLAGS[..]].concat();
    let output = run_in(&pod, &helper(&image, "linkerd2-proxy-init"), &flags);
    assert!(output.status.success(), "{}", output_text(&output));
    let proxy = serve(
        &pod,
        "linkerd-proxy",
        2102,
        &["--greet", "proxy"],
        &["127.0.0.1:4140".to_owned()],
    );
    let connect = |target: &str| reached(pod.app(&["connect", target]));
    let v4 = format!("{}:{PORT}", peer.v4);
    assert_eq!(connect(&v4), format!("proxy for {v4}"));
    assert_eq!(connect(&format!("[{}]:{PORT}", peer.v6)), "direct");
    drop((server, proxy));
}

#[test]
fn network_validator_detects_missing_redirection() {
    if !privileged("linkerd2-network-validator") {
        return;
    }
    let image = image();
    let node = Node::start(Tier::Nft);
    let validator = helper(&image, "linkerd2-network-validator");
    // The chart's flags; without redirection the address responds immediately, so that the test
    // need not wait for the timeout.
    let flags = |connect: &str| {
        let fixed = [
            "--log-format",
            "plain",
            "--log-level",
            "debug",
            "--listen-addr",
            "0.0.0.0:4140",
        ];
        let rest = ["--timeout", "10s", "--connect-addr", connect];
        fixed
            .iter()
            .chain(&rest)
            .map(|flag| (*flag).to_owned())
            .collect::<Vec<_>>()
    };
    let run = |pod: &Pod<'_>, connect: &str| {
        let flags = flags(connect);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        run_in(pod, &validator, &flags)
    };
    let meshed = node.meshed_pod("meshed", &[]);
    let output = run(&meshed, "1.1.1.1:20001");
    assert!(output.status.success(), "{}", output_text(&output));

    let plain = node.plain_pod("plain");
    // Has no listener: the connection is refused immediately.
    let output = run(&plain, &format!("{}:20001", meshed.v4));
    assert_eq!(output.status.code(), Some(95), "{}", output_text(&output));
    assert!(
        output_text(&output).contains("the pod's connections are not redirected"),
        "{}",
        output_text(&output)
    );
    // Another server listens there.
    let address = [format!("0.0.0.0:{PORT}")];
    let other = serve(&plain, "app", 0, &["--greet", "direct"], &address);
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
    assert_eq!(output.status.code(), Some(69), "{}", output_text(&output));
    assert!(
        output_text(&output).contains("did not report ready within"),
        "{}",
        output_text(&output)
    );
}

#[test]
fn await_forwards_signals_and_can_be_disabled() {
    let image = image();
    let (address, requests) = mock_admin_server(&[200, 200]);
    let mut child = Command::new(helper(&image, "linkerd-await"))
        .args([&format!("--port={}", address.port()), "--shutdown", "--"])
        .args([
            "sh",
            "-c",
            "trap 'exit 5' TERM; echo ready; while :; do read line; done",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the helper starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("stdout is piped"))
        .read_line(&mut line)
        .expect("the program prints a line");
    assert_eq!(line, "ready\n");
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("a signal");
    // The shell handles the signal after it has read a line.
    let _written = child.stdin.take().expect("stdin is piped").write_all(b"\n");
    let status = child.wait().expect("the helper exits");
    assert_eq!(status.code(), Some(5), "{status}");
    assert_eq!(requests.lines().len(), 2);

    let output = Command::new(helper(&image, "linkerd-await"))
        .args(["--port=1", "--verbose", "--", "echo", "ran"])
        .env("LINKERD_AWAIT_DISABLED", "no proxy in this pod")
        .output()
        .expect("the helper runs");
    assert!(output.status.success(), "{}", output_text(&output));
    assert_eq!(output.stdout, b"ran\n");
    assert!(
        output_text(&output).contains("LINKERD_AWAIT_DISABLED is set"),
        "{}",
        output_text(&output)
    );
}
