//! Requests over a raw socket, which the HTTP implementations under test have no part in.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

/// Returns a request without a body, such as `GET /metrics`, after whose response the server
/// closes.
pub fn message(request: &str, host: &str) -> String {
    format!("{request} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")
}

/// Sends a request without a body and returns the response with its headers.
pub fn request(address: SocketAddr, request: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(message(request, "test").as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response)
}

/// Returns the status and the body of a response.
pub fn status_and_body(response: &str) -> Option<(u16, &str)> {
    let (head, body) = response.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body))
}
