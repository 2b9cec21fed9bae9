//! [`Process`]: who listens and connects.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use nix::errno::Errno;
use tokio::sync::oneshot;

use crate::connection::Side;
use crate::listener::Listener;
use crate::network::{Network, Role};
use crate::stream::Stream;
use crate::usage::Scope;

/// A program on a host: it opens connections from the host's address.
#[derive(Clone)]
pub struct Process {
    network: Network,
    host: IpAddr,
    role: Role,
}

thread_local! {
    static CURRENT: RefCell<Option<Process>> = const { RefCell::new(None) };
}

/// Returns the process whose [`Process::run`] polls the caller.
pub fn current() -> Option<Process> {
    CURRENT.with_borrow(Clone::clone)
}

impl Network {
    /// A program on the host with this address.
    pub fn process(&self, host: IpAddr, role: Role) -> Process {
        Process {
            network: self.clone(),
            host,
            role,
        }
    }
}

impl Process {
    /// Runs a future, and everything that it spawns on a `LocalSet` of its own, as this process.
    pub fn run<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        Running {
            process: self,
            future: Box::pin(future),
        }
    }

    /// Makes this process the one of everything on this thread that no [`Process::run`] polls, such
    /// as tasks of the runtime, until the guard is dropped.
    pub fn enter(self) -> Entered {
        Entered(CURRENT.replace(Some(self)))
    }

    /// Listens on a port of the host.
    ///
    /// # Errors
    ///
    /// The port is in use.
    pub fn listen(&self, port: u16) -> io::Result<Listener> {
        let addr = SocketAddr::new(self.host, port);
        self.network.listen(addr)?;
        Ok(Listener::new(self.network.clone(), addr))
    }

    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// The host refuses it, is unreachable, or does not answer.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<Stream> {
        let (answer, answered) = oneshot::channel();
        let id = self
            .network
            .start_connecting((self.host, self.role), to, answer)?;
        // Made before the answer, so that a connect that is given up is closed.
        let stream = Stream::new(self.network.clone(), id, Side::Opener);
        match answered.await {
            Ok(answer) => answer.map(|()| stream),
            Err(_dropped) => Err(Errno::ETIMEDOUT.into()),
        }
    }
}

/// Ends [`Process::enter`] when it is dropped.
#[must_use]
pub struct Entered(Option<Process>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

struct Running<F: Future> {
    process: Process,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Running<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let before = CURRENT.replace(Some(self.process.clone()));
        let _scope = Scope::new(self.process.role == Role::Proxy);
        let polled = self.future.as_mut().poll(cx);
        CURRENT.set(before);
        polled
    }
}
