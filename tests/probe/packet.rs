//! `probe syn raw|packet SOURCE TARGET…`: sends self-made TCP SYN packets without connect(2):
//! through a raw socket, or through a packet socket on `eth0` (to a target in the ARP cache).
//! Reports for each target whether it responded; SYNs are sent in order and the last target must
//! respond.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::time::Instant;

use anyhow::Context;
use nix::libc;
use socket2::{Domain, Protocol, Socket, Type};

use super::client::TIMEOUT;
use super::event;

const INTERFACE: &str = "eth0";
const IP_HEADER: usize = 20;
const TCP_HEADER: usize = 20;
const ETHERNET_HEADER: usize = 14;
/// Has no listener in the pod, so the kernel responds to the SYN-ACK with a reset.
const SOURCE_PORT: u16 = 40_001;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

pub(crate) fn run(args: &[&str]) -> anyhow::Result<()> {
    let [how, source, targets @ ..] = args else {
        anyhow::bail!("usage: syn raw|packet SOURCE TARGET…")
    };
    let source: Ipv4Addr = source.parse()?;
    let targets: Vec<SocketAddrV4> = targets
        .iter()
        .map(|target| target.parse())
        .collect::<Result<_, _>>()?;
    // Receives a copy of every TCP packet for this host.
    let mut answers =
        Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).context("open a raw socket")?;
    answers.set_read_timeout(Some(TIMEOUT))?;
    for target in &targets {
        let packet = connection_request(source, *target);
        match *how {
            "raw" => send_raw(&packet, *target)?,
            "packet" => send_frame(&packet, *target)?,
            other => anyhow::bail!("{other} is neither raw nor packet"),
        }
    }
    let last = *targets.last().context("no target")?;
    let answered = collect(&mut answers, last)?;
    for target in targets {
        event(&[
            ("target", target.port().into()),
            ("answered", answered.contains(&target.port()).into()),
        ]);
    }
    Ok(())
}

/// Returns the ports that responded, up to the last target. Packets of one sender stay in order on
/// one link.
fn collect(answers: &mut Socket, last: SocketAddrV4) -> anyhow::Result<Vec<u16>> {
    let start = Instant::now();
    let mut ports = Vec::new();
    let mut buffer = [0; 2048];
    while start.elapsed() < TIMEOUT {
        let length = answers
            .read(&mut buffer)
            .context("no response from the last target")?;
        let Some(port) = answer(&buffer[..length]) else {
            continue;
        };
        ports.push(port);
        if port == last.port() {
            return Ok(ports);
        }
    }
    anyhow::bail!("no response from the last target, {last}")
}

/// Returns the source port of a SYN-ACK for a SYN of this probe.
fn answer(packet: &[u8]) -> Option<u16> {
    let tcp = packet.get(usize::from(packet.first()? & 0x0f) * 4..)?;
    let port = |at: usize| Some(u16::from_be_bytes([*tcp.get(at)?, *tcp.get(at + 1)?]));
    (port(2)? == SOURCE_PORT && *tcp.get(13)? & (SYN | ACK) == SYN | ACK).then_some(port(0)?)
}

/// Encodes an IPv4 packet with a TCP SYN.
fn connection_request(source: Ipv4Addr, target: SocketAddrV4) -> Vec<u8> {
    let mut ip = vec![0; IP_HEADER];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((IP_HEADER + TCP_HEADER) as u16).to_be_bytes());
    ip[8] = 64; // hops
    ip[9] = libc::IPPROTO_TCP as u8;
    ip[12..16].copy_from_slice(&source.octets());
    ip[16..20].copy_from_slice(&target.ip().octets());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut tcp = vec![0; TCP_HEADER];
    tcp[0..2].copy_from_slice(&SOURCE_PORT.to_be_bytes());
    tcp[2..4].copy_from_slice(&target.port().to_be_bytes());
    tcp[12] = 5 << 4; // its length in words
    tcp[13] = SYN;
    tcp[14..16].copy_from_slice(&1024_u16.to_be_bytes()); // window
    let mut summed = ip[12..20].to_vec();
    summed.extend([0, libc::IPPROTO_TCP as u8]);
    summed.extend((TCP_HEADER as u16).to_be_bytes());
    summed.extend(&tcp);
    let sum = checksum(&summed);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    [ip, tcp].concat()
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn send_raw(packet: &[u8], target: SocketAddrV4) -> anyhow::Result<()> {
    let protocol = Protocol::from(libc::IPPROTO_RAW);
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(protocol))?;
    socket
        .send_to(packet, &target.into())
        .context("send through a raw socket")?;
    Ok(())
}

/// Returns the link-layer address of the target from the ARP cache.
fn link_address(target: SocketAddrV4) -> anyhow::Result<Vec<u8>> {
    let table = std::fs::read_to_string("/proc/net/arp")?;
    let ip = target.ip().to_string();
    let line = table
        .lines()
        .find(|line| line.split_whitespace().next() == Some(ip.as_str()))
        .with_context(|| format!("{ip} is not in the ARP cache"))?;
    let address = line.split_whitespace().nth(3).context("no link address")?;
    let bytes = address.split(':').map(|byte| u8::from_str_radix(byte, 16));
    Ok(bytes.collect::<Result<_, _>>()?)
}

fn send_frame(packet: &[u8], target: SocketAddrV4) -> anyhow::Result<()> {
    let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
    let index = nix::net::if_::if_nametoindex(INTERFACE)?;
    let mut frame = link_address(target)?;
    frame.extend([2, 0, 0, 0, 0, 1]); // an arbitrary source address
    frame.extend((libc::ETH_P_IP as u16).to_be_bytes());
    debug_assert_eq!(frame.len(), ETHERNET_HEADER);
    frame.extend(packet);
    match super::raw::send_frame(socket.as_raw_fd(), index, &frame) {
        Ok(sent) => anyhow::ensure!(sent == frame.len(), "the frame was sent partially"),
        // The kernel reports a frame dropped by a filter this way; the response shows whether it
        // arrived.
        Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
        Err(error) => return Err(error).context("send through a packet socket"),
    }
    Ok(())
}
