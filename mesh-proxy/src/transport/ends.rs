//! Which connections the proxy closes with FIN, and which with RST.
//!
//! [`super::copy`], which carries opaque connections, `CONNECT` and upgrades in both directions,
//! passes the end of one peer's connection on to the other peer (ADR 0169). A peer sees what it
//! would see without a proxy in between: a FIN as a FIN, and everything that makes the kernel of an
//! application report an error as a reset, after the bytes and the FIN that preceded it.
//!
//! Before that, the [`Stage`] of an accepted connection decides (ADR 0216). A client that waits for
//! the server's first byte takes a FIN for a complete, empty stream, so that every close before the
//! connection is served is a reset, whatever its reason.

use std::io;

use mesh_planted::Bug;

/// The peer of one of the two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The peer of the accepted connection.
    Client,
    /// The peer of the opened connection.
    Server,
}

/// Why a connection carries no more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The peer has sent FIN, on TLS connections after close_notify.
    Finished,
    /// The peer has sent RST: it has aborted, or has closed its socket and discards bytes.
    Reset,
    /// The peer has vanished: the kernel gave up (ETIMEDOUT, EHOSTUNREACH and others).
    Vanished,
    /// The peer's TLS stream is truncated: a FIN without close_notify, or an invalid record.
    ///
    /// This project's proxies and Linkerd's send close_notify for the FIN of their application, so
    /// that the lack of it means a reset behind them, or their own death.
    Truncated,
    /// This proxy ends the connection: it drains, a limit is reached, or the policy has changed.
    Proxy,
}

/// The end of a connection, and what had ended before.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionEnd {
    pub(super) side: Side,
    pub(super) cause: Cause,
    /// Whether the same peer's FIN had been passed on.
    pub(super) had_finished: bool,
    /// Whether the other peer's FIN had been passed on.
    pub(super) other_had_finished: bool,
}

/// How a peer sees that its connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Close {
    /// FIN, on TLS connections after close_notify. It can still send.
    Fin,
    /// RST, on TLS connections without close_notify. Both directions are over.
    Rst,
}

/// How far an accepted connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No one serves it: it exceeds a limit, the policy refuses it, its application cannot be
    /// reached, its protocol is not known in time, the proxy drains or its task is dropped.
    Unserved,
    /// It is in a TLS handshake with this proxy. An alert tells the client that it has failed, and
    /// a reset could overtake the alert. No client takes an end within a handshake for the end of a
    /// stream.
    Handshake,
    /// HTTP tells complete messages from others, and resets the connection itself where it cannot.
    Http,
    /// The client has ended its stream before its first byte, and only TLS or HTTP is served.
    ClientFinished,
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Server => "server",
        })
    }
}

impl Cause {
    /// Why reading from or writing to a connection has failed.
    pub(super) fn of_error(error: &io::Error) -> Self {
        match error.kind() {
            // The kernel reports EPIPE for an RST that follows the peer's FIN.
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Reset,
            _ if error.raw_os_error().is_some() => Self::Vanished,
            _ => Self::Truncated,
        }
    }

    /// What the other peer receives after the bytes of the peer whose connection has ended.
    ///
    /// What had ended before makes no difference: without a proxy, a reset reaches also an
    /// application that has sent or received FIN.
    pub(super) fn passed_on(self) -> Close {
        match self {
            Self::Reset | Self::Truncated if Bug::ResetIsEnd.is_planted() => Close::Fin,
            Self::Finished => Close::Fin,
            Self::Reset | Self::Vanished | Self::Truncated | Self::Proxy => Close::Rst,
        }
    }
}

impl Stage {
    /// How the client sees that the proxy closes the connection.
    pub(super) fn close(self) -> Close {
        match self {
            Self::Unserved => Close::Rst,
            Self::Handshake | Self::Http | Self::ClientFinished => Close::Fin,
        }
    }
}

impl ConnectionEnd {
    /// Whether the connection counts as failed.
    ///
    /// A peer that closes its socket completely, as most do, discards what arrives afterwards, such
    /// as a TLS close_notify, and its kernel resets the connection. That is in order once the peer
    /// has ended its stream, and for a client also once it has received the end of the server's. A
    /// server that has not ended its stream has not completed its response.
    pub(super) fn is_failure(self) -> bool {
        match self.cause {
            Cause::Finished | Cause::Proxy => false,
            Cause::Vanished => true,
            Cause::Reset | Cause::Truncated => {
                let has_response = self.side == Side::Client && self.other_had_finished;
                !(self.had_finished || has_response)
            }
        }
    }
}

/// Whether the kernel has reported, by this error, that it gave the connection up before the peer's
/// FIN. It reports this once: later reads return 0, which is not the end of the peer's stream.
pub(super) fn is_abort(error: &io::Error) -> bool {
    let is_kernel_error = error.raw_os_error().is_some();
    is_kernel_error
        && !matches!(
            error.kind(),
            io::ErrorKind::BrokenPipe | io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        )
}

#[cfg(test)]
mod tests {
    use nix::libc;

    use super::Cause::{Finished, Proxy, Reset, Truncated, Vanished};
    use super::Close::{Fin, Rst};
    use super::Side::{Client, Server};
    use super::*;

    #[test]
    fn end_of_a_connection_is_passed_on_as_without_a_proxy() {
        // side, cause, whether it and the other had finished, what the other peer receives, failure
        let table = [
            (Client, Finished, false, false, Fin, false),
            (Client, Finished, false, true, Fin, false),
            (Server, Finished, false, false, Fin, false),
            (Server, Finished, false, true, Fin, false),
            (Client, Reset, false, false, Rst, true),
            (Client, Reset, false, true, Rst, false),
            (Client, Reset, true, false, Rst, false),
            (Client, Reset, true, true, Rst, false),
            (Server, Reset, false, false, Rst, true),
            (Server, Reset, false, true, Rst, true),
            (Server, Reset, true, false, Rst, false),
            (Server, Reset, true, true, Rst, false),
            (Client, Vanished, false, false, Rst, true),
            (Client, Vanished, true, false, Rst, true),
            (Server, Vanished, false, true, Rst, true),
            (Server, Vanished, true, true, Rst, true),
            (Client, Truncated, false, false, Rst, true),
            (Client, Truncated, false, true, Rst, false),
            (Server, Truncated, false, true, Rst, true),
            (Server, Truncated, true, false, Rst, false),
            (Client, Proxy, true, false, Rst, false),
            (Server, Proxy, false, true, Rst, false),
            (Server, Proxy, false, false, Rst, false),
        ];
        for (side, cause, had_finished, other_had_finished, passed_on, is_failure) in table {
            let end = ConnectionEnd {
                side,
                cause,
                had_finished,
                other_had_finished,
            };
            assert_eq!(cause.passed_on(), passed_on, "{end:?}");
            assert_eq!(end.is_failure(), is_failure, "{end:?}");
        }
    }

    #[test]
    fn connection_that_is_not_served_is_reset() {
        let table = [
            (Stage::Unserved, Rst),
            (Stage::Handshake, Fin),
            (Stage::Http, Fin),
            (Stage::ClientFinished, Fin),
        ];
        for (stage, close) in table {
            assert_eq!(stage.close(), close, "{stage:?}");
        }
    }

    #[test]
    fn error_of_the_kernel_tells_why_a_connection_has_ended() {
        for (errno, cause, aborts) in [
            (libc::ECONNRESET, Reset, true),
            (libc::EPIPE, Reset, false),
            (libc::ETIMEDOUT, Vanished, true),
            (libc::EHOSTUNREACH, Vanished, true),
            (libc::ENETUNREACH, Vanished, true),
            (libc::ECONNABORTED, Vanished, true),
        ] {
            let error = io::Error::from_raw_os_error(errno);
            assert_eq!(Cause::of_error(&error), cause, "{error}");
            assert_eq!(is_abort(&error), aborts, "{error}");
        }
        let truncated = io::Error::new(io::ErrorKind::UnexpectedEof, "no close_notify");
        assert_eq!(Cause::of_error(&truncated), Truncated);
        assert!(!is_abort(&truncated));
        assert!(!is_abort(&io::Error::from_raw_os_error(libc::EAGAIN)));
    }
}
