//! What connections of both protocols write: an [`Output`] whose buffers the thread shares.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use mesh_http2::{BufferPool, Output};
use tokio::io::AsyncWrite as _;

use super::buffers::{return_write_buffer, take_write_buffer};
use crate::transport::Io;

/// The buffers of outputs.
pub(super) const OUTPUT_BUFFERS: BufferPool = BufferPool {
    acquire: take_write_buffer,
    release: return_write_buffer,
};

/// Writes the first bytes of an output, which must not be empty: at most `SLICES` slices. Returns
/// how many were written, at least one.
pub(super) fn poll_write<const SLICES: usize>(
    output: &Output,
    io: &mut Io,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let mut slices = [IoSlice::new(&[]); SLICES];
    let count = output.slices(&mut slices);
    let io = Pin::new(io);
    let written = match &slices[..count] {
        [one] => io.poll_write(cx, one),
        several => io.poll_write_vectored(cx, several),
    };
    Poll::Ready(match ready!(written)? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        n => Ok(n),
    })
}
