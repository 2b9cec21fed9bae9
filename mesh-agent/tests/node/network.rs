//! Two pods on one link, and services that report the original destination.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use mesh_test_support::network::{Namespace, canonical, original_destination};
use socket2::{Domain, Protocol, Socket, Type};

/// A connection neither accepted nor refused within this time fails the test.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A pod and a neighbour, each with an IPv4 and an IPv6 address on a common link.
pub(crate) struct Pair {
    pub(crate) pod: Namespace,
    pub(crate) peer: Namespace,
    pub(crate) pod_v4: IpAddr,
    pub(crate) pod_v6: IpAddr,
    pub(crate) peer_v4: IpAddr,
    pub(crate) peer_v6: IpAddr,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let (pod, peer) = (Namespace::new(), Namespace::new());
        // Each test has its own links, so they can share a subnet.
        let v4 = |host| IpAddr::from(Ipv4Addr::new(10, 241, 0, host));
        let v6 = |host| IpAddr::from(Ipv6Addr::new(0xfd00, 0x241, 0, 0, 0, 0, 0, host));
        pod.link("eth0", &peer, "eth0");
        for (namespace, host) in [(&pod, 2), (&peer, 1)] {
            namespace.add_address(v4(host), 24, "eth0");
            namespace.add_address(v6(host.into()), 64, "eth0");
            namespace.ip("link set eth0 up");
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

/// Sends one line to every client: the service's name and the original destination, or `-` when the
/// connection was not redirected.
pub(crate) fn serve(namespace: &Namespace, name: &'static str, address: &str) {
    let address = address.parse().unwrap();
    let listener = namespace.enter(|| listen(address));
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            respond(name, stream);
        }
    });
}

/// Connects and returns the service's line.
pub(crate) fn request(namespace: &Namespace, address: SocketAddr) -> String {
    namespace.enter(|| line_from(address))
}

/// As [`request`], as this user.
pub(crate) fn request_as(user: u32, namespace: &Namespace, address: SocketAddr) -> String {
    namespace.enter(|| {
        // For this thread; the packet filter matches the socket creator's file-system user.
        nix::unistd::setfsuid(user.into());
        line_from(address)
    })
}

fn listen(address: SocketAddr) -> TcpListener {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.set_reuse_address(true).unwrap();
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified()).unwrap();
    }
    socket.bind(&address.into()).unwrap();
    socket.listen(64).unwrap();
    socket.into()
}

fn respond(name: &str, mut stream: TcpStream) {
    let local = stream.local_addr().unwrap();
    // Connection tracking also has the destination of a connection that was not redirected.
    let original = original_destination(&stream, local)
        .ok()
        .filter(|original| *original != canonical(local));
    let original = original.map_or_else(|| "-".to_owned(), |address| address.to_string());
    let _ = writeln!(stream, "{name} {original}");
}

fn line_from(address: SocketAddr) -> String {
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
