//! The kernel's state of a TCP connection (TCP_INFO).

use nix::libc;
use nix::sys::socket::GetSockOpt;
use nix::sys::socket::sockopt::GetStruct;
use tokio::net::TcpStream;

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

/// Whether the peer has acknowledged all bytes and the FIN that were written, or never will because
/// the connection is over.
pub fn is_acknowledged(tcp: &TcpStream) -> bool {
    let Ok(info) = TcpInfo.get(tcp) else {
        return true;
    };
    let is_zero = |position: usize| info[position..position + 4] == [0; 4];
    info[0] == TCP_CLOSE || (is_zero(UNACKNOWLEDGED_SEGMENTS) && is_zero(UNSENT_BYTES))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mesh_test_support::eventually::eventually;
    use socket2::SockRef;
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
        SockRef::from(&server)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(server);
        eventually("the reset arrives", || is_acknowledged(&client));
    }
}
