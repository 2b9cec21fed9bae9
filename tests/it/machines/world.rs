//! A control plane in one network namespace, with its identity service behind a proxy as in its
//! pod, and a machine in another one.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::{fs, thread};

use mesh_test_support::certificates::TestCa;
use mesh_test_support::command::{built, feed, output_text, succeed, text};
use mesh_test_support::eventually::eventually;
use mesh_test_support::http;
use mesh_test_support::kube_api::{ScriptedApi, write_kubeconfig};
use mesh_test_support::machine::Machine;
use mesh_test_support::network::Namespace;
use mesh_test_support::program::Program;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::rotation::token;

pub(super) const MACHINE: &str = "db-1";
pub(super) const ACCOUNT: &str = "shop/db";
/// The identity of the unit.
pub(super) const UNIT: &str = "db.shop.serviceaccount.identity.linkerd.cluster.local";
/// The identity of a client of it.
pub(super) const CLIENT: &str = "web.shop.serviceaccount.identity.linkerd.cluster.local";
pub(super) const DAY: u64 = 24 * 3600;

const IDENTITY: &str = "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local";
const IDENTITY_ADDR: &str = "10.78.0.2:8080";
const SERVICE: &str = "10.78.0.1:8080";
const ADMIN: &str = "127.0.0.1:9990";
const FRONT_ADMIN: &str = "127.0.0.1:4191";
/// Nothing listens there.
const CLOSED: &str = "10.78.0.2:1";
const CONFIG_MAPS: &str = "/api/v1/namespaces/linkerd/configmaps";
/// The user that the proxies of units run as.
const PROXY_USER: &str = "daemon";

pub(super) struct World {
    ca: TestCa,
    api: ScriptedApi,
    // Programs end before what they use.
    front: Option<Program>,
    _identity: Program,
    _stop: oneshot::Sender<()>,
    control: Namespace,
    host: Namespace,
    machine: Machine,
}

pub(super) struct Agent<'a> {
    world: &'a World,
    _program: Program,
    admin: SocketAddr,
}

impl World {
    pub(super) fn start() -> Self {
        let (control, host, machine) = (Namespace::new(), Namespace::new(), Machine::new());
        control.link("host", &host, "control");
        for (namespace, interface, number) in [(&control, "host", 2), (&host, "control", 1)] {
            namespace.add_address([10, 78, 0, number].into(), 24, interface);
            namespace.ip(&format!("link set {interface} up"));
        }
        for slice in ["system.slice", "mesh.slice"] {
            fs::create_dir(machine.cgroup().join(slice)).expect("a cgroup");
        }
        let ca = TestCa::new();
        let (certificate, key) = ca.issuer_pem();
        for (name, text) in [
            ("anchors.pem", ca.anchor_pem()),
            ("crt.pem", certificate),
            ("key.pem", &key),
            ("token", &token("linkerd", "linkerd-identity")),
        ] {
            fs::write(machine.path(name), text).expect("a file");
        }
        let api = api(ca.anchor_pem());
        let (address, stop) = serve(&control, &api);
        write_kubeconfig(&machine.path("kubeconfig"), address);
        let identity = control.enter(|| Program::start(&mut identity(&machine)));
        eventually("the identity service", || {
            control.enter(|| http::request(admin(ADMIN), "GET /ready"))
        });
        // As the proxy of the pod gets the connections of others.
        let nft = "add table ip front
add chain ip front in { type nat hook prerouting priority dstnat; }
add rule ip front in tcp dport 8080 redirect to :4143";
        let output = feed(&mut control.command("nft -f -"), nft);
        assert!(output.status.success(), "{}", output_text(&output));
        let front = control.enter(|| Program::start(&mut front(&machine, ca.anchor_pem())));
        eventually("the certificate of the identity service", || {
            let metrics = control.enter(|| http::request(admin(FRONT_ADMIN), "GET /metrics"));
            let series = "control_identity_cert_refreshes_total{result=\"ok\"} 1";
            metrics.is_ok_and(|metrics| metrics.contains(series))
        });
        Self {
            ca,
            api,
            front: Some(front),
            _identity: identity,
            _stop: stop,
            control,
            host,
            machine,
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.machine.path(name)
    }

    pub(super) fn start_agent(&self) -> Agent<'_> {
        let mut command = Command::new(built("mesh-agent"));
        for (flag, path) in [
            ("--socket", self.path("agent.sock")),
            ("--state-dir", self.path("state")),
            ("--units-dir", self.path("units")),
            ("--pin-dir", self.machine.pins()),
            ("--cgroup-root", self.machine.cgroup().join("system.slice")),
        ] {
            command.arg(flag).arg(path);
        }
        command
            .args(["--admin-addr", "127.0.0.1:0", "machine", "--proxy-root"])
            .arg(self.machine.cgroup().join("mesh.slice"))
            .args(["--proxy-user", PROXY_USER]);
        let program = self.host.enter(|| Program::start(&mut command));
        let ready = program.wait_for("Ready").expect("the agent is ready");
        let (_, admin) = ready.rsplit_once("admin=").expect("an address");
        Agent {
            world: self,
            admin: admin.trim().parse().expect("an address"),
            _program: program,
        }
    }

    /// Returns a command that asks the agent.
    pub(super) fn meshctl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(built("meshctl"));
        command
            .args(args)
            .env("MESH_AGENT_SOCKET", self.path("agent.sock"))
            .stdin(Stdio::null());
        command
    }

    pub(super) fn meshctl(&self, args: &[&str]) -> Output {
        self.meshctl_command(args).output().expect("meshctl starts")
    }

    pub(super) fn meshctl_json(&self, args: &[&str]) -> Value {
        let printed = succeed(&mut self.meshctl_command(args));
        serde_json::from_str(&printed).expect("JSON")
    }

    /// Runs a command of a workstation, which must succeed.
    pub(super) fn meshctl_in_cluster(&self, args: &[&str]) -> String {
        let mut command = self
            .control
            .command([built("meshctl")].map(|it| it.display().to_string()));
        command
            .args(args)
            .env("KUBECONFIG", self.path("kubeconfig"))
            .env_remove("MESHCTL_LOCAL")
            .env_remove("LINKERD_NAMESPACE");
        succeed(&mut command)
    }

    /// Returns the fingerprint of the machine's key.
    pub(super) fn key(&self) -> String {
        let key = succeed(&mut self.meshctl_command(&["machine", "key"]));
        key.trim().to_owned()
    }

    /// Admits a machine with this key, and returns its join file.
    pub(super) fn admit(&self, key: &str) -> String {
        self.admit_account(key, ACCOUNT)
    }

    /// The same, with another ServiceAccount.
    pub(super) fn admit_account(&self, key: &str, account: &str) -> String {
        self.meshctl_in_cluster(&[
            "machine",
            "admit",
            MACHINE,
            "--key-sha256",
            key,
            "--service-account",
            account,
            "--identity-addr",
            IDENTITY_ADDR,
            "--destination-addr",
            CLOSED,
            "--policy-addr",
            CLOSED,
        ])
    }

    pub(super) fn join(&self) {
        let file = self.admit(&self.key());
        self.join_with(&file);
    }

    /// The identity service gets to know of an admission a moment later.
    pub(super) fn join_with(&self, file: &str) {
        eventually("the machine joins", || {
            let output = self.join_attempt(file);
            output
                .status
                .success()
                .then_some(())
                .ok_or_else(|| output_text(&output))
        });
    }

    pub(super) fn join_attempt(&self, file: &str) -> Output {
        feed(&mut self.meshctl_command(&["machine", "join", "-"]), file)
    }

    /// Runs `meshctl machine check` where agent and proxies run.
    pub(super) fn check_output(&self, args: &[&str]) -> Output {
        let program = built("meshctl").display().to_string();
        let mut command = self.host.command([program]);
        command
            .args(["machine", "check"])
            .args(args)
            .env("MESH_AGENT_SOCKET", self.path("agent.sock"))
            .stdin(Stdio::null());
        command.output().expect("meshctl starts")
    }

    /// Returns the document that it prints.
    pub(super) fn check(&self, args: &[&str]) -> Value {
        let output = self.check_output(args);
        let printed = text(&output.stdout);
        serde_json::from_str(&printed).unwrap_or_else(|_| panic!("{}", output_text(&output)))
    }

    pub(super) fn in_host<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.host.enter(work)
    }

    /// Ends the proxy in front of the identity service, through which all clients reach it.
    pub(super) fn stop_identity_service(&mut self) {
        self.front = None;
    }

    /// Returns the path of the cgroup above the units.
    pub(super) fn unit_root(&self) -> String {
        format!("{}/system.slice", self.machine.name())
    }

    /// Enrols the unit `web.service`.
    pub(super) fn enrol(&self) -> Value {
        let cgroup = format!("{}/web.service", self.unit_root());
        self.meshctl_json(&[
            "machine",
            "enrol",
            "web.service",
            "--cgroup",
            &cgroup,
            "--service-account",
            ACCOUNT,
            "-o",
            "json",
        ])
    }

    /// Starts the application of the unit.
    pub(super) fn start_unit(&self) -> Program {
        let probe = built("probe").display().to_string();
        self.start_in(
            "system.slice/web.service",
            &format!("exec {probe} listen --greet app 0.0.0.0:8080"),
        )
    }

    /// Starts the proxy of the unit as systemd does, with the environment that the agent wrote.
    pub(super) fn start_proxy(&self) -> Program {
        let environment = self.path("units/proxies/web.env");
        let script = format!(
            "set -a; . {}; exec setpriv --reuid {PROXY_USER} --regid {PROXY_USER} --clear-groups {}",
            environment.display(),
            built("mesh-proxy").display()
        );
        self.start_in("mesh.slice/mesh-proxy@web.service", &script)
    }

    fn start_in(&self, cgroup: &str, script: &str) -> Program {
        let cgroup = self.machine.cgroup().join(cgroup);
        fs::create_dir_all(&cgroup).expect("a cgroup");
        let script = format!("echo $$ > {}/cgroup.procs; {script}", cgroup.display());
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        self.host.enter(|| Program::start(&mut command))
    }

    /// Connects from another host to the unit by TLS, which verifies its identity, and returns what
    /// the application sends.
    pub(super) fn connect(&self, client: Option<&str>) -> String {
        let anchors = self.path("anchors.pem").display().to_string();
        let mut command = self
            .control
            .command("openssl s_client -quiet -verify_return_error");
        command
            .args(["-connect", SERVICE, "-CAfile", &anchors])
            .args(["-servername", UNIT, "-verify_hostname", UNIT]);
        if let Some(client) = client {
            let (certificate, key) = self.certificate(client);
            command.arg("-cert").arg(certificate).arg("-key").arg(key);
        }
        output_text(&feed(&mut command, "hello\n"))
    }

    /// Writes a certificate and its key, and returns their paths.
    fn certificate(&self, identity: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![identity.to_owned()]).expect("a name");
        let request = params.serialize_request(&key).expect("a request");
        let issued = self.ca.sign(request.der());
        let paths = (self.path("client.der"), self.path("client.key"));
        let pem = self.path("client.pem");
        fs::write(&paths.0, issued.leaf).expect("a file");
        fs::write(&paths.1, key.serialize_pem()).expect("a file");
        let convert = format!(
            "openssl x509 -inform der -in {} -out {}",
            paths.0.display(),
            pem.display()
        );
        succeed(&mut mesh_test_support::command::command(convert));
        (pem, paths.1)
    }

    /// Returns the series of a family of the unit's proxy.
    pub(super) fn proxy_metric(&self, family: &str) -> String {
        let metrics = self
            .host
            .enter(|| http::request(admin("127.0.0.1:61003"), "GET /metrics"));
        let metrics = metrics.expect("the proxy responds");
        let lines = metrics.lines().filter(|line| line.starts_with(family));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Adds a trust anchor to the mesh, and returns it.
    pub(super) fn add_anchor(&self) -> String {
        let added = TestCa::new().anchor_pem().to_owned();
        let both = format!("{}{added}", self.ca.anchor_pem());
        self.api
            .put(&path("linkerd-identity-trust-roots"), roots(&both));
        let draft = self.path("anchors.new");
        fs::write(&draft, both).expect("a file");
        fs::rename(draft, self.path("anchors.pem")).expect("the file is renamed");
        added
    }
}

impl Agent<'_> {
    /// Returns the value of a series, 0 if there is none.
    pub(super) fn metric(&self, series: &str) -> f64 {
        let request = || http::request(self.admin, "GET /metrics");
        let metrics = self.world.host.enter(request).unwrap_or_default();
        let mut lines = metrics.lines();
        let line = lines.find_map(|line| line.strip_prefix(series));
        let value = line.and_then(|value| value.trim().parse().ok());
        value.unwrap_or_default()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The agent leaves what redirects units.
        let _best_effort = fs::remove_dir_all(self.machine.pins());
    }
}

pub(super) fn proxy_user() -> u32 {
    let id = succeed(&mut mesh_test_support::command::command(format!(
        "id -u {PROXY_USER}"
    )));
    id.trim().parse().expect("a number")
}

fn admin(address: &str) -> SocketAddr {
    address.parse().expect("an address")
}

fn path(config_map: &str) -> String {
    format!("{CONFIG_MAPS}/{config_map}")
}

fn config_map(name: &str, data: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": "linkerd" }, "data": data,
    })
}

fn roots(anchors: &str) -> Value {
    config_map(
        "linkerd-identity-trust-roots",
        json!({ "ca-bundle.crt": anchors }),
    )
}

/// Returns what the chart creates for the identity service.
fn api(anchors: &str) -> ScriptedApi {
    let api = ScriptedApi::default();
    let values = "proxy: {defaultInboundPolicy: all-authenticated, logLevel: 'warn,mesh=debug'}";
    let config = json!({ "values": values });
    api.put(
        &path("linkerd-config"),
        config_map("linkerd-config", config),
    );
    let bundle = "linkerd-identity-trust-bundle";
    api.put(&path(bundle), config_map(bundle, Value::Null));
    api.put(&path("linkerd-identity-trust-roots"), roots(anchors));
    api.authenticate_as("system:serviceaccount:linkerd:linkerd-identity");
    api
}

/// Serves the API server in the namespace until the sender is dropped.
fn serve(control: &Namespace, api: &ScriptedApi) -> (SocketAddr, oneshot::Sender<()>) {
    let (send, address) = mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let api = api.clone();
    let serve = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            send.send(api.listen("control plane").await)
                .expect("a receiver");
            let _dropped = stopped.await;
        });
    };
    // A thread has the namespace of the one that started it.
    control.enter(|| drop(thread::spawn(serve)));
    (address.recv().expect("an address"), stop)
}

fn identity(machine: &Machine) -> Command {
    let mut command = Command::new(built("mesh-controller"));
    let flag = |name: &str, file: &str| format!("--{name}={}", machine.path(file).display());
    command.args([
        "identity".to_owned(),
        "--addr=0.0.0.0:8080".to_owned(),
        format!("--admin-addr={ADMIN}"),
        "--publish-trust-roots".to_owned(),
        flag("kubeconfig", "kubeconfig"),
        flag("issuer-dir", ""),
        flag("trust-anchors", "anchors.pem"),
    ]);
    command
}

/// Returns the proxy of the identity service.
fn front(machine: &Machine, anchors: &str) -> Command {
    let environment = [
        ("LOG", "warn,mesh=debug".to_owned()),
        (
            "IDENTITY_TOKEN_FILE",
            machine.path("token").display().to_string(),
        ),
        ("IDENTITY_SVC_ADDR", "localhost.:8080".to_owned()),
        ("DESTINATION_SVC_ADDR", CLOSED.to_owned()),
        ("DESTINATION_SVC_NAME", "a.example".to_owned()),
        ("POLICY_SVC_ADDR", CLOSED.to_owned()),
        ("POLICY_SVC_NAME", "a.example".to_owned()),
        ("POLICY_WORKLOAD", "linkerd:identity".to_owned()),
        ("IDENTITY_TRUST_ANCHORS", anchors.to_owned()),
        ("IDENTITY_LOCAL_NAME", IDENTITY.to_owned()),
        ("INBOUND_DEFAULT_POLICY", "all-unauthenticated".to_owned()),
        ("INBOUND_LISTEN_ADDR", "0.0.0.0:4143".to_owned()),
        ("ADMIN_LISTEN_ADDR", FRONT_ADMIN.to_owned()),
        ("CORES", "1".to_owned()),
    ];
    let mut command = Command::new(built("mesh-proxy"));
    command.env_clear();
    command.envs(environment.map(|(name, value)| (format!("LINKERD2_PROXY_{name}"), value)));
    command
}
