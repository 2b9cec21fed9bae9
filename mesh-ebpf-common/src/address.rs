//! An address type for both families, in the representation of the kernel's contexts: four words in
//! network byte order. IPv4 is stored as `::ffff:a.b.c.d`.

/// An IPv6 address, or an IPv4 address in its v4-mapped form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Address {
    /// The words in network byte order, as in `bpf_sock_addr::user_ip6`.
    pub words: [u32; 4],
}

/// The address family of a socket or a packet; a v4-mapped address is IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Family {
    /// IPv4.
    V4 = 4,
    /// IPv6.
    V6 = 6,
}

/// The third word of every v4-mapped address.
const MAPPED_PREFIX: u32 = 0xffff_u32.to_be();

impl Address {
    /// `::`, which also means "no address" in a pod's settings and "not bound".
    pub const UNSPECIFIED: Address = Address { words: [0; 4] };
    /// 127.0.0.1.
    pub const LOOPBACK_V4: Address = Address::from_v4(0x7f00_0001_u32.to_be());
    /// `::1`.
    pub const LOOPBACK_V6: Address = Address {
        words: [0, 0, 0, 1_u32.to_be()],
    };

    /// Converts an IPv4 address in network byte order.
    pub const fn from_v4(word: u32) -> Address {
        Address {
            words: [0, 0, MAPPED_PREFIX, word],
        }
    }

    /// Converts four words in network byte order.
    pub const fn from_words(words: [u32; 4]) -> Address {
        Address { words }
    }

    /// Converts the eight segments of an IPv6 address, in host order.
    pub const fn from_segments(segments: [u16; 8]) -> Address {
        let [a, b, c, d, e, f, g, h] = segments;
        const fn word(high: u16, low: u16) -> u32 {
            ((high as u32) << 16 | low as u32).to_be()
        }
        Address {
            words: [word(a, b), word(c, d), word(e, f), word(g, h)],
        }
    }

    /// Converts the sixteen bytes of an IPv6 address.
    pub const fn from_octets(bytes: [u8; 16]) -> Address {
        Address {
            words: [
                u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
                u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
                u32::from_ne_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
                u32::from_ne_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]),
            ],
        }
    }

    /// Returns the sixteen bytes of the IPv6 form.
    pub const fn octets(&self) -> [u8; 16] {
        let [a, b, c, d] = self.words;
        let (a, b, c, d) = (
            a.to_ne_bytes(),
            b.to_ne_bytes(),
            c.to_ne_bytes(),
            d.to_ne_bytes(),
        );
        [
            a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1],
            d[2], d[3],
        ]
    }

    /// The family of the address.
    #[inline(always)]
    pub const fn family(&self) -> Family {
        if self.words[0] == 0 && self.words[1] == 0 && self.words[2] == MAPPED_PREFIX {
            Family::V4
        } else {
            Family::V6
        }
    }

    /// Returns a number that differs for most addresses and ports.
    #[inline(always)]
    pub const fn hash(&self, port: u16) -> u32 {
        // The multiplier of Knuth, and the last steps of MurmurHash3.
        let mut hash = port as u32;
        hash = (hash ^ self.words[0]).wrapping_mul(0x9e37_79b1);
        hash = (hash ^ (hash >> 15) ^ self.words[1]).wrapping_mul(0x9e37_79b1);
        hash = (hash ^ (hash >> 15) ^ self.words[2]).wrapping_mul(0x9e37_79b1);
        hash = (hash ^ (hash >> 15) ^ self.words[3]).wrapping_mul(0x9e37_79b1);
        hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
        hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
        hash ^ (hash >> 16)
    }

    /// Returns the IPv4 address in network byte order; only meaningful for [`Family::V4`].
    #[inline(always)]
    pub const fn v4_word(&self) -> u32 {
        self.words[3]
    }

    /// Whether the address is in 127.0.0.0/8 or `::1`, or v4-mapped.
    #[inline(always)]
    pub const fn is_loopback(&self) -> bool {
        match self.family() {
            Family::V4 => u32::from_be(self.words[3]) >> 24 == 127,
            Family::V6 => self.same(&Address::LOOPBACK_V6),
        }
    }

    /// Whether the address is `0.0.0.0`, `::` or `::ffff:0.0.0.0`, which as a destination mean this
    /// host.
    #[inline(always)]
    pub const fn is_unspecified(&self) -> bool {
        match self.family() {
            Family::V4 => self.words[3] == 0,
            Family::V6 => self.same(&Address::UNSPECIFIED),
        }
    }

    /// Whether the address is in 224.0.0.0/4 or ff00::/8, or 255.255.255.255, which no TCP peer can
    /// have.
    #[inline(always)]
    pub const fn is_group(&self) -> bool {
        match self.family() {
            Family::V4 => {
                let word = u32::from_be(self.words[3]);
                word >> 28 == 0xe || word == u32::MAX
            }
            Family::V6 => u32::from_be(self.words[0]) >> 24 == 0xff,
        }
    }

    /// Whether the addresses are equal, for use in const functions.
    #[inline(always)]
    pub const fn same(&self, other: &Address) -> bool {
        self.words[0] == other.words[0]
            && self.words[1] == other.words[1]
            && self.words[2] == other.words[2]
            && self.words[3] == other.words[3]
    }
}

impl From<core::net::IpAddr> for Address {
    fn from(address: core::net::IpAddr) -> Address {
        match address {
            core::net::IpAddr::V4(v4) => Address::from_octets(v4.to_ipv6_mapped().octets()),
            core::net::IpAddr::V6(v6) => Address::from_octets(v6.octets()),
        }
    }
}

impl From<Address> for core::net::IpAddr {
    fn from(address: Address) -> core::net::IpAddr {
        core::net::IpAddr::from(address.octets()).to_canonical()
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;

    fn address(text: &str) -> Address {
        Address::from(text.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn addresses_have_one_class() {
        let table = [
            ("127.0.0.1", "loopback"),
            ("127.255.0.9", "loopback"),
            ("::1", "loopback"),
            ("::ffff:127.0.0.1", "loopback"),
            ("0.0.0.0", "unspecified"),
            ("::", "unspecified"),
            ("::ffff:0.0.0.0", "unspecified"),
            ("224.0.0.1", "group"),
            ("239.255.255.255", "group"),
            ("255.255.255.255", "group"),
            ("ff02::1", "group"),
            ("240.0.0.1", "unicast"),
            ("10.0.0.1", "unicast"),
            ("128.0.0.1", "unicast"),
            ("0.0.0.1", "unicast"),
            ("fe80::1", "unicast"),
            ("::2", "unicast"),
            ("2001:db8::1", "unicast"),
        ];
        for (text, expected) in table {
            let given = address(text);
            let class = match (
                given.is_loopback(),
                given.is_unspecified(),
                given.is_group(),
            ) {
                (true, false, false) => "loopback",
                (false, true, false) => "unspecified",
                (false, false, true) => "group",
                (false, false, false) => "unicast",
                both => panic!("{text} has several classes: {both:?}"),
            };
            assert_eq!(class, expected, "{text}");
        }
    }

    #[test]
    fn family_is_derived_and_addresses_round_trip() {
        assert_eq!(address("10.1.2.3").family(), Family::V4);
        assert_eq!(address("::ffff:10.1.2.3"), address("10.1.2.3"));
        assert_eq!(address("2001:db8::1").family(), Family::V6);
        assert_eq!(
            address("10.1.2.3").v4_word().to_ne_bytes(),
            [10, 1, 2, 3],
            "network byte order"
        );
        for text in ["10.1.2.3", "2001:db8::1", "::1"] {
            assert_eq!(IpAddr::from(address(text)).to_string(), text);
        }
        let segments = [0x2001, 0xdb8, 3, 4, 5, 6, 7, 0xff08];
        assert_eq!(
            Address::from_segments(segments),
            address("2001:db8:3:4:5:6:7:ff08")
        );
    }
}
