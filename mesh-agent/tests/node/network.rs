//! Network namespaces on a veth pair, and services that report the original destination.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use mesh_agent::sys::netns;
use nix::sys::socket::{getsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

/// A connection neither accepted nor refused within this time fails the test.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A named network namespace, removed when dropped.
pub(crate) struct Netns {
    pub(crate) name: String,
}

/// A pod and a neighbour, each with an IPv4 and an IPv6 address on a common link.
pub(crate) struct Pair {
    pub(crate) pod: Netns,
    pub(crate) peer: Netns,
    pub(crate) pod_v4: IpAddr,
    pub(crate) pod_v6: IpAddr,
    pub(crate) peer_v4: IpAddr,
    pub(crate) peer_v6: IpAddr,
}

/// Returns a name that no other test, process or earlier run uses; short enough for an interface.
pub(crate) fn unique(prefix: &str) -> String {
    format!("{prefix}{}x{}", std::process::id(), number())
}

fn number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

impl Netns {
    pub(crate) fn new() -> Self {
        let name = unique("mt");
        run("ip", &["netns", "add", &name]);
        let netns = Self { name };
        netns.ip("link set lo up");
        netns
    }

    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    pub(crate) fn ip(&self, arguments: &str) {
        let mut all = vec!["-n", &self.name];
        all.extend(arguments.split_whitespace());
        run("ip", &all);
    }

    pub(crate) fn exec(&self, command: &str) -> String {
        let mut all = vec!["netns", "exec", &self.name];
        all.extend(command.split_whitespace());
        run("ip", &all)
    }

    pub(crate) fn run_in<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::run_in(File::open(self.path()).unwrap(), work).unwrap()
    }

    /// Sends one line to every client: the service's name and the original destination, or `-` when
    /// the connection was not redirected.
    pub(crate) fn serve(&self, name: &'static str, address: SocketAddr) {
        let listener = self.run_in(|| listen(address));
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                respond(name, stream);
            }
        });
    }

    /// Connects and returns the service's line.
    pub(crate) fn request(&self, address: SocketAddr) -> String {
        self.run_in(|| request(address))
    }

    /// As [`Netns::request`], as this user.
    pub(crate) fn request_as(&self, user: u32, address: SocketAddr) -> String {
        self.run_in(|| {
            // For this thread; the packet filter matches the socket creator's file-system user.
            nix::unistd::setfsuid(user.into());
            request(address)
        })
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status();
    }
}

impl Pair {
    pub(crate) fn new() -> Self {
        let pod = Netns::new();
        let peer = Netns::new();
        // Each test has its own links, so they can share a subnet.
        let v4 = |host| IpAddr::from(Ipv4Addr::new(10, 241, 0, host));
        let v6 = |host| IpAddr::from(Ipv6Addr::new(0xfd00, 0x241, 0, 0, 0, 0, 0, host));
        pod.ip(&format!(
            "link add eth0 type veth peer name eth0 netns {}",
            peer.name
        ));
        for (netns, host) in [(&pod, 2), (&peer, 1)] {
            netns.ip(&format!("addr add {}/24 dev eth0", v4(host)));
            netns.ip(&format!("addr add {}/64 dev eth0 nodad", v6(host.into())));
            netns.ip("link set eth0 up");
        }
        Self {
            pod,
            peer,
            pod_v4: v4(2),
            pod_v6: v6(2),
            peer_v4: v4(1),
            peer_v6: v6(1),
        }
    }
}

fn listen(address: SocketAddr) -> TcpListener {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )
    .unwrap();
    socket.set_reuse_address(true).unwrap();
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified()).unwrap();
    }
    socket.bind(&address.into()).unwrap();
    socket.listen(64).unwrap();
    socket.into()
}

fn respond(name: &str, mut stream: TcpStream) {
    let local = stream.local_addr().ok().map(canonical);
    // Connection tracking also has the destination of a connection that was not redirected.
    let original = original_destination(&stream).filter(|original| Some(*original) != local);
    let original = original.map_or_else(|| "-".to_owned(), |address| address.to_string());
    let _ = writeln!(stream, "{name} {original}");
}

fn original_destination(stream: &TcpStream) -> Option<SocketAddr> {
    if canonical(stream.local_addr().ok()?).is_ipv4() {
        let found = getsockopt(stream, sockopt::OriginalDst).ok()?;
        let ip = Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr));
        return Some(SocketAddr::from((ip, u16::from_be(found.sin_port))));
    }
    let found = getsockopt(stream, sockopt::Ip6tOriginalDst).ok()?;
    let ip = Ipv6Addr::from(found.sin6_addr.s6_addr);
    Some(SocketAddr::from((ip, u16::from_be(found.sin6_port))))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn request(address: SocketAddr) -> String {
    let stream = match TcpStream::connect_timeout(&address, TIMEOUT) {
        Ok(stream) => stream,
        Err(error) => return format!("{:?}", error.kind()),
    };
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut line = String::new();
    match BufReader::new(stream).read_line(&mut line) {
        Ok(_) => line.trim().to_owned(),
        Err(error) => format!("{:?}", error.kind()),
    }
}
