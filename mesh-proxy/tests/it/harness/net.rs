//! Namespaces: one for the bridge, one for each pod.

use std::cell::Cell;
use std::net::{Ipv4Addr, Ipv6Addr};

use mesh_test_support::command::{are_installed, feed, is_root, output_text};
use mesh_test_support::network::Namespace;

use super::control::ControlPlane;
use super::pod::Pod;

/// The pods of one test and what joins them.
pub(crate) struct Mesh {
    pub(crate) control: ControlPlane,
    switch: Namespace,
    pods: Cell<u8>,
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
        if !is_root() || !are_installed(&["ip", "nft", "nsenter", "setpriv"]) {
            return None;
        }
        let switch = Namespace::new();
        switch.ip("link add br0 type bridge");
        switch.ip("addr add 10.77.0.1/16 dev br0");
        switch.ip("link set br0 up");
        Some(Self {
            control: ControlPlane::new("cluster.local"),
            switch,
            pods: Cell::new(0),
        })
    }

    /// A pod with an address and without a proxy.
    pub(crate) fn pod(&self, name: &str) -> Pod {
        self.pod_of(&self.control, name)
    }

    /// The same in another mesh, on the same network.
    pub(crate) fn pod_of(&self, control: &ControlPlane, name: &str) -> Pod {
        let number = self.pods.get() + 1;
        self.pods.set(number);
        let ip = Ipv4Addr::new(10, 77, 1, number);
        let ip6 = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 1, number.into());
        let namespace = Namespace::new();
        namespace.link("eth0", &self.switch, &format!("v{number}"));
        self.switch.ip(&format!("link set v{number} master br0 up"));
        namespace.add_address(ip.into(), 16, "eth0");
        namespace.add_address(ip6.into(), 64, "eth0");
        namespace.ip("link set eth0 up");
        // Services have addresses outside the pods' network.
        namespace.ip("route add default via 10.77.0.1");
        namespace.ip("-6 route add default dev eth0");
        Pod::new(name, namespace, ip, ip6, control.clone())
    }
}

/// Redirects the connections of a pod to its proxy.
pub(super) fn redirect(namespace: &Namespace) {
    let output = feed(&mut namespace.command("nft -f -"), RULES);
    assert!(output.status.success(), "{}", output_text(&output));
}
