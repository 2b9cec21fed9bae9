//! An agent for units below systemd itself, which runs as process 1 of namespaces of its own: with
//! the unit files of this project, over restarts of a unit, its proxy, the agent and the host.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use mesh_agent::node_api::client;
use mesh_core::machine::{UnitEnrolment, UnitRef, UnitState, UnitStatus};
use mesh_core::node::{Request, Response};
use mesh_test_support::command::output_text;
use mesh_test_support::eventually::eventually;
use mesh_test_support::network::{Namespace, original_destination};
use mesh_test_support::systemd::Systemd;

use crate::Case;
use crate::host::TestHost;

pub(super) const CASES: &[Case] = &[(
    "units below systemd are redirected over restarts of unit, proxy, agent and host",
    restarts,
)];

/// Arguments of this program that make it the service and its proxy.
pub(super) const SERVICE: &str = "systemd-service";
pub(super) const PROXY: &str = "systemd-proxy";

const WEB: &str = "192.0.2.10:80";
const OUTSIDE_WEB: &str = "10.77.0.1:8080";
/// Generous: a slow machine must not fail the test.
const TIMEOUT: Duration = Duration::from_secs(20);
/// All connections are local.
const IO_TIMEOUT: Duration = Duration::from_secs(5);

/// The service: connects at once, reports what responds, then serves.
pub(super) fn run_service(arguments: &[String]) -> io::Result<()> {
    let [report] = arguments else {
        return Err(io::Error::other(
            "the service takes the file of its reports",
        ));
    };
    let line = match ask(WEB.parse().unwrap()) {
        Ok(line) => line,
        Err(error) => format!("{:?}", error.kind()),
    };
    let listener = TcpListener::bind("0.0.0.0:8080")?;
    let mut report = OpenOptions::new().create(true).append(true).open(report)?;
    report.write_all(format!("{line}\n").as_bytes())?;
    loop {
        let (mut connection, _) = listener.accept()?;
        // The client may have gone.
        let _ = connection.write_all(b"application\n");
    }
}

/// The proxy: responds to every connection with its original destination.
pub(super) fn run_proxy() -> io::Result<()> {
    let addresses = ["INBOUND_LISTEN_ADDR", "OUTBOUND_LISTEN_ADDRS"].map(|name| {
        let name = format!("LINKERD2_PROXY_{name}");
        std::env::var(&name).map_err(|error| io::Error::other(format!("{name}: {error}")))
    });
    let mut threads = Vec::new();
    for address in addresses.into_iter().collect::<io::Result<Vec<_>>>()? {
        for address in address.split(',') {
            let listener = TcpListener::bind(address)?;
            threads.push(thread::spawn(move || serve(&listener)));
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
    Ok(())
}

fn serve(listener: &TcpListener) {
    while let Ok((mut connection, peer)) = listener.accept() {
        let original = original_destination(&connection, peer);
        let original = original.map_or_else(|error| format!("{error}"), |to| to.to_string());
        let _ = connection.write_all(format!("proxy {original}\n").as_bytes());
    }
}

/// Connects, and returns the line that the server sends.
fn ask(address: SocketAddr) -> io::Result<String> {
    let connection = TcpStream::connect_timeout(&address, IO_TIMEOUT)?;
    connection.set_read_timeout(Some(IO_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(connection).read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

/// A host whose process 1 is systemd: all that outlives its boot.
struct Host {
    host: TestHost,
    outside: Namespace,
}

/// A boot of the host.
struct Boot<'a> {
    host: &'a Host,
    systemd: Systemd,
}

impl Host {
    fn new() -> Self {
        let host = TestHost::new();
        // systemd creates its own.
        for slice in ["system.slice", "mesh.slice"] {
            fs::remove_dir(host.cgroup(slice)).unwrap();
        }
        let outside = host.connect_outside();
        let host = Self { host, outside };
        fs::create_dir(host.path("etc")).unwrap();
        host.write_units();
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.host.machine.path(name)
    }

    /// Writes the units of the test, and overrides paths and users in this project's.
    fn write_units(&self) {
        let program = std::env::current_exe().unwrap();
        let program = program.display();
        let agent = env!("CARGO_BIN_EXE_mesh-agent");
        let directory = self.path("");
        let directory = directory.display();
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd");
        for unit in ["mesh-agent.service", "mesh-proxy@.service"] {
            fs::copy(own.join(unit), self.path("etc").join(unit)).unwrap();
        }
        let write = |name: &str, text: String| {
            let path = self.path("etc").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "test.target",
            "[Unit]\nDefaultDependencies=no\nWants=web.service mesh-agent.service\n".to_owned(),
        );
        // After basic.target like any service, without all that this target wants.
        write(
            "web.service",
            format!(
                "[Unit]\nDefaultDependencies=no\nAfter=basic.target\n\
                 [Service]\nExecStart={program} {SERVICE} {directory}/report\n"
            ),
        );
        write(
            "basic.target",
            "[Unit]\nDefaultDependencies=no\n".to_owned(),
        );
        write(
            "web.service.d/order.conf",
            "[Unit]\nWants=basic.target\n".to_owned(),
        );
        write(
            "mesh-agent.service.d/test.conf",
            format!(
                "[Unit]\nRequiresMountsFor=\n[Service]\nRestart=no\nStateDirectory=\nExecStart=\n\
                 ExecStart={agent} --socket {directory}/agent.sock --state-dir /run/mesh \
                 --units-dir {directory}/units --pin-dir {directory}/bpf/mesh \
                 --admin-addr 127.0.0.1:0 machine\n"
            ),
        );
        write(
            "mesh-proxy@.service.d/test.conf",
            format!(
                "[Unit]\nDefaultDependencies=no\n[Service]\nUser=root\nEnvironmentFile=\n\
                 EnvironmentFile={directory}/units/proxies/%i.env\nExecStart=\n\
                 ExecStart={program} {PROXY}\n"
            ),
        );
    }

    fn boot(&self) -> Boot<'_> {
        let network = &self.host.netns;
        let systemd = Systemd::boot(
            network,
            &self.host.machine,
            &self.path("etc"),
            "test.target",
        );
        let boot = Boot {
            host: self,
            systemd,
        };
        boot.wait_for_agent();
        boot
    }

    /// Returns the reports of the service so far.
    fn reports(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("report")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits for the service's report number `count`.
    fn report(&self, count: usize) -> String {
        eventually("a report of the service", || {
            self.reports().get(count - 1).cloned()
        })
    }

    /// Connects from another machine.
    fn ask(&self) -> String {
        let address = OUTSIDE_WEB.parse().unwrap();
        let answer = self.outside.enter(|| ask(address));
        answer.unwrap_or_else(|error| format!("{:?}", error.kind()))
    }
}

impl Boot<'_> {
    fn wait_for_agent(&self) {
        let socket = self.host.path("agent.sock");
        eventually("the agent", || {
            client::call(&socket, &Request::Status, TIMEOUT).map_err(|error| {
                let status = self.systemd.try_systemctl("status mesh-agent.service");
                io::Error::other(format!("{error}: {}", output_text(&status)))
            })
        });
    }

    fn call(&self, request: &Request) -> Response {
        client::call(&self.host.path("agent.sock"), request, TIMEOUT).unwrap()
    }

    fn unit(&self) -> UnitStatus {
        match self.call(&Request::Units) {
            Response::Units(mut units) => units.remove(0),
            other => panic!("{other:?}"),
        }
    }

    fn wait_until_redirected(&self) {
        eventually("the redirection of the unit", || {
            let unit = self.unit();
            unit.state == UnitState::Redirected && unit.proxy_listens
        });
    }
}

fn restarts() {
    if !Systemd::is_installed() {
        return;
    }
    let host = Host::new();
    let boot = host.boot();
    // Without the mesh.
    assert_eq!(host.report(1), "NetworkUnreachable");
    assert_eq!(host.ask(), "application");

    let response = boot.call(&Request::EnrolUnit(UnitEnrolment {
        unit: "web.service".to_owned(),
        ..UnitEnrolment::default()
    }));
    let Response::Unit(status) = response else {
        panic!("{response:?}")
    };
    assert_eq!(status.cgroups, ["system.slice/web.service"]);
    assert_eq!(status.proxy_cgroup, "mesh.slice/mesh-proxy@web.service");
    assert_eq!(host.ask(), "application", "its proxy does not listen yet");
    boot.systemd.systemctl("start mesh-proxy@web.service");
    boot.wait_until_redirected();
    assert_eq!(host.ask(), "proxy 10.77.0.1:8080");

    let redirected = format!("proxy {WEB}");
    for restart in 2..=4 {
        boot.systemd.systemctl("restart web.service");
        assert_eq!(host.report(restart), redirected);
        assert_eq!(host.ask(), "proxy 10.77.0.1:8080");
    }
    boot.systemd.systemctl("restart mesh-proxy@web.service");
    boot.wait_until_redirected();
    assert_eq!(host.ask(), "proxy 10.77.0.1:8080");

    // The agent is killed, and everything but it restarts.
    boot.systemd
        .systemctl("kill --signal=KILL mesh-agent.service");
    boot.systemd.systemctl("restart web.service");
    assert_eq!(host.report(5), redirected);
    boot.systemd.systemctl("restart mesh-proxy@web.service");
    eventually("the restarted proxy", || {
        host.ask() == "proxy 10.77.0.1:8080"
    });
    boot.systemd.systemctl("start mesh-agent.service");
    boot.wait_for_agent();
    assert_eq!(boot.unit().state, UnitState::Redirected);

    // The host fails, with all that is in its memory.
    drop(boot);
    let boot = host.boot();
    // The proxy is not started at boot here: the unit is closed from the beginning.
    assert_eq!(host.report(6), "ConnectionRefused");
    assert_eq!(host.ask(), "ConnectionRefused");
    boot.systemd.systemctl("start mesh-proxy@web.service");
    boot.wait_until_redirected();
    assert_eq!(host.ask(), "proxy 10.77.0.1:8080");

    let unit = "web.service".to_owned();
    let withdrawn = boot.call(&Request::WithdrawUnit(UnitRef { unit }));
    assert_eq!(withdrawn, Response::Withdrawn);
    assert_eq!(host.ask(), "application");
    boot.systemd.systemctl("restart web.service");
    assert_eq!(host.report(7), "NetworkUnreachable");
}
