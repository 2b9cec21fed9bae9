//! Writes lines to standard error on a thread of its own, which the data threads never wait for.
//!
//! A data thread appends each line to one buffer, under a lock that is held for a copy. The thread
//! takes the whole buffer, writes it, and pauses, so that lines gather: waking it costs more than
//! to format a line.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, mem, thread};

use mesh_runtime::metrics::{Counter, Labels, Registry};
use parking_lot::{Condvar, Mutex};

/// The sending end.
#[derive(Debug)]
pub(super) struct LineWriter {
    shared: Arc<Shared>,
    dropped: Counter,
}

#[derive(Debug, Default)]
struct Shared {
    buffer: Mutex<Buffer>,
    /// Notified when there are lines and the thread waits for some.
    appended: Condvar,
    /// Notified when all lines have been written.
    drained: Condvar,
}

#[derive(Debug, Default)]
struct Buffer {
    lines: String,
    /// Whether the thread waits for lines.
    is_waiting: bool,
    /// Whether the thread writes lines that it has taken.
    is_writing: bool,
}

/// The bytes of lines that wait to be written. Up to the same number are being written.
pub(super) const MAX_BUFFERED: usize = 4 << 20;

/// The memory that an empty buffer keeps.
const KEPT: usize = 64 << 10;

/// The pause after a write. A data thread handles at most about 400 requests in this time, so that
/// the buffer has room for the lines of ten, at a kilobyte each.
const GATHER_TIME: Duration = Duration::from_millis(4);

/// How long the process waits at its end for the lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

impl LineWriter {
    /// Starts the thread, which writes to `output` until the process exits.
    ///
    /// # Errors
    ///
    /// The thread could not be started.
    pub(super) fn start(
        output: impl io::Write + Send + 'static,
        registry: &Registry,
    ) -> io::Result<Self> {
        let writer = Self::new(registry);
        let writing = writer.shared.clone();
        thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || writing.write_lines(output))?;
        Ok(writer)
    }

    /// A writer without the thread.
    pub(super) fn new(registry: &Registry) -> Self {
        let dropped = registry.counter_family(
            "mesh_access_log_dropped_total",
            "Entries of the access log that were dropped because 4 MiB of others waited to be written",
        );
        Self {
            shared: Arc::default(),
            dropped: dropped.with(&Labels::new()),
        }
    }

    /// Appends a line, or drops and counts it.
    pub(super) fn append(&self, line: &str) {
        let mut buffer = self.shared.buffer.lock();
        if buffer.lines.len() + line.len() > MAX_BUFFERED {
            self.dropped.inc();
            return;
        }
        buffer.lines.push_str(line);
        let was_waiting = mem::take(&mut buffer.is_waiting);
        drop(buffer);
        if was_waiting {
            self.shared.appended.notify_one();
        }
    }

    /// Waits until the appended lines are written, for a second at most.
    pub(super) fn flush(&self) {
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        let mut buffer = self.shared.buffer.lock();
        while buffer.is_writing || !buffer.lines.is_empty() {
            let waited = self.shared.drained.wait_until(&mut buffer, deadline);
            if waited.timed_out() {
                tracing::warn!("Entries of the access log are lost: standard error takes no more");
                return;
            }
        }
    }
}

impl Shared {
    fn write_lines(&self, mut output: impl io::Write) {
        let mut lines = String::new();
        loop {
            self.take(&mut lines);
            // Standard error is closed if this fails. The proxy works without it.
            let _closed = output
                .write_all(lines.as_bytes())
                .and_then(|()| output.flush());
            lines.clear();
            lines.shrink_to(KEPT);
            thread::park_timeout(GATHER_TIME);
        }
    }

    /// Waits for lines, and takes all of them. `empty` becomes the buffer.
    fn take(&self, empty: &mut String) {
        let mut buffer = self.buffer.lock();
        buffer.is_writing = false;
        if buffer.lines.is_empty() {
            self.drained.notify_all();
        }
        while buffer.lines.is_empty() {
            buffer.is_waiting = true;
            self.appended.wait(&mut buffer);
        }
        buffer.is_writing = true;
        mem::swap(&mut buffer.lines, empty);
    }
}
