//! Channels that hold one value, whose receivers see the current one: tokio's.
//!
//! tokio wakes the receivers of a channel in an order that it draws from a generator without a
//! seed. With the feature `simulation`, they are channels that wake the longest waiting receiver
//! first.

#[cfg(not(feature = "simulation"))]
pub(crate) use tokio::sync::watch::{Receiver, Sender, channel};

#[cfg(feature = "simulation")]
pub(crate) use self::ordered::{Receiver, Sender, channel};

#[cfg(feature = "simulation")]
mod ordered;
