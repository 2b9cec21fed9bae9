//! What one HTTP/1 connection may cost. Constants, because no value of Linkerd's configuration means any of them and the defaults are far above what honest
//! clients and servers do; docs/reference/proxy-http1.md lists them for users.

use std::time::Duration;

/// Bytes of a head, with its start line. A head becomes a header list when it is carried over HTTP/2, so there is no use in taking more than that side does
/// by default: 256 KiB. That is above what Envoy (60 KiB) and nginx (32 KiB) take, so nothing that passed them is refused here.
pub(super) const MAX_HEAD_BYTES: usize = 256 * 1024;

/// Fields of a head or of trailers: hyper's and Envoy's number. Every one costs a table entry of about 100 bytes here and at every later hop.
pub(super) const MAX_HEADERS: usize = 100;

/// For a head, counted from its first byte; waiting for a request is not limited. Linkerd has no limit and so no protection against clients that send a byte
/// now and then. 30 s is what hyper recommends, and long enough for any honest client.
pub(super) const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of chunk extensions in one message. Nobody uses them, and a byte of body may come with any number of them. hyper's number.
pub(super) const MAX_CHUNK_EXTENSIONS: usize = 16 * 1024;

/// Bytes of trailers in one message; checksums and gRPC's status need some hundred. hyper's number.
pub(super) const MAX_TRAILER_BYTES: usize = 16 * 1024;

/// Interim responses (1xx) before a final one. Real servers send one, and progress reports (102) some; without a limit a server could send them for ever.
pub(crate) const MAX_INTERIM_RESPONSES: usize = 32;

/// What is read and thrown away of a request's body that nobody wants, so that the connection can be kept. More costs more than a new connection does.
pub(super) const MAX_DRAINED_BODY: u64 = 64 * 1024;

/// How long that may take, and how long a connection that is being closed waits for the client to read its last response (RFC 9112, section 9.6). Two
/// seconds are several retransmissions within a cluster.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// What is thrown away of what a client still sends on a connection that is being closed. Enough for what is on its way when it reads the response.
pub(super) const MAX_LINGER_BYTES: u64 = 1024 * 1024;
