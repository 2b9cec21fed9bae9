//! Client commands: the different kinds of connections that applications make.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

use super::listen::plain;
use super::{event, flag, has, raw};

/// Timeout of connects and responses, which take less than a tenth of it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// `probe connect ADDR OPTION…`, with the options that `socket` and `dial` read: prints the
/// server's greeting and the local view of the connection.
pub(crate) fn connect(args: &[&str]) -> anyhow::Result<()> {
    let target: SocketAddr = args.first().context("no address")?.parse()?;
    let socket = socket(target, args)?;
    if has(args, "--wait-stdin") {
        // The socket exists; the test enrols the pod before it continues the probe.
        event(&[("ready", true.into())]);
        std::io::stdin().read_line(&mut String::new())?;
    }
    event(&[report(dial(&socket, target, args), &socket)].concat());
    if let Some(again) = flag(args, "--again") {
        raw::disconnect(&socket).context("disconnect")?;
        let again: SocketAddr = again.parse()?;
        event(&[report(dial(&socket, again, args), &socket)].concat());
    }
    if has(args, "--stay") {
        std::io::stdin().read_line(&mut String::new())?;
        event(&[finish(&socket)]);
    }
    Ok(())
}

fn socket(target: SocketAddr, args: &[&str]) -> anyhow::Result<Socket> {
    let protocol = if has(args, "--mptcp") {
        Protocol::MPTCP
    } else {
        Protocol::TCP
    };
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(protocol))?;
    if target.is_ipv6() {
        socket.set_only_v6(has(args, "--v6only"))?;
    }
    if has(args, "--transparent") {
        socket
            .set_ip_transparent_v4(true)
            .context("IP_TRANSPARENT")?;
    }
    if let Some(device) = flag(args, "--device") {
        socket
            .bind_device(Some(device.as_bytes()))
            .with_context(|| format!("bind to device {device}"))?;
    }
    if let Some(source) = flag(args, "--bind") {
        let source: SocketAddr = source.parse()?;
        socket.set_reuse_address(true)?;
        socket
            .bind(&source.into())
            .with_context(|| format!("bind {source}"))?;
    }
    if has(args, "--fastopen-connect") {
        nix::sys::socket::setsockopt(
            &socket,
            nix::sys::socket::sockopt::TcpFastOpenConnect,
            &true,
        )
        .context("TCP_FASTOPEN_CONNECT")?;
    }
    socket.set_read_timeout(Some(TIMEOUT))?;
    Ok(socket)
}

fn dial(socket: &Socket, target: SocketAddr, args: &[&str]) -> std::io::Result<Value> {
    if has(args, "--fastopen") {
        socket.send_to_with_flags(b"early", &target.into(), nix::libc::MSG_FASTOPEN)?;
    } else if has(args, "--uring") {
        raw::uring_connect(socket, target, has(args, "--sqpoll"))?;
    } else if has(args, "--nonblocking") {
        connect_nonblocking(socket, target)?;
    } else {
        // A timeout leaves the socket non-blocking, like `connect_timeout` of the standard library.
        socket.connect_timeout(&target.into(), TIMEOUT)?;
    }
    let stream: TcpStream = socket.try_clone()?.into();
    if has(args, "--fastopen-connect") {
        (&stream).write_all(b"early")?;
    }
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    if line.is_empty() {
        return Err(std::io::Error::new(
            std::io::ErrorKind::UnexpectedEof,
            "closed without a greeting",
        ));
    }
    serde_json::from_str(&line).map_err(std::io::Error::other)
}

/// Closes a connection gracefully: sends a FIN and waits for the peer's.
fn finish(socket: &Socket) -> (&'static str, Value) {
    let mut stream = socket;
    let ended = socket
        .shutdown(std::net::Shutdown::Write)
        .and_then(|()| stream.read_to_end(&mut Vec::new()));
    match ended {
        Ok(_rest) => ("finished", true.into()),
        Err(error) => ("finished", errno_name(&error).into()),
    }
}

/// Connects like an event-loop application: `EINPROGRESS`, wait until writable, read `SO_ERROR`.
fn connect_nonblocking(socket: &Socket, target: SocketAddr) -> std::io::Result<()> {
    socket.set_nonblocking(true)?;
    match socket.connect(&target.into()) {
        Err(error) if error.raw_os_error() == Some(nix::libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
        Ok(()) => {
            return Err(std::io::Error::other(
                "a non-blocking connect completed immediately",
            ));
        }
    }
    raw::wait_writable(socket, TIMEOUT)?;
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    socket.set_nonblocking(false)
}

fn report(outcome: std::io::Result<Value>, socket: &Socket) -> Vec<(&'static str, Value)> {
    match outcome {
        Err(error) => vec![("failed", errno_name(&error).into())],
        Ok(greeting) => {
            let address = |addr: std::io::Result<socket2::SockAddr>| match addr {
                Ok(addr) => addr
                    .as_socket()
                    .map_or_else(|| "?".into(), |addr| Value::from(plain(addr))),
                Err(error) => errno_name(&error).into(),
            };
            vec![
                ("greeting", greeting),
                ("getpeername", address(socket.peer_addr())),
                ("getsockname", address(socket.local_addr())),
            ]
        }
    }
}

/// Returns the name of the errno, such as `ECONNREFUSED`, which the tests compare.
pub(crate) fn errno_name(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => format!("{:?}", nix::errno::Errno::from_raw(code)),
        None if error.kind() == std::io::ErrorKind::TimedOut
            || error.kind() == std::io::ErrorKind::WouldBlock =>
        {
            "timed out".to_owned()
        }
        None => error.to_string(),
    }
}

/// `probe bind ADDR [--reuseaddr] [--listen]`: reports whether an application can bind this
/// address.
pub(crate) fn bind(args: &[&str]) -> anyhow::Result<()> {
    let addr: SocketAddr = args.first().context("no address")?.parse()?;
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    if addr.is_ipv6() {
        socket.set_only_v6(has(args, "--v6only"))?;
    }
    socket.set_reuse_address(has(args, "--reuseaddr"))?;
    let outcome = socket.bind(&addr.into()).and_then(|()| {
        if has(args, "--listen") {
            socket.listen(16)
        } else {
            Ok(())
        }
    });
    let word = outcome
        .as_ref()
        .map_or_else(errno_name, |()| "bound".to_owned());
    event(&[("bind", word.into())]);
    Ok(())
}

/// `probe options ADDR`: reads socket options unrelated to redirection, on a connection that may be
/// redirected.
pub(crate) fn options(args: &[&str]) -> anyhow::Result<()> {
    let target: SocketAddr = args.first().context("no address")?.parse()?;
    let socket = socket(target, args)?;
    dial(&socket, target, args)?;
    for (name, value) in raw::option_survey(&socket) {
        event(&[("option", name.into()), ("answer", value.into())]);
    }
    Ok(())
}

/// `probe churn ADDR[,ADDR…] COUNT|until-stdin [--rate NUMBER] [--time-wait]`: opens connections
/// one after the other, to the addresses in turn, at most `NUMBER` a second, reads the greeting and
/// closes, `COUNT` times or until standard input has a line or ends. Reports progress after the
/// first hundred, and finally the numbers of connections, of failures (also by their error), and by
/// the server reached.
pub(crate) fn churn(args: &[&str]) -> anyhow::Result<()> {
    const PROGRESS_AFTER: u32 = 100;
    let targets = args.first().context("no address")?.split(',');
    let targets: Vec<SocketAddr> = targets.map(str::parse).collect::<Result<_, _>>()?;
    let interval = flag(args, "--rate").map(str::parse).transpose()?;
    let interval = interval.map(|rate: u32| Duration::from_secs(1) / rate);
    let limit = match *args.get(1).context("no count")? {
        "until-stdin" => u32::MAX,
        count => count.parse()?,
    };
    let stop = Arc::new(AtomicBool::new(false));
    if limit == u32::MAX {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            let _end = std::io::stdin().read_line(&mut String::new());
            stop.store(true, Ordering::Relaxed);
        });
    }
    let (mut count, mut failed) = (0, 0);
    let mut reached: BTreeMap<String, u32> = BTreeMap::new();
    let mut errors: BTreeMap<String, u32> = BTreeMap::new();
    let start = Instant::now();
    while count < limit && !stop.load(Ordering::Relaxed) {
        if let Some(interval) = interval {
            let due = start + interval * count;
            #[expect(
                clippy::disallowed_methods,
                reason = "the rate of connections, which no condition stands for"
            )]
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let target = targets[count as usize % targets.len()];
        let socket = socket(target, args)?;
        if !has(args, "--time-wait") {
            // Closes with a reset: tens of thousands of sockets in TIME_WAIT would exhaust the
            // pod's ports.
            socket.set_linger(Some(Duration::ZERO))?;
        }
        match dial(&socket, target, args) {
            Ok(greeting) => {
                let who = greeting["reached"].as_str().unwrap_or("?").to_owned();
                *reached.entry(who).or_default() += 1;
            }
            Err(error) => {
                failed += 1;
                *errors.entry(errno_name(&error)).or_default() += 1;
            }
        }
        count += 1;
        if count == PROGRESS_AFTER && limit == u32::MAX {
            event(&[("churning", true.into())]);
        }
    }
    event(&[
        ("connections", count.into()),
        ("failed", failed.into()),
        ("errors", serde_json::to_value(errors)?),
        ("reached", serde_json::to_value(reached)?),
    ]);
    Ok(())
}

/// `probe two-sources PORT SOURCE1 TARGET1 SOURCE2 TARGET2`: opens two sockets with the same port
/// on two local addresses.
pub(crate) fn two_sources(args: &[&str]) -> anyhow::Result<()> {
    let [port, source1, target1, source2, target2] = args else {
        anyhow::bail!("usage: two-sources PORT SOURCE1 TARGET1 SOURCE2 TARGET2")
    };
    let mut open = Vec::new();
    for (source, target) in [(source1, target1), (source2, target2)] {
        let source = SocketAddr::new(source.parse()?, port.parse()?).to_string();
        let target: SocketAddr = target.parse()?;
        let socket = socket(target, &["--bind", &source])?;
        socket.connect_timeout(&target.into(), TIMEOUT)?;
        open.push(socket);
    }
    // Both connect before either greeting is read, which would confuse a map keyed by port alone.
    for socket in open {
        let mut line = String::new();
        BufReader::new(TcpStream::from(socket)).read_line(&mut line)?;
        event(&[("greeting", serde_json::from_str(&line)?)]);
    }
    Ok(())
}

/// `probe udp serve ADDR` echoes; `probe udp send ADDR` sends over a connected socket and prints
/// the responder.
pub(crate) fn udp(args: &[&str]) -> anyhow::Result<()> {
    match args {
        ["serve", addr] => {
            let socket = UdpSocket::bind(addr)?;
            event(&[("listening", (*addr).into())]);
            let mut buffer = [0; 512];
            loop {
                let (length, peer) = socket.recv_from(&mut buffer)?;
                socket.send_to(&buffer[..length], peer)?;
            }
        }
        ["send", addr] => {
            let target: SocketAddr = addr.parse()?;
            let socket = UdpSocket::bind(if target.is_ipv4() {
                "0.0.0.0:0"
            } else {
                "[::]:0"
            })?;
            socket.set_read_timeout(Some(TIMEOUT))?;
            socket.connect(target)?;
            socket.send(b"ping")?;
            let mut buffer = [0; 512];
            let outcome = socket.recv(&mut buffer);
            event(&[
                (
                    "udp",
                    outcome
                        .as_ref()
                        .map_or_else(errno_name, |_| "answered".to_owned())
                        .into(),
                ),
                ("getpeername", socket.peer_addr()?.to_string().into()),
            ]);
            Ok(())
        }
        _ => anyhow::bail!("usage: udp serve|send ADDR"),
    }
}
