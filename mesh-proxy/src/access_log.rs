//! The access log: one line on standard error for each inbound HTTP request, in the formats of
//! Linkerd's proxy.
//!
//! A data thread formats the line when the response has ended, and another thread writes it
//! ([`LineWriter`]). When standard error takes no more, further lines are dropped and counted; no
//! request waits.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::{CONTENT_LENGTH, HOST, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use mesh_core::identity::Identity;
use mesh_runtime::metrics::Registry;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::Instant;

use self::writer::LineWriter;
use crate::config::AccessLogFormat;

mod writer;

/// Formats and writes the lines of requests.
#[derive(Clone, Debug)]
pub(crate) struct AccessLog(Arc<Sink>);

#[derive(Debug)]
struct Sink {
    format: AccessLogFormat,
    writer: LineWriter,
}

/// One request and its response.
#[derive(Debug)]
struct Entry {
    client: SocketAddr,
    client_id: Option<Identity>,
    timestamp: SystemTime,
    method: Method,
    version: Version,
    texts: Texts,
    status: Option<StatusCode>,
    response_bytes: u64,
    /// Until the response has ended.
    total: Duration,
    /// How long the proxy itself worked on the request, until the response's header section.
    processing: Duration,
}

/// The texts of an entry, one after the other. They share an allocation, because a data thread
/// makes an entry of each request.
#[derive(Debug, Default)]
struct Texts {
    all: String,
    /// Where the first four end. `request_bytes` ends with `all`.
    host: usize,
    uri: usize,
    user_agent: usize,
    trace_id: usize,
}

/// An entry whose request is being handled. Its line is written when this is dropped: with the
/// last byte of the response, or when the client goes away before.
#[derive(Debug)]
pub(crate) struct OpenEntry {
    entry: Entry,
    started: Instant,
    log: AccessLog,
}

/// What a data thread formats lines with.
#[derive(Default)]
struct Formatter {
    line: String,
    clock: Clock,
}

/// Formats times. Entries of the same second share the first part.
#[derive(Default)]
struct Clock {
    second: Option<i64>,
    /// Up to the second.
    prefix: String,
}

thread_local! {
    static FORMATTER: RefCell<Formatter> = RefCell::default();
}

/// Longer texts are cut. They are lengthened by escaping afterwards.
const MAX_TEXT: usize = 4096;

/// The usual length of an entry's texts. Longer ones cost a second allocation.
const EXPECTED_TEXTS: usize = 256;

/// Carries the number of the trace as its second part.
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Carries the number of the trace, where there is no `traceparent`.
static B3_TRACE_ID: HeaderName = HeaderName::from_static("x-b3-traceid");

impl AccessLog {
    /// Starts the thread, which writes to `output`.
    ///
    /// # Errors
    ///
    /// The thread could not be started.
    pub(crate) fn start(
        format: AccessLogFormat,
        output: impl io::Write + Send + 'static,
        registry: &Registry,
    ) -> io::Result<Self> {
        let writer = LineWriter::start(output, registry)?;
        Ok(Self(Arc::new(Sink { format, writer })))
    }

    /// Keeps the lines until the buffer is full: a simulated world has no thread that writes.
    #[cfg(feature = "simulation")]
    pub(crate) fn unwritten(format: AccessLogFormat, registry: &Registry) -> Self {
        let writer = LineWriter::new(registry);
        Self(Arc::new(Sink { format, writer }))
    }

    /// Begins the entry of a request.
    pub(crate) fn open<B>(
        &self,
        client: SocketAddr,
        client_id: Option<&Identity>,
        request: &http::Request<B>,
    ) -> Box<OpenEntry> {
        let entry = Entry {
            client,
            client_id: client_id.cloned(),
            timestamp: SystemTime::now(),
            method: request.method().clone(),
            version: request.version(),
            texts: Texts::of(request.uri(), request.headers()),
            status: None,
            response_bytes: 0,
            total: Duration::ZERO,
            processing: Duration::ZERO,
        };
        Box::new(OpenEntry {
            entry,
            started: Instant::now(),
            log: self.clone(),
        })
    }

    /// Waits until the lines of the requests that have ended are written, for a second at most.
    pub(crate) fn flush(&self) {
        self.0.writer.flush();
    }
}

impl OpenEntry {
    /// Waits for a response, and measures how long the proxy works on it.
    pub(crate) async fn measure<T>(
        &mut self,
        mut responding: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        let mut processing = Duration::ZERO;
        let response = poll_fn(|cx| {
            let started = Instant::now();
            let polled = responding.as_mut().poll(cx);
            processing += started.elapsed();
            polled
        })
        .await;
        self.entry.processing = processing;
        response
    }

    /// Records the status of the response.
    pub(crate) fn response_headers(&mut self, status: StatusCode) {
        self.entry.status = Some(status);
    }

    /// Counts bytes of the response's body.
    pub(crate) fn response_data(&mut self, bytes: usize) {
        self.entry.response_bytes += bytes as u64;
    }
}

impl Drop for OpenEntry {
    fn drop(&mut self) {
        self.entry.total = self.started.elapsed();
        let Sink { format, writer } = &*self.log.0;
        // Fails in a thread that has ended, which handles no requests.
        let _ended = FORMATTER.try_with(|formatter| {
            let Formatter { line, clock } = &mut *formatter.borrow_mut();
            line.clear();
            self.entry.write_line(*format, clock, line);
            writer.append(line);
        });
    }
}

impl Texts {
    /// Takes the texts of a request, each at most [`MAX_TEXT`] bytes long.
    fn of(uri: &http::Uri, headers: &HeaderMap) -> Self {
        let mut texts = Self {
            all: String::with_capacity(EXPECTED_TEXTS),
            ..Self::default()
        };
        match uri.authority() {
            Some(authority) => texts.push(authority.as_str()),
            None => texts.push_header(headers.get(HOST)),
        }
        texts.host = texts.all.len();
        texts.push_absolute(uri);
        texts.uri = texts.all.len();
        texts.push_header(headers.get(USER_AGENT));
        texts.user_agent = texts.all.len();
        if let Some(parent) = headers.get(&TRACEPARENT) {
            let parent = String::from_utf8_lossy(parent.as_bytes());
            texts.push(parent.split('-').nth(1).unwrap_or(&parent));
        } else {
            texts.push_header(headers.get(&B3_TRACE_ID));
        }
        texts.trace_id = texts.all.len();
        texts.push_header(headers.get(CONTENT_LENGTH));
        texts
    }

    /// Appends a text.
    fn push(&mut self, text: &str) {
        self.all.push_str(cut(text));
    }

    /// Appends a field's value; bytes that are not UTF-8 are replaced.
    fn push_header(&mut self, value: Option<&HeaderValue>) {
        if let Some(value) = value {
            self.push(&String::from_utf8_lossy(value.as_bytes()));
        }
    }

    /// Appends the URI with the host, as Linkerd's proxy logs it.
    fn push_absolute(&mut self, uri: &http::Uri) {
        let start = self.all.len();
        if let Some(scheme) = uri.scheme_str() {
            self.push(scheme);
            self.push("://");
        } else if uri.authority().is_none() && self.host > 0 {
            self.push("http://");
        }
        self.all.extend_from_within(..self.host);
        self.push(uri.path_and_query().map_or("", PathAndQuery::as_str));
        let length = cut(&self.all[start..]).len();
        self.all.truncate(start + length);
    }

    fn host(&self) -> &str {
        &self.all[..self.host]
    }

    fn uri(&self) -> &str {
        &self.all[self.host..self.uri]
    }

    fn user_agent(&self) -> &str {
        &self.all[self.uri..self.user_agent]
    }

    fn trace_id(&self) -> &str {
        &self.all[self.user_agent..self.trace_id]
    }

    fn request_bytes(&self) -> &str {
        &self.all[self.trace_id..]
    }
}

impl Clock {
    /// Writes the time in the form of RFC 3339, in UTC.
    fn write(&mut self, at: SystemTime, line: &mut String) {
        let at = OffsetDateTime::from(at);
        if self.second != Some(at.unix_timestamp()) {
            let whole = at.replace_nanosecond(0).unwrap_or(at);
            self.prefix = whole.format(&Rfc3339).unwrap_or_default();
            self.prefix.truncate(self.prefix.len().saturating_sub(1));
            self.second = Some(at.unix_timestamp());
        }
        line.push_str(&self.prefix);
        line.push('.');
        // Nine digits, after a tenth that keeps the zeros before them.
        let digits = 1_000_000_000 + u64::from(at.nanosecond());
        line.push_str(&itoa::Buffer::new().format(digits)[1..]);
        line.push('Z');
    }
}

impl Entry {
    fn write_line(&self, format: AccessLogFormat, clock: &mut Clock, line: &mut String) {
        // Writing to a text cannot fail.
        let _infallible = match format {
            AccessLogFormat::Apache => self.write_apache(clock, line),
            AccessLogFormat::Json => self.write_json(clock, line),
        };
        line.push('\n');
    }

    fn write_apache(&self, clock: &mut Clock, line: &mut String) -> std::fmt::Result {
        let id = self.client_id.as_ref().map_or("-", Identity::as_str);
        write!(line, "{} {id} - [", self.client)?;
        clock.write(self.timestamp, line);
        line.push_str("] \"");
        escape(self.method.as_str(), line);
        line.push(' ');
        escape(self.texts.uri(), line);
        write!(line, " {:?}\" ", self.version)?;
        match self.status {
            Some(status) => line.write_str(status.as_str()),
            None => line.write_char('-'),
        }
    }

    /// Numbers are strings, except the status, as in Linkerd's proxy.
    fn write_json(&self, clock: &mut Clock, line: &mut String) -> std::fmt::Result {
        let id = self.client_id.as_ref().map_or("", Identity::as_str);
        let texts = &self.texts;
        write!(line, "{{\"client.addr\":\"{}\",", self.client)?;
        member("client.id", id, line);
        member("host", texts.host(), line);
        member("method", self.method.as_str(), line);
        number("processing_ns", nanoseconds(self.processing), line);
        member("request_bytes", texts.request_bytes(), line);
        number("response_bytes", self.response_bytes, line);
        line.push_str("\"timestamp\":\"");
        clock.write(self.timestamp, line);
        line.push_str("\",");
        number("total_ns", nanoseconds(self.total), line);
        member("trace_id", texts.trace_id(), line);
        member("uri", texts.uri(), line);
        member("user_agent", texts.user_agent(), line);
        write!(line, "\"version\":\"{:?}\",\"status\":", self.version)?;
        line.push_str(self.status.as_ref().map_or("null", StatusCode::as_str));
        line.write_char('}')
    }
}

/// Writes a text of a JSON object, and the comma after it.
fn member(name: &str, text: &str, line: &mut String) {
    line.push('"');
    line.push_str(name);
    line.push_str("\":\"");
    escape(text, line);
    line.push_str("\",");
}

/// Writes a number of a JSON object as a text, and the comma after it. Not with `write!`, whose
/// formatter is slower.
fn number(name: &str, number: u64, line: &mut String) {
    member(name, itoa::Buffer::new().format(number), line);
}

/// Returns the nanoseconds of a time, which 64 bits hold for 584 years.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Escapes what would end a quoted text, a line or a terminal's state. The result is also the
/// inside of a JSON string (RFC 8259, section 7).
fn escape(mut text: &str, line: &mut String) {
    let is_special = |char: char| matches!(char, '"' | '\\') || char.is_control();
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    // Looks at every byte, which many at once is faster than to stop at the first special one.
    if text.bytes().fold(true, |all, byte| all & is_plain(byte)) {
        line.push_str(text);
        return;
    }
    while let Some((at, special)) = text.char_indices().find(|(_, char)| is_special(*char)) {
        line.push_str(&text[..at]);
        match special {
            '"' | '\\' => line.extend(['\\', special]),
            control => {
                for unit in control.encode_utf16(&mut [0; 2]) {
                    // Writing to a text cannot fail.
                    let _infallible = write!(line, "\\u{unit:04x}");
                }
            }
        }
        text = &text[at + special.len_utf8()..];
    }
    line.push_str(text);
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

#[cfg(test)]
mod tests;
