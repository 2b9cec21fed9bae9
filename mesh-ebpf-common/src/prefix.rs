//! Port ranges as prefixes, so that a longest-prefix-match map can store skip lists of any length:
//! a range of sixteen-bit ports needs at most thirty prefixes, a single port exactly one.

/// The ports that share their first `length` bits with `port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortPrefix {
    /// The first port.
    pub port: u16,
    /// The length of the prefix in bits, 0 to 16.
    pub length: u8,
}

/// Splits `first..=last` into the fewest prefixes, in ascending order. Empty when `first > last`.
pub const fn port_prefixes(first: u16, last: u16) -> PortPrefixes {
    PortPrefixes {
        next: first as u32,
        end: last as u32 + 1,
    }
}

/// The iterator of [`port_prefixes`].
#[derive(Clone, Debug)]
pub struct PortPrefixes {
    next: u32,
    /// One past the last port, hence wider than a port.
    end: u32,
}

impl Iterator for PortPrefixes {
    type Item = PortPrefix;

    fn next(&mut self) -> Option<PortPrefix> {
        if self.next >= self.end {
            return None;
        }
        // The largest aligned block that starts here and does not exceed the end.
        let aligned = if self.next == 0 {
            16
        } else {
            self.next.trailing_zeros().min(16)
        };
        let fitting = (self.end - self.next).ilog2();
        let bits = aligned.min(fitting);
        let prefix = PortPrefix {
            port: self.next as u16,
            length: 16 - bits as u8,
        };
        self.next += 1 << bits;
        Some(prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(prefix: PortPrefix, port: u16) -> bool {
        let shift = 16 - u32::from(prefix.length);
        u32::from(port) >> shift == u32::from(prefix.port) >> shift
    }

    fn check(first: u16, last: u16, expected: &[(u16, u8)]) {
        let found: Vec<_> = port_prefixes(first, last)
            .map(|prefix| (prefix.port, prefix.length))
            .collect();
        assert_eq!(found, expected, "{first}..={last}");
    }

    #[test]
    fn ranges_are_split_into_fewest_prefixes() {
        check(80, 80, &[(80, 16)]);
        check(0, 65535, &[(0, 0)]);
        check(65535, 65535, &[(65535, 16)]);
        check(0, 1, &[(0, 15)]);
        check(4567, 4568, &[(4567, 16), (4568, 16)]);
        check(8000, 8010, &[(8000, 13), (8008, 15), (8010, 16)]);
        check(10, 9, &[]);
    }

    #[test]
    fn prefixes_cover_exactly_the_range() {
        let edges = [0, 1, 2, 1023, 1024, 4143, 32767, 32768, 49152, 65534, 65535];
        for first in edges {
            for last in edges.into_iter().filter(|last| *last >= first) {
                let prefixes: Vec<_> = port_prefixes(first, last).collect();
                assert!(prefixes.len() <= 30);
                for port in 0..=u16::MAX {
                    let hits = prefixes
                        .iter()
                        .filter(|prefix| covers(**prefix, port))
                        .count();
                    let expected = usize::from((first..=last).contains(&port));
                    assert_eq!(hits, expected, "port {port} of {first}..={last}");
                }
            }
        }
    }
}
