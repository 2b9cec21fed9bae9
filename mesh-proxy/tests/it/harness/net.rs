//! Namespaces: one for the bridge, one for each pod.

use std::cell::Cell;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::control::ControlPlane;
use super::pod::Pod;

/// The pods of one test and what joins them.
pub(crate) struct Mesh {
    pub(crate) control: ControlPlane,
    prefix: String,
    pods: Cell<u8>,
    /// Removed when the mesh is dropped.
    _switch: Namespace,
}

/// A network namespace of our own; dropping it removes it and all in it.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) name: String,
}

/// Redirects as Linkerd's init container does: everything outbound except the proxy's own and
/// loopback, everything inbound except the proxy's own ports. The address that redirection is
/// checked by is redirected for the proxy too.
const RULES: &str = "
table inet mesh {
    chain output {
        type nat hook output priority -100;
        ip daddr 192.0.2.1 tcp dport 20001 redirect to :4140
        meta skuid 2102 return
        oifname \"lo\" return
        meta l4proto tcp redirect to :4140
    }
    chain prerouting {
        type nat hook prerouting priority -100;
        tcp dport { 4190, 4191 } return
        meta l4proto tcp redirect to :4143
    }
}
";

impl Mesh {
    /// An empty mesh, or `None` with an explanation when this machine cannot have one.
    pub(crate) fn new() -> Option<Self> {
        if let Err(why) = check() {
            println!("skipped: {why}");
            return None;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("mpt{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let switch = Namespace::new(format!("{prefix}-switch"));
        switch.ip("link add br0 type bridge");
        switch.ip("addr add 10.77.0.1/16 dev br0");
        switch.ip("link set br0 up");
        Some(Self {
            control: ControlPlane::new(),
            prefix,
            pods: Cell::new(0),
            _switch: switch,
        })
    }

    /// A pod with an address and without a proxy.
    pub(crate) fn pod(&self, name: &str) -> Pod {
        let number = self.pods.get() + 1;
        self.pods.set(number);
        let address = Ipv4Addr::new(10, 77, 1, number);
        let namespace = Namespace::new(format!("{}-{number}", self.prefix));
        let switch = format!("{}-switch", self.prefix);
        run(&format!(
            "ip link add eth0 netns {} type veth peer name v{number} netns {switch}",
            namespace.name
        ));
        run(&format!("ip -n {switch} link set v{number} master br0 up"));
        let address6 = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 1, number.into());
        namespace.ip(&format!("addr add {address}/16 dev eth0"));
        // Without duplicate address detection the address can be used at once.
        namespace.ip(&format!("addr add {address6}/64 dev eth0 nodad"));
        namespace.ip("link set lo up");
        namespace.ip("link set eth0 up");
        // Services have addresses outside the pods' network.
        namespace.ip("route add default via 10.77.0.1");
        namespace.ip("-6 route add default dev eth0");
        Pod::new(name, namespace, address, address6, self.control.clone())
    }
}

impl Namespace {
    fn new(name: String) -> Self {
        run(&format!("ip netns add {name}"));
        Self { name }
    }

    fn ip(&self, arguments: &str) {
        run(&format!("ip -n {} {arguments}", self.name));
    }

    pub(crate) fn redirect(&self) {
        use std::io::Write as _;
        let mut nft = Command::new("ip")
            .args(["netns", "exec", &self.name, "nft", "-f", "-"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        nft.stdin
            .take()
            .unwrap()
            .write_all(RULES.as_bytes())
            .unwrap();
        assert!(nft.wait().unwrap().success(), "nft refused the rules");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status();
    }
}

fn check() -> Result<(), String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("network namespaces need root".to_owned());
    }
    for program in ["ip", "nft", "setpriv"] {
        if Command::new(program).arg("--version").output().is_err() {
            return Err(format!("{program} is not installed"));
        }
    }
    Ok(())
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap())
        .args(words)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {stderr}");
}
