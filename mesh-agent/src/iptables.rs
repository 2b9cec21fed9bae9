//! Redirection by iptables inside the pod's network namespace: the last resort, for kernels without
//! nf_tables NAT.
//!
//! The only tier that needs programs of the host: `iptables-*-save` and `iptables-*-restore`, and
//! their IPv6 counterparts. The kernel's own interface for the old tables is a blob of C structures
//! that only those programs write, and a kernel that has nothing newer comes with them. Two chains
//! of ours in the nat table, `MESH_PROXY_INBOUND` and `MESH_PROXY_OUTBOUND`; rules of others are
//! left alone. Every function here works on the network namespace of the calling thread.

mod program;
mod script;

use std::io;

pub use script::{INBOUND_CHAIN, OUTBOUND_CHAIN};

use crate::rules::Rules;
use program::Program;

/// IPv4 and IPv6 have tables of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    #[error(
        "none of {names} is in {directories}; install iptables on the node or use a tier that needs no programs"
    )]
    NoProgram { names: String, directories: String },
    #[error("cannot run {program}")]
    Run {
        program: String,
        #[source]
        source: io::Error,
    },
    #[error("{program} failed: {message}")]
    Failed { program: String, message: String },
    #[error(
        "the nat table differs from what the pod needs: {difference}; another program changed it"
    )]
    Differs { difference: String },
}

impl Family {
    /// The families that this kernel speaks: one compiled or booted without IPv6 has no table for
    /// it, and no connection either.
    fn spoken() -> &'static [Self] {
        if std::fs::exists("/proc/net/if_inet6").unwrap_or(false) {
            &[Self::V4, Self::V6]
        } else {
            &[Self::V4]
        }
    }
}

/// What [`replace`] would hand to `iptables-restore` and `ip6tables-restore` in a network namespace
/// without rules.
pub fn script(rules: &Rules) -> String {
    [
        ("# iptables-restore --noflush", Family::V4),
        ("# ip6tables-restore --noflush", Family::V6),
    ]
    .map(|(heading, family)| format!("{heading}\n{}", script::replacement(rules, family, "")))
    .concat()
}

/// Replaces our chains by ones with these rules, atomically for each family.
pub fn replace(rules: &Rules) -> Result<(), IptablesError> {
    for family in Family::spoken() {
        let program = Program::find(*family)?;
        let existing = program.save()?;
        program.restore(&script::replacement(rules, *family, &existing))?;
    }
    Ok(())
}

/// Removes our chains and the jumps to them. What is not there is removed already.
pub fn remove() -> Result<(), IptablesError> {
    for family in Family::spoken() {
        let program = Program::find(*family)?;
        if let Some(script) = script::removal(&program.save()?) {
            program.restore(&script)?;
        }
    }
    Ok(())
}

/// Are our chains there, reached, and with these rules and no others?
pub fn verify(rules: &Rules) -> Result<(), IptablesError> {
    for family in Family::spoken() {
        let existing = Program::find(*family)?.save()?;
        if let Some(difference) = script::difference(rules, *family, &existing) {
            return Err(IptablesError::Differs { difference });
        }
    }
    Ok(())
}
