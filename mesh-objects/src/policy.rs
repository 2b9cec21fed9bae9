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
pub mod backend;
pub mod egress;
pub mod inbound;
pub mod json;
pub mod outbound;
pub mod pod_address;
pub mod rate_limit;
pub mod server;
pub mod settings;

/// Lists the ports of a Service in the text of a condition.
fn list(ports: &[u16]) -> String {
    if ports.is_empty() {
        return "none".to_owned();
    }
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    ports.join(", ")
}
