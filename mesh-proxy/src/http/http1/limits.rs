//! What one HTTP/1 connection may cost besides what [`crate::config::HttpLimits`] says. Constants,
//! because nobody has a reason to change them; docs/reference/proxy-http1.md lists them for users.

use std::time::Duration;

/// Fields for which a head is read without an allocation; the default limit.
pub(super) const USUAL_FIELDS: usize = 100;

/// Interim responses (1xx) before a final one, as many as over HTTP/2.
pub(crate) const MAX_INTERIM_RESPONSES: u32 = mesh_http2::MAX_INTERIM_RESPONSES;

/// How long reading what is left of a request's body may take, and how long a connection that is
/// being closed waits for the client to read its last response (RFC 9112, section 9.6). Two seconds
/// are several retransmissions within a cluster.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// What is thrown away of what a client still sends on a connection that is being closed. Enough
/// for what is on its way when it reads the response.
pub(super) const MAX_LINGER_BYTES: u64 = 1024 * 1024;
