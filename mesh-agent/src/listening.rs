//! The listening TCP sockets of a network namespace, with the cgroup of each, over netlink
//! (`NETLINK_SOCK_DIAG`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::{Attributes, Message, ReceivedMessage, Socket, SocketError};

const NETLINK_SOCK_DIAG: i32 = 4;
/// Kernel: `SOCK_DIAG_BY_FAMILY`, `NLM_F_REQUEST | NLM_F_DUMP`.
const BY_FAMILY: u16 = 20;
const DUMP: u16 = 0x301;
const IPPROTO_TCP: u8 = 6;
/// Kernel: `1 << TCP_LISTEN`.
const LISTENING: u32 = 1 << 10;
/// Kernel: the length of `struct inet_diag_sockid` and `struct inet_diag_msg`, and the offset of
/// the id in the latter.
const ID_BYTES: usize = 48;
const RESPONSE_BYTES: usize = 72;
const ID: usize = 4;
/// Kernel: `INET_DIAG_CGROUP_ID`, since Linux 5.9.
const CGROUP_ID: u16 = 21;
/// The limit on sockets that are read.
const MAX_SOCKETS: usize = 65_536;

/// A socket that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListeningSocket {
    /// Unspecified, of the socket's family, if it is bound to none.
    pub address: IpAddr,
    pub port: u16,
    /// The cgroup of the process that created it.
    pub cgroup: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ListeningError {
    #[error("cannot list the listening sockets (it takes a kernel with CONFIG_INET_TCP_DIAG)")]
    Netlink(#[from] SocketError),
    #[error("the kernel does not tell the cgroups of sockets (it takes Linux 5.9)")]
    NoCgroups,
    #[error("more than {MAX_SOCKETS} sockets listen on this host")]
    TooMany,
}

/// Returns the listening sockets of the calling thread's network namespace.
pub fn listening_sockets() -> Result<Vec<ListeningSocket>, ListeningError> {
    let mut socket = Socket::open(NETLINK_SOCK_DIAG)?;
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        socket.dump(&request(family as u8), |message| {
            if message.kind == BY_FAMILY && found.len() <= MAX_SOCKETS {
                found.push(parse(message));
            }
        })?;
    }
    if found.len() > MAX_SOCKETS {
        return Err(ListeningError::TooMany);
    }
    let sockets: Option<Vec<ListeningSocket>> = found.into_iter().collect();
    sockets.ok_or(ListeningError::NoCgroups)
}

fn request(family: u8) -> Vec<u8> {
    let mut body = vec![family, IPPROTO_TCP, 0, 0];
    body.extend(LISTENING.to_ne_bytes());
    body.extend([0; ID_BYTES]);
    Message::new(BY_FAMILY, DUMP, 1)
        .family_header(&body)
        .finish()
}

/// Returns `None` for a message without a cgroup.
fn parse(message: &ReceivedMessage<'_>) -> Option<ListeningSocket> {
    let body = message.body;
    let family = i32::from(*body.first()?);
    let port = body.get(ID..)?.first_chunk()?;
    let source = body.get(ID + 4..)?;
    let address = if family == libc::AF_INET {
        IpAddr::V4(Ipv4Addr::from(*source.first_chunk::<4>()?))
    } else {
        IpAddr::V6(Ipv6Addr::from(*source.first_chunk::<16>()?))
    };
    let cgroup = Attributes::after(body, RESPONSE_BYTES).find(CGROUP_ID)?;
    Some(ListeningSocket {
        address,
        port: u16::from_be_bytes(*port),
        cgroup: u64::from_ne_bytes(*cgroup.first_chunk()?),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpListener;
    use std::os::unix::fs::MetadataExt;

    use mesh_test_support::machine;

    use super::*;

    /// Returns the id of this process's cgroup.
    fn own_cgroup() -> Option<u64> {
        let text = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let directory = machine::cgroup2()?.join(path);
        Some(fs::metadata(directory).ok()?.ino())
    }

    #[test]
    fn listening_sockets_are_listed_with_address_and_cgroup() {
        let Some(cgroup) = own_cgroup() else { return };
        let listeners = ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"];
        let Ok(listeners) = listeners
            .iter()
            .map(TcpListener::bind)
            .collect::<Result<Vec<_>, _>>()
        else {
            // A machine without IPv6.
            return;
        };
        let found = listening_sockets().unwrap();
        for listener in listeners {
            let address = listener.local_addr().unwrap();
            let expected = ListeningSocket {
                address: address.ip(),
                port: address.port(),
                cgroup,
            };
            assert!(
                found.contains(&expected),
                "{expected:?} is not in {found:?}"
            );
        }
    }

    #[test]
    fn truncated_response_is_invalid() {
        let mut body = vec![libc::AF_INET as u8, 10, 0, 0];
        body.extend([0x1f, 0x90, 0, 0, 10, 0, 0, 1]);
        body.resize(RESPONSE_BYTES, 0);
        body.extend([12, 0, CGROUP_ID as u8, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        let parsed = |body: &[u8]| {
            parse(&ReceivedMessage {
                kind: BY_FAMILY,
                flags: 0,
                sequence: 1,
                body,
            })
        };
        let expected = ListeningSocket {
            address: "10.0.0.1".parse().unwrap(),
            port: 8080,
            cgroup: 7,
        };
        assert_eq!(parsed(&body), Some(expected));
        for end in 0..body.len() {
            assert_eq!(parsed(&body[..end]), None, "{end}");
        }
    }
}
