//! Finds TCP connection requests (SYN) in packets that leave a pod, however they were created: a
//! raw or packet socket may have written every byte. A TCP header that cannot be parsed counts as a
//! request, because no ordinary sender splits a TCP header over two fragments.
//!
//! The kernel program `mesh-ebpf/src/guard.rs` implements [`Packet`] for the network header and
//! what follows, the tests for a slice.

use crate::address::Address;

/// A packet, addressed from the start of the network header. The methods return `None` beyond its
/// end.
pub trait Packet {
    /// Returns one byte.
    fn byte(&self, offset: u32) -> Option<u8>;
    /// Returns two bytes in network order as a number.
    fn half(&self, offset: u32) -> Option<u16>;
    /// Returns four bytes without changing their order.
    fn word(&self, offset: u32) -> Option<u32>;
}

/// A TCP segment that opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSyn {
    /// The source address.
    pub source: Address,
    /// The destination address.
    pub destination: Address,
    /// The destination port; 0 when it could not be parsed.
    pub port: u16,
}

const IPPROTO_TCP: u8 = 6;
const IPPROTO_HOP_BY_HOP: u8 = 0;
const IPPROTO_ROUTING: u8 = 43;
const IPPROTO_FRAGMENT: u8 = 44;
const IPPROTO_AUTHENTICATION: u8 = 51;
const IPPROTO_DESTINATION: u8 = 60;

/// Each of the five kinds at most once, as RFC 8200 recommends; longer chains are not followed.
const EXTENSIONS_MAX: u32 = 5;
/// The offset of a fragment is in units of eight bytes: the second unit contains the flags of a TCP
/// header.
const FRAGMENT_MASK: u16 = 0x1fff;
const FLAGS_UNIT: u16 = 1;

const TCP_PORT_OFFSET: u32 = 2;
const TCP_FLAGS_OFFSET: u32 = 13;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Returns the connection request in the packet, if it contains one.
#[inline(always)]
pub fn tcp_syn(packet: &impl Packet) -> Option<TcpSyn> {
    match packet.byte(0)? >> 4 {
        4 => in_v4(packet),
        6 => in_v6(packet),
        _ => None,
    }
}

#[inline(always)]
fn in_v4(packet: &impl Packet) -> Option<TcpSyn> {
    if packet.byte(9)? != IPPROTO_TCP {
        return None;
    }
    let header = u32::from(packet.byte(0)? & 0x0f) * 4;
    let fragment = packet.half(6)? & FRAGMENT_MASK;
    let source = Address::from_v4(packet.word(12)?);
    let destination = Address::from_v4(packet.word(16)?);
    in_tcp(packet, header, fragment, source, destination)
}

#[inline(always)]
fn in_v6(packet: &impl Packet) -> Option<TcpSyn> {
    let source = v6(packet, 8)?;
    let destination = v6(packet, 24)?;
    let mut kind = packet.byte(6)?;
    let mut offset = 40;
    let mut fragment = 0;
    for _ in 0..EXTENSIONS_MAX {
        if kind == IPPROTO_TCP {
            return in_tcp(packet, offset, fragment, source, destination);
        }
        let length = match kind {
            IPPROTO_HOP_BY_HOP | IPPROTO_ROUTING | IPPROTO_DESTINATION => {
                (u32::from(packet.byte(offset + 1)?) + 1) * 8
            }
            IPPROTO_AUTHENTICATION => (u32::from(packet.byte(offset + 1)?) + 2) * 4,
            IPPROTO_FRAGMENT => {
                fragment = packet.half(offset + 2)? >> 3;
                8
            }
            _ => return None,
        };
        kind = packet.byte(offset)?;
        offset += length;
    }
    (kind == IPPROTO_TCP)
        .then(|| in_tcp(packet, offset, fragment, source, destination))
        .flatten()
}

#[inline(always)]
fn v6(packet: &impl Packet, offset: u32) -> Option<Address> {
    Some(Address::from_words([
        packet.word(offset)?,
        packet.word(offset + 4)?,
        packet.word(offset + 8)?,
        packet.word(offset + 12)?,
    ]))
}

#[inline(always)]
fn in_tcp(
    packet: &impl Packet,
    header: u32,
    fragment: u16,
    source: Address,
    destination: Address,
) -> Option<TcpSyn> {
    let unparsed = TcpSyn {
        source,
        destination,
        port: 0,
    };
    match fragment {
        0 => {}
        FLAGS_UNIT => return Some(unparsed),
        _ => return None,
    }
    // One after the other: with both loaded before the first test, the verifier of Linux 6.1
    // follows a path that uses the port without having loaded it.
    let Some(port) = packet.half(header + TCP_PORT_OFFSET) else {
        return Some(unparsed);
    };
    let Some(flags) = packet.byte(header + TCP_FLAGS_OFFSET) else {
        return Some(unparsed);
    };
    (flags & (SYN | ACK) == SYN).then_some(TcpSyn { port, ..unparsed })
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;

    impl Packet for Vec<u8> {
        fn byte(&self, offset: u32) -> Option<u8> {
            self.get(offset as usize).copied()
        }

        fn half(&self, offset: u32) -> Option<u16> {
            Some(u16::from_be_bytes([
                self.byte(offset)?,
                self.byte(offset + 1)?,
            ]))
        }

        fn word(&self, offset: u32) -> Option<u32> {
            let at = offset as usize;
            let bytes = self.get(at..at + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().unwrap()))
        }
    }

    fn tcp(flags: u8) -> Vec<u8> {
        let mut segment = vec![0; 20];
        segment[2..4].copy_from_slice(&443u16.to_be_bytes());
        segment[13] = flags;
        segment
    }

    fn v4(options: usize, protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 20 + 4 * options];
        packet[0] = 0x45 + options as u8;
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet[9] = protocol;
        packet[12..16].copy_from_slice(&[10, 0, 0, 1]);
        packet[16..20].copy_from_slice(&[10, 0, 0, 2]);
        packet.extend(payload);
        packet
    }

    /// Each extension is its kind and its bytes. The first byte is written here.
    fn v6(extensions: &[(u8, &[u8])], last: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 40];
        packet[0] = 0x60;
        packet[8] = 0xfd;
        packet[24] = 0xfc;
        let mut kinds: Vec<u8> = extensions.iter().map(|(kind, _)| *kind).collect();
        kinds.push(last);
        packet[6] = kinds[0];
        for ((_, bytes), next) in extensions.iter().zip(&kinds[1..]) {
            packet.push(*next);
            packet.extend(&bytes[1..]);
        }
        packet.extend(payload);
        packet
    }

    fn port(packet: Vec<u8>) -> Option<u16> {
        tcp_syn(&packet).map(|syn| syn.port)
    }

    #[test]
    fn only_a_first_segment_is_a_connection_request() {
        assert_eq!(port(v4(0, 6, 0, &tcp(SYN))), Some(443));
        assert_eq!(port(v4(0, 6, 0, &tcp(SYN | 0xc0))), Some(443), "with ECN");
        assert_eq!(port(v4(0, 6, 0, &tcp(SYN | ACK))), None);
        assert_eq!(port(v4(0, 6, 0, &tcp(ACK))), None);
        assert_eq!(port(v4(5, 6, 0, &tcp(SYN))), Some(443), "after options");
        assert_eq!(port(v4(0, 17, 0, &tcp(SYN))), None);
        assert_eq!(port(vec![0, 1, 8, 0]), None, "ARP");
        assert_eq!(port(Vec::new()), None);
    }

    #[test]
    fn addresses_of_requests_are_parsed() {
        let syn = tcp_syn(&v4(0, 6, 0, &tcp(SYN))).unwrap();
        let address = |text: &str| Address::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(syn.source, address("10.0.0.1"));
        assert_eq!(syn.destination, address("10.0.0.2"));
        let syn = tcp_syn(&v6(&[], 6, &tcp(SYN))).unwrap();
        assert_eq!(syn.source, address("fd00::"));
        assert_eq!(syn.destination, address("fc00::"));
    }

    #[test]
    fn fragmented_tcp_header_counts_as_request() {
        const MORE: u16 = 0x2000;
        assert_eq!(port(v4(0, 6, MORE, &tcp(SYN)[..8])), Some(0));
        assert_eq!(port(v4(0, 6, 1, &tcp(SYN)[8..])), Some(0));
        assert_eq!(port(v4(0, 6, MORE, &tcp(ACK))), None);
        assert_eq!(port(v4(0, 6, 185, &tcp(SYN))), None, "a later fragment");
    }

    #[test]
    fn requests_after_extension_headers_are_found() {
        let options: &[u8] = &[0; 8];
        let long: &[u8] = &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let authentication: &[u8] = &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let first_fragment: &[u8] = &[0, 0, 0, 1, 0, 0, 0, 9];
        let second_fragment: &[u8] = &[0, 0, 0, 8, 0, 0, 0, 9];
        let check = |extensions: &[(u8, &[u8])], expected| {
            assert_eq!(
                port(v6(extensions, 6, &tcp(SYN))),
                expected,
                "{extensions:?}"
            );
        };
        check(&[], Some(443));
        check(&[(60, options)], Some(443));
        check(&[(0, long), (43, options), (60, options)], Some(443));
        check(&[(51, authentication)], Some(443));
        check(&[(44, first_fragment)], Some(443));
        check(&[(44, second_fragment)], Some(0));
        check(&[(60, options); 5], Some(443));
        assert_eq!(port(v6(&[(60, options)], 17, &tcp(SYN))), None);
        assert_eq!(port(v6(&[(50, options)], 6, &tcp(SYN))), None, "encrypted");
    }
}
