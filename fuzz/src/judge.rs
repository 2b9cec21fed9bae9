//! Who says what is right: parsers that share nothing with the proxy's.

pub(crate) mod hyper;
pub(crate) mod reader;
