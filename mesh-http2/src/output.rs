//! The output of a connection: small writes in one buffer, large chunks of data between them, which
//! are not copied. Nothing in it is specific to HTTP/2, so that connections of other protocols can
//! use it.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf as _, Bytes};

/// Bytes to write, in order. Holds no memory when it is empty.
#[derive(Debug)]
pub struct Output {
    buffer: Vec<u8>,
    /// Number of bytes at the front of `buffer` that were written.
    written: usize,
    chunks: VecDeque<Chunk>,
    length: usize,
    pool: BufferPool,
}

/// A chunk of data that is not copied.
#[derive(Debug)]
struct Chunk {
    /// Its position: the bytes of `buffer` before it are written first.
    offset: usize,
    bytes: Bytes,
}

/// A pool of buffers, which the connections of a thread may share: each holds one only while it has
/// output.
#[derive(Clone, Copy, Debug)]
pub struct BufferPool {
    /// Takes an empty buffer from the pool.
    pub acquire: fn() -> Vec<u8>,
    /// Puts a buffer back.
    pub release: fn(Vec<u8>),
}

/// Chunks of up to this number of bytes are copied: that costs less than another element of a
/// vectored write.
const MAX_COPIED: usize = 4 * 1024;

impl Output {
    /// Creates an empty output.
    pub fn new(pool: BufferPool) -> Self {
        Self {
            buffer: Vec::new(),
            written: 0,
            chunks: VecDeque::new(),
            length: 0,
            pool,
        }
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The number of bytes to write.
    pub fn len(&self) -> usize {
        self.length
    }

    /// The size of the buffer of small writes, including its written part.
    pub fn buffer_len(&self) -> usize {
        self.buffer.len()
    }

    /// The number of chunks that are not copied.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// The number of bytes to write of these chunks.
    pub fn chunk_bytes(&self) -> usize {
        self.length - (self.buffer.len() - self.written)
    }

    /// Fills `slices` with the first bytes, and returns the number of slices used.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut free = slices.iter_mut();
        let mut count = 0;
        let mut put = |bytes: &'a [u8]| {
            if bytes.is_empty() {
                return true;
            }
            let Some(slice) = free.next() else {
                return false;
            };
            *slice = IoSlice::new(bytes);
            count += 1;
            true
        };
        let mut from = self.written;
        for chunk in &self.chunks {
            if !put(&self.buffer[from..chunk.offset]) || !put(&chunk.bytes) {
                return count;
            }
            from = chunk.offset;
        }
        put(&self.buffer[from..]);
        count
    }

    /// Removes the first `n` bytes, which were written.
    pub fn advance(&mut self, mut n: usize) {
        self.length -= n;
        while let Some(chunk) = self.chunks.front_mut() {
            let before = n.min(chunk.offset - self.written);
            self.written += before;
            n -= before;
            let here = n.min(chunk.bytes.len());
            chunk.bytes.advance(here);
            n -= here;
            if self.written < chunk.offset || !chunk.bytes.is_empty() {
                return;
            }
            self.chunks.pop_front();
        }
        self.written += n;
        if self.length == 0 {
            self.clear();
        } else if self.written > self.buffer.len() / 2 {
            // Moves each byte at most once, and bounds the buffer.
            self.buffer.drain(..self.written);
            for chunk in &mut self.chunks {
                chunk.offset -= self.written;
            }
            self.written = 0;
        }
    }

    /// Discards all bytes.
    pub(crate) fn clear(&mut self) {
        self.written = 0;
        self.length = 0;
        self.chunks = VecDeque::new();
        if self.buffer.capacity() > 0 {
            (self.pool.release)(std::mem::take(&mut self.buffer));
        }
    }

    /// Appends what `add` writes.
    pub fn write<R>(&mut self, add: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        if self.buffer.capacity() == 0 {
            self.buffer = (self.pool.acquire)();
        }
        let before = self.buffer.len();
        let result = add(&mut self.buffer);
        self.length += self.buffer.len() - before;
        result
    }

    /// Appends data, which is copied only if it is small.
    pub fn push(&mut self, bytes: Bytes) {
        if bytes.len() <= MAX_COPIED {
            self.write(|buffer| buffer.extend_from_slice(&bytes));
            return;
        }
        self.length += bytes.len();
        let offset = self.buffer.len();
        self.chunks.push_back(Chunk { offset, bytes });
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output() -> Output {
        Output::new(BufferPool {
            acquire: Vec::new,
            release: drop,
        })
    }

    #[test]
    fn small_writes_are_buffered_until_they_are_written() {
        let mut output = output();
        output.write(|out| out.extend_from_slice(b"small"));
        assert_eq!(
            (output.buffer_len(), output.len(), output.chunks()),
            (5, 5, 0)
        );
        output.push(Bytes::from(vec![0; 10_000]));
        assert_eq!(
            (output.buffer_len(), output.len(), output.chunks()),
            (5, 10_005, 1)
        );
        output.advance(10_005);
        assert_eq!(
            (output.buffer_len(), output.len(), output.chunks()),
            (0, 0, 0)
        );
    }

    proptest::proptest! {
        /// For any sizes of writes and reads.
        #[test]
        fn output_preserves_byte_order(
            steps in proptest::collection::vec((0_usize..10_000, 0_usize..30_000, 1_usize..5), 1..100),
        ) {
            let mut output = output();
            let mut next = (0..=u8::MAX).cycle();
            let mut expected = VecDeque::new();
            for (small, large, slices) in steps {
                for size in [small % 50, large, small % 3] {
                    let bytes: Bytes = next.by_ref().take(size).collect();
                    expected.extend(&bytes);
                    output.push(bytes);
                }
                assert_eq!(output.len(), expected.len());
                let chunk_bytes: usize = output.chunks.iter().map(|chunk| chunk.bytes.len()).sum();
                assert_eq!(output.chunk_bytes(), chunk_bytes);
                let mut room = vec![IoSlice::new(&[]); slices];
                let count = output.slices(&mut room);
                let there: Vec<u8> = room[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                let taken = there.len().min(small);
                let first: Vec<u8> = expected.drain(..taken).collect();
                assert_eq!(there[..taken], first);
                output.advance(taken);
            }
            while !output.is_empty() {
                let mut room = [IoSlice::new(&[]); 2];
                let count = output.slices(&mut room);
                let there: Vec<u8> = room[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                let first: Vec<u8> = expected.drain(..there.len()).collect();
                assert_eq!(there, first);
                output.advance(there.len());
            }
            assert!(expected.is_empty());
            assert_eq!(output.buffer.capacity() + output.chunks.capacity(), 0);
        }
    }
}
