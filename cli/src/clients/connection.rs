//! A connection to a pod, direct or through the API server.

use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};

/// A byte stream to a port of a pod.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

pub(crate) struct Connection {
    pub(crate) io: Box<dyn Io>,
    /// Resolves to the reason why the kubelet closed the stream, if it reports one.
    pub(crate) failure_reason: Option<FailureReason>,
}

pub(crate) type FailureReason = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

impl Connection {
    pub(crate) fn new(io: impl Io + 'static) -> Self {
        Self {
            io: Box::new(io),
            failure_reason: None,
        }
    }
}
