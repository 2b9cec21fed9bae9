//! Oracles: parsers that share no code with the proxy's.

pub(crate) mod hyper;
pub(crate) mod reader;
