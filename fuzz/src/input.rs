//! How the bytes of an input are read: a few that choose, and the rest, which is sent.

use std::iter;

/// Reads an input from its front. What is missing reads as zero, so that every input means
/// something.
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

    /// At most `n` bytes.
    pub(crate) fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// One of these.
    pub(crate) fn choose<T: Copy, const N: usize>(&mut self, from: [T; N]) -> T {
        from[usize::from(self.byte()) % N]
    }
}

/// Most pieces that a message is sent in: each costs a turn of the runtime.
const MOST_PIECES: usize = 64;

/// Cuts `bytes` as `how` says: 0 not at all, 255 into pieces of changing length, anything else into
/// pieces of that many bytes, or more when those were too many.
pub(crate) fn pieces(bytes: &[u8], how: u8) -> impl Iterator<Item = &[u8]> {
    let least = bytes.len().div_ceil(MOST_PIECES).max(1);
    let mut rest = bytes;
    let mut turn = 0_usize;
    iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        turn += 1;
        let length = match how {
            0 => rest.len(),
            255 => least + turn * 7 % 13,
            n => least.max(usize::from(n)),
        };
        let (piece, behind) = rest.split_at(length.min(rest.len()));
        rest = behind;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_whole() {
        let bytes: Vec<u8> = (0..=255).collect();
        for how in [0, 1, 2, 100, 254, 255] {
            let cut: Vec<_> = pieces(&bytes, how).collect();
            assert_eq!(cut.concat(), bytes);
            assert!(cut.len() <= MOST_PIECES, "{how}: {}", cut.len());
        }
        assert_eq!(pieces(&[], 1).count(), 0);
    }
}
