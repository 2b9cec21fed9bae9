//! Huffman decoding of strings (RFC 7541, section 5.2 and appendix B).
//!
//! The code is canonical: codes of one length are consecutive numbers in the order of their
//! symbols, and begin where the previous length ends. So the lengths determine all codes.

use std::cell::RefCell;

use super::DecodeError;

/// The length of each byte's code in bits, and last the length of EOS, which is never sent.
pub(super) const LENGTHS: [u8; 257] = [
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

const SHORTEST: usize = 5;
const LONGEST: usize = 30;

/// Codes of up to this length are looked up in one step; text rarely contains longer ones.
const DIRECT: usize = 8;

const EOS: u16 = 256;

/// Decoding tables, computed from [`LENGTHS`].
struct Code {
    /// For each possible next byte the symbol and the length of the code that it begins with;
    /// length 0 if the code is longer than a byte.
    direct: [(u8, u8); 1 << DIRECT],
    /// By length: the first code, and the index of its symbol in `symbols`.
    first: [u32; LONGEST + 1],
    index: [u16; LONGEST + 2],
    symbols: [u16; 257],
}

static CODE: Code = Code::new();

impl Code {
    const fn new() -> Self {
        let mut code = Self {
            direct: [(0, 0); 1 << DIRECT],
            first: [0; LONGEST + 1],
            index: [0; LONGEST + 2],
            symbols: [0; 257],
        };
        let mut next = 0_u32;
        let mut count = 0;
        let mut length = SHORTEST;
        while length <= LONGEST {
            code.first[length] = next;
            code.index[length] = count;
            let mut symbol = 0;
            while symbol < LENGTHS.len() {
                if LENGTHS[symbol] as usize == length {
                    code.symbols[count as usize] = symbol as u16;
                    if length <= DIRECT {
                        let free = DIRECT - length;
                        let mut suffix = 0;
                        while suffix < 1 << free {
                            code.direct[((next as usize) << free) + suffix] =
                                (symbol as u8, length as u8);
                            suffix += 1;
                        }
                    }
                    count += 1;
                    next += 1;
                }
                symbol += 1;
            }
            next <<= 1;
            length += 1;
            code.index[length] = count;
        }
        code
    }

    /// Returns the symbol whose code `window` begins with, longer than [`DIRECT`], and the length
    /// of the code. `window` holds the next 32 bits.
    fn long(&self, window: u32) -> Result<(u8, usize), DecodeError> {
        for length in DIRECT + 1..=LONGEST {
            let offset = (window >> (32 - length)).wrapping_sub(self.first[length]);
            let count = self.index[length + 1] - self.index[length];
            if offset < u32::from(count) {
                return match self.symbols[usize::from(self.index[length]) + offset as usize] {
                    EOS => Err(DecodeError::Invalid("EOS in a Huffman-coded string")),
                    symbol => Ok((symbol as u8, length)),
                };
            }
        }
        Err(DecodeError::Invalid(
            "invalid code in a Huffman-coded string",
        ))
    }
}

thread_local! {
    static PLAIN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Capacity that is kept for the next string, in bytes.
const KEPT: usize = 16 * 1024;

/// Passes the decoded string to `read`.
pub(super) fn with_decoded<R>(
    bytes: &[u8],
    read: impl FnOnce(&[u8]) -> R,
) -> Result<R, DecodeError> {
    PLAIN.with_borrow_mut(|plain| {
        plain.clear();
        decode(bytes, plain)?;
        let result = read(plain);
        plain.clear();
        plain.shrink_to(KEPT);
        Ok(result)
    })
}

/// Appends the decoded string to `out`.
fn decode(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
    // Each symbol has at least [`SHORTEST`] bits.
    out.reserve(bytes.len() * 8 / SHORTEST);
    let mut bytes = bytes.iter();
    // The next bits, from the highest on; the first `available` of them are valid.
    let mut bits = 0_u64;
    let mut available = 0;
    loop {
        while available <= 56 {
            let Some(byte) = bytes.next() else { break };
            bits |= u64::from(*byte) << (56 - available);
            available += 8;
        }
        if available < SHORTEST {
            break;
        }
        let (symbol, length) = match CODE.direct[(bits >> (64 - DIRECT)) as usize] {
            (_, 0) if available >= LONGEST => CODE.long((bits >> 32) as u32)?,
            // Missing bits are assumed to be the ones of the padding.
            (_, 0) => match CODE
                .long((bits >> 32) as u32 | u32::MAX.checked_shr(available as u32).unwrap_or(0))
            {
                Ok(found) => found,
                Err(_) => break,
            },
            (symbol, length) => (symbol, usize::from(length)),
        };
        if length > available {
            break;
        }
        out.push(symbol);
        bits <<= length;
        available -= length;
    }
    // The padding is a prefix of EOS, all ones, and shorter than a byte.
    let is_padding =
        available < 8 && (available == 0 || bits >> (64 - available) == (1 << available) - 1);
    if is_padding {
        Ok(())
    } else {
        Err(DecodeError::Invalid(
            "invalid padding of a Huffman-coded string",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the code of a symbol and its length, computed from the lengths in another way than
    /// [`Code`] does.
    fn code(symbol: u8) -> (u32, u32) {
        let mut order: Vec<usize> = (0..LENGTHS.len()).collect();
        order.sort_by_key(|symbol| (LENGTHS[*symbol], *symbol));
        let mut code = 0_u32;
        let mut before = u32::from(LENGTHS[order[0]]);
        for next in order {
            let length = u32::from(LENGTHS[next]);
            code <<= length - before;
            if next == usize::from(symbol) {
                return (code, length);
            }
            code += 1;
            before = length;
        }
        unreachable!("every byte has a code")
    }

    fn encode(text: &[u8]) -> Vec<u8> {
        let mut bits = String::new();
        for symbol in text {
            let (code, length) = code(*symbol);
            bits.push_str(&format!("{code:00$b}", length as usize));
        }
        while !bits.len().is_multiple_of(8) {
            bits.push('1');
        }
        let bytes = bits.as_bytes().chunks(8);
        bytes
            .map(|byte| u8::from_str_radix(str::from_utf8(byte).unwrap(), 2).unwrap())
            .collect()
    }

    fn decoded(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
        let mut text = Vec::new();
        decode(bytes, &mut text).map(|()| text)
    }

    #[test]
    fn examples_of_the_rfc_are_decoded() {
        let www = [
            0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
        ];
        assert_eq!(decoded(&www).unwrap(), b"www.example.com");
        assert_eq!(
            decoded(&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]).unwrap(),
            b"no-cache"
        );
        // The longest codes, of 30 bits, belong to three control characters: 0x3ffffffc is a line
        // feed.
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xf3]).unwrap(), b"\n");
    }

    #[test]
    fn every_symbol_is_decoded_at_any_bit_offset() {
        for symbol in 0..=255 {
            for before in 0..8 {
                let mut text = vec![b'0'; before];
                text.extend([symbol, b'a', symbol]);
                assert_eq!(
                    decoded(&encode(&text)).unwrap(),
                    text,
                    "{symbol} after {before}"
                );
            }
        }
    }

    #[test]
    fn invalid_codes_are_rejected() {
        for bytes in [
            // Padding that is not all ones, padding of a whole byte, and EOS.
            &[0b0000_0000][..],
            &[0b0011_1000],
            &[0b0001_1111, 0xff],
            &[0xff],
            &[0xff, 0xff, 0xff, 0xff],
            &[0xff, 0xff, 0xff, 0xfc],
        ] {
            decoded(bytes).unwrap_err();
        }
    }

    proptest::proptest! {
        #[test]
        fn strings_round_trip(text: Vec<u8>) {
            assert_eq!(decoded(&encode(&text)).unwrap(), text);
        }

        #[test]
        fn arbitrary_bytes_decode_uniquely_or_fail(bytes: Vec<u8>) {
            if let Ok(text) = decoded(&bytes) {
                assert_eq!(encode(&text), bytes);
            }
        }
    }
}
