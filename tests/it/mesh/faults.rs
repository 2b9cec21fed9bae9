//! Faults of a running mesh that traffic must survive.

use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::manifests;
use crate::harness::mesh::Mesh;

pub(super) const POLICY: &str = "\
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web, namespace: app}
spec:
  podSelector: {matchLabels: {app: web}}
  port: http
  proxyProtocol: HTTP/1
---
apiVersion: policy.linkerd.io/v1alpha1
kind: MeshTLSAuthentication
metadata: {name: other, namespace: app}
spec:
  identityRefs: [{kind: ServiceAccount, name: other}]
---
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: web, namespace: app}
spec:
  targetRef: {group: policy.linkerd.io, kind: Server, name: web}
  requiredAuthenticationRefs: [{group: policy.linkerd.io, kind: MeshTLSAuthentication, name: other}]
";

/// A client and a server in the mesh, and a pod outside it.
pub(super) fn small_mesh() -> Mesh {
    let outside = manifests::namespace("outside", false)
        + &manifests::client("outside")
        + &manifests::web("outside");
    Mesh::up(&[("app.yaml", &manifests::app()), ("outside.yaml", &outside)])
}

/// Returns the status of one request, or curl's exit code.
fn status(mesh: &Mesh, pod: &str, url: &str) -> String {
    let curl = "curl -s -m 10 -o /dev/null -w %{http_code}";
    mesh.exec(pod, format!("{curl} {url}"))
}

pub(super) fn send(pids: &[u32], signal: Signal) {
    for pid in pids {
        let pid = Pid::from_raw(pid.cast_signed());
        kill(pid, signal).expect("the process is there");
    }
}

#[test]
fn requests_succeed_when_agent_is_killed() {
    require_root!();
    let mesh = small_mesh();
    // Every request uses a new connection, which needs the redirection.
    let connections = "-n 6000 -c 6000 --connection-active-timeout=60 -r 1500";
    let line = format!("h2load --h1 {connections} http://web/");
    let load = mesh.start("app/client", line);
    load.next_line();
    let agents = mesh.processes("mesh-agent");
    assert!(!agents.is_empty(), "the node has an agent");
    send(&agents, Signal::SIGKILL);
    let (_, output) = load.finish();
    let mut lines = output.lines();
    let counts = lines.find(|line| line.starts_with("requests:"));
    let counts = counts.expect("h2load counts requests");
    assert!(
        counts.contains("6000 succeeded, 0 failed, 0 errored, 0 timeout"),
        "{counts}\n{}",
        failures(&mesh, &output)
    );
}

/// Returns the counters of h2load and both proxies for failed requests.
fn failures(mesh: &Mesh, output: &str) -> String {
    let statuses = output
        .lines()
        .filter(|line| line.starts_with("status codes:"))
        .map(str::to_owned);
    let metrics = ["app/client", "app/web"].into_iter().flat_map(|pod| {
        mesh.metrics(pod)
            .into_iter()
            .filter(|line| {
                line.contains("errors_total")
                    || (line.starts_with("response_total") && !line.contains("\"200\""))
            })
            .map(move |line| format!("{pod}: {line}"))
    });
    statuses.chain(metrics).collect::<Vec<_>>().join("\n")
}

#[test]
fn pod_reaches_itself_by_every_own_address() {
    require_root!();
    let mesh = small_mesh();
    for url in [
        "http://127.0.0.1:8080/",
        "http://localhost:8080/",
        "http://[::1]:8080/",
        // Not "web", which is the pod's own host name and resolves to its address.
        "http://web.app/",
        "http://web.app.svc.cluster.local/",
    ] {
        assert_eq!(status(&mesh, "app/web", url), "200", "{url}");
    }
    let own = mesh.exec("app/web", "hostname -i");
    let addresses = mesh.exec("app/web", "ip -o addr show dev eth0 scope global");
    let mut tried = 0;
    for field in addresses
        .split_whitespace()
        .filter_map(|field| field.split_once('/'))
    {
        if let Ok(ip) = field.0.parse::<std::net::IpAddr>() {
            let url = format!("http://{}/", std::net::SocketAddr::new(ip, 8080));
            assert_eq!(status(&mesh, "app/web", &url), "200", "{url}");
            tried += 1;
        }
    }
    assert!(
        tried >= 2,
        "the pod has an address of each family: {own} {addresses}"
    );
}

#[test]
fn proxy_ports_are_not_reachable_and_do_not_loop() {
    require_root!();
    let mesh = small_mesh();
    let address = mesh.address("app", "web");
    for from in ["app/web", "app/client", "outside/client"] {
        for host in [address.as_str(), "127.0.0.1"] {
            for port in [4140, 4143, 4190] {
                let curl = "curl -s -m 10 -o /dev/null -w %{http_code}/%header{grpc-status}";
                let seen = mesh.exec(from, format!("{curl} http://{host}:{port}/"));
                // The tap service, on 4190, refuses with status 200 and a status of gRPC.
                let is_served = seen == "200/" || seen == "200/0";
                assert!(!is_served, "{from} reached {host}:{port}: {seen}");
            }
        }
    }
    // A connection loop would have exhausted descriptors.
    for pod in ["app/web", "app/client"] {
        let open: f64 = mesh
            .metrics(pod)
            .iter()
            .filter(|line| line.starts_with("tcp_open_connections"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum();
        assert!(open < 20.0, "{pod} has {open} open connections");
    }
    assert_eq!(status(&mesh, "app/client", "http://web/"), "200");
}

#[test]
fn invalid_manifest_keeps_last_valid_policy() {
    require_root!();
    let mesh = small_mesh();
    let answers = |expected: &'static str| {
        let mesh = &mesh;
        move || status(mesh, "app/client", "http://web/").starts_with(expected)
    };
    assert!(answers("200")());
    mesh.write("policy.yaml", POLICY);
    eventually("the policy closes the port", answers("403"));
    // An invalid version of the file: the last valid one stays in force, and another valid file is
    // still loaded.
    let references = "requiredAuthenticationRefs";
    let broken = POLICY.replace(references, &format!("{references}: {{["));
    mesh.write("policy.yaml", &broken);
    mesh.write("marker.yaml", &manifests::namespace("marker", false));
    eventually("the controller names the broken file", || {
        let log = mesh.meshctl("local logs linkerd/linkerd-destination -c policy");
        if log.contains("policy.yaml") {
            Ok(())
        } else {
            Err(log)
        }
    });
    assert_eq!(status(&mesh, "app/client", "http://web/"), "403");
    mesh.remove("policy.yaml");
    eventually("without the policy the port is open", answers("200"));
}

#[test]
fn traffic_survives_stopped_controllers() {
    require_root!();
    let mesh = small_mesh();
    assert_eq!(status(&mesh, "app/client", "http://web/"), "200");
    let controllers = mesh.processes("mesh-controller");
    assert!(
        controllers.len() >= 3,
        "identity, destination and policy run: {controllers:?}"
    );
    send(&controllers, Signal::SIGSTOP);
    let seen = [
        status(&mesh, "app/client", "http://web/"),
        status(&mesh, "app/client", "http://web/teapot"),
    ];
    send(&controllers, Signal::SIGCONT);
    assert_eq!(seen, ["200", "418"]);
}

#[test]
fn unmeshed_destination_is_forwarded_to_original_address() {
    require_root!();
    let mesh = small_mesh();
    let address = mesh.address("outside", "web");
    let server = format!("http://{address}:8080");
    let answer = status(&mesh, "app/client", &format!("{server}/teapot"));
    assert_eq!(answer, "418");
    let url = format!("{server}/headers");
    let curl = ["curl", "-s", &url, "-H", "Host: other.example"];
    let answer = mesh.exec("app/client", curl);
    assert_eq!(answer, "GET  other.example\n");
}

/// A probe of the port, by the kubelet or a client, fails until the application listens.
#[test]
fn port_is_refused_until_the_application_listens() {
    require_root!();
    let mesh = small_mesh();
    // The control comes first: a pod that is not meshed.
    for server in ["outside/web", "app/web"] {
        let own = mesh.exec(server, "hostname -i");
        let ip = own.split_whitespace().next().expect("an address");
        let ip: std::net::IpAddr = ip.parse().expect("an address");
        let url = format!("http://{}/", std::net::SocketAddr::new(ip, 9999));
        let direct = || status(&mesh, "outside/client", &url);
        let meshed = || status(&mesh, "app/client", &url);
        // Curl's exit code for a connection that is refused.
        let refused = || direct().contains("[exit status: 7]");
        assert!(refused(), "{server}: {}", direct());
        assert_eq!(meshed(), "502", "{server}");
        let config = "events {} pid /data/other.pid; http { server { listen 9999; listen [::]:9999; return 200; } }";
        // In the background, without the pipes for whose end the command waits.
        let start = format!(
            "echo '{config}' > /data/other.conf && nginx -e /data/other.log -c /data/other.conf > /data/other.log 2>&1"
        );
        let printed = mesh.exec(server, ["sh", "-c", &start]);
        assert_eq!(direct(), "200", "{server}: {printed}");
        assert_eq!(meshed(), "200", "{server}");
        mesh.exec(server, ["sh", "-c", "kill $(cat /data/other.pid)"]);
        eventually("the application has ended", || refused().then_some(()));
        assert_eq!(meshed(), "502", "{server}");
    }
}
