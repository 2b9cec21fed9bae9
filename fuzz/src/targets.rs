//! One module per target, except for those in [`crate::tls`].

pub(crate) mod authority;
pub(crate) mod chunked;
pub(crate) mod detect;
pub(crate) mod http1_request;
pub(crate) mod http1_response;
pub(crate) mod http2;
pub(crate) mod http2_response;
pub(crate) mod orig_proto;
pub(crate) mod transport_header;
