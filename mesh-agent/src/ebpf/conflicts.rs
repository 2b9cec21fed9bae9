//! Detects other programs attached at or above the pods' parent cgroup that conflict with the
//! mesh's: an exclusive one prevents attaching (EPERM), and an overridable one above would be
//! overridden for every pod. Queried before loading, so that the tier choice can report the reason.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::error::Error;
use super::hook::HOOKS;
use super::loader::is_cgroup2;
use crate::sys::bpf;

/// `BPF_F_ALLOW_MULTI`: allows programs at and below the same cgroup. Links always have it.
const ALLOW_MULTI: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictKind {
    /// The mesh's program cannot be attached.
    BlocksAttach,
    /// The foreign program would no longer run for pods.
    Overridden,
}

/// A foreign attachment that conflicts with one of the mesh's programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub cgroup: PathBuf,
    /// The mesh's program.
    pub program: &'static str,
    /// Kernel ids, for `bpftool prog show id N`.
    pub foreign: Vec<u32>,
    pub kind: ConflictKind,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conflict {
            cgroup,
            program,
            foreign,
            kind,
        } = self;
        let cgroup = cgroup.display();
        match kind {
            ConflictKind::BlocksAttach => write!(
                f,
                "program(s) {foreign:?} attached exclusively to {cgroup} prevent {program} from being attached"
            ),
            ConflictKind::Overridden => write!(
                f,
                "program(s) {foreign:?} attached overridably to {cgroup} would stop running for pods once {program} is attached"
            ),
        }
    }
}

/// Queries every hook from `cgroup_root` up to the root of the hierarchy.
pub fn conflicts(cgroup_root: &Path) -> Result<Vec<Conflict>, Error> {
    let mut found = Vec::new();
    for cgroup in cgroup_root.ancestors().take_while(|path| is_cgroup2(path)) {
        let directory = File::open(cgroup).map_err(|source| Error::Cgroup {
            path: cgroup.to_owned(),
            source,
        })?;
        for hook in HOOKS {
            let attached =
                bpf::query(&directory, hook.attach_type).map_err(|source| Error::Query {
                    path: cgroup.to_owned(),
                    source,
                })?;
            if let Some(kind) = conflict_kind(&attached, cgroup == cgroup_root) {
                found.push(Conflict {
                    cgroup: cgroup.to_owned(),
                    program: hook.program,
                    foreign: attached.programs,
                    kind,
                });
            }
        }
    }
    Ok(found)
}

/// An overridable attachment can be overridden below its cgroup, but not shared at it.
fn conflict_kind(attached: &bpf::Attachments, is_same_cgroup: bool) -> Option<ConflictKind> {
    if attached.programs.is_empty() || attached.flags & ALLOW_MULTI != 0 {
        return None;
    }
    if attached.flags == 0 || is_same_cgroup {
        return Some(ConflictKind::BlocksAttach);
    }
    Some(ConflictKind::Overridden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflict_depends_on_flags_and_cgroup() {
        const ALLOW_OVERRIDE: u32 = 1;
        let table = [
            (0, &[][..], false, None),
            (0, &[7], false, Some(ConflictKind::BlocksAttach)),
            (0, &[7], true, Some(ConflictKind::BlocksAttach)),
            (ALLOW_OVERRIDE, &[7], false, Some(ConflictKind::Overridden)),
            (ALLOW_OVERRIDE, &[7], true, Some(ConflictKind::BlocksAttach)),
            (ALLOW_MULTI, &[7, 8], false, None),
            (ALLOW_MULTI, &[7, 8], true, None),
        ];
        for (flags, programs, is_same_cgroup, expected) in table {
            let attached = bpf::Attachments {
                flags,
                programs: programs.to_vec(),
            };
            let kind = conflict_kind(&attached, is_same_cgroup);
            assert_eq!(kind, expected, "{attached:?} {is_same_cgroup}");
        }
    }
}
