//! Huffman decoding of strings (RFC 7541, section 5.2 and appendix B).
//!
//! Codes of one length are consecutive numbers in the order of their symbols, and begin where the
//! previous length ends, so that the lengths determine all codes.

/// The length of each byte's code in bits, and last the length of EOS.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, //
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, //
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, //
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, //
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, //
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, //
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, //
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, //
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, //
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, //
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, //
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, //
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, //
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, //
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, //
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, //
    30,
];

const LONGEST: u8 = 30;
const EOS: usize = 256;

/// `None` if the string contains EOS or its padding is invalid.
pub(super) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let codes = codes();
    let mut decoded = Vec::new();
    let (mut code, mut length) = (0_u32, 0_u8);
    for byte in text {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            length += 1;
            if length > LONGEST {
                return None;
            }
            if let Ok(at) = codes.binary_search_by_key(&(length, code), |(key, _)| *key) {
                let symbol = codes[at].1;
                if symbol == EOS {
                    return None;
                }
                decoded.push(symbol as u8);
                (code, length) = (0, 0);
            }
        }
    }
    // The rest is at most seven bits of EOS, which are ones.
    (length < 8 && code == (1 << length) - 1).then_some(decoded)
}

/// Each symbol after the length and the value of its code, in this order.
fn codes() -> Vec<((u8, u32), usize)> {
    let mut codes = Vec::with_capacity(LENGTHS.len());
    let mut next = 0_u32;
    for length in 1..=LONGEST {
        next <<= 1;
        for (symbol, _) in LENGTHS.iter().enumerate().filter(|(_, it)| **it == length) {
            codes.push(((length, next), symbol));
            next += 1;
        }
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_complete() {
        let taken: u64 = LENGTHS
            .iter()
            .map(|length| 1_u64 << (LONGEST - length))
            .sum();
        assert_eq!(taken, 1 << LONGEST);
    }

    #[test]
    fn padding_is_checked() {
        // `a` is 00011.
        assert_eq!(decode(&[0b0001_1111]), Some(b"a".to_vec()));
        assert_eq!(decode(&[0b0001_1110]), None);
        assert_eq!(decode(&[0b0001_1111, 0xff]), None);
        assert_eq!(decode(&[0xff, 0xff, 0xff, 0xff]), None);
    }
}
