//! Policies of inbound and outbound traffic.

pub mod inbound;
pub mod outbound;
