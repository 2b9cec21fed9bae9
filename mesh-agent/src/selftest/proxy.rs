//! The self-test's proxy: listens with the proxy's uid and reports every connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use nix::unistd::{Uid, setuid};
use socket2::{Domain, Protocol, Socket, Type};

use super::protocol::{
    INBOUND_PORT, IO_TIMEOUT, OUTBOUND_PORT, PROXY_UID, READY, REQUEST_SIZE, Report, Request,
    canonical, check_address,
};
use crate::sys::socket::readable;

/// Sufficient for sequential connections.
const BACKLOG: i32 = 16;

struct Acceptor {
    listener: Socket,
    thread: JoinHandle<()>,
}

/// Requests new listeners; receives a message when they are open.
type Relisten = Sender<()>;

pub(super) fn become_user() -> io::Result<()> {
    setuid(Uid::from_raw(PROXY_UID)).map_err(|errno| {
        io::Error::other(format!(
            "cannot become user {PROXY_UID} (it takes CAP_SETUID): {}",
            errno.desc()
        ))
    })
}

/// Serves until the process is killed.
pub(super) fn serve() -> io::Result<()> {
    let (relisten, requests): (Sender<Relisten>, Receiver<Relisten>) = channel();
    let mut acceptors = open_all(&relisten)?;
    let mut stdout = io::stdout();
    writeln!(stdout, "{READY}")?;
    stdout.flush()?;
    for done in requests {
        for acceptor in acceptors.drain(..) {
            // Wakes the accepting thread; the socket closes when both handles are dropped.
            let _ = acceptor.listener.shutdown(Shutdown::Both);
            let _ = acceptor.thread.join();
        }
        acceptors = open_all(&relisten)?;
        // The requesting connection may have closed; the listeners are open anyway.
        let _ = done.send(());
    }
    Ok(())
}

fn open_all(relisten: &Sender<Relisten>) -> io::Result<Vec<Acceptor>> {
    [
        SocketAddr::from((Ipv4Addr::LOCALHOST, OUTBOUND_PORT)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, OUTBOUND_PORT)),
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, INBOUND_PORT)),
    ]
    .into_iter()
    .map(|address| open(address, relisten.clone()))
    .collect()
}

fn open(address: SocketAddr, relisten: Sender<Relisten>) -> io::Result<Acceptor> {
    let listener = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    listener.set_reuse_address(true)?;
    if address.is_ipv6() {
        // The inbound listener is dual-stack.
        listener.set_only_v6(address.ip() == Ipv6Addr::LOCALHOST)?;
    }
    listener.bind(&address.into())?;
    listener.listen(BACKLOG)?;
    let accepting = listener.try_clone()?;
    let thread = thread::spawn(move || {
        while let Ok((connection, _)) = accepting.accept() {
            let relisten = relisten.clone();
            // The application reports a failed connection.
            thread::spawn(move || respond(connection, address.port(), &relisten));
        }
    });
    Ok(Acceptor { listener, thread })
}

fn respond(mut connection: Socket, listener: u16, relisten: &Sender<Relisten>) -> io::Result<()> {
    connection.set_read_timeout(Some(IO_TIMEOUT))?;
    let readable = wait_for_request(&connection)?;
    let mut request = [0; REQUEST_SIZE];
    connection.read_exact(&mut request)?;
    let request = Request::from_byte(request[0])
        .ok_or_else(|| io::Error::other("not a request of the self-test"))?;
    if request == Request::Relisten {
        let (done, wait) = channel();
        relisten.send(done).map_err(io::Error::other)?;
        wait.recv().map_err(io::Error::other)?;
    }
    let line = if request == Request::Check {
        report_of_check()?
    } else {
        let report = Report {
            original: original_dst(&connection)?,
            peer: address(&connection, Socket::peer_addr)?,
            listener,
            readable,
        };
        serde_json::to_string(&report)? + "\n"
    };
    connection.write_all(line.as_bytes())?;
    if request == Request::Hold {
        let _ = connection.read(&mut [0]);
    }
    Ok(())
}

/// Connects to the check address and returns the report, which another thread of this process sends
/// if the connection is redirected.
fn report_of_check() -> io::Result<String> {
    let mut connection = TcpStream::connect_timeout(&check_address(), IO_TIMEOUT)?;
    connection.set_read_timeout(Some(IO_TIMEOUT))?;
    connection.write_all(&Request::Report.bytes())?;
    let mut line = String::new();
    BufReader::new(connection).read_line(&mut line)?;
    Ok(line)
}

/// Waits until the whole request can be read, and returns FIONREAD.
fn wait_for_request(connection: &Socket) -> io::Result<usize> {
    let mut buffer = [std::mem::MaybeUninit::uninit(); REQUEST_SIZE];
    while connection.peek(&mut buffer)? < REQUEST_SIZE {
        thread::yield_now();
    }
    readable(connection)
}

/// Reads the original destination as Linkerd's proxy does: at the level of the client's family,
/// treating mapped addresses as IPv4.
fn original_dst(connection: &Socket) -> io::Result<Option<SocketAddr>> {
    let peer = address(connection, Socket::peer_addr)?;
    let result = if peer.is_ipv4() {
        connection.original_dst_v4()
    } else {
        connection.original_dst_v6()
    };
    Ok(result.ok().and_then(|address| address.as_socket()))
}

fn address(
    socket: &Socket,
    get: impl Fn(&Socket) -> io::Result<socket2::SockAddr>,
) -> io::Result<SocketAddr> {
    get(socket)?
        .as_socket()
        .map(canonical)
        .ok_or_else(|| io::Error::other("not an internet address"))
}
