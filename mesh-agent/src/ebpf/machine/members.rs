//! Which cgroups are of units and proxies: by name, for those that systemd will create, and by id,
//! for those that exist.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use mesh_ebpf_common::unit::{CgroupName, Member, ROLE_PATH, ROLE_PROXY, ROLE_UNIT};

use super::super::error::Error;
use super::super::loader::CgroupRoot;
use super::super::maps::{UnitMaps, keys_where, map_error, optional, remove_result};
use crate::redirect::UnitRedirect;

const ANY: u64 = 0;
/// Levels of cgroups with units; LEVELS has a byte for each.
const LEVELS_MAX: usize = 8;
/// Cgroups below one unit that are inspected for its listeners.
const TREE_MAX: usize = 4_096;

/// What every cgroup with a name of its own is to the mesh, by its path below the root.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Members {
    by_path: BTreeMap<String, Member>,
}

/// A name that is registered for the time of [`observe`].
pub(super) struct Observation {
    name: CgroupName,
    root: u64,
    /// The registration of the root before.
    root_before: Option<Member>,
}

impl Members {
    pub(super) fn new(units: &[UnitRedirect], root_level: u32) -> Result<Members, Error> {
        let mut members = Members::default();
        for unit in units {
            for path in &unit.cgroups {
                members.add(path, ROLE_UNIT, unit.cookie, root_level)?;
            }
            members.add(&unit.proxy_cgroup, ROLE_PROXY, unit.cookie, root_level)?;
        }
        if members.levels().is_none() {
            return Err(Error::TooManyLevels(LEVELS_MAX));
        }
        let mut numbers = HashSet::from([number("")]);
        let paths = members.by_path.iter();
        let mut paths = paths.filter(|(_, member)| member.role == ROLE_PATH);
        match paths.find(|(_, member)| !numbers.insert(member.subject)) {
            Some((path, _)) => Err(Error::SharedCgroup(path.clone())),
            None => Ok(members),
        }
    }

    /// Adds a cgroup, and those above it as a path to it.
    fn add(&mut self, path: &str, role: u32, cookie: u64, root_level: u32) -> Result<(), Error> {
        check_path(path)?;
        for (depth, end) in ends(path).enumerate() {
            let prefix = &path[..end];
            let is_last = end == path.len();
            let member = Member {
                subject: if is_last { cookie } else { number(prefix) },
                role: if is_last { role } else { ROLE_PATH },
                level: root_level + depth as u32 + 1,
            };
            let known = self.by_path.insert(prefix.to_owned(), member);
            if known.is_some_and(|known| known != member) {
                return Err(Error::SharedCgroup(prefix.to_owned()));
            }
        }
        Ok(())
    }

    /// Returns the number of cgroups.
    pub(super) fn count(&self) -> usize {
        self.by_path.len()
    }

    /// Returns the content of LEVELS; `None` if there are too many.
    fn levels(&self) -> Option<u64> {
        let units = self.by_path.values();
        let units = units.filter(|member| member.role == ROLE_UNIT);
        let levels: BTreeSet<u32> = units.map(|member| member.level).collect();
        if levels.len() > LEVELS_MAX {
            return None;
        }
        let bytes = levels.iter().rev();
        bytes.copied().try_fold(0, |packed: u64, level| {
            let byte = u8::try_from(level).ok()?;
            Some(packed << 8 | u64::from(byte))
        })
    }

    fn names(&self) -> Result<Vec<(CgroupName, Member)>, Error> {
        let name = |(path, member): (&String, &Member)| {
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
            let key = CgroupName::new(number(parent), name);
            let key = key.ok_or_else(|| Error::CgroupPath(path.clone()))?;
            Ok((key, *member))
        };
        self.by_path.iter().map(name).collect()
    }

    /// Removes names and cgroups that are not among these.
    pub(super) fn remove_others(
        &self,
        maps: &mut UnitMaps,
        root: &CgroupRoot,
    ) -> Result<(), Error> {
        // Before the cgroups are looked up: an id that is not found then has ended.
        let listed = keys_where("CGROUPS", maps.cgroups.keys(), |_| true)?;
        let names = self.names()?;
        let stale = keys_where("CGROUP_NAMES", maps.names.keys(), |key| {
            !names.iter().any(|(name, _)| name == key)
        })?;
        for name in stale {
            remove_result(maps.names.remove(&name), "CGROUP_NAMES")?;
        }
        let mut present = HashSet::from([root.id]);
        for path in self.by_path.keys() {
            present.extend(cgroup_id(&root.path.join(path))?);
        }
        for id in listed.iter().filter(|id| !present.contains(id)) {
            remove_result(maps.cgroups.remove(id), "CGROUPS")?;
        }
        Ok(())
    }

    /// Adds these to the maps. The names come first and cgroups from the root downwards: one that
    /// is created meanwhile is registered by its name, or found by its path.
    pub(super) fn write(&self, maps: &mut UnitMaps, root: &CgroupRoot) -> Result<(), Error> {
        for (name, member) in self.names()? {
            if optional(maps.names.get(&name, 0), "CGROUP_NAMES")? != Some(member) {
                maps.names
                    .insert(name, member, ANY)
                    .map_err(map_error("write to", "CGROUP_NAMES"))?;
            }
        }
        let levels = self.levels().ok_or(Error::TooManyLevels(LEVELS_MAX))?;
        maps.levels
            .set(0, levels, ANY)
            .map_err(map_error("write to", "LEVELS"))?;
        register(maps, root.id, root_member())?;
        for (path, member) in &self.by_path {
            if let Some(id) = cgroup_id(&root.path.join(path))? {
                register(maps, id, *member)?;
            }
        }
        Ok(())
    }
}

/// Registers a name below the root, which the programs then register when it is created.
pub(super) fn observe(
    maps: &mut UnitMaps,
    root: &CgroupRoot,
    name: &str,
) -> Result<Observation, Error> {
    let observation = Observation {
        name: CgroupName::new(number(""), name)
            .ok_or_else(|| Error::CgroupPath(name.to_owned()))?,
        root: root.id,
        root_before: optional(maps.cgroups.get(&root.id, 0), "CGROUPS")?,
    };
    register(maps, root.id, root_member())?;
    let member = Member {
        subject: number(name),
        role: ROLE_PATH,
        level: 0,
    };
    maps.names
        .insert(observation.name, member, ANY)
        .map_err(map_error("write to", "CGROUP_NAMES"))?;
    Ok(observation)
}

/// Returns the level that the programs have registered for a cgroup.
pub(super) fn observed_level(maps: &UnitMaps, path: &Path) -> Result<Option<u32>, Error> {
    let Some(id) = cgroup_id(path)? else {
        return Ok(None);
    };
    let member = optional(maps.cgroups.get(&id, 0), "CGROUPS")?;
    Ok(member.map(|member| member.level))
}

pub(super) fn end_observation(maps: &mut UnitMaps, observation: &Observation) -> Result<(), Error> {
    remove_result(maps.names.remove(&observation.name), "CGROUP_NAMES")?;
    if observation.root_before.is_none() {
        remove_result(maps.cgroups.remove(&observation.root), "CGROUPS")?;
    }
    Ok(())
}

fn register(maps: &mut UnitMaps, id: u64, member: Member) -> Result<(), Error> {
    if optional(maps.cgroups.get(&id, 0), "CGROUPS")? == Some(member) {
        return Ok(());
    }
    maps.cgroups
        .insert(id, member, ANY)
        .map_err(map_error("write to", "CGROUPS"))
}

fn root_member() -> Member {
    Member {
        subject: number(""),
        role: ROLE_PATH,
        level: 0,
    }
}

/// Returns the id of a cgroup, the inode of its directory; `None` if it does not exist.
pub(super) fn cgroup_id(path: &Path) -> Result<Option<u64>, Error> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::CgroupDirectory {
            action: "look for",
            path: path.to_owned(),
            source,
        }),
    }
}

/// Returns the ids of a cgroup and of all below it; empty if it does not exist.
pub(super) fn tree(path: &Path) -> Result<HashSet<u64>, Error> {
    let mut ids = HashSet::new();
    let mut pending = vec![path.to_owned()];
    while let Some(directory) = pending.pop() {
        let Some(id) = cgroup_id(&directory)? else {
            continue;
        };
        ids.insert(id);
        if ids.len() > TREE_MAX {
            return Err(Error::TooManyCgroups {
                path: path.to_owned(),
                most: TREE_MAX,
            });
        }
        pending.extend(children(&directory));
    }
    Ok(ids)
}

/// Returns the directories in a cgroup; none if it ends meanwhile.
fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Returns the positions in a path where the names of its cgroups end.
fn ends(path: &str) -> impl Iterator<Item = usize> {
    let separators = path.match_indices('/').map(|(index, _)| index);
    separators.chain([path.len()])
}

/// Checks that a path is relative to the root and names cgroups below it.
pub(super) fn check_path(path: &str) -> Result<(), Error> {
    let is_valid = path
        .split('/')
        .all(|name| !matches!(name, "" | "." | "..") && CgroupName::new(0, name).is_some());
    if is_valid {
        Ok(())
    } else {
        Err(Error::CgroupPath(path.to_owned()))
    }
}

/// Returns the number of a path among the paths to units, by FNV-1a. [`Members::new`] refuses two
/// paths with one number.
fn number(path: &str) -> u64 {
    path.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
