//! splice(2): the kernel moves bytes between two sockets through a pipe, without copying them to
//! the process.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::task::{Context, Poll, ready};

use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::sys::socket::{MsgFlags, recv};
use nix::unistd::pipe2;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::socket::Socket;

/// A pipe. Its user keeps track of how many bytes it contains.
#[derive(Debug)]
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// What [`Pipe::poll_fill`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// This many bytes are in the pipe; 0 at the end of the stream.
    Bytes(usize),
    /// The next byte is urgent (MSG_OOB). splice moves neither it nor those that follow, which a
    /// read does.
    Urgent,
}

/// The default limit for unprivileged processes (`fs.pipe-max-size`). A pipe of this size moves a
/// GB in 0.11 CPU-seconds.
const PIPE_SIZE: i32 = 1024 * 1024;

impl Pipe {
    pub(super) fn open() -> io::Result<Self> {
        let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // Fails when the user's pipes have reached `fs.pipe-user-pages-soft`; a pipe of the default
        // size works as well.
        let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(PIPE_SIZE));
        Ok(Self { read, write })
    }

    /// Moves bytes from the socket into the pipe, which must be empty.
    pub(super) fn poll_fill(&self, from: &Socket, cx: &mut Context<'_>) -> Poll<io::Result<Fill>> {
        let from = kernel(from)?;
        loop {
            ready!(from.poll_read_ready(cx))?;
            let filled = from.try_io(Interest::READABLE, || self.fill(from));
            if !would_block(&filled) {
                return Poll::Ready(filled);
            }
        }
    }

    fn fill(&self, from: &TcpStream) -> io::Result<Fill> {
        let fill = || move_bytes(from, &self.write, PIPE_SIZE as usize);
        let is_nothing = |moved: &_| matches!(moved, Ok(0)) || would_block(moved);
        let mut moved = fill();
        // Before an urgent byte, splice reports an empty socket, or its end if that has arrived.
        if is_nothing(&moved) && has_bytes(from) {
            // They may have arrived after the splice.
            moved = fill();
            if is_nothing(&moved) {
                return Ok(Fill::Urgent);
            }
        }
        moved.map(Fill::Bytes)
    }

    /// Moves up to `filled` bytes, which must be in the pipe, to the socket.
    pub(super) fn poll_empty(
        &self,
        to: &Socket,
        filled: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let to = kernel(to)?;
        loop {
            ready!(to.poll_write_ready(cx))?;
            let moved = to.try_io(Interest::WRITABLE, || move_bytes(&self.read, to, filled));
            if !would_block(&moved) {
                return Poll::Ready(moved);
            }
        }
    }
}

/// Only for connections whose [`Socket::can_splice`] holds.
fn kernel(socket: &Socket) -> io::Result<&TcpStream> {
    socket
        .kernel()
        .ok_or_else(|| io::ErrorKind::Unsupported.into())
}

fn move_bytes(from: impl AsFd, to: impl AsFd, limit: usize) -> io::Result<usize> {
    let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
    Ok(splice(from, None, to, None, limit, flags)?)
}

/// Whether a read would return bytes.
fn has_bytes(socket: &TcpStream) -> bool {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    matches!(recv(socket.as_raw_fd(), &mut [0], flags), Ok(1..))
}

fn would_block<T>(result: &io::Result<T>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}
