//! Redirection by iptables inside the pod's network namespace: the last resort, for kernels without
//! nf_tables NAT.
//!
//! The only tier that needs programs of the host: `iptables-*-save` and `iptables-*-restore`, and
//! their IPv6 counterparts. The kernel's interface of the legacy tables is a binary format of C
//! structures that only those programs write, and distributions with such a kernel ship them. The
//! mesh has two chains in the nat table, `MESH_PROXY_INBOUND` and `MESH_PROXY_OUTBOUND`; other
//! rules are not changed. Every function works on the network namespace of the calling thread.

mod program;
mod script;

use std::io;

pub use script::{INBOUND_CHAIN, OUTBOUND_CHAIN};

use crate::rules::Rules;
use program::Program;

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
    Run { program: String, source: io::Error },
    #[error("{program} failed: {message}")]
    Failed { program: String, message: String },
    #[error("the nat table differs from the pod's rules: {difference}; another program changed it")]
    Differs { difference: String },
}

impl Family {
    /// Returns the families that this kernel supports: one compiled or booted without IPv6 has no
    /// table and no connections for it.
    fn supported() -> &'static [Self] {
        if std::fs::exists("/proc/net/if_inet6").unwrap_or(false) {
            &[Self::V4, Self::V6]
        } else {
            &[Self::V4]
        }
    }
}

/// Returns the input of [`replace`] for `iptables-restore` and `ip6tables-restore` in a network
/// namespace without rules.
pub fn script(rules: &Rules) -> String {
    [
        ("# iptables-restore --noflush", Family::V4),
        ("# ip6tables-restore --noflush", Family::V6),
    ]
    .map(|(heading, family)| format!("{heading}\n{}", script::replacement(rules, family, "")))
    .concat()
}

/// Replaces the mesh's chains by ones with these rules, atomically for each family.
pub fn replace(rules: &Rules) -> Result<(), IptablesError> {
    for family in Family::supported() {
        let program = Program::find(*family)?;
        let existing = program.save()?;
        program.restore(&script::replacement(rules, *family, &existing))?;
    }
    Ok(())
}

/// Removes the mesh's chains and the jumps to them. Missing ones are not an error.
pub fn remove() -> Result<(), IptablesError> {
    for family in Family::supported() {
        let program = Program::find(*family)?;
        if let Some(script) = script::removal(&program.save()?) {
            program.restore(&script)?;
        }
    }
    Ok(())
}

/// Checks that the mesh's chains exist, have exactly these rules, and are jumped to.
pub fn verify(rules: &Rules) -> Result<(), IptablesError> {
    for family in Family::supported() {
        let existing = Program::find(*family)?.save()?;
        if let Some(difference) = script::difference(rules, *family, &existing) {
            return Err(IptablesError::Differs { difference });
        }
    }
    Ok(())
}
