//! One line of the socket's protocol.

use std::io;

use serde::Serialize;
use tokio::io::AsyncWriteExt;

pub(super) async fn write_line(
    writer: &mut (impl AsyncWriteExt + Unpin),
    value: &impl Serialize,
) -> io::Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    writer.write_all(&text).await
}
