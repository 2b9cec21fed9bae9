//! Programs that others attached at or above the pods' parent cgroup. Two ways of attaching do not
//! get along with ours: an exclusive one keeps ours out (EPERM), and an overridable one above is
//! silenced for every pod by ours. Asked before loading, so that the tier choice can say why.

use std::{
    fmt,
    fs::File,
    path::{Path, PathBuf},
};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use super::{error::Error, hook::HOOKS};
use crate::sys::bpf;

/// `BPF_F_ALLOW_MULTI`: programs beside and below are welcome. Links always have it.
const ALLOW_MULTI: u32 = 2;

/// How a foreign attachment and ours would hinder each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// Ours cannot be attached.
    BlocksOurs,
    /// Theirs would no longer run for pods.
    SilencedByOurs,
}

/// A foreign attachment that does not get along with ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub cgroup: PathBuf,
    /// The program of ours that meets it.
    pub program: &'static str,
    /// Kernel ids, as `bpftool prog show id N` takes them.
    pub foreign: Vec<u32>,
    pub hindrance: Hindrance,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conflict {
            cgroup,
            program,
            foreign,
            hindrance,
        } = self;
        let cgroup = cgroup.display();
        match hindrance {
            Hindrance::BlocksOurs => write!(
                f,
                "program(s) {foreign:?} attached exclusively to {cgroup} keep {program} from being attached"
            ),
            Hindrance::SilencedByOurs => write!(
                f,
                "program(s) {foreign:?} attached overridably to {cgroup} would stop running for pods once {program} is attached"
            ),
        }
    }
}

/// Looks at every hook of ours from `cgroup_root` up to the top of the hierarchy.
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
            if let Some(hindrance) = hindrance(&attached, cgroup == cgroup_root) {
                found.push(Conflict {
                    cgroup: cgroup.to_owned(),
                    program: hook.program,
                    foreign: attached.programs,
                    hindrance,
                });
            }
        }
    }
    Ok(found)
}

fn is_cgroup2(path: &Path) -> bool {
    statfs(path).is_ok_and(|status| status.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

/// An overridable attachment can be overridden below its cgroup, but not joined at it.
fn hindrance(attached: &bpf::Attached, at_our_cgroup: bool) -> Option<Hindrance> {
    if attached.programs.is_empty() || attached.flags & ALLOW_MULTI != 0 {
        return None;
    }
    if attached.flags == 0 || at_our_cgroup {
        return Some(Hindrance::BlocksOurs);
    }
    Some(Hindrance::SilencedByOurs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hindrances() {
        const ALLOW_OVERRIDE: u32 = 1;
        let table = [
            (0, &[][..], false, None),
            (0, &[7], false, Some(Hindrance::BlocksOurs)),
            (0, &[7], true, Some(Hindrance::BlocksOurs)),
            (ALLOW_OVERRIDE, &[7], false, Some(Hindrance::SilencedByOurs)),
            (ALLOW_OVERRIDE, &[7], true, Some(Hindrance::BlocksOurs)),
            (ALLOW_MULTI, &[7, 8], false, None),
            (ALLOW_MULTI, &[7, 8], true, None),
        ];
        for (flags, programs, at_our_cgroup, expected) in table {
            let attached = bpf::Attached {
                flags,
                programs: programs.to_vec(),
            };
            assert_eq!(
                hindrance(&attached, at_our_cgroup),
                expected,
                "{attached:?} {at_our_cgroup}"
            );
        }
    }
}
