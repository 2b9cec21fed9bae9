//! A process that plays a part in a test: it has a network namespace, a cgroup and a uid of its
//! own, and does what the test tells it over its standard input, one JSON line for each order and
//! answer.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr},
    path::Path,
    process::{self, Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use nix::{
    sched::{CloneFlags, setns},
    sys::resource::{Resource, getrlimit, setrlimit},
    unistd::{Uid, setuid},
};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

/// The first argument of an actor.
pub(super) const ARGUMENT: &str = "actor";

/// Nothing here leaves the machine: what takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Names a socket of an actor.
pub(super) type Id = u32;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    Listen {
        address: SocketAddr,
        share_port: bool,
    },
    ListenMultipath {
        address: SocketAddr,
    },
    Accept {
        listener: Id,
    },
    Connect {
        target: SocketAddr,
        source: Option<SocketAddr>,
        device: Option<String>,
    },
    Send {
        id: Id,
        text: String,
    },
    Receive {
        id: Id,
    },
    Original {
        id: Id,
    },
    Close {
        id: Id,
    },
    /// Begins this many connections without waiting for any, and keeps them.
    Begin {
        target: SocketAddr,
        count: u32,
    },
    /// Closes what was begun.
    GiveUp,
    /// Opens, checks and closes this many connections, one after another; expects a byte on each.
    Churn {
        target: SocketAddr,
        count: u32,
    },
    /// Accepts and greets with a byte until `count` connections were served.
    Greet {
        listener: Id,
        count: u32,
    },
}

/// What an order came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    Socket {
        id: Id,
        local: SocketAddr,
        peer: Option<SocketAddr>,
    },
    Text(String),
    Address(Option<SocketAddr>),
    Done,
    /// The name of the error, as `ConnectionRefused`.
    Failed(String),
}

/// The test's end of an actor; killed when dropped.
pub(super) struct Actor {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Actor {
    pub(super) fn start(netns: &Path, cgroup: &Path, uid: u32) -> Actor {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg(ARGUMENT)
            .arg(netns)
            .arg(cgroup)
            .arg(uid.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut actor = Actor {
            child,
            orders,
            answers,
        };
        assert_eq!(actor.answer(), Answer::Done, "the actor starts");
        actor
    }

    /// Gives an order without waiting for it.
    pub(super) fn begin(&mut self, order: &Order) {
        serde_json::to_writer(&mut self.orders, order).unwrap();
        self.orders.write_all(b"\n").unwrap();
    }

    pub(super) fn answer(&mut self) -> Answer {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    pub(super) fn order(&mut self, order: Order) -> Answer {
        self.begin(&order);
        self.answer()
    }

    pub(super) fn listen(&mut self, address: &str) -> Id {
        self.listener(address, false)
    }

    pub(super) fn listen_shared(&mut self, address: &str) -> Id {
        self.listener(address, true)
    }

    pub(super) fn listen_multipath(&mut self, address: &str) -> Id {
        let address = address.parse().unwrap();
        match self.order(Order::ListenMultipath { address }) {
            Answer::Socket { id, .. } => id,
            other => panic!("listen on {address}: {other:?}"),
        }
    }

    fn listener(&mut self, address: &str, share_port: bool) -> Id {
        let address = address.parse().unwrap();
        match self.order(Order::Listen {
            address,
            share_port,
        }) {
            Answer::Socket { id, .. } => id,
            other => panic!("listen on {address}: {other:?}"),
        }
    }

    pub(super) fn connect(&mut self, target: &str) -> Answer {
        self.order(Order::Connect {
            target: target.parse().unwrap(),
            source: None,
            device: None,
        })
    }

    pub(super) fn connect_from(&mut self, source: &str, target: &str) -> Answer {
        self.order(Order::Connect {
            target: target.parse().unwrap(),
            source: Some(source.parse().unwrap()),
            device: None,
        })
    }

    pub(super) fn accept(&mut self, listener: Id) -> Answer {
        self.order(Order::Accept { listener })
    }

    pub(super) fn original(&mut self, id: Id) -> Option<SocketAddr> {
        match self.order(Order::Original { id }) {
            Answer::Address(address) => address,
            other => panic!("original destination: {other:?}"),
        }
    }

    pub(super) fn begin_connections(&mut self, target: &str, count: u32) {
        let target = target.parse().unwrap();
        assert_eq!(self.order(Order::Begin { target, count }), Answer::Done);
    }

    pub(super) fn close(&mut self, id: Id) {
        assert_eq!(self.order(Order::Close { id }), Answer::Done);
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Answer {
    pub(super) fn id(&self) -> Id {
        match self {
            Answer::Socket { id, .. } => *id,
            other => panic!("no socket: {other:?}"),
        }
    }

    pub(super) fn peer(&self) -> SocketAddr {
        match self {
            Answer::Socket {
                peer: Some(peer), ..
            } => *peer,
            other => panic!("no peer: {other:?}"),
        }
    }
}

/// The body of an actor's process.
pub(super) fn play(arguments: &[String]) -> io::Result<()> {
    let [netns, cgroup, uid] = arguments else {
        return Err(io::Error::other("an actor takes namespace, cgroup and uid"));
    };
    setns(File::open(netns)?, CloneFlags::CLONE_NEWNET)?;
    fs::write(
        Path::new(cgroup).join("cgroup.procs"),
        process::id().to_string(),
    )?;
    // As many connections at a time as this machine lets a process have.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    setuid(Uid::from_raw(uid.parse().map_err(io::Error::other)?))?;
    let mut stage = Sockets::default();
    let mut stdout = io::stdout();
    reply(&mut stdout, &Answer::Done)?;
    for line in io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?)?;
        let answer = stage
            .carry_out(order)
            .unwrap_or_else(|error| Answer::Failed(format!("{:?}", error.kind())));
        reply(&mut stdout, &answer)?;
    }
    Ok(())
}

fn reply(stdout: &mut io::Stdout, answer: &Answer) -> io::Result<()> {
    serde_json::to_writer(&mut *stdout, answer)?;
    stdout.write_all(b"\n")?;
    stdout.flush()
}

/// The sockets an actor has open.
#[derive(Default)]
struct Sockets {
    open: HashMap<Id, Socket>,
    begun: Vec<Socket>,
    last: Id,
}

impl Sockets {
    fn carry_out(&mut self, order: Order) -> io::Result<Answer> {
        match order {
            Order::Listen {
                address,
                share_port,
            } => self.listen(new_socket(address)?, address, share_port),
            Order::ListenMultipath { address } => {
                let domain = Domain::for_address(address);
                let socket = Socket::new(domain, Type::STREAM, Some(Protocol::MPTCP))?;
                self.listen(socket, address, false)
            }
            Order::Accept { listener } => {
                let (socket, _) = self.socket(listener)?.accept()?;
                self.keep(socket)
            }
            Order::Connect {
                target,
                source,
                device,
            } => {
                let socket = new_socket(target)?;
                if let Some(device) = device {
                    socket.bind_device(Some(device.as_bytes()))?;
                }
                if let Some(source) = source {
                    socket.bind(&source.into())?;
                }
                socket.connect_timeout(&target.into(), PATIENCE)?;
                self.keep(socket)
            }
            Order::Send { id, text } => {
                self.socket(id)?.write_all(text.as_bytes())?;
                Ok(Answer::Done)
            }
            Order::Receive { id } => {
                let mut buffer = [0; 256];
                let length = self.socket(id)?.read(&mut buffer)?;
                Ok(Answer::Text(
                    String::from_utf8_lossy(&buffer[..length]).into_owned(),
                ))
            }
            Order::Original { id } => original(self.socket(id)?).map(Answer::Address),
            Order::Close { id } => {
                let socket = self.open.remove(&id).ok_or(io::ErrorKind::NotFound)?;
                // Also ends a listener that another process shares.
                let _ = socket.shutdown(Shutdown::Both);
                Ok(Answer::Done)
            }
            Order::Begin { target, count } => {
                for _ in 0..count {
                    let socket = new_socket(target)?;
                    socket.set_nonblocking(true)?;
                    match socket.connect(&target.into()) {
                        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => {
                            return Err(error);
                        }
                        _ => self.begun.push(socket),
                    }
                }
                Ok(Answer::Done)
            }
            Order::GiveUp => {
                self.begun.clear();
                Ok(Answer::Done)
            }
            Order::Churn { target, count } => {
                for _ in 0..count {
                    let mut socket = new_socket(target)?;
                    socket.connect_timeout(&target.into(), PATIENCE)?;
                    socket.read_exact(&mut [0])?;
                }
                Ok(Answer::Done)
            }
            Order::Greet { listener, count } => {
                for _ in 0..count {
                    let (mut socket, _) = self.socket(listener)?.accept()?;
                    socket.write_all(b"x")?;
                    // The client closes first, so that the ports in TIME_WAIT are its own.
                    let _ = socket.read(&mut [0])?;
                }
                Ok(Answer::Done)
            }
        }
    }

    fn listen(
        &mut self,
        socket: Socket,
        address: SocketAddr,
        share_port: bool,
    ) -> io::Result<Answer> {
        socket.set_reuse_address(true)?;
        if share_port {
            socket.set_reuse_port(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        self.keep(socket)
    }

    fn keep(&mut self, socket: Socket) -> io::Result<Answer> {
        let address = |address: socket2::SockAddr| {
            let address = address.as_socket()?;
            Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
        };
        let local = address(socket.local_addr()?).ok_or(io::ErrorKind::Unsupported)?;
        let peer = socket.peer_addr().ok().and_then(address);
        self.last += 1;
        self.open.insert(self.last, socket);
        Ok(Answer::Socket {
            id: self.last,
            local,
            peer,
        })
    }

    fn socket(&mut self, id: Id) -> io::Result<&mut Socket> {
        self.open.get_mut(&id).ok_or(io::ErrorKind::NotFound.into())
    }
}

fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// At the level of the peer's family, as a proxy asks.
fn original(socket: &Socket) -> io::Result<Option<SocketAddr>> {
    let peer = socket.peer_addr()?.as_socket();
    let is_v4 = peer.is_some_and(|peer| peer.ip().to_canonical().is_ipv4());
    let answer = if is_v4 {
        socket.original_dst_v4()
    } else {
        socket.original_dst_v6()
    };
    Ok(answer.ok().and_then(|address| address.as_socket()))
}
