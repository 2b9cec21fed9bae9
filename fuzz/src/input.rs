//! Decodes inputs: a few bytes are choices, the rest are sent.

use std::iter;

/// Reads an input from its start. Missing bytes are zero, so that every input is valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn byte(&mut self) -> u8 {
        match self.0 {
            [first, rest @ ..] => {
                self.0 = rest;
                *first
            }
            [] => 0,
        }
    }

    pub(crate) fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes at most `n` bytes.
    pub(crate) fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Chooses an element with the next byte.
    pub(crate) fn choose<T: Copy, const N: usize>(&mut self, from: [T; N]) -> T {
        from[usize::from(self.byte()) % N]
    }
}

/// The most pieces of a message. Each takes an iteration of the runtime.
const MAX_PIECES: usize = 64;

/// Splits `bytes`: 0 does not split, 255 results in pieces of varying length, other values in
/// pieces of that length, or longer ones if there would be too many.
pub(crate) fn pieces(bytes: &[u8], split: u8) -> impl Iterator<Item = &[u8]> {
    let least = bytes.len().div_ceil(MAX_PIECES).max(1);
    let mut rest = bytes;
    let mut turn = 0_usize;
    iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        turn += 1;
        let length = match split {
            0 => rest.len(),
            255 => least + turn * 7 % 13,
            n => least.max(usize::from(n)),
        };
        let (piece, after) = rest.split_at(length.min(rest.len()));
        rest = after;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_contain_all_bytes() {
        let bytes: Vec<u8> = (0..=255).collect();
        for split in [0, 1, 2, 100, 254, 255] {
            let cut: Vec<_> = pieces(&bytes, split).collect();
            assert_eq!(cut.concat(), bytes);
            assert!(cut.len() <= MAX_PIECES, "{split}: {}", cut.len());
        }
        assert_eq!(pieces(&[], 1).count(), 0);
    }
}
