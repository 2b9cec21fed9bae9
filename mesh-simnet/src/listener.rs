//! [`Listener`]: a listening socket.

use std::fmt;
use std::net::SocketAddr;

use crate::connection::Side;
use crate::network::Network;
use crate::stream::Stream;

/// A listening socket.
pub struct Listener {
    network: Network,
    addr: SocketAddr,
}

/// An accepted connection.
#[derive(Debug)]
pub struct Accepted {
    pub stream: Stream,
    pub peer: SocketAddr,
    /// The address of the listener.
    pub local: SocketAddr,
    /// The address that the peer has connected to, before redirection.
    pub original_dst: SocketAddr,
}

impl Listener {
    pub(crate) fn new(network: Network, addr: SocketAddr) -> Self {
        Self { network, addr }
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Waits for a connection.
    pub async fn accept(&self) -> Accepted {
        let (id, peer, original_dst) =
            std::future::poll_fn(|cx| self.network.poll_accept(self.addr, cx)).await;
        Accepted {
            stream: Stream::new(self.network.clone(), id, Side::Acceptor),
            peer,
            local: self.addr,
            original_dst,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for id in self.network.close_listener(self.addr) {
            let stream = Stream::new(self.network.clone(), id, Side::Acceptor);
            stream.reset_on_close();
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.addr).finish()
    }
}
