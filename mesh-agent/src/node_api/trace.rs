//! Serves one trace: its lines, until the client closes the connection, the limit of a trace (five
//! minutes) has passed, the pod is no longer enrolled, the kernel programs were loaded again, their
//! log cannot be read, or the agent stops.

use std::io;
use std::time::Duration;

use mesh_core::node::{PodRef, Response, TRACE_LIMIT, TraceLine};
use mesh_runtime::drain;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::line::write_line;
use crate::traces::{Trace, Traces};

/// For a client that does not read, after the limit of its trace.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) async fn serve(
    mut stream: UnixStream,
    pod: PodRef,
    traces: &Traces,
    drain: &drain::Watch,
) -> io::Result<()> {
    let deadline = Instant::now() + TRACE_LIMIT;
    let mut trace = match traces.start(&pod).await {
        Ok(trace) => trace,
        Err(refusal) => return write_line(&mut stream, &Response::Refused(refusal)).await,
    };
    let (mut reader, mut writer) = stream.split();
    let result = tokio::select! {
        result = write_lines(&mut writer, &mut trace, deadline) => result,
        () = closed(&mut reader) => Ok(()),
        () = drain.draining() => Ok(()),
        () = sleep_until(deadline + WRITE_TIMEOUT) => Err(io::ErrorKind::TimedOut.into()),
    };
    traces.end(trace).await;
    result
}

async fn write_lines(
    writer: &mut WriteHalf<'_>,
    trace: &mut Trace,
    deadline: Instant,
) -> io::Result<()> {
    write_line(writer, &Response::Tracing).await?;
    loop {
        let line = match timeout_at(deadline, trace.lines.recv()).await {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(_elapsed) => {
                let limit = TRACE_LIMIT.as_secs() / 60;
                TraceLine::Ended(format!("the limit of {limit} minutes has passed"))
            }
        };
        write_line(writer, &line).await?;
        if matches!(line, TraceLine::Ended(_)) {
            return writer.shutdown().await;
        }
    }
}

/// Waits until the client closes the connection. It has nothing further to send.
async fn closed(reader: &mut ReadHalf<'_>) {
    let mut buffer = [0; 256];
    while reader.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
}
