//! Services below systemd on a machine outside the cluster, of five kinds of real software: a
//! daemon that forks itself, one that forks for each client, one that does neither, a JVM, and a
//! program that forks and executes another one for each client. They reach pods and are reached by
//! mutual TLS, survive restarts of unit, proxy, agent and host, and leave without a trace.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use mesh_test_support::command::{are_installed, built, run, succeed, text};
use mesh_test_support::eventually::eventually;
use mesh_test_support::machine::Machine;
use mesh_test_support::network::Namespace;
use mesh_test_support::systemd::Systemd;
use mesh_test_support::{http, require_root};
use serde_json::Value;

use super::access::has_metric;
use super::manifests;
use crate::harness::mesh::Mesh;

/// The pod whose identity the proxies of the machine have.
const VM: &str = "vm.app.serviceaccount.identity.linkerd.cluster.local";
const CLIENT: &str = "client.app.serviceaccount.identity.linkerd.cluster.local";
/// A subnet of the link between the cluster and the machine.
const GATEWAY: &str = "10.79.0.1";
const ADDRESS: &str = "10.79.0.2";

/// A service that gets `hello` from a pod when a client asks it.
struct Service {
    name: &'static str,
    port: u16,
    /// The command of a client in a pod; `WEB` stands for the address of the Service `web`.
    ask: &'static [&'static str],
    /// The pod that the service asks.
    asks: &'static str,
}

const SERVICES: [Service; 5] = [
    Service {
        name: "nginx",
        port: 8080,
        ask: &["curl", "-sS", "-m", "5", "http://nginx/"],
        asks: "app/web",
    },
    Service {
        name: "postgres",
        port: 5432,
        ask: &[
            "psql",
            "-qtA",
            "--host=postgres",
            "--username=postgres",
            "--command=create temp table response(line text)",
            "--command=copy response from program 'curl -s -m 5 http://WEB/'",
            "--command=select line from response",
        ],
        asks: "app/web",
    },
    Service {
        name: "redis-replica",
        port: 6379,
        ask: &["redis-cli", "-h", "redis-replica", "get", "greeting"],
        asks: "app/redis",
    },
    Service {
        name: "jvm",
        port: 8081,
        ask: &["curl", "-sS", "-m", "5", "http://jvm/"],
        asks: "app/web",
    },
    Service {
        name: "forking",
        port: 8082,
        ask: &["curl", "-sS", "-m", "5", "http://forking/"],
        asks: "app/web",
    },
];

const PROGRAMS: [&str; 6] = ["nginx", "psql", "redis-server", "java", "javac", "socat"];

/// The lines of each log that a failure shows.
const LOGGED: usize = 20;

/// Where Debian installs the programs of PostgreSQL's servers, by version.
const POSTGRES: &str = "/usr/lib/postgresql";

/// A machine whose process 1 is systemd: all that outlives its boot.
struct Vm {
    machine: Machine,
    network: Namespace,
    /// The directory of PostgreSQL's programs.
    postgres: PathBuf,
}

impl Vm {
    fn new(postgres: PathBuf) -> Self {
        let machine = Machine::new();
        let network = Namespace::new();
        let link = machine.name();
        run(format!(
            "ip link add {link} type veth peer name eth0 netns {}",
            network.name()
        ));
        run(format!("ip addr add {GATEWAY}/30 dev {link}"));
        run(format!("ip link set {link} up"));
        network.ip(&format!("addr add {ADDRESS}/30 dev eth0"));
        network.ip("link set eth0 up");
        network.ip(&format!("route add default via {GATEWAY}"));
        // Users of services read and write files below.
        fs::set_permissions(machine.directory(), Permissions::from_mode(0o755)).expect("mode");
        fs::create_dir(machine.path("etc")).expect("a directory");
        Self {
            machine,
            network,
            postgres,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.machine.path(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        let parent = path.parent().expect("a directory");
        fs::create_dir_all(parent).expect("a directory");
        fs::write(path, text).expect("a file");
    }

    fn boot(&self) -> Systemd {
        let etc = self.path("etc");
        Systemd::boot(&self.network, &self.machine, &etc, "test.target")
    }

    /// Writes what the machine starts at boot.
    fn write_target(&self, proxies: &[String]) {
        let services = SERVICES.iter().map(|service| unit(service.name));
        let wanted: Vec<String> = services.chain(proxies.iter().cloned()).collect();
        self.write(
            "etc/test.target",
            &format!(
                "[Unit]\nDefaultDependencies=no\nWants=mesh-agent.service {}\n",
                wanted.join(" ")
            ),
        );
    }

    /// Writes the services, which are the same with and without the mesh.
    fn write_services(&self, web: &str, redis: &str) {
        let directory = self.machine.directory();
        let directory = directory.display();
        let service = |name: &str, settings: String| {
            let text = format!(
                "[Unit]\nDefaultDependencies=no\nWants=basic.target\nAfter=basic.target\n[Service]\n{settings}\n"
            );
            self.write(&format!("etc/{}", unit(name)), &text);
        };
        self.write("etc/basic.target", "[Unit]\nDefaultDependencies=no\n");
        service(
            "nginx",
            format!(
                "Type=forking\nPIDFile=/run/nginx.pid\nExecStart=nginx -e {directory}/nginx.log -c {directory}/nginx.conf"
            ),
        );
        self.write(
            "nginx.conf",
            &format!(
                "user root; pid /run/nginx.pid; error_log {directory}/nginx.log; events {{}}\n\
                 http {{ access_log off; client_body_temp_path /run/body; proxy_temp_path /run/proxy;\n\
                 fastcgi_temp_path /run/fastcgi; uwsgi_temp_path /run/uwsgi; scgi_temp_path /run/scgi;\n\
                 server {{ listen 8080; location / {{ proxy_pass http://{web}/; }}\n\
                 location = /self {{ return 204; }} }} }}\n"
            ),
        );
        service(
            "postgres",
            format!(
                "User=postgres\nExecStart={} -D {directory}/postgres -c listen_addresses=* -c unix_socket_directories= -c fsync=off",
                self.postgres.join("postgres").display()
            ),
        );
        service(
            "redis-replica",
            format!(
                "ExecStart=redis-server --port 6379 --bind 0.0.0.0 --protected-mode no --save '' --dir {directory} --replicaof {redis} 6379"
            ),
        );
        service(
            "jvm",
            format!(
                "ExecStart=java -Xmx64m -XX:TieredStopAtLevel=1 -cp {directory} Ask {web} 8081"
            ),
        );
        self.write("Ask.java", JVM);
        run(format!("javac -d {directory} {directory}/Ask.java"));
        service(
            "forking",
            format!("ExecStart=socat TCP-LISTEN:8082,fork,reuseaddr EXEC:{directory}/respond"),
        );
        self.write(
            "respond",
            &format!(
                "#!/bin/sh\nwhile read -r line && [ ${{#line}} -gt 1 ]; do :; done\n\
                 printf 'HTTP/1.0 200 OK\\r\\nconnection: close\\r\\n\\r\\n'\nexec curl -s -m 5 http://{web}/\n"
            ),
        );
        fs::set_permissions(self.path("respond"), Permissions::from_mode(0o755)).expect("mode");
    }

    fn initialize_postgres(&self) {
        let data = self.path("postgres");
        fs::create_dir(&data).expect("a directory");
        run(format!("chown postgres {}", data.display()));
        let mut initdb = Command::new("setpriv");
        initdb.args(["--reuid=postgres", "--clear-groups", "--"]);
        initdb
            .arg(self.postgres.join("initdb"))
            .arg("-D")
            .arg(&data);
        succeed(initdb.args(["--auth=trust", "--no-sync"]));
        let mut access = fs::read_to_string(data.join("pg_hba.conf")).expect("a file");
        access.push_str("host all all 0.0.0.0/0 trust\n");
        fs::write(data.join("pg_hba.conf"), access).expect("a file");
    }

    /// Writes the units of the mesh: this project's, with paths of this machine.
    fn write_mesh(&self, environment: &BTreeMap<String, String>) {
        let directory = self.machine.directory();
        let directory = directory.display();
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mesh-agent/systemd");
        for unit in ["mesh-agent.service", "mesh-proxy@.service"] {
            fs::copy(own.join(unit), self.path("etc").join(unit)).expect("a unit file");
        }
        self.write(
            "etc/mesh-agent.service.d/test.conf",
            &format!(
                "[Unit]\nRequiresMountsFor=\n[Service]\nStateDirectory=\n\
                 StandardOutput=append:{directory}/agent.log\nStandardError=append:{directory}/agent.log\n\
                 ExecStart=\nExecStart={agent} --socket {directory}/agent.sock --state-dir /run/mesh \
                 --units-dir {directory}/units --pin-dir {directory}/bpf/mesh \
                 --admin-addr 127.0.0.1:0 machine\n",
                agent = built("mesh-agent").display()
            ),
        );
        self.write(
            "etc/mesh-proxy@.service.d/test.conf",
            &format!(
                "[Unit]\nDefaultDependencies=no\n[Service]\nUser=65534\nEnvironmentFile=\n\
                 EnvironmentFile={directory}/units/proxies/%i.env\nEnvironmentFile={directory}/proxy.env\n\
                 EnvironmentFile={directory}/proxy-%i.env\nExecStart=\nExecStart={proxy}\n\
                 StandardOutput=append:{directory}/proxy.log\nStandardError=append:{directory}/proxy.log\n",
                proxy = built("mesh-proxy").display()
            ),
        );
        let lines = environment
            .iter()
            .map(|(name, value)| format!("{name}={}\n", quoted(value)));
        self.write("proxy.env", &lines.collect::<String>());
        for Service { name, .. } in SERVICES {
            let workload = format!("{{\"ns\":\"app\",\"external_workload\":\"{name}\"}}");
            let line = format!("LINKERD2_PROXY_POLICY_WORKLOAD={}\n", quoted(&workload));
            self.write(&format!("proxy-{name}.env"), &line);
        }
    }

    fn meshctl(&self, arguments: &str) -> String {
        let mut command = Command::new(built("meshctl"));
        command.args(["machine", "--socket"]);
        command.arg(self.path("agent.sock"));
        succeed(command.args(arguments.split(' ')))
    }

    fn status(&self, name: &str) -> Value {
        let status = self.meshctl(&format!("status {} -o json", unit(name)));
        serde_json::from_str(&status).expect("JSON")
    }

    fn wait_for_agent(&self) {
        eventually("the agent", || {
            let mut command = Command::new(built("meshctl"));
            command.args(["machine", "list", "--socket"]);
            let output = command.arg(self.path("agent.sock")).output();
            output.is_ok_and(|output| output.status.success())
        });
    }

    /// Returns the ends of the logs.
    fn logs(&self) -> String {
        let end = |name: &str| {
            let log = fs::read_to_string(self.path(name)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines.len().saturating_sub(LOGGED);
            format!("{name}:\n{}\n", lines[last..].join("\n"))
        };
        ["agent.log", "proxy.log", "nginx.log"].map(end).concat()
    }

    /// Returns the metrics of the proxy of a service.
    fn metrics(&self, name: &str) -> String {
        let status = self.status(name);
        let port = status["ports"]["admin"].as_u64().expect("a port");
        let address: SocketAddr = format!("127.0.0.1:{port}").parse().expect("an address");
        let request = || http::request(address, "GET /metrics");
        self.network.enter(request).unwrap_or_default()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = mesh_test_support::command::try_run(format!("ip link del {}", self.machine.name()));
    }
}

const JVM: &str = r#"
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.net.URL;

public class Ask {
    public static void main(String[] arguments) throws Exception {
        var server = HttpServer.create(new InetSocketAddress(Integer.parseInt(arguments[1])), 0);
        server.createContext("/", exchange -> {
            var connection = new URL("http://" + arguments[0] + "/").openConnection();
            connection.setReadTimeout(5000);
            byte[] body;
            try (var input = connection.getInputStream()) {
                body = input.readAllBytes();
            }
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
    }
}
"#;

/// Returns the directory of the programs of PostgreSQL.
fn postgres() -> Option<PathBuf> {
    let versions = fs::read_dir(POSTGRES).ok()?;
    let directories = versions.flatten().map(|version| version.path().join("bin"));
    let mut installed = directories.filter(|directory| directory.join("initdb").exists());
    installed.next()
}

fn unit(name: &str) -> String {
    format!("{name}.service")
}

fn proxy_unit(name: &str) -> String {
    format!("mesh-proxy@{name}.service")
}

/// Quotes a value of a file of environment variables.
fn quoted(value: &str) -> String {
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

/// The Service and the ExternalWorkload of a service of the machine.
fn external(service: &Service, inbound: u64) -> String {
    let Service { name, port, .. } = service;
    let exposed = if *port > 8000 { 80 } else { *port };
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: app}}
spec: {{ports: [{{name: main, port: {exposed}, targetPort: {port}}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: app, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: main, port: {port}}}]
endpoints:
- addresses: ['{ADDRESS}']
  conditions: {{ready: true}}
  targetRef: {{kind: ExternalWorkload, name: {name}, namespace: app}}
---
apiVersion: workload.linkerd.io/v1beta1
kind: ExternalWorkload
metadata: {{name: {name}, namespace: app}}
spec:
  meshTLS: {{identity: {VM}, serverName: {VM}}}
  workloadIPs: [{{ip: {ADDRESS}}}]
  ports: [{{name: main, port: {port}}}, {{name: linkerd-proxy, port: {inbound}}}]
---
"
    )
}

/// Returns the address of a Service of the namespace `app`.
fn service_address(mesh: &Mesh, name: &str) -> String {
    let status = mesh.json("local status -o json");
    let services = status["services"].as_array().expect("Services");
    let service = services
        .iter()
        .find(|service| service["name"] == name && service["namespace"] == "app");
    let address = service.and_then(|service| service["addresses"][0].as_str());
    address.expect("the Service has an address").to_owned()
}

/// Returns the environment of a proxy on the machine: the one of a pod's proxy without its
/// listeners, with the token of that pod and the addresses of the controllers.
fn environment(mesh: &Mesh, vm: &Vm) -> BTreeMap<String, String> {
    let read = |pid: &u32, file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let pids = mesh.processes("mesh-proxy");
    let is_of_vm = |pid: &&u32| text(&read(pid, "environ")).contains(VM);
    let pid = pids.iter().find(is_of_vm).expect("the proxy of pod vm");
    let environ = text(&read(pid, "environ"));
    let mut environment: BTreeMap<String, String> = environ
        .split('\0')
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| name.starts_with("LINKERD2_PROXY_") && !name.ends_with("LISTEN_ADDR"))
        .filter(|(name, _)| !name.ends_with("LISTEN_ADDRS") && !name.ends_with("INBOUND_IPS"))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let token = "LINKERD2_PROXY_IDENTITY_TOKEN_FILE";
    let copy = vm.path("token");
    // Not by /proc/PID/root: /var/run is a link to a path of the reader's root.
    let mut read_token = Command::new("nsenter");
    read_token.args(["--mount", "--target", &pid.to_string(), "cat"]);
    let content = succeed(read_token.arg(&environment[token]));
    fs::write(&copy, content).expect("a file");
    fs::set_permissions(&copy, Permissions::from_mode(0o644)).expect("mode");
    environment.insert(token.to_owned(), copy.display().to_string());
    let status = mesh.json("local status -o json");
    let pods = status["pods"].as_array().expect("pods");
    for (service, component) in [
        ("IDENTITY", "linkerd-identity"),
        ("DESTINATION", "linkerd-destination"),
        ("POLICY", "linkerd-destination"),
    ] {
        let pod = pods.iter().find(|pod| {
            pod["namespace"] == "linkerd"
                && pod["name"]
                    .as_str()
                    .is_some_and(|name| name.starts_with(component))
        });
        let address = pod.and_then(|pod| pod["ips"][0].as_str());
        let name = format!("LINKERD2_PROXY_{service}_SVC_ADDR");
        let (_, port) = environment[&name].rsplit_once(':').expect("a port");
        let address = format!("{}:{port}", address.expect("a controller"));
        environment.insert(name, address);
    }
    environment
}

/// Asks every service from a pod, until each has asked its pod.
fn ask_all(mesh: &Mesh, vm: &Vm, occasion: &str) {
    let web = service_address(mesh, "web");
    for service in &SERVICES {
        let words = service.ask.iter();
        let command: Vec<String> = words.map(|word| word.replace("WEB", &web)).collect();
        let what = format!("the response of {} {occasion}", service.name);
        eventually(&what, || {
            let answer = mesh.exec("app/client", &command);
            if answer.trim() == "hello" {
                Ok(())
            } else {
                Err(format!("{answer}; {}", vm.logs()))
            }
        });
    }
}

/// Asserts that connections in both directions are authenticated at the proxy that accepts them.
fn assert_mutual_tls(mesh: &Mesh, vm: &Vm) {
    for service in &SERVICES {
        let client = format!("client_id=\"{CLIENT}\"");
        let metrics = vm.metrics(service.name);
        let is_inbound = |line: &str| {
            line.starts_with("tcp_open_total{direction=\"inbound\"")
                && line.contains("tls=\"true\"")
                && line.contains(&client)
        };
        assert!(metrics.lines().any(is_inbound), "{}", service.name);
        let client = format!("client_id=\"{VM}\"");
        let labels = ["direction=\"inbound\"", "tls=\"true\"", &client];
        let is_authenticated = has_metric(mesh, service.asks, "tcp_open_total{", &labels);
        assert!(is_authenticated, "{}", service.name);
    }
}

/// Asserts that `meshctl` finds nothing wrong on the machine, and explains both directions.
fn assert_explained(vm: &Vm, systemd: &Systemd, web: &str) {
    let socket = vm.path("agent.sock").display().to_string();
    let explain = |words: &[&str]| -> Value {
        let program = built("meshctl").display().to_string();
        let mut command = systemd.command([program]);
        command.args(["machine", "--socket", &socket]).args(words);
        serde_json::from_str(&succeed(command.args(["-o", "json"]))).expect("JSON")
    };
    let report = explain(&["check", "nginx.service"]);
    assert_eq!(report["success"], true, "{report:#}");
    let report = explain(&["why", "nginx.service", &format!("{web}:80")]);
    assert_eq!(report["verdict"]["outcome"], "admitted", "{report:#}");
    assert!(
        report.to_string().contains("is Service app/web"),
        "{report:#}"
    );
    let report = explain(&["why", "nginx.service"]);
    assert!(report.to_string().contains("8080: default"), "{report:#}");
}

#[test]
fn services_of_a_machine_join_the_mesh_survive_restarts_and_leave() {
    require_root!();
    if !are_installed(&PROGRAMS) || !Systemd::is_installed() {
        return;
    }
    let Some(postgres) = postgres() else {
        println!("skipped: there is no PostgreSQL in {POSTGRES}");
        return;
    };
    let app = manifests::app()
        + &manifests::redis("app")
        + &manifests::pod("app", "vm", &["sleep", "infinity"], &[], "");
    let mesh = Mesh::up(&[("app.yaml", &app)]);
    let (web, redis) = (
        service_address(&mesh, "web"),
        service_address(&mesh, "redis"),
    );
    mesh.exec("app/client", "redis-cli -h redis set greeting hello");
    let vm = Vm::new(postgres);
    vm.write_services(&web, &redis);
    vm.initialize_postgres();
    vm.write_mesh(&environment(&mesh, &vm));
    vm.write_target(&[]);
    let systemd = vm.boot();
    vm.wait_for_agent();

    let mut objects = String::new();
    for service in &SERVICES {
        vm.meshctl(&format!("enrol {}", unit(service.name)));
        systemd.systemctl(["start", &proxy_unit(service.name)]);
        let inbound = vm.status(service.name)["ports"]["inbound"].as_u64();
        objects += &external(service, inbound.expect("a port"));
    }
    mesh.write("machine.yaml", &objects);
    mesh.meshctl("local apply");
    for service in &SERVICES {
        eventually("the redirection of a unit", || {
            vm.status(service.name)["state"] == "redirected"
        });
    }
    // A replica connects when it starts.
    systemd.systemctl("restart redis-replica.service");
    ask_all(&mesh, &vm, "after the enrolment");
    assert_mutual_tls(&mesh, &vm);
    assert_eq!(vm.network.run("nft list ruleset"), "", "no packet filter");

    for service in &SERVICES {
        systemd.systemctl(["restart", &unit(service.name)]);
    }
    ask_all(&mesh, &vm, "after a restart");
    for service in &SERVICES {
        systemd.systemctl(["restart", &proxy_unit(service.name)]);
    }
    ask_all(&mesh, &vm, "after a restart of its proxy");
    assert_mutual_tls(&mesh, &vm);
    systemd.systemctl("kill --signal=KILL mesh-agent.service");
    for service in &SERVICES {
        systemd.systemctl(["restart", &unit(service.name)]);
    }
    ask_all(&mesh, &vm, "after the agent was killed");
    let proxies: Vec<String> = SERVICES
        .iter()
        .map(|service| proxy_unit(service.name))
        .collect();
    vm.write_target(&proxies);
    drop(systemd);
    let systemd = vm.boot();
    vm.wait_for_agent();
    ask_all(&mesh, &vm, "after a boot");
    assert_mutual_tls(&mesh, &vm);
    assert_explained(&vm, &systemd, &web);

    for service in &SERVICES {
        vm.meshctl(&format!("withdraw {}", unit(service.name)));
        systemd.systemctl(["stop", &proxy_unit(service.name)]);
    }
    let mut list = systemd.command(["test", "!", "-e"]);
    succeed(list.arg(vm.path("bpf/mesh")));
    let records = succeed(
        Command::new("find")
            .arg(vm.path("units"))
            .args(["-type", "f"]),
    );
    assert!(records.trim().ends_with("/sequence"), "{records}");
    assert_eq!(records.lines().count(), 1, "{records}");
    // Without a proxy.
    let direct = format!("{ADDRESS}:8080").parse().expect("an address");
    let response = http::request(direct, "GET /self").expect("nginx responds");
    assert!(response.starts_with("HTTP/1.1 204"), "{response}");
}
