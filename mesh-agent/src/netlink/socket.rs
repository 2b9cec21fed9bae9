//! A netlink socket. It stays in the network namespace of the thread that opened it, also when
//! another thread uses it.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::SndBufForce;
use socket2::{Domain, Protocol, Type};

use super::{ReceivedMessage, messages};

/// The kernel responds immediately; without the limit a lost response would block the agent.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The kernel splits a dump into buffers of at most 32 KiB (`NLMSG_GOODSIZE` and above).
const RECEIVE_BUFFER: usize = 64 * 1024;
/// Kernel: `NLMSG_ERROR`, `NLMSG_DONE`.
const KIND_ERROR: u16 = 2;
const KIND_DONE: u16 = 3;

#[derive(Debug)]
pub struct Socket(socket2::Socket);

#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("cannot open a netlink socket")]
    Open(#[source] io::Error),
    #[error("cannot send {bytes} bytes to the kernel over netlink")]
    Send { bytes: usize, source: io::Error },
    #[error("no response from the kernel over netlink")]
    Receive(#[source] io::Error),
    #[error("the kernel refused message {sequence}")]
    Refused { sequence: u32, source: io::Error },
}

impl Socket {
    /// `protocol` is one of the `NETLINK_*` numbers.
    pub fn open(protocol: i32) -> Result<Self, SocketError> {
        let socket = socket2::Socket::new(
            Domain::from(libc::AF_NETLINK),
            Type::from(libc::SOCK_RAW).cloexec(),
            Some(Protocol::from(protocol)),
        )
        .map_err(SocketError::Open)?;
        socket
            .set_read_timeout(Some(RESPONSE_TIMEOUT))
            .map_err(SocketError::Open)?;
        Ok(Self(socket))
    }

    /// Sends messages that the kernel applies as one transaction, and waits until `last` is
    /// acknowledged or any of them is refused.
    ///
    /// Only the last message requests an acknowledgement: one for each could overrun the receive
    /// buffer, and the kernel reports refusals without a request.
    pub fn transact(&mut self, batch: &[u8], last: u32) -> Result<(), SocketError> {
        self.send(batch)?;
        self.receive_until(|message| message.kind == KIND_ERROR && message.sequence == last)
    }

    /// Sends a dump request and calls `each` with every message of the response.
    pub fn dump(
        &mut self,
        request: &[u8],
        mut each: impl FnMut(&ReceivedMessage<'_>),
    ) -> Result<(), SocketError> {
        self.send(request)?;
        self.receive_until(|message| {
            let is_done = message.kind == KIND_DONE;
            if !is_done {
                each(message);
            }
            is_done
        })
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), SocketError> {
        // The default of about 200 KiB limits one transaction; a pod with a thousand skip rules
        // needs more. The kernel doubles the number.
        let failed = |source| SocketError::Send {
            bytes: bytes.len(),
            source,
        };
        if bytes.len() > 64 * 1024 {
            let size = bytes.len() * 2;
            setsockopt(&self.0.as_fd(), SndBufForce, &size)
                .map_err(io::Error::from)
                .or_else(|_| self.0.set_send_buffer_size(size))
                .map_err(failed)?;
        }
        self.0.write_all(bytes).map_err(failed)
    }

    /// Receives messages until `is_last` returns true or one reports an error.
    fn receive_until(
        &mut self,
        mut is_last: impl FnMut(&ReceivedMessage<'_>) -> bool,
    ) -> Result<(), SocketError> {
        let mut buffer = vec![0; RECEIVE_BUFFER];
        loop {
            let length = self.0.read(&mut buffer).map_err(SocketError::Receive)?;
            for message in messages(&buffer[..length]) {
                refusal(&message)?;
                if is_last(&message) {
                    return Ok(());
                }
            }
        }
    }
}

/// Returns the error that the message reports, if any; an acknowledgement is error 0.
fn refusal(message: &ReceivedMessage<'_>) -> Result<(), SocketError> {
    if message.kind != KIND_ERROR {
        return Ok(());
    }
    let code = message.body.first_chunk();
    let code = code.map_or(-libc::EBADMSG, |bytes| i32::from_ne_bytes(*bytes));
    if code == 0 {
        return Ok(());
    }
    Err(SocketError::Refused {
        sequence: message.sequence,
        source: io::Error::from_raw_os_error(-code),
    })
}
