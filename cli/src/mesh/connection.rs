//! A connection to a pod, whoever carries it.

use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};

/// A byte stream to a port of a pod.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

pub(crate) struct Connection {
    pub(crate) io: Box<dyn Io>,
    /// Resolves to the reason why the far side gave the stream up, where somebody tells it.
    pub(crate) trouble: Option<Trouble>,
}

pub(crate) type Trouble = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

impl Connection {
    pub(crate) fn new(io: impl Io + 'static) -> Self {
        Self {
            io: Box::new(io),
            trouble: None,
        }
    }
}
