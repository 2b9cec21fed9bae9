//! The table of Debian packages that the repository uses, with purpose and proof of installation.
//! Ubuntu has them under the same names, but no `chromium`. For the BPF compiler see `setup::bpf`.

use std::fmt;
use std::path::Path;

use Need::{Browser, Build, Demo, Test};
use Proof::{File, Program};

use crate::workspace::find_program;

#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: &'static str,
    /// Program or file that proves the installation, by whatever means.
    pub(crate) proof: Proof,
    pub(crate) need: Need,
    pub(crate) why: &'static str,
    /// The service that its scripts would start and enable. It is disabled, since the tests start
    /// their own.
    pub(crate) service: Option<&'static str>,
}

#[derive(Debug)]
pub(crate) enum Proof {
    Program(&'static str),
    File(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Build,
    Test,
    Demo,
    /// The tests of the dashboard's page.
    Browser,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Build => "build",
            Self::Test => "tests",
            Self::Demo => "demo",
            Self::Browser => "tests in a browser",
        })
    }
}

#[rustfmt::skip] // a table, one package a line
const PACKAGES: &[Package] = &[
    package("gcc", Program("cc"), Build, "the linker of every Rust program, and the C of the TLS library"),
    package("libc6-dev", File("/usr/include/stdlib.h"), Build, "the C library's headers, for the TLS library"),
    package("containernetworking-plugins", File("/usr/lib/cni/bridge"), Test, "the CNI chain that mesh-cni joins: bridge, host-local, portmap"),
    package("iproute2", Program("ip"), Test, "makes network namespaces and looks at them"),
    package("nftables", Program("nft"), Test, "service addresses of a local node, and a look at the nft tier's rules"),
    package("iptables", Program("iptables"), Test, "the iptables tier"),
    package("systemd", File("/lib/systemd/systemd"), Test, "process 1 of a host outside Kubernetes"),
    package("rpm", Program("rpm"), Test, "installs the package of a machine as Fedora does"),
    package("dnsmasq-base", Program("dnsmasq"), Test, "the DNS server of a local node"),
    package("openssl", Program("openssl"), Test, "another TLS to hold the proxy's records against"),
    package("curl", Program("curl"), Test, "HTTP requests of an unmeshed client"),
    package("strace", Program("strace"), Test, "makes system calls of a proxy fail"),
    package("valgrind", Program("valgrind"), Test, "counts the instructions of what the proxy does again and again"),
    package("wrk", Program("wrk"), Test, "HTTP/1.1 load"),
    package("nghttp2-client", Program("h2load"), Test, "HTTP/2 load"),
    package("nghttp2-server", Program("nghttpd"), Test, "an HTTP/2 server"),
    service("nginx-light", Program("nginx"), Demo, "the web servers behind the demo's Service", "nginx"),
    service("haproxy", Program("haproxy"), Test, "an ingress controller, and a peer of the benchmark", "haproxy"),
    service("redis-server", Program("redis-server"), Test, "an opaque TCP server, and redis-benchmark", "redis-server"),
    service("postgresql", File("/usr/lib/postgresql"), Test, "a server that forks for each client", "postgresql"),
    service("mariadb-server", Program("mariadbd"), Test, "a server that speaks first", "mariadb"),
    package("mariadb-client", Program("mariadb"), Test, "MariaDB's own client"),
    service("etcd-server", Program("etcd"), Demo, "a gRPC server", "etcd"),
    package("etcd-client", Program("etcdctl"), Demo, "a gRPC client"),
    service("prometheus", Program("prometheus"), Test, "evaluates the queries of the metrics API", "prometheus"),
    package("ca-certificates", File("/usr/share/ca-certificates/mozilla"), Test, "in the images of the controllers and of Prometheus"),
    package("python3-websockets", File("/usr/lib/python3/dist-packages/websockets"), Test, "a WebSocket client and server"),
    package("socat", Program("socat"), Test, "a server that forks and executes a program for each client"),
    package("default-jdk-headless", Program("javac"), Test, "a server in a JVM"),
    package("bpftool", Program("bpftool"), Test, "counts the entries of the agent's maps from outside"),
    package("tcpdump", Program("tcpdump"), Demo, "shows the traffic on the wire, clear before and encrypted after; in the debugging container's image"),
    package("busybox-static", Program("busybox"), Test, "the shell of the debugging container's image"),
    package("nodejs", Program("node"), Browser, "runs the build and the tests of the dashboard's page"),
    package("npm", Program("npm"), Browser, "installs the packages of the page's build and tests"),
    package("chromium", Program("chromium"), Browser, "shows the page"),
];

const fn package(name: &'static str, proof: Proof, need: Need, why: &'static str) -> Package {
    Package {
        name,
        proof,
        need,
        why,
        service: None,
    }
}

const fn service(
    name: &'static str,
    proof: Proof,
    need: Need,
    why: &'static str,
    service: &'static str,
) -> Package {
    Package {
        service: Some(service),
        ..package(name, proof, need, why)
    }
}

/// Returns the missing packages for these needs, in the order of the table.
pub(crate) fn missing(is_wanted: impl Fn(Need) -> bool) -> Vec<&'static Package> {
    let wanted = PACKAGES.iter().filter(|package| is_wanted(package.need));
    wanted.filter(|package| !is_there(&package.proof)).collect()
}

fn is_there(proof: &Proof) -> bool {
    match proof {
        Program(name) => find_program(name).is_some(),
        File(path) => Path::new(path).exists(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn installed_package_is_detected() {
        assert!(is_there(&Program("sh")));
        assert!(!is_there(&Program("no-such-program")));
        assert!(is_there(&File("/etc/passwd")));
        assert!(!is_there(&File("/no/such/file")));
    }

    #[test]
    fn packages_are_listed_once_with_reason() {
        let names: HashSet<&str> = PACKAGES.iter().map(|package| package.name).collect();
        assert_eq!(names.len(), PACKAGES.len());
        assert!(PACKAGES.iter().all(|package| package.why.len() > 5));
    }
}
