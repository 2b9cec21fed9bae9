//! Integers (RFC 7541, section 5.1): as much as fits into the rest of a byte, and groups of seven
//! bits behind it.

use super::DecodeError;

/// Nothing in a block is that large: neither an index nor a length.
const MAX: u64 = u32::MAX as u64;

/// Reads an integer that begins with the low `bits` of the first byte, and takes it off `bytes`,
/// which must not be empty.
pub(super) fn read(bytes: &mut &[u8], bits: u32) -> Result<usize, DecodeError> {
    const TRUNCATED: DecodeError = DecodeError::Truncated("a header block ends within an integer");
    let mask = (1_u8 << bits) - 1;
    let (first, mut rest) = bytes.split_first().ok_or(TRUNCATED)?;
    let mut value = u64::from(first & mask);
    if value == u64::from(mask) {
        let mut shift = 0;
        loop {
            let (byte, behind) = rest.split_first().ok_or(TRUNCATED)?;
            rest = behind;
            // The first four groups cannot overflow, and a fifth is too large unless it is small.
            if shift > 28 {
                return Err(DecodeError::Invalid(
                    "an integer in a header block is too large",
                ));
            }
            value += u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    if value > MAX {
        return Err(DecodeError::Invalid(
            "an integer in a header block is too large",
        ));
    }
    *bytes = rest;
    Ok(value as usize)
}

/// Writes `value` behind the high bits `prefix` of a byte whose low `bits` are free.
pub(super) fn write(out: &mut Vec<u8>, prefix: u8, bits: u32, value: usize) {
    let mask = (1_usize << bits) - 1;
    if value < mask {
        out.push(prefix | value as u8);
        return;
    }
    out.push(prefix | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_rfc() {
        for (value, bits, bytes) in [
            (10, 5, &[0b01010][..]),
            (1337, 5, &[0b11111, 0b1001_1010, 0b0000_1010]),
            (42, 8 - 1, &[0b0010_1010]),
        ] {
            let mut written = Vec::new();
            write(&mut written, 0, bits, value);
            assert_eq!(written, bytes);
            assert_eq!(read(&mut &*written, bits), Ok(value));
        }
    }

    #[test]
    fn what_is_no_integer_is_refused() {
        for bytes in [
            &[][..],
            &[0x7f],
            &[0x7f, 0x80],
            &[0x7f, 0xff, 0xff, 0xff, 0xff, 0x7f],
            &[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00],
        ] {
            assert!(read(&mut &*bytes, 7).is_err(), "{bytes:x?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_is_read(value in 0..u32::MAX as usize, bits in 4_u32..8, behind in 0_u8..) {
            let mut bytes = Vec::new();
            write(&mut bytes, 0, bits, value);
            bytes.push(behind);
            let mut rest = &*bytes;
            assert_eq!(read(&mut rest, bits), Ok(value));
            assert_eq!(rest, [behind]);
        }
    }
}
