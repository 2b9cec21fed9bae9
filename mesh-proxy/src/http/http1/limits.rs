//! Limits of one HTTP/1 connection in addition to [`crate::config::HttpLimits`]. They are
//! constants, because there is no known reason to change them; docs/reference/proxy-http1.md lists
//! them.

use std::time::Duration;

use crate::config::Http1Limits;
use crate::http::buffers::READ_SIZE;

/// Fields that are parsed without an allocation; the default limit.
pub(super) const STACK_FIELDS: usize = 100;

/// Maximum of interim responses (1xx) before a final one, the same as for HTTP/2.
pub(crate) const MAX_INTERIM_RESPONSES: u32 = mesh_http2::MAX_INTERIM_RESPONSES;

/// How long the proxy reads the rest of a request's body after the response, and how long a client
/// that has received its last response may go on sending.
pub(super) const DISCARD_TIME: Duration = Duration::from_secs(2);

/// Returns the capacity of a connection's input: the longest section that is read as a whole, and a
/// read that may follow its last byte.
pub(super) fn max_input(limits: &Http1Limits) -> usize {
    let section = limits.head.max(limits.trailers).max(limits.extensions);
    section as usize + READ_SIZE
}
