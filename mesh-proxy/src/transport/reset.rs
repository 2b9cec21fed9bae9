//! Passing a reset on: the connection is closed with RST once the peer has acknowledged all bytes
//! sent before.
//!
//! SO_LINGER with a time of zero makes the kernel send RST on close, and discards its send queue:
//! without waiting, the peer would lose bytes that it receives without a proxy. The kernel does not
//! tell when the queue becomes empty, so TCP_INFO is read by a timer whose period doubles from 1 ms
//! to 50 ms: about a hundred system calls at most, within [`RESET_TIME`].

use std::time::Duration;

use nix::libc;
use nix::sys::socket::GetSockOpt;
use nix::sys::socket::sockopt::GetStruct;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// How long a reset waits for the acknowledgement of earlier bytes. A peer that reads nothing for
/// so long loses them.
pub(crate) const RESET_TIME: Duration = Duration::from_secs(5);

const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The beginning of `struct tcp_info`, up to `tcpi_notsent_bytes`, in native byte order (Linux
/// 4.6). Not the type of libc, whose length depends on its version: the kernel may know less.
type TcpInfoBytes = [u8; 148];

/// Positions within [`TcpInfoBytes`].
const UNACKNOWLEDGED_SEGMENTS: usize = 24;
const UNSENT_BYTES: usize = 144;

/// `tcpi_state` of a connection that the peer has reset or the kernel has given up.
const TCP_CLOSE: u8 = 7;

#[derive(Clone, Copy)]
struct TcpInfo;

nix::getsockopt_impl!(
    TcpInfo,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    TcpInfoBytes,
    GetStruct<TcpInfoBytes>
);

/// Makes the kernel send RST when the socket is closed, so that the peer cannot take the close for
/// the end of the stream. Discards what the peer has not acknowledged.
pub(crate) fn reset_on_close(tcp: &TcpStream) {
    // Does not fail for TCP sockets, and the connection is closed anyway.
    let _unset = SockRef::from(tcp).set_linger(Some(Duration::ZERO));
}

/// Whether the peer has acknowledged all bytes and the FIN that were written, or never will because
/// the connection is over.
pub(crate) fn is_acknowledged(tcp: &TcpStream) -> bool {
    let Ok(info) = TcpInfo.get(tcp) else {
        return true;
    };
    let is_zero = |position: usize| info[position..position + 4] == [0; 4];
    info[0] == TCP_CLOSE || (is_zero(UNACKNOWLEDGED_SEGMENTS) && is_zero(UNSENT_BYTES))
}

/// Waits until `is_acknowledged`, which is asked often at first and then rarely.
pub(crate) async fn until_acknowledged(is_acknowledged: impl Fn() -> bool) {
    let mut pause = FIRST_PAUSE;
    while !is_acknowledged() {
        sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use mesh_test_support::eventually::eventually;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// [`eventually`] blocks; the kernel acknowledges on its own.
    #[tokio::test]
    async fn send_queue_is_acknowledged_when_the_peer_has_received_all_of_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dial = TcpStream::connect(listener.local_addr().unwrap());
        let (client, server) = tokio::join!(dial, listener.accept());
        let (mut client, server) = (client.unwrap(), server.unwrap().0);
        assert!(is_acknowledged(&client), "nothing was sent");

        let bytes = vec![0; 1 << 20];
        let mut sent = 0;
        while let Ok(n) = client.try_write(&bytes) {
            sent += n;
        }
        assert!(!is_acknowledged(&client), "{sent} bytes, which are unread");

        let mut buffer = vec![0; 1 << 20];
        let mut received = 0;
        while received < sent {
            server.readable().await.unwrap();
            received += server.try_read(&mut buffer).unwrap_or(0);
        }
        eventually("the bytes are acknowledged", || is_acknowledged(&client));
        client.shutdown().await.unwrap();
        eventually("the FIN is acknowledged", || is_acknowledged(&client));
    }

    #[tokio::test]
    async fn send_queue_of_a_reset_connection_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dial = TcpStream::connect(listener.local_addr().unwrap());
        let (client, server) = tokio::join!(dial, listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap().0);
        let bytes = vec![0; 1 << 20];
        while client.try_write(&bytes).is_ok() {}
        assert!(!is_acknowledged(&client));
        reset_on_close(&server);
        drop(server);
        eventually("the reset arrives", || is_acknowledged(&client));
    }
}
