//! A TCP network in one process: hosts, listeners and connections on tokio's paused clock.
//!
//! The sizes of pieces, delays, and how much of a stream precedes its RST come from one seed, so
//! that a run can be repeated. Sockets behave like Linux's where an application can tell;
//! `tests/kernel.rs` compares both. A [`world`] is a thread whose other random numbers have a seed,
//! too.

mod conditions;
mod connection;
mod heap;
mod listener;
mod network;
mod process;
mod stream;
mod trace;
pub mod usage;
pub mod world;

pub use self::conditions::{Conditions, Pieces};
pub use self::heap::Heap;
pub use self::listener::{Accepted, Listener};
pub use self::network::{Fault, Network, Redirection, Role};
pub use self::process::{Entered, Process, current};
pub use self::stream::Stream;
pub use self::trace::{Event, EventKind, Trace};
