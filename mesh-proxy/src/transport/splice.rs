//! splice(2): the kernel moves bytes between two sockets through a pipe, without copying them to
//! the process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};

use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::unistd::pipe2;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// A pipe. Its user keeps track of how many bytes it contains.
#[derive(Debug)]
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
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

    /// Moves bytes from the socket into the pipe, which must be empty. Returns 0 at the end of the
    /// stream.
    pub(super) fn poll_fill(
        &self,
        from: &TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(from.poll_read_ready(cx))?;
            let moved = from.try_io(Interest::READABLE, || {
                move_bytes(from, &self.write, PIPE_SIZE as usize)
            });
            if !would_block(&moved) {
                return Poll::Ready(moved);
            }
        }
    }

    /// Moves up to `filled` bytes, which must be in the pipe, to the socket.
    pub(super) fn poll_empty(
        &self,
        to: &TcpStream,
        filled: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(to.poll_write_ready(cx))?;
            let moved = to.try_io(Interest::WRITABLE, || move_bytes(&self.read, to, filled));
            if !would_block(&moved) {
                return Poll::Ready(moved);
            }
        }
    }
}

fn move_bytes(from: impl AsFd, to: impl AsFd, limit: usize) -> io::Result<usize> {
    let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
    Ok(splice(from, None, to, None, limit, flags)?)
}

fn would_block(moved: &io::Result<usize>) -> bool {
    matches!(moved, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}
