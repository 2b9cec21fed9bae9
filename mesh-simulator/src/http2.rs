//! HTTP/2 (RFC 9113) as peers of a script send and read it. Shares no code with the proxy, whose
//! work it judges.

pub(crate) mod frame;
mod hpack;
mod huffman;
mod reader;

pub(crate) use self::hpack::encode;
pub(crate) use self::reader::{Event, Reader};
