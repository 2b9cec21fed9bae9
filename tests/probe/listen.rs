//! `probe listen OPTION… ADDR…`, with the options that `run` and `bind` read: accepts connections
//! and sends each client a greeting of one JSON line: the name of this listener, its bound address,
//! the client's address, the local address and the original destination that the kernel reports.
//! Then it closes its half, or with `--hold` leaves it open until the client closes.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpStream};

use anyhow::Context;
use mesh_test_support::network::{canonical, original_destination};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::client::errno_name;
use super::{event, flag, has};

pub(crate) fn run(args: &[&str]) -> anyhow::Result<()> {
    let name = flag(args, "--greet").unwrap_or("direct").to_owned();
    let backlog: i32 = flag(args, "--backlog").unwrap_or("1024").parse()?;
    let mut threads = Vec::new();
    for addr in args.iter().filter_map(|arg| arg.parse::<SocketAddr>().ok()) {
        let listener = bind(addr, args)?;
        listener
            .listen(backlog)
            .with_context(|| format!("listen on {addr}"))?;
        let bound = listener
            .local_addr()?
            .as_socket()
            .context("no internet address")?;
        event(&[("listening", bound.to_string().into())]);
        let (name, hold) = (name.clone(), has(args, "--hold"));
        threads.push(std::thread::spawn(move || {
            accept(&listener, &name, bound, hold)
        }));
    }
    for thread in threads {
        thread
            .join()
            .map_err(|_panic| anyhow::anyhow!("a listener panicked"))??;
    }
    Ok(())
}

fn bind(addr: SocketAddr, args: &[&str]) -> anyhow::Result<Socket> {
    let protocol = if has(args, "--mptcp") {
        Protocol::MPTCP
    } else {
        Protocol::TCP
    };
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(protocol))?;
    if addr.ip() == Ipv6Addr::UNSPECIFIED && has(args, "--dual") {
        socket.set_only_v6(false)?;
    } else if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if !has(args, "--no-reuseaddr") {
        socket.set_reuse_address(true)?;
    }
    if has(args, "--reuseport") {
        socket.set_reuse_port(true)?;
    }
    socket
        .bind(&addr.into())
        .with_context(|| format!("bind {addr}"))?;
    Ok(socket)
}

fn accept(listener: &Socket, name: &str, bound: SocketAddr, hold: bool) -> anyhow::Result<()> {
    loop {
        let (socket, peer) = listener.accept()?;
        let stream = TcpStream::from(socket);
        let greeting = greeting(
            &stream,
            name,
            bound,
            peer.as_socket().context("no internet address")?,
        )?;
        // One thread per connection: a held connection must not block others.
        std::thread::spawn(move || serve(stream, &greeting, hold));
    }
}

/// Sends the greeting, then reads until the client closes: close(2) with unread bytes would reset
/// the connection.
fn serve(mut stream: TcpStream, greeting: &str, hold: bool) {
    let greeted = stream.write_all(greeting.as_bytes());
    if greeted.is_ok() && (hold || stream.shutdown(Shutdown::Write).is_ok()) {
        let mut rest = [0; 4096];
        while matches!(stream.read(&mut rest), Ok(n) if n > 0) {}
    }
}

fn greeting(
    stream: &TcpStream,
    name: &str,
    bound: SocketAddr,
    peer: SocketAddr,
) -> anyhow::Result<String> {
    let line = serde_json::json!({
        "reached": name,
        "bound": bound.to_string(),
        "peer": plain(peer),
        "local": plain(stream.local_addr()?),
        "original": original_dst(stream, peer),
    });
    Ok(format!("{line}\n"))
}

/// Returns the original destination, or the name of the errno.
pub(crate) fn original_dst<'s>(stream: impl Into<SockRef<'s>>, peer: SocketAddr) -> String {
    match original_destination(stream, peer) {
        Ok(addr) => addr.to_string(),
        Err(error) => errno_name(&error),
    }
}

/// Formats an address; IPv4-mapped addresses as IPv4.
pub(crate) fn plain(addr: SocketAddr) -> String {
    canonical(addr).to_string()
}
