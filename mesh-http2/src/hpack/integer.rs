//! Integers (RFC 7541, section 5.1): a prefix in the rest of a byte, then groups of seven bits.

use mesh_planted::Bug;

use super::DecodeError;

/// Beyond any valid index or length.
const MAX: u64 = u32::MAX as u64;

/// Decodes an integer that begins with the low `bits` of the first byte, and removes it from
/// `bytes`.
pub(super) fn read(bytes: &mut &[u8], bits: u32) -> Result<usize, DecodeError> {
    const TRUNCATED: DecodeError = DecodeError::Truncated("incomplete integer in a field block");
    let mask = (1_u8 << bits) - 1;
    let (first, mut rest) = bytes.split_first().ok_or(TRUNCATED)?;
    let mut value = u64::from(first & mask);
    if value == u64::from(mask) {
        let mut shift = 0;
        loop {
            let (byte, following) = rest.split_first().ok_or(TRUNCATED)?;
            rest = following;
            // The first four groups cannot overflow; a fifth is rejected below unless it is small.
            if shift > 28 {
                return Err(DecodeError::Invalid("integer too large in a field block"));
            }
            value += u64::from(byte & 0x7f) << shift;
            shift += 7 + u32::from(Bug::IntegerMisread.is_planted());
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    if value > MAX {
        return Err(DecodeError::Invalid("integer too large in a field block"));
    }
    *bytes = rest;
    Ok(value as usize)
}

/// Encodes `value` after the high bits `prefix` of a byte whose low `bits` are free.
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
    fn examples_of_the_rfc_round_trip() {
        for (value, bits, bytes) in [
            (10, 5, &[0b01010][..]),
            (1337, 5, &[0b11111, 0b1001_1010, 0b0000_1010]),
            (42, 8 - 1, &[0b0010_1010]),
            // The largest value of the prefix announces more bytes.
            (30, 5, &[0b11110]),
            (31, 5, &[0b11111, 0]),
            (127, 7, &[0x7f, 0]),
        ] {
            let mut written = Vec::new();
            write(&mut written, 0, bits, value);
            assert_eq!(written, bytes);
            assert_eq!(read(&mut &*written, bits), Ok(value));
        }
    }

    #[test]
    fn invalid_integers_are_rejected() {
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
        fn integers_round_trip(value in 0..u32::MAX as usize, bits in 4_u32..8, following in 0_u8..) {
            let mut bytes = Vec::new();
            write(&mut bytes, 0, bits, value);
            bytes.push(following);
            let mut rest = &*bytes;
            assert_eq!(read(&mut rest, bits), Ok(value));
            assert_eq!(rest, [following]);
        }
    }
}
