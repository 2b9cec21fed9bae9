//! [`Position`]: where the proxies of a run are.

/// Which of client and server are in the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Position {
    /// None.
    Direct,
    /// The client.
    Outbound,
    /// The server.
    Inbound,
    Both,
}

impl Position {
    /// All, the one without the mesh first.
    pub const ALL: [Self; 4] = [Self::Direct, Self::Outbound, Self::Inbound, Self::Both];

    /// Whether the client has a proxy.
    pub fn has_client_proxy(self) -> bool {
        matches!(self, Self::Outbound | Self::Both)
    }

    /// Whether the server has a proxy.
    pub fn has_server_proxy(self) -> bool {
        matches!(self, Self::Inbound | Self::Both)
    }
}
