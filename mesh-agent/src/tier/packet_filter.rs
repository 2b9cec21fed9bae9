//! Tests the packet-filter tiers: redirects one connection in a scratch network namespace, and
//! checks where it arrives and its original destination. This needs everything that a pod needs:
//! NAT, connection tracking, the redirect target, and for iptables its programs.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use std::{io, thread};

use mesh_ebpf_common::verdict::{CHECK_PORT, CHECK_V4};
use mesh_runtime::log;
use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{getsockopt, sockopt};

use crate::iptables;
use crate::netlink::{Message, Socket, SocketError};
use crate::nft::Table;
use crate::redirect::{AnnotationError, PodRef, RedirectSpec};
use crate::rules::{Directions, Rules};
use crate::sys::loopback;

/// Documentation addresses (RFC 5737): the namespace's own, and one on its link that no host has.
const OWN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 3);
const PREFIX_LENGTH: u8 = 24;
const TARGET: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 2), 80);
/// The check address, on the same link.
const CHECK: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::from_octets(CHECK_V4), CHECK_PORT);
/// A redirected connection arrives within microseconds; one that is not redirected would wait
/// seconds for neighbour discovery.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error("cannot create a scratch network namespace (it takes CAP_SYS_ADMIN)")]
    Namespace(#[source] io::Error),
    #[error("cannot set up the scratch network namespace (it takes CAP_NET_ADMIN)")]
    Setup(#[source] io::Error),
    #[error("cannot create a link in the scratch network namespace")]
    Link(#[source] SocketError),
    #[error(transparent)]
    Settings(#[from] AnnotationError),
    #[error("{0}")]
    Rules(String),
    #[error("the kernel accepted the rules and did not redirect a connection")]
    NotRedirected(#[source] io::Error),
    #[error("the kernel redirected a connection and does not return its original destination")]
    NoOriginal(#[source] io::Error),
    #[error(
        "the kernel returned {found} as the original destination of a connection to {expected}"
    )]
    WrongOriginal {
        found: SocketAddr,
        expected: SocketAddr,
    },
    #[error("the test of the packet filter panicked")]
    Panicked,
}

pub(super) fn try_nft() -> Result<(), String> {
    in_scratch_namespace(|rules| {
        let replaced = Table::open().and_then(|mut table| table.replace(rules));
        replaced.map_err(|error| sentence(&error))
    })
}

pub(super) fn try_iptables() -> Result<(), String> {
    in_scratch_namespace(|rules| iptables::replace(rules).map_err(|error| sentence(&error)))
}

/// Runs on a new thread; its namespace ends with it.
fn in_scratch_namespace(
    apply: impl FnOnce(&Rules) -> Result<(), String> + Send,
) -> Result<(), String> {
    let result = thread::scope(|scope| {
        scope
            .spawn(|| probe(apply))
            .join()
            .unwrap_or(Err(ProbeError::Panicked))
    });
    result.map_err(|error| sentence(&error))
}

fn probe(apply: impl FnOnce(&Rules) -> Result<(), String>) -> Result<(), ProbeError> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| ProbeError::Namespace(errno.into()))?;
    loopback::set_up(&[], &[]).map_err(ProbeError::Setup)?;
    make_link()?;
    let spec = RedirectSpec::from_annotations(&PodRef::default(), &BTreeMap::new())?;
    apply(&Rules::new(&spec, Directions::Both)).map_err(ProbeError::Rules)?;
    let proxy =
        TcpListener::bind((Ipv4Addr::LOCALHOST, spec.outbound_port)).map_err(ProbeError::Setup)?;
    redirect_one(&proxy, TARGET)?;
    redirect_one(&proxy, CHECK)
}

/// Connects to an address on the link, as an application would, and accepts as the proxy.
fn redirect_one(proxy: &TcpListener, target: SocketAddrV4) -> Result<(), ProbeError> {
    let target = SocketAddr::from(target);
    let _application =
        TcpStream::connect_timeout(&target, CONNECT_TIMEOUT).map_err(ProbeError::NotRedirected)?;
    let accepted = accept(proxy).map_err(ProbeError::NotRedirected)?;
    let original = getsockopt(&accepted, sockopt::OriginalDst)
        .map_err(|errno| ProbeError::NoOriginal(errno.into()))?;
    let found = SocketAddr::from((
        Ipv4Addr::from(u32::from_be(original.sin_addr.s_addr)),
        u16::from_be(original.sin_port),
    ));
    if found == target {
        Ok(())
    } else {
        Err(ProbeError::WrongOriginal {
            found,
            expected: target,
        })
    }
}

/// Accepts the connection, which is established and queued unless it was not redirected.
fn accept(proxy: &TcpListener) -> io::Result<TcpStream> {
    proxy.set_nonblocking(true)?;
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    loop {
        match proxy.accept() {
            Ok((stream, _)) => return Ok(stream),
            // Another CPU may still be processing the handshake's last packet.
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline =>
            {
                thread::yield_now();
            }
            Err(error) => return Err(error),
        }
    }
}

/// Creates a veth pair in the namespace: a link that suffices for a route.
fn make_link() -> Result<(), ProbeError> {
    const NAME: &str = "mesh0";
    // Numbers of linux/if_link.h and linux/if_addr.h.
    const IFLA_IFNAME: u16 = 3;
    const IFLA_LINKINFO: u16 = 18;
    const IFLA_INFO_KIND: u16 = 1;
    const IFA_ADDRESS: u16 = 1;
    const IFA_LOCAL: u16 = 2;
    const ACKNOWLEDGED: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    const CREATED: u16 = ACKNOWLEDGED | (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;

    let mut socket = Socket::open(libc::NETLINK_ROUTE).map_err(ProbeError::Link)?;
    let create = Message::new(libc::RTM_NEWLINK, CREATED, 1)
        .family_header(&link_header(0, 0))
        .text(IFLA_IFNAME, NAME)
        .nested(IFLA_LINKINFO, |info| info.text(IFLA_INFO_KIND, "veth"))
        .finish();
    socket.transact(&create, 1).map_err(ProbeError::Link)?;
    let index = if_nametoindex(NAME).map_err(|errno| ProbeError::Setup(errno.into()))?;
    // struct ifaddrmsg: family, prefix length, flags, scope, index.
    let mut address_header = vec![libc::AF_INET as u8, PREFIX_LENGTH, 0, 0];
    address_header.extend(index.to_ne_bytes());
    let address = Message::new(libc::RTM_NEWADDR, CREATED, 2)
        .family_header(&address_header)
        .attribute(IFA_LOCAL, &OWN.octets())
        .attribute(IFA_ADDRESS, &OWN.octets())
        .finish();
    socket.transact(&address, 2).map_err(ProbeError::Link)?;
    let up = Message::new(libc::RTM_NEWLINK, ACKNOWLEDGED, 3)
        .family_header(&link_header(index, libc::IFF_UP as u32))
        .finish();
    socket.transact(&up, 3).map_err(ProbeError::Link)
}

/// Encodes `struct ifinfomsg`: family, padding, type, index, flags, and the mask of changed flags.
fn link_header(index: u32, flags: u32) -> Vec<u8> {
    let mut header = vec![0; 4];
    header.extend(index.to_ne_bytes());
    header.extend(flags.to_ne_bytes());
    header.extend(flags.to_ne_bytes());
    header
}

fn sentence(error: &dyn Error) -> String {
    log::chain(error)
}
