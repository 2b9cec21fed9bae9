//! The lines of both formats, escaped and truncated values, and a reader that takes no more.

use std::sync::mpsc::Receiver;

use parking_lot::Mutex;

use super::writer::MAX_BUFFERED;
use super::*;

#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn request(path: &str, user_agent: &str) -> http::Request<()> {
    http::Request::builder()
        .uri(format!("http://web:80{path}"))
        .header("user-agent", user_agent)
        .header("content-length", "3")
        .header(
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
        .body(())
        .unwrap()
}

fn client() -> SocketAddr {
    "10.0.0.1:4000".parse().unwrap()
}

/// The line of a request with the response `hello`.
fn line(format: AccessLogFormat, request: &http::Request<()>, id: Option<&str>) -> String {
    let output = Output::default();
    let log = AccessLog::start(format, output.clone(), &Registry::new()).unwrap();
    let id = id.map(|id| Identity::parse(id).unwrap());
    let mut entry = log.open(client(), id.as_ref(), request);
    entry.response_headers(StatusCode::OK);
    entry.response_data(2);
    entry.response_data(3);
    drop(entry);
    log.flush();
    String::from_utf8(output.0.lock().clone()).unwrap()
}

#[test]
fn apache_line_is_that_of_linkerd() {
    let line = line(
        AccessLogFormat::Apache,
        &request("/a?b", "curl"),
        Some("web.ns.example"),
    );
    let (start, rest) = line.split_once('[').unwrap();
    let (time, end) = rest.split_once(']').unwrap();
    assert_eq!(start, "10.0.0.1:4000 web.ns.example - ");
    assert!(OffsetDateTime::parse(time, &Rfc3339).is_ok(), "{time}");
    assert_eq!(end, " \"GET http://web:80/a?b HTTP/1.1\" 200\n");
}

#[test]
fn json_line_has_the_fields_of_linkerd() {
    let line = line(AccessLogFormat::Json, &request("/a?b", "a\"b"), None);
    let fields: serde_json::Value = serde_json::from_str(&line).unwrap();
    let expected = [
        ("client.addr", "10.0.0.1:4000"),
        ("client.id", ""),
        ("host", "web:80"),
        ("method", "GET"),
        ("request_bytes", "3"),
        ("response_bytes", "5"),
        ("trace_id", "0af7651916cd43dd8448eb211c80319c"),
        ("uri", "http://web:80/a?b"),
        ("user_agent", "a\"b"),
        ("version", "HTTP/1.1"),
    ];
    for (name, value) in expected {
        assert_eq!(fields[name], value, "{name}");
    }
    assert_eq!(fields["status"], 200);
    for name in ["total_ns", "processing_ns"] {
        assert!(
            fields[name].as_str().unwrap().parse::<u64>().is_ok(),
            "{name}"
        );
    }
    assert_eq!(fields.as_object().unwrap().len(), 14);
}

#[test]
fn texts_cannot_forge_a_line_and_are_cut() {
    let mut forged = String::new();
    escape("a\"\n\u{1b}\u{9b}\\é", &mut forged);
    assert_eq!(forged, r#"a\"\u000a\u001b\u009b\\é"#);
    let long = format!("/{}é", "p".repeat(MAX_TEXT));
    let line = line(AccessLogFormat::Apache, &request("/", &long), None);
    assert!(line.len() < 200, "{line}");
    let mut texts = Texts::default();
    texts.push(&format!("{}é", "p".repeat(MAX_TEXT - 1)));
    texts.host = texts.all.len();
    texts.push_absolute(&http::Uri::from_static("/path"));
    texts.uri = texts.all.len();
    assert_eq!(texts.host(), "p".repeat(MAX_TEXT - 1));
    assert_eq!(texts.uri(), format!("http://{}", "p".repeat(MAX_TEXT - 7)));
}

/// Blocks until the test ends.
struct Stuck(Receiver<()>);

impl io::Write for Stuck {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        let _ended = self.0.recv();
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn stuck_reader_costs_entries_and_no_time() {
    let (end, stuck) = std::sync::mpsc::channel();
    let registry = Registry::new();
    let log = AccessLog::start(AccessLogFormat::Apache, Stuck(stuck), &registry).unwrap();
    // The thread may have taken the same amount before.
    let mut bytes = 0;
    while bytes <= 2 * MAX_BUFFERED {
        let path = format!("/{}", "p".repeat(MAX_TEXT));
        drop(log.open(client(), None, &request(&path, "")));
        bytes += MAX_TEXT;
    }
    let text = String::from_utf8(registry.encode()).unwrap();
    let dropped = text
        .lines()
        .find_map(|line| line.strip_prefix("mesh_access_log_dropped_total "))
        .unwrap();
    assert!(dropped.parse::<u64>().unwrap() > 0, "{dropped}");
    drop(end);
}
