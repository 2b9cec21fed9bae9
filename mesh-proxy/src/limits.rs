//! The limits of what the process and its data threads hold: connections, memory, idle values,
//! copies of bodies, and the rates of policies.
//!
//! The limits of one connection are those of its protocol, in `http`; `config` reads all of them.

pub(crate) mod idle;
pub(crate) mod memory;
pub(crate) mod rate_limit;
pub(crate) mod replay_memory;
