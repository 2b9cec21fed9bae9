//! Start and stop of the process: its verdict on the environment, its exit codes, its admin
//! interface before there is a certificate. Needs no privileges.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use mesh_test_support::certificates::TestCa;
use mesh_test_support::command::text;
use mesh_test_support::http;
use mesh_test_support::program::Program;
use nix::sys::signal::Signal;
use nix::unistd::geteuid;

/// A proxy with listeners on ports of the kernel's choice and a control plane that is not there.
fn proxy(changes: &[(&str, &str)]) -> Command {
    let authority = TestCa::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mesh-proxy"));
    command.env_clear();
    for (name, value) in [
        ("IDENTITY_TRUST_ANCHORS", authority.anchor_pem()),
        ("IDENTITY_LOCAL_NAME", "web.test"),
        ("IDENTITY_TOKEN_FILE", "/nowhere"),
        ("IDENTITY_SVC_ADDR", "localhost.:1"),
        ("DESTINATION_SVC_ADDR", "localhost.:1"),
        ("POLICY_SVC_ADDR", "localhost.:1"),
        ("POLICY_WORKLOAD", "web"),
        ("OUTBOUND_LISTEN_ADDR", "127.0.0.1:0"),
        ("INBOUND_LISTEN_ADDR", "127.0.0.1:0"),
        ("ADMIN_LISTEN_ADDR", "127.0.0.1:0"),
        ("SHUTDOWN_ENDPOINT_ENABLED", "true"),
    ]
    .iter()
    .chain(changes)
    {
        command.env(format!("LINKERD2_PROXY_{name}"), value);
    }
    command
}

fn end_of(changes: &[(&str, &str)]) -> (Option<i32>, String) {
    let output = proxy(changes).output().unwrap();
    let printed = text(&output.stdout) + &text(&output.stderr);
    (output.status.code(), printed)
}

/// A proxy that has come up.
struct Running {
    program: Program,
    admin: SocketAddr,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let program = Program::start(&mut command);
        let line = program.wait_for("Admin interface on ").unwrap();
        let (_, addr) = line.rsplit_once(' ').unwrap();
        let admin = addr.parse().unwrap();
        Self { program, admin }
    }

    fn ask(&self, request: &str) -> String {
        http::request(self.admin, request).unwrap()
    }

    /// Waits for the end and returns the exit code and the log.
    fn end(self) -> (Option<i32>, String) {
        let (status, log) = self.program.finish();
        (status.code(), log)
    }
}

#[test]
fn a_wrong_environment_ends_with_64_and_every_wrong_variable_is_named() {
    let (code, text) = end_of(&[
        ("POLICY_WORKLOAD", ""),
        ("OUTBOUND_CONNECT_TIMEOUT", "soon"),
        ("INBOUND_PORTS", "http"),
        ("FROM_ANOTHER_VERSION", "ignored"),
    ]);
    assert_eq!(code, Some(64), "{text}");
    for name in [
        "POLICY_WORKLOAD",
        "OUTBOUND_CONNECT_TIMEOUT",
        "INBOUND_PORTS",
    ] {
        assert!(text.contains(&format!("LINKERD2_PROXY_{name}: ")), "{text}");
    }
    assert!(text.contains("3 invalid environment variables"), "{text}");
}

#[test]
fn a_wrong_log_filter_ends_with_64_too() {
    let (code, text) = end_of(&[("LOG", "mesh=loud")]);
    assert_eq!(code, Some(64));
    assert!(text.contains("invalid log filter \"mesh=loud\""), "{text}");
}

#[test]
fn an_address_in_use_ends_with_1_and_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    for name in ["ADMIN_LISTEN_ADDR", "INBOUND_LISTEN_ADDR"] {
        let (code, text) = end_of(&[(name, &addr)]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(&format!("cannot listen on {addr}")), "{text}");
    }
}

#[test]
fn admin_answers_before_there_is_a_certificate_and_stops_the_proxy() {
    let running = Running::start(proxy(&[]));
    assert!(running.ask("GET /live").starts_with("HTTP/1.1 200"));
    let ready = running.ask("GET /ready");
    assert!(
        ready.starts_with("HTTP/1.1 503") && ready.contains("waiting for identity"),
        "{ready}"
    );
    let metrics = running.ask("GET /metrics");
    for name in [
        "process_start_time_seconds ",
        "proxy_build_info{",
        "rustls_info{",
    ] {
        assert!(metrics.contains(&format!("\n{name}")), "{metrics}");
    }
    assert!(!metrics.contains(",,"));
    assert!(running.ask("POST /shutdown").starts_with("HTTP/1.1 200"));
    let (code, log) = running.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(
        log.contains("Received shutdown via admin interface"),
        "{log}"
    );
}

#[test]
fn its_memory_is_closed_to_others_of_its_user() {
    const ANY_GROUP: u32 = 65534;
    let mut command = proxy(&[]);
    // So that it can be told from root's even when the tests are root's.
    if geteuid().is_root() {
        command.gid(ANY_GROUP);
    }
    let running = Running::start(command);
    // The kernel gives root the files of a process whose memory must not be dumped or traced.
    let status = std::fs::metadata(format!("/proc/{}/mem", running.program.id())).unwrap();
    assert_eq!((status.uid(), status.gid()), (0, 0));
}

#[test]
fn a_signal_ends_it_in_order() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let running = Running::start(proxy(&[]));
        running.program.signal(signal);
        let (code, log) = running.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains(&format!("Received {signal}")), "{log}");
    }
}

/// What a service manager gives to programs that may still call `select` would stop the proxy at
/// 768 connections.
#[test]
fn the_limit_of_open_files_is_raised_as_far_as_it_may_be() {
    let proxy = proxy(&[]);
    let mut limited = Command::new("sh");
    limited
        .args([
            "-c",
            "ulimit -S -n 1024 && ulimit -H -n 4096 && exec \"$0\"",
        ])
        .arg(proxy.get_program())
        .env_clear()
        .envs(
            proxy
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
    let running = Running::start(limited);
    let metrics = running.ask("GET /metrics");
    assert!(metrics.contains("\nprocess_max_fds 4096\n"), "{metrics}");
}
