//! Network namespaces.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{io, thread};

use nix::sched::{CloneFlags, setns};
use socket2::SockRef;

use crate::command::{Words, run, succeed, try_run};
use crate::machine::{NAMESPACES, unique_name};

/// A network namespace that `ip netns` knows, whose loopback interface is up. Dropping it removes
/// its name; the kernel removes it when the last process has left. Its name is one of
/// [`machine`](crate::machine), so that the leftovers of a killed test are removed, too.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates a namespace with a name of its own.
    pub fn new() -> Self {
        Self::named(unique_name())
    }

    /// Creates a namespace with a name that is a unique one or begins with one.
    ///
    /// # Panics
    ///
    /// It cannot: it takes root.
    pub fn named(name: String) -> Self {
        run(format!("ip netns add {name}"));
        let namespace = Self { name };
        namespace.ip("link set lo up");
        namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn path(&self) -> PathBuf {
        Path::new(NAMESPACES).join(&self.name)
    }

    /// Runs `ip` in the namespace.
    pub fn ip(&self, arguments: &str) {
        run(format!("ip -n {} {arguments}", self.name));
    }

    /// Connects an interface of this namespace with one of another.
    pub fn link(&self, interface: &str, peer: &Self, peer_interface: &str) {
        let peer = &peer.name;
        self.ip(&format!(
            "link add {interface} type veth peer name {peer_interface} netns {peer}"
        ));
    }

    /// Adds an address to an interface. Without duplicate address detection it can be used at once.
    pub fn add_address(&self, address: IpAddr, prefix: u8, interface: &str) {
        let nodad = if address.is_ipv6() { "nodad" } else { "" };
        self.ip(&format!(
            "addr add {address}/{prefix} dev {interface} {nodad}"
        ));
    }

    /// Returns a command that runs in the namespace. Unlike `ip netns exec` it sees the same /sys.
    pub fn command(&self, line: impl Words) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", self.path().display()))
            .args(line.words());
        command
    }

    /// Runs a program in the namespace, which must succeed, and returns its standard output.
    pub fn run(&self, line: impl Words) -> String {
        succeed(&mut self.command(line))
    }

    /// Runs `work` in the namespace, on a thread that ends with it.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.join();
                work()
            });
            let result = inside.join();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread into the namespace for good.
    pub fn join(&self) {
        let file = File::open(self.path()).expect("the namespace has its name");
        setns(file, CloneFlags::CLONE_NEWNET).expect("the namespace can be entered");
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _best_effort = try_run(format!("ip netns del {}", self.name));
    }
}

/// Reads SO_ORIGINAL_DST as a proxy does: the IPv4 option for IPv4 and mapped peers, the IPv6
/// option for others.
pub fn original_destination<'s>(
    socket: impl Into<SockRef<'s>>,
    peer: SocketAddr,
) -> io::Result<SocketAddr> {
    let socket = socket.into();
    let original = if canonical(peer).is_ipv4() {
        socket.original_dst_v4()
    } else {
        socket.original_dst_v6()
    }?;
    original
        .as_socket()
        .ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Returns an IPv4-mapped address as IPv4, and any other as it is.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Ports for programs that are started later. The kernel assigns those from 32768 to outgoing
/// connections: a client that connects to one of them before its program listens may get the same
/// port itself, is then connected to itself, and occupies the port.
const FREE_PORTS: Range<u16> = 20_000..30_000;

/// Returns a loopback address whose port was free a moment ago, another one with each call.
pub fn free_address() -> SocketAddr {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(FREE_PORTS.end - FREE_PORTS.start);
    // Other processes of the tests begin elsewhere.
    let first = std::process::id().wrapping_mul(997);
    for _ in 0..count {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let offset = first.wrapping_add(call) % count;
        let port = FREE_PORTS.start + u16::try_from(offset).expect("an offset within the ports");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if std::net::TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no port of {FREE_PORTS:?} is free");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_addresses_differ_and_are_never_those_of_clients() {
        let (one, two) = (free_address(), free_address());
        assert_ne!(one, two);
        assert!(FREE_PORTS.contains(&one.port()) && FREE_PORTS.contains(&two.port()));
    }
}
