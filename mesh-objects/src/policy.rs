//! The meaning of policies, as functions of a set of objects.
//!
//! Each function takes borrowed records, and iterators of the records that may apply. So the index
//! passes the objects of a namespace, the command line all objects that it read, and a command that
//! previews a change the objects after it. Callers phrase the results; they do not decide.
//!
//! A record is the last valid version of its object. The controllers keep this version when an
//! object becomes invalid; a caller that cannot see it passes the valid objects.

pub mod age;
pub mod attachment;
pub mod authorization;
pub mod inbound;
pub mod outbound;
pub mod server;
pub mod settings;
