//! What hyper and h2 leave unbounded on an HTTP/2 connection, bounded around them: [`Guarded`] stands between them and the bytes of the connection.
//!
//! It reads no more than the heads of frames ([`frames`]) and keeps account of them ([`account`]). The library's own limits (concurrent streams, header lists,
//! continuations, streams reset before anybody saw them) are set by [`super::server`] and [`super::client`]. See docs/adr/0014.

mod account;
mod frames;
mod guarded;

pub(super) use self::account::Role;
pub(super) use self::guarded::{Guarded, Standing};
