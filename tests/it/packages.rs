//! The packages for machines outside Kubernetes, installed and removed on a machine whose process 1
//! is systemd.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, thread};

use mesh_test_support::certificates::TestCa;
use mesh_test_support::command::{are_installed, output_text, succeed, text};
use mesh_test_support::eventually::eventually;
use mesh_test_support::machine::Machine;
use mesh_test_support::network::Namespace;
use mesh_test_support::systemd::Systemd;
use mesh_test_support::{http, require_root};
use serde_json::Value;
use xtask::package::{self, Format};

const SERVICE: &str = "10.79.1.2:8080";

/// Directories that packages write to. State of the package managers, and logs, stay.
const WRITTEN: &str = "/etc /usr/bin /usr/lib/systemd /usr/lib/sysusers.d /usr/share/doc \
                       /usr/share/bash-completion /var/lib /sys/fs/bpf";
const KEPT: [&str; 5] = [
    "/var/lib/dpkg",
    "/var/lib/rpm",
    "/var/lib/systemd",
    // Files of a user never get the number of another one.
    "/etc/passwd-",
    "/etc/group-",
];

struct Host {
    systemd: Systemd,
    outside: Namespace,
    machine: Machine,
}

impl Host {
    fn boot() -> Self {
        let machine = Machine::new();
        let (network, outside) = (Namespace::new(), Namespace::new());
        network.link("eth0", &outside, "eth0");
        for (namespace, address) in [(&network, "10.79.1.2"), (&outside, "10.79.1.1")] {
            let address = address.parse().expect("an address");
            namespace.add_address(address, 24, "eth0");
            namespace.ip("link set eth0 up");
        }
        let units = machine.path("etc");
        fs::create_dir(&units).expect("a directory");
        let write = |name: &str, text: &str| fs::write(units.join(name), text).expect("a file");
        write(
            "test.target",
            "[Unit]\nDefaultDependencies=no\nWants=web.service\n",
        );
        write("basic.target", "[Unit]\nDefaultDependencies=no\n");
        write(
            "web.service",
            "[Unit]\nDefaultDependencies=no\nWants=basic.target\nAfter=basic.target\n\
             [Service]\nExecStart=python3 -m http.server 8080 --directory /etc/systemd\n",
        );
        let systemd = Systemd::boot_copy(&network, &machine, &units, "test.target");
        let host = Self {
            systemd,
            outside,
            machine,
        };
        eventually("the service", || host.ask());
        host
    }

    /// Requests the service from another machine.
    fn ask(&self) -> Result<(), String> {
        let address = SERVICE.parse().expect("an address");
        let response = self.outside.enter(|| http::request(address, "GET /"));
        let response = response.map_err(|error| error.to_string())?;
        let is_ok = http::status_and_body(&response).is_some_and(|(status, _)| status == 200);
        is_ok.then_some(()).ok_or(response)
    }

    fn run(&self, line: &str) -> String {
        succeed(&mut self.systemd.command(line))
    }

    /// Returns whether a command succeeds, and its output.
    fn attempt(&self, line: &str) -> (bool, String) {
        let output = self.systemd.command(line).output().expect("nsenter runs");
        (output.status.success(), output_text(&output))
    }

    fn files(&self) -> BTreeSet<String> {
        let output = self.systemd.command(format!("find {WRITTEN}")).output();
        let listed = text(&output.expect("find runs").stdout);
        let files = listed.lines().filter(|path| {
            let is_kept = |kept: &&str| path.starts_with(*kept);
            !KEPT.iter().any(is_kept)
        });
        files.map(str::to_owned).collect()
    }

    fn unit_state(&self) -> Value {
        let status = self.run("meshctl machine status web.service -o json");
        serde_json::from_str(&status).expect("JSON")
    }
}

/// Installs a package, redirects a service, and removes the package.
fn install_and_remove(package: &Path, install: &str, upgrade: &str, remove: &str) {
    let host = Host::boot();
    let before = host.files();
    let copy = host.machine.path("package");
    fs::copy(package, &copy).expect("a copy");
    let copy = copy.display();

    host.run(&format!("{install} {copy}"));
    host.run("systemctl is-enabled mesh-agent.service");
    eventually("the agent", || {
        let (is_here, output) = host.attempt("meshctl machine list");
        is_here.then_some(()).ok_or(output)
    });

    host.run("meshctl machine enrol web.service");
    // Its identity never comes. Its listeners are all that the redirection asks for.
    let authority = TestCa::new();
    let anchors = authority.anchor_pem();
    let settings = format!(
        "LINKERD2_PROXY_IDENTITY_SPIRE_WORKLOAD_API_ADDRESS=unix:///run/none.sock\n\
         LINKERD2_PROXY_IDENTITY_SERVER_ID=spiffe://example.org/web\n\
         LINKERD2_PROXY_IDENTITY_SERVER_NAME=web.example.org\n\
         LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS=\"{anchors}\"\n\
         LINKERD2_PROXY_DESTINATION_SVC_ADDR=127.0.0.1:1\n\
         LINKERD2_PROXY_POLICY_SVC_ADDR=127.0.0.1:1\n\
         LINKERD2_PROXY_POLICY_WORKLOAD=shop:web\n"
    );
    fs::write(host.machine.path("proxy.env"), settings).expect("a file");
    let settings = host.machine.path("proxy.env");
    host.run(&format!("cp {} /etc/mesh/proxy.env", settings.display()));
    host.run("systemctl enable --now mesh-proxy@web.service");
    eventually("the redirection", || {
        let status = host.unit_state();
        let is_redirected = status["state"] == "redirected" && status["proxyListens"] == true;
        is_redirected.then_some(()).ok_or(status.to_string())
    });
    let user = host.run("systemctl show -P User mesh-proxy@web.service");
    assert_eq!(user.trim(), "mesh-proxy");

    host.run(&format!("{upgrade} {copy}"));
    eventually("the agent after an upgrade", || {
        let (is_here, output) = host.attempt("meshctl machine status web.service -o json");
        let is_redirected = is_here && output.contains("redirected");
        is_redirected.then_some(()).ok_or(output)
    });

    host.run(remove);
    host.ask().expect("the service connects directly again");
    let (is_active, proxy) = host.attempt("systemctl is-active mesh-proxy@web.service");
    assert!(!is_active, "{proxy}");
    // rpm keeps what an administrator wrote.
    host.run("rm -rf /etc/mesh /var/lib/mesh");
    let after = host.files();
    let left: Vec<_> = after.difference(&before).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(before.difference(&after).count(), 0);
}

#[test]
fn packages_install_a_running_agent_and_leave_nothing_behind() {
    require_root!();
    if !Systemd::is_installed() || !are_installed(&["go", "python3", "rpm"]) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let out = tempfile::tempdir().expect("a directory");
    // Both from one build, which is not for two at once.
    let written = package::from_tests(&root, &[Format::Deb, Format::Rpm], out.path());
    let written = written.unwrap_or_else(|error| panic!("{error:#}"));
    let [deb, rpm] = &written[..] else {
        panic!("{written:?}");
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let install = "dpkg --install";
            install_and_remove(deb, install, install, "dpkg --purge mesh-machine");
        });
        scope.spawn(|| {
            // Debian's packages are not in the database of rpm.
            let install = "rpm --install --nodeps";
            let upgrade = "rpm --upgrade --replacepkgs --nodeps";
            install_and_remove(rpm, install, upgrade, "rpm --erase mesh-machine");
        });
    });
}
