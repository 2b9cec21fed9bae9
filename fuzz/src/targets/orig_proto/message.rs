//! Builds a request and a response from choices, so that nearly every input is a valid message.

use crate::input::Input;
use crate::oracle::reader::RequestMethod;

pub(super) struct Messages {
    pub(super) request: Vec<u8>,
    pub(super) request_method: RequestMethod,
    pub(super) response: Vec<u8>,
}

const METHODS: [&str; 8] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "X-OWN",
];
const TARGETS: [&str; 10] = [
    "/",
    "/a/b?c=d&e",
    "/?",
    "//x/../y",
    "/%2f%00;x",
    "http://other/a?b",
    "http://other",
    "http://other:8080/",
    "https://[::1]:1/x",
    "http://user@other/",
];
const HOSTS: [&str; 6] = [
    "host: web\r\n",
    "host: web:8080\r\n",
    "",
    "host: WEB.example.\r\n",
    "host: [::1]:80\r\n",
    "host:\r\n",
];
const FIELDS: [&str; 20] = [
    "accept: */*\r\n",
    "x: 1\r\nx: 2\r\n",
    "cookie: a=b\r\ncookie: c=d\r\n",
    "connection: close\r\n",
    "connection: keep-alive, x-hop\r\nx-hop: 1\r\n",
    "keep-alive: timeout=5\r\n",
    "proxy-connection: keep-alive\r\n",
    "te: trailers\r\n",
    "te: gzip\r\n",
    "expect: 100-continue\r\n",
    "content-type: application/grpc\r\n",
    "empty:\r\n",
    "trailer: t\r\n",
    "l5d-orig-proto: HTTP/1.0\r\n",
    "l5d-orig-proto: HTTP/1.1; absolute-form\r\n",
    "upgrade-insecure-requests: 1\r\n",
    "http2-settings: AAA\r\n",
    "X-Mixed-Case: V\r\n",
    "date: now\r\nserver: x\r\n",
    "transfer: x\r\n",
];
const STATUSES: [&str; 10] = [
    "200 OK",
    "204 No Content",
    "304 Not Modified",
    "404 Not Found",
    "500 Internal Server Error",
    "299 Own Words",
    "200",
    "301 Moved",
    "206 Partial Content",
    "999 Last",
];

impl Messages {
    pub(super) fn decode(input: &[u8]) -> Self {
        let mut input = Input(input);
        let (method, target) = (input.choose(METHODS), input.choose(TARGETS));
        let version = input.choose(["1.1", "1.1", "1.1", "1.0"]);
        let mut request = format!("{method} {target} HTTP/{version}\r\n").into_bytes();
        request.extend_from_slice(input.choose(HOSTS).as_bytes());
        fields(&mut request, &mut input);
        let can_chunk = version == "1.1";
        body(&mut request, &mut input, can_chunk, false);

        let version = input.choose(["1.1", "1.1", "1.0"]);
        let status = input.choose(STATUSES);
        let mut response = format!("HTTP/{version} {status}\r\n").into_bytes();
        fields(&mut response, &mut input);
        body(&mut response, &mut input, version == "1.1", true);
        let request_method = match method {
            "HEAD" => RequestMethod::Head,
            _ => RequestMethod::Other,
        };
        Self {
            request,
            request_method,
            response,
        }
    }
}

fn fields(message: &mut Vec<u8>, input: &mut Input<'_>) {
    for _ in 0..input.byte() % 5 {
        match input.byte() {
            // An arbitrary value of valid characters.
            255 => {
                let value = input.take(12).iter().map(|byte| match byte {
                    b'\t' | b' '..=b'~' | 0x80.. => *byte,
                    _ => b'.',
                });
                message.extend_from_slice(b"own: v");
                message.extend(value);
                message.extend_from_slice(b"v\r\n");
            }
            choice => {
                let field = FIELDS[usize::from(choice) % FIELDS.len()];
                message.extend_from_slice(field.as_bytes());
            }
        }
    }
}

/// Ends the header section and adds a body.
fn body(message: &mut Vec<u8>, input: &mut Input<'_>, can_chunk: bool, can_close: bool) {
    let kind = input.byte() % 6;
    let length = usize::from(input.byte()) << (input.byte() % 8);
    let data: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
    match kind {
        1 => {
            message.extend_from_slice(format!("content-length: {length}\r\n\r\n").as_bytes());
            message.extend_from_slice(&data);
        }
        2..=4 if can_chunk => {
            message.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
            let chunk = usize::from(input.byte()) + 1;
            for chunk in data.chunks(chunk) {
                message.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                message.extend_from_slice(chunk);
                message.extend_from_slice(b"\r\n");
            }
            message.extend_from_slice(match kind {
                2 => b"0\r\n\r\n".as_slice(),
                3 => b"0\r\nt: 1\r\n\r\n",
                _ => b"0\r\nt: 1\r\nu: 2\r\nu: 3\r\nhost: x\r\n\r\n",
            });
        }
        5 if can_close => {
            message.extend_from_slice(b"\r\n");
            message.extend_from_slice(&data);
        }
        _ => message.extend_from_slice(b"\r\n"),
    }
}
