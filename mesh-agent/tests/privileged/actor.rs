//! A process in a test's scenario: it has its own network namespace, cgroup and uid, and executes
//! commands that the test sends to its standard input. Each command and response is one JSON line.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::path::Path;
use std::process::{self, Command};
use std::time::Duration;

use mesh_test_support::network::{canonical, original_destination};
use mesh_test_support::program::Program;
use nix::sched::{CloneFlags, setns};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Uid, setuid};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

pub(super) const ARGUMENT: &str = "actor";

/// All connections are local: a longer delay means that one hangs.
const IO_TIMEOUT: Duration = Duration::from_secs(5);

/// Names a socket of an actor.
pub(super) type Id = u32;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ActorCommand {
    Listen {
        address: SocketAddr,
        share_port: bool,
    },
    ListenMultipath {
        address: SocketAddr,
    },
    ListenV6Only {
        address: SocketAddr,
    },
    /// Calls listen(2) for an open socket.
    Relisten {
        id: Id,
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
    /// Closes without shutdown(2).
    CloseQuietly {
        id: Id,
    },
    /// Calls shutdown(2) and keeps the socket.
    Shutdown {
        id: Id,
    },
    /// Starts this many connections without waiting for any, and keeps them.
    StartConnections {
        target: SocketAddr,
        count: u32,
    },
    CloseStarted,
    /// Opens and closes this many connections, one after another; expects a byte on each.
    Churn {
        target: SocketAddr,
        count: u32,
    },
    /// Accepts `count` connections and sends a byte on each.
    Serve {
        listener: Id,
        count: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ActorResponse {
    Socket {
        id: Id,
        local: SocketAddr,
        peer: Option<SocketAddr>,
    },
    Text(String),
    Address(Option<SocketAddr>),
    Done,
    /// The kind of the error, such as `ConnectionRefused`.
    Failed(String),
}

/// The test's handle of an actor; kills it when dropped.
pub(super) struct Actor(Program);

impl Actor {
    pub(super) fn start(netns: &Path, cgroup: &Path, uid: u32) -> Actor {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .arg(ARGUMENT)
            .args([netns, cgroup])
            .arg(uid.to_string());
        let actor = Actor(Program::start(&mut command));
        assert_eq!(actor.response(), ActorResponse::Done, "the actor starts");
        actor
    }

    /// Sends a command without waiting for its response.
    pub(super) fn start_command(&mut self, command: &ActorCommand) {
        self.0.write_line(&serde_json::to_string(command).unwrap());
    }

    pub(super) fn response(&self) -> ActorResponse {
        serde_json::from_value(self.0.next_event()).unwrap()
    }

    pub(super) fn run(&mut self, command: ActorCommand) -> ActorResponse {
        self.start_command(&command);
        self.response()
    }

    pub(super) fn listen(&mut self, address: &str) -> Id {
        self.listener(address, false)
    }

    pub(super) fn listen_shared(&mut self, address: &str) -> Id {
        self.listener(address, true)
    }

    pub(super) fn listen_multipath(&mut self, address: &str) -> Id {
        let address = address.parse().unwrap();
        self.run(ActorCommand::ListenMultipath { address }).id()
    }

    fn listener(&mut self, address: &str, share_port: bool) -> Id {
        let address = address.parse().unwrap();
        let command = ActorCommand::Listen {
            address,
            share_port,
        };
        self.run(command).id()
    }

    pub(super) fn connect(&mut self, target: &str) -> ActorResponse {
        self.run(ActorCommand::Connect {
            target: target.parse().unwrap(),
            source: None,
            device: None,
        })
    }

    pub(super) fn connect_from(&mut self, source: &str, target: &str) -> ActorResponse {
        self.run(ActorCommand::Connect {
            target: target.parse().unwrap(),
            source: Some(source.parse().unwrap()),
            device: None,
        })
    }

    pub(super) fn accept(&mut self, listener: Id) -> ActorResponse {
        self.run(ActorCommand::Accept { listener })
    }

    pub(super) fn original(&mut self, id: Id) -> Option<SocketAddr> {
        match self.run(ActorCommand::Original { id }) {
            ActorResponse::Address(address) => address,
            other => panic!("original destination: {other:?}"),
        }
    }

    pub(super) fn start_connections(&mut self, target: &str, count: u32) {
        let target = target.parse().unwrap();
        assert_eq!(
            self.run(ActorCommand::StartConnections { target, count }),
            ActorResponse::Done
        );
    }

    /// Connects, and returns the original destination that the proxy with this listener reads.
    pub(super) fn original_at(
        &mut self,
        target: &str,
        proxy: &mut Self,
        listener: Id,
    ) -> Option<SocketAddr> {
        self.connect(target).id();
        let accepted = proxy.accept(listener);
        proxy.original(accepted.id())
    }

    /// Asserts that a connection reaches the proxy with this listener, which learns the target.
    pub(super) fn assert_redirected(&mut self, target: &str, proxy: &mut Self, listener: Id) {
        let original = self.original_at(target, proxy, listener);
        assert_eq!(original, Some(target.parse().unwrap()));
    }

    pub(super) fn send(&mut self, id: Id, text: &str) {
        let text = text.to_owned();
        let response = self.run(ActorCommand::Send { id, text });
        assert_eq!(response, ActorResponse::Done);
    }

    pub(super) fn close(&mut self, id: Id) {
        assert_eq!(self.run(ActorCommand::Close { id }), ActorResponse::Done);
    }

    pub(super) fn close_quietly(&mut self, id: Id) {
        let response = self.run(ActorCommand::CloseQuietly { id });
        assert_eq!(response, ActorResponse::Done);
    }
}

/// A connection that nothing accepts, or that is refused since the proxy does not listen.
pub(super) fn refused() -> ActorResponse {
    ActorResponse::Failed("ConnectionRefused".into())
}

/// A connection to another host that is not redirected: the pods have no route.
pub(super) fn unreachable() -> ActorResponse {
    ActorResponse::Failed("NetworkUnreachable".into())
}

impl ActorResponse {
    pub(super) fn id(&self) -> Id {
        match self {
            ActorResponse::Socket { id, .. } => *id,
            other => panic!("no socket: {other:?}"),
        }
    }

    /// The address of the client itself.
    pub(super) fn local(&self) -> SocketAddr {
        match self {
            ActorResponse::Socket { local, .. } => *local,
            other => panic!("no socket: {other:?}"),
        }
    }

    pub(super) fn peer(&self) -> SocketAddr {
        match self {
            ActorResponse::Socket {
                peer: Some(peer), ..
            } => *peer,
            other => panic!("no peer: {other:?}"),
        }
    }
}

pub(super) fn run_actor(arguments: &[String]) -> io::Result<()> {
    let [netns, cgroup, uid] = arguments else {
        return Err(io::Error::other("an actor takes namespace, cgroup and uid"));
    };
    setns(File::open(netns)?, CloneFlags::CLONE_NEWNET)?;
    fs::write(
        Path::new(cgroup).join("cgroup.procs"),
        process::id().to_string(),
    )?;
    // Allows the most concurrent connections that this machine permits.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    setuid(Uid::from_raw(uid.parse().map_err(io::Error::other)?))?;
    let mut sockets = Sockets::default();
    let mut stdout = io::stdout();
    reply(&mut stdout, &ActorResponse::Done)?;
    for line in io::stdin().lock().lines() {
        let command: ActorCommand = serde_json::from_str(&line?)?;
        let response = sockets
            .execute(command)
            .unwrap_or_else(|error| ActorResponse::Failed(format!("{:?}", error.kind())));
        reply(&mut stdout, &response)?;
    }
    Ok(())
}

fn reply(stdout: &mut io::Stdout, response: &ActorResponse) -> io::Result<()> {
    serde_json::to_writer(&mut *stdout, response)?;
    stdout.write_all(b"\n")?;
    stdout.flush()
}

#[derive(Default)]
struct Sockets {
    open: HashMap<Id, Socket>,
    started: Vec<Socket>,
    last: Id,
}

impl Sockets {
    fn execute(&mut self, command: ActorCommand) -> io::Result<ActorResponse> {
        match command {
            ActorCommand::Listen {
                address,
                share_port,
            } => self.listen(new_socket(address)?, address, share_port),
            ActorCommand::ListenMultipath { address } => {
                let domain = Domain::for_address(address);
                let socket = Socket::new(domain, Type::STREAM, Some(Protocol::MPTCP))?;
                self.listen(socket, address, false)
            }
            ActorCommand::ListenV6Only { address } => {
                let socket = new_socket(address)?;
                socket.set_only_v6(true)?;
                self.listen(socket, address, false)
            }
            ActorCommand::Relisten { id } => {
                self.socket(id)?.listen(1024)?;
                Ok(ActorResponse::Done)
            }
            ActorCommand::Accept { listener } => {
                let (socket, _) = self.socket(listener)?.accept()?;
                self.keep(socket)
            }
            ActorCommand::Connect {
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
                socket.connect_timeout(&target.into(), IO_TIMEOUT)?;
                self.keep(socket)
            }
            ActorCommand::Send { id, text } => {
                self.socket(id)?.write_all(text.as_bytes())?;
                Ok(ActorResponse::Done)
            }
            ActorCommand::Receive { id } => {
                let mut buffer = [0; 256];
                let length = self.socket(id)?.read(&mut buffer)?;
                Ok(ActorResponse::Text(
                    String::from_utf8_lossy(&buffer[..length]).into_owned(),
                ))
            }
            ActorCommand::Original { id } => {
                let socket = self.socket(id)?;
                let peer = socket.peer_addr()?.as_socket();
                let peer = peer.ok_or(io::ErrorKind::Unsupported)?;
                let original = original_destination(&*socket, peer).ok();
                Ok(ActorResponse::Address(original))
            }
            ActorCommand::Close { id } => {
                let socket = self.open.remove(&id).ok_or(io::ErrorKind::NotFound)?;
                // Also stops a listener that another process shares.
                let _ = socket.shutdown(Shutdown::Both);
                Ok(ActorResponse::Done)
            }
            ActorCommand::CloseQuietly { id } => {
                self.open.remove(&id).ok_or(io::ErrorKind::NotFound)?;
                Ok(ActorResponse::Done)
            }
            ActorCommand::Shutdown { id } => {
                self.socket(id)?.shutdown(Shutdown::Both)?;
                Ok(ActorResponse::Done)
            }
            ActorCommand::StartConnections { target, count } => {
                for _ in 0..count {
                    let socket = new_socket(target)?;
                    socket.set_nonblocking(true)?;
                    match socket.connect(&target.into()) {
                        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => {
                            return Err(error);
                        }
                        _ => self.started.push(socket),
                    }
                }
                Ok(ActorResponse::Done)
            }
            ActorCommand::CloseStarted => {
                self.started.clear();
                Ok(ActorResponse::Done)
            }
            ActorCommand::Churn { target, count } => {
                for _ in 0..count {
                    let mut socket = new_socket(target)?;
                    socket.connect_timeout(&target.into(), IO_TIMEOUT)?;
                    socket.read_exact(&mut [0])?;
                }
                Ok(ActorResponse::Done)
            }
            ActorCommand::Serve { listener, count } => {
                for _ in 0..count {
                    let (mut socket, _) = self.socket(listener)?.accept()?;
                    socket.write_all(b"x")?;
                    // The client closes first, so that the ports in TIME_WAIT are the client's.
                    let _ = socket.read(&mut [0])?;
                }
                Ok(ActorResponse::Done)
            }
        }
    }

    fn listen(
        &mut self,
        socket: Socket,
        address: SocketAddr,
        share_port: bool,
    ) -> io::Result<ActorResponse> {
        socket.set_reuse_address(true)?;
        if share_port {
            socket.set_reuse_port(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        self.keep(socket)
    }

    fn keep(&mut self, socket: Socket) -> io::Result<ActorResponse> {
        let address = |address: socket2::SockAddr| address.as_socket().map(canonical);
        let local = address(socket.local_addr()?).ok_or(io::ErrorKind::Unsupported)?;
        let peer = socket.peer_addr().ok().and_then(address);
        self.last += 1;
        self.open.insert(self.last, socket);
        Ok(ActorResponse::Socket {
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
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_read_timeout(Some(IO_TIMEOUT))?;
    socket.set_write_timeout(Some(IO_TIMEOUT))?;
    Ok(socket)
}
