//! Unix sockets of other processes on the machine. A simulated world has none.

use std::io;
use std::path::Path;

use tokio::net::UnixStream;

/// Connects to the socket at a path.
pub(crate) async fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path).await
}
