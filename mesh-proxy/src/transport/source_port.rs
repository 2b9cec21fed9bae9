//! Connections to one address beyond the number of source ports, for `transport::connect`.
//!
//! A proxy opens the connections of many clients from one address. When a client closes first, as
//! most do, the proxy closes its connection to the application first too, and the kernel keeps the
//! source port for a minute (TIME-WAIT). Clients that connect directly have addresses of their own
//! and no such limit. RFC 6191 allows a new connection to take over such a port, since its
//! timestamps distinguish it from the old one; Linux does that for a socket that was bound to the
//! port, but does not choose such a port by itself.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use tokio::net::{TcpSocket, TcpStream};

use crate::random;

/// The kernel's range of source ports, if it cannot be read.
const DEFAULT_RANGE: RangeInclusive<u16> = 32_768..=60_999;
const RANGE_FILE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Ports that are tried: most are in TIME-WAIT when none is free, and a try takes microseconds.
const MAX_TRIES: u16 = 128;

/// Connects from a port of the kernel's choice, or when it has none, from one in TIME-WAIT.
pub(super) async fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    match socket(addr)?.connect(addr).await {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            reuse_port(addr).await.unwrap_or(Err(error))
        }
        result => result,
    }
}

/// A port in TIME-WAIT can be bound if the sockets of old and new connection have SO_REUSEADDR.
fn socket(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match addr {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    Ok(socket)
}

/// Returns `None` if no port could be used.
async fn reuse_port(addr: SocketAddr) -> Option<io::Result<TcpStream>> {
    let any: IpAddr = match addr {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let range = std::fs::read_to_string(RANGE_FILE);
    let range = range.ok().and_then(|text| parse(&text));
    let (low, high) = range.unwrap_or(DEFAULT_RANGE).into_inner();
    let count = u32::from(high - low) + 1;
    let first = random::below(count);
    for number in 0..count.min(u32::from(MAX_TRIES)) {
        let port = u32::from(low) + (first + number) % count;
        let source = SocketAddr::new(any, u16::try_from(port).ok()?);
        let socket = socket(addr).ok()?;
        if socket.bind(source).is_err() {
            continue;
        }
        match socket.connect(addr).await {
            // The port has an open connection to this address.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {}
            result => return Some(result),
        }
    }
    None
}

fn parse(text: &str) -> Option<RangeInclusive<u16>> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let (low, high) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (low <= high).then_some(low..=high)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::TcpListener;
    use std::time::Duration;

    use mesh_test_support::network::Namespace;
    use mesh_test_support::require_root;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::transport::SocketOptions;
    use crate::transport::connect::{ConnectOptions, dial};

    const PORTS: usize = 16;
    const CONNECTIONS: usize = 200;

    /// Closes after its client, as an application does.
    fn serve(listener: &TcpListener, connections: usize) {
        use std::io::{Read as _, Write as _};
        for _ in 0..connections {
            let (mut client, _) = listener.accept().unwrap();
            let mut byte = [0];
            while client.read(&mut byte).unwrap() > 0 {
                client.write_all(&byte).unwrap();
            }
        }
    }

    async fn exchange(addr: SocketAddr, options: &ConnectOptions) -> Result<(), String> {
        let mut io = dial(addr, options)
            .await
            .map_err(|error| mesh_runtime::log::chain(&error))?;
        let mut byte = [7];
        io.write_all(&byte).await.unwrap();
        io.shutdown().await.unwrap();
        io.read_exact(&mut byte).await.unwrap();
        let end = io.read(&mut byte).await.unwrap();
        assert_eq!((byte, end), ([7], 0));
        Ok(())
    }

    #[test]
    fn connections_to_one_address_are_not_limited_by_ports_in_time_wait() {
        require_root!();
        let namespace = Namespace::new();
        namespace.ip("address add 10.9.9.9/32 dev lo");
        let range = format!("echo 40000 {} > {RANGE_FILE}", 40_000 + PORTS - 1);
        namespace.run(["sh", "-c", &range]);
        for address in ["10.9.9.9:0", "127.0.0.1:0", "[::1]:0"] {
            let outcomes = namespace.enter(|| {
                let listener = TcpListener::bind(address).unwrap();
                let addr = listener.local_addr().unwrap();
                let server = std::thread::spawn(move || serve(&listener, CONNECTIONS));
                let options = ConnectOptions {
                    timeout: Duration::from_secs(5),
                    socket: SocketOptions::default(),
                };
                let runtime = tokio::runtime::Builder::new_current_thread();
                let runtime = { runtime }.enable_all().build().unwrap();
                let mut outcomes = BTreeMap::<_, usize>::new();
                for _ in 0..CONNECTIONS {
                    let outcome = runtime.block_on(exchange(addr, &options));
                    *outcomes.entry(outcome).or_default() += 1;
                }
                if outcomes.len() == 1 {
                    server.join().unwrap();
                }
                outcomes
            });
            assert_eq!(outcomes, [(Ok(()), CONNECTIONS)].into(), "{address}");
        }
    }

    #[test]
    fn range_of_ports_is_parsed() {
        assert_eq!(parse("32768\t60999\n"), Some(DEFAULT_RANGE));
        assert_eq!(parse("40000 40000"), Some(40_000..=40_000));
        for invalid in ["", "1", "2 1", "0 70000", "a b"] {
            assert_eq!(parse(invalid), None, "{invalid}");
        }
    }
}
