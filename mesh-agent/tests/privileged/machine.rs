//! An agent for systemd units: enrolment over its socket, and what it does when it, the host or a
//! file of it ends.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use mesh_agent::ebpf::unload_for_units;
use mesh_agent::node_api::client;
use mesh_core::machine::{UnitEnrolment, UnitRef, UnitState, UnitStatus};
use mesh_core::node::{
    Attachment, AttachmentId, NodeStatus, PodRef, RefusalReason, RepairKind, Request, Response,
};
use mesh_test_support::eventually::eventually;
use mesh_test_support::http;
use mesh_test_support::network::Namespace;
use mesh_test_support::program::Program;

use crate::Case;
use crate::actor::{Actor, ActorResponse, refused, unreachable};
use crate::env::APP_UID;
use crate::host::{TestHost, pins};
use crate::units::{Proxy, assert_direct};

pub(super) const CASES: &[Case] = &[
    (
        "a running unit is enrolled without a gap, and is redirected once its proxy listens",
        enrolment,
    ),
    (
        "units stay redirected while the agent is killed, and the next one adopts them",
        killed_agent,
    ),
    (
        "units are redirected again after a boot, and closed until their proxies listen",
        boot,
    ),
    (
        "a unit that is withdrawn leaves no trace, and neither does an uninstallation",
        withdrawn,
    ),
    (
        "an agent that cannot read a unit's record keeps the unit redirected",
        damaged_record,
    ),
    (
        "a changed address of the host takes effect at once",
        changed_address,
    ),
    (
        "deleted pins and detached programs of units are repaired and reported",
        repairs,
    ),
    (
        "requests about units that cannot be fulfilled are refused with the reason",
        refusals,
    ),
    (
        "settings of pods are refused by an agent for units",
        settings_of_pods,
    ),
    (
        "a unit whose cgroup systemd has moved is followed",
        moved_unit,
    ),
];

/// Generous: a slow machine must not fail the test.
const TIMEOUT: Duration = Duration::from_secs(20);
const WEB: &str = "192.0.2.10:80";
const OUTSIDE: &str = "10.77.0.2:0";
const SERVICE: &str = "10.77.0.1:8080";
const ANY: &str = "0.0.0.0:8080";

/// A host with an agent, and another machine.
struct Node {
    host: TestHost,
    outside: Namespace,
}

struct Agent<'a> {
    node: &'a Node,
    program: Program,
    admin: SocketAddr,
}

impl Node {
    fn new() -> Self {
        let host = TestHost::new();
        let outside = host.connect_outside();
        Self { host, outside }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.host.machine.path(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mesh-agent"));
        for (flag, path) in [
            ("--socket", self.path("agent.sock")),
            ("--state-dir", self.path("state")),
            ("--units-dir", self.path("units")),
            ("--pin-dir", self.host.pin_dir()),
            ("--cgroup-root", self.host.cgroup("system.slice")),
        ] {
            command.arg(flag).arg(path);
        }
        command.args(["--admin-addr", "127.0.0.1:0"]);
        command
    }

    fn machine_command(&self) -> Command {
        let mut command = self.command();
        command
            .args(["machine", "--proxy-root"])
            .arg(self.host.cgroup("mesh.slice"))
            .arg("--systemctl")
            .arg(self.path("systemctl"));
        command
    }

    fn start(&self) -> Agent<'_> {
        let mut command = self.machine_command();
        let program = self.host.netns.enter(|| Program::start(&mut command));
        let ready = program.wait_for("Ready").unwrap();
        let (_, admin) = ready.rsplit_once("admin=").unwrap();
        Agent {
            node: self,
            admin: admin.trim().parse().unwrap(),
            program,
        }
    }

    fn uninstall(&self) {
        let mut command = self.command();
        command.arg("uninstall").stdout(Stdio::null());
        let status = self.host.netns.enter(|| command.status().unwrap());
        assert!(status.success());
    }

    fn enrolment(&self, name: &str) -> UnitEnrolment {
        let cgroup = format!("system.slice/{name}.service");
        UnitEnrolment {
            unit: format!("{name}.service"),
            cgroup: Some(self.host.path_of(&cgroup)),
            ..UnitEnrolment::default()
        }
    }

    fn client(&self) -> Actor {
        self.host.actor_in(&self.outside, "client", APP_UID)
    }

    /// Returns the names of the files of records.
    fn records(&self) -> Vec<String> {
        let name = |path: PathBuf| {
            let name = path.strip_prefix(self.path("units")).unwrap().to_owned();
            name.to_string_lossy().into_owned()
        };
        pins(&self.path("units")).into_iter().map(name).collect()
    }
}

impl Agent<'_> {
    fn call(&self, request: &Request) -> Response {
        client::call(&self.node.path("agent.sock"), request, TIMEOUT).unwrap()
    }

    fn enrol(&self, enrolment: UnitEnrolment) -> UnitStatus {
        match self.call(&Request::EnrolUnit(enrolment)) {
            Response::Unit(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn withdraw(&self, unit: &str) {
        let unit = unit.to_owned();
        let response = self.call(&Request::WithdrawUnit(UnitRef { unit }));
        assert_eq!(response, Response::Withdrawn);
    }

    fn units(&self) -> Vec<UnitStatus> {
        match self.call(&Request::Units) {
            Response::Units(units) => units,
            other => panic!("{other:?}"),
        }
    }

    fn status(&self) -> NodeStatus {
        match self.call(&Request::Status) {
            Response::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn refusal(&self, request: &Request) -> (RefusalReason, String) {
        match self.call(request) {
            Response::Refused(refusal) => (refusal.reason, refusal.message),
            other => panic!("{other:?}"),
        }
    }

    fn metrics(&self) -> String {
        let request = || http::request(self.admin, "GET /metrics");
        self.node.host.netns.enter(request).unwrap()
    }

    /// Waits for the agent to notice that the proxy of the only unit listens.
    fn wait_until_redirected(&self) {
        eventually("the redirection of the unit", || {
            let units = self.units();
            units[0].state == UnitState::Redirected
        });
    }

    fn kill(mut self) {
        self.program.kill();
    }
}

fn enrolment() {
    let node = Node::new();
    let agent = node.start();
    assert_eq!(
        pins(&node.host.pin_dir()),
        Vec::<PathBuf>::new(),
        "nothing is loaded"
    );
    let (mut web, mut client) = (node.host.unit("web"), node.client());
    let listener = web.listen(ANY);
    assert_direct(&mut client, OUTSIDE, SERVICE, &mut web, listener);

    let status = agent.enrol(node.enrolment("web"));
    assert_eq!(status.state, UnitState::Waiting);
    assert!(status.running && !status.proxy_listens);
    assert_eq!(
        (status.ports.outbound, status.ports.inbound),
        (61_000, 61_001)
    );
    assert_eq!(status.listening, [ANY.parse().unwrap()]);
    assert_direct(&mut client, OUTSIDE, SERVICE, &mut web, listener);
    assert_eq!(web.connect(WEB), unreachable());
    let environment = fs::read_to_string(node.path("units/proxies/web.env")).unwrap();
    assert!(
        environment.contains("INBOUND_LISTEN_ADDR=[::]:61001\n"),
        "{environment}"
    );

    let mut proxy = Proxy::start(&node.host, "web", 0);
    agent.wait_until_redirected();
    proxy.assert_steered(&mut client, OUTSIDE, SERVICE);
    proxy.assert_redirects(&mut web, WEB);
    let mut other = node.host.unit("other");
    assert_eq!(other.connect(WEB), unreachable());

    let units = agent.units();
    assert_eq!(units[0].connections["outbound_redirected"], 1);
    assert_eq!(units[0].connections["inbound_steered"], 1);
    assert_eq!(units[0].warnings, Vec::<String>::new());
    let status = agent.status();
    assert_eq!(status.programs.len(), 16, "{:?}", status.programs);
    assert_eq!(status.warnings, Vec::<String>::new());
    let metrics = agent.metrics();
    for line in [
        "mesh_agent_units{state=\"redirected\"} 1",
        "mesh_agent_units{state=\"waiting\"} 0",
        "mesh_agent_unit_enrolments_total{result=\"enrolled\",reason=\"waiting\"} 1",
        "mesh_agent_connections_total{direction=\"outbound\",verdict=\"redirected\"} 1",
        "mesh_agent_severed_connections_total{unit=\"web.service\"} 0",
        "mesh_agent_sweep_failures 0",
        "mesh_agent_tier_info{tier=\"full\"",
    ] {
        assert!(metrics.contains(line), "{line} is not in:\n{metrics}");
    }

    // Settings change without a gap, and ports and state stay.
    let mut again = node.enrolment("web");
    let key = "config.linkerd.io/skip-outbound-ports".to_owned();
    again.annotations.insert(key, "80".to_owned());
    let status = agent.enrol(again);
    assert_eq!(status.state, UnitState::Redirected);
    assert_eq!(status.ports.outbound, 61_000);
    assert_eq!(web.connect(WEB), unreachable());
    proxy.assert_redirects(&mut web, "192.0.2.10:81");
}

fn killed_agent() {
    let node = Node::new();
    let agent = node.start();
    agent.enrol(node.enrolment("web"));
    let mut proxy = Proxy::start(&node.host, "web", 0);
    agent.wait_until_redirected();
    agent.kill();
    let mut client = node.client();
    for _ in 0..2 {
        let mut web = node.host.unit("web");
        proxy.assert_redirects(&mut web, WEB);
        web.listen(ANY);
        proxy.assert_steered(&mut client, OUTSIDE, SERVICE);
        drop(web);
        node.host.stop("system.slice/web.service");
    }
    let agent = node.start();
    let units = agent.units();
    assert_eq!(units[0].state, UnitState::Redirected);
    assert!(!units[0].running);
    assert!(
        agent.status().repairs.is_empty(),
        "there was nothing to repair"
    );
    let mut web = node.host.unit("web");
    proxy.assert_redirects(&mut web, WEB);
}

fn boot() {
    let node = Node::new();
    let agent = node.start();
    agent.enrol(node.enrolment("web"));
    let proxy = Proxy::start(&node.host, "web", 0);
    agent.wait_until_redirected();
    agent.kill();
    // All that does not outlive a boot.
    drop(proxy);
    node.host.stop("mesh.slice");
    unload_for_units(&node.host.pin_dir()).unwrap();
    fs::remove_dir_all(node.path("state")).unwrap();

    let agent = node.start();
    assert_eq!(agent.units()[0].state, UnitState::Redirected);
    let mut web = node.host.unit("web");
    assert_eq!(web.connect(WEB), refused());
    let mut proxy = Proxy::start(&node.host, "web", 0);
    proxy.assert_redirects(&mut web, WEB);
    assert!(agent.status().repairs.is_empty());
}

fn withdrawn() {
    let node = Node::new();
    let agent = node.start();
    for name in ["web", "data"] {
        let immediately = true;
        let enrolment = node.enrolment(name);
        agent.enrol(UnitEnrolment {
            immediately,
            ..enrolment
        });
    }
    let mut web = node.host.unit("web");
    assert_eq!(web.connect(WEB), refused());
    agent.withdraw("web.service");
    agent.withdraw("web.service");
    assert_eq!(web.connect(WEB), unreachable());
    assert_eq!(agent.units().len(), 1);
    assert_eq!(node.host.unit("data").connect(WEB), refused());
    agent.withdraw("data.service");
    assert_eq!(pins(&node.host.pin_dir()), Vec::<PathBuf>::new());
    assert_eq!(node.records(), ["sequence"]);

    // Without an agent.
    agent.enrol(UnitEnrolment {
        immediately: true,
        ..node.enrolment("web")
    });
    agent.kill();
    assert_eq!(web.connect(WEB), refused());
    node.uninstall();
    assert_eq!(web.connect(WEB), unreachable());
    assert!(!node.path("units").exists());
    assert!(!node.host.pin_dir().exists());
}

fn damaged_record() {
    let node = Node::new();
    let agent = node.start();
    for name in ["web", "data"] {
        agent.enrol(UnitEnrolment {
            immediately: true,
            ..node.enrolment(name)
        });
    }
    agent.kill();
    fs::write(node.path("units/units/web.service.json"), "{").unwrap();
    let agent = node.start();
    assert_eq!(agent.units().len(), 1);
    let warnings = agent.status().warnings;
    assert!(
        warnings[0].contains("web.service.json is damaged"),
        "{warnings:?}"
    );
    for name in ["web", "data"] {
        let mut unit = node.host.unit(name);
        assert_eq!(unit.connect(WEB), refused(), "{name}");
        drop(unit);
        node.host.stop(&format!("system.slice/{name}.service"));
        assert_eq!(node.host.unit(name).connect(WEB), refused(), "{name}");
    }
}

fn changed_address() {
    let node = Node::new();
    let agent = node.start();
    agent.enrol(UnitEnrolment {
        immediately: true,
        ..node.enrolment("web")
    });
    let mut proxy = Proxy::start(&node.host, "web", 0);
    let mut web = node.host.unit("web");
    // Refused for the moment until the agent knows.
    let local = |web: &mut Actor, proxy: &mut Proxy| match web.connect(WEB) {
        ActorResponse::Socket { local, .. } => {
            proxy.accept_outbound();
            local.ip().to_string()
        }
        _ => String::new(),
    };
    assert_eq!(local(&mut web, &mut proxy), "10.77.0.1");
    node.host.netns.ip("addr del 10.77.0.1/24 dev outside");
    // Redirected also while the host has no address.
    eventually("the loss of the address", || {
        local(&mut web, &mut proxy) == "127.0.0.1"
    });
    node.host.netns.ip("addr add 10.77.0.9/24 dev outside");
    eventually("the other address", || {
        local(&mut web, &mut proxy) == "10.77.0.9"
    });
}

fn repairs() {
    let node = Node::new();
    let agent = node.start();
    agent.enrol(UnitEnrolment {
        immediately: true,
        ..node.enrolment("web")
    });
    let repaired = |kind: RepairKind| {
        eventually("a reported repair", || {
            let repairs = agent.status().repairs;
            repairs.into_iter().find(|repair| repair.kind == kind)
        })
    };
    let links = node.host.pin_dir().join("machine-v1/links");
    fs::remove_file(links.join("mesh_unit_connect4")).unwrap();
    repaired(RepairKind::ProgramsDetached);
    let mut web = node.host.unit("web");
    assert_eq!(web.connect(WEB), refused());
    fs::remove_dir_all(node.host.pin_dir().join("machine-v1")).unwrap();
    repaired(RepairKind::PinsDeleted);
    assert_eq!(web.connect(WEB), refused());
}

fn refusals() {
    let node = Node::new();
    let agent = node.start();
    agent.enrol(node.enrolment("web"));
    let check = |enrolment: UnitEnrolment, expected: &str| {
        let (reason, message) = agent.refusal(&Request::EnrolUnit(enrolment.clone()));
        assert_eq!(reason, RefusalReason::Invalid, "{message}");
        assert!(message.contains(expected), "{enrolment:?}: {message}");
    };
    let named = |unit: &str| UnitEnrolment {
        unit: unit.to_owned(),
        ..node.enrolment("data")
    };
    check(
        named("nginx.socket"),
        "is not the name of a service or slice",
    );
    check(
        named("../x.service"),
        "is not the name of a service or slice",
    );
    check(named("getty@.service"), "is a template");
    check(named("system.slice"), "contains every service");
    let at = |cgroup: String| UnitEnrolment {
        cgroup: Some(cgroup),
        ..node.enrolment("data")
    };
    check(
        at(node.host.path_of("other.slice/data.service")),
        "is not below",
    );
    check(at(node.host.path_of("system.slice")), "is not below");
    check(
        at(node.host.path_of("system.slice/web.service")),
        "cannot be enrolled beside the other units",
    );
    check(
        at(node.host.path_of("system.slice/web.service/below")),
        "cannot be enrolled beside the other units",
    );
    let proxy_at = |cgroup: &str| UnitEnrolment {
        proxy_cgroup: Some(node.host.path_of(cgroup)),
        ..node.enrolment("data")
    };
    check(proxy_at("system.slice/proxy.service"), "Slice=");
    let with = |key: &str, value: &str| UnitEnrolment {
        annotations: [(format!("config.linkerd.io/{key}"), value.to_owned())].into(),
        ..node.enrolment("data")
    };
    check(with("inbound-port", "0"), "of unit data.service");
    check(
        with("inbound-port", "61000"),
        "is also a port of web.service",
    );
    check(with("skip-inbound-ports", "x"), "invalid annotation");
    let annotated = agent.enrol(with("inbound-port", "4143"));
    assert_eq!(
        (annotated.ports.inbound, annotated.ports.outbound),
        (4143, 61_064)
    );
    assert_eq!(agent.units().len(), 2, "nothing of the others is left");

    // systemctl does not exist here.
    let unresolved = UnitEnrolment {
        cgroup: None,
        ..node.enrolment("data")
    };
    let (reason, message) = agent.refusal(&Request::EnrolUnit(unresolved));
    assert_eq!(reason, RefusalReason::Failed);
    assert!(message.contains("name the cgroup of the unit"), "{message}");
    let attachment = Attachment {
        id: AttachmentId {
            container_id: "a".to_owned(),
            network: "pods".to_owned(),
            interface: "eth0".to_owned(),
        },
        netns: node.outside.path(),
        pod: PodRef::default(),
        addresses: Vec::new(),
        annotations: Default::default(),
    };
    let (_, message) = agent.refusal(&Request::Add(attachment));
    assert!(message.contains("redirects systemd units"), "{message}");
    let (_, message) = agent.refusal(&Request::Trace(PodRef::default()));
    assert!(message.contains("redirects systemd units"), "{message}");
}

fn settings_of_pods() {
    let node = Node::new();
    for (flag, value, expected) in [
        ("--guard", "count", "--guard is for pods"),
        ("--node-name", "a", "--node-name is for pods"),
        ("--tier", "nft", "tier full only"),
        ("--cni-conf-dir", "/tmp", "--cni-conf-dir is for pods"),
    ] {
        let mut command = node.command();
        command.args([flag, value, "machine"]);
        let output = node.host.netns.enter(|| command.output().unwrap());
        assert!(!output.status.success(), "{flag}");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(expected), "{flag}: {text}");
    }
}

fn moved_unit() {
    use std::os::unix::fs::PermissionsExt;

    let node = Node::new();
    let tell = |slice: &str| {
        let slice = node.host.path_of(slice);
        let script = format!(
            "#!/bin/sh\nprintf 'LoadState=loaded\\nSlice=\\nControlGroup=/{slice}/web.service\\n'\n"
        );
        let path = node.path("systemctl");
        fs::write(node.path("draft"), script).unwrap();
        fs::set_permissions(node.path("draft"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(node.path("draft"), path).unwrap();
    };
    tell("system.slice");
    let agent = node.start();
    let status = agent.enrol(UnitEnrolment {
        cgroup: None,
        immediately: true,
        ..node.enrolment("web")
    });
    assert_eq!(
        status.cgroups,
        [node.host.path_of("system.slice/web.service")]
    );
    tell("system.slice/web.slice");
    let moved = node.host.path_of("system.slice/web.slice/web.service");
    eventually("the other cgroup", || {
        agent.units()[0].cgroups == [moved.clone()]
    });
    let mut web = node
        .host
        .actor("system.slice/web.slice/web.service", APP_UID);
    assert_eq!(web.connect(WEB), refused());
    assert_eq!(node.host.unit("web").connect(WEB), unreachable());
}
