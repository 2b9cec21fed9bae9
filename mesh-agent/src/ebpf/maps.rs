//! The pinned maps, typed. Opened on demand: a handle is one descriptor, and enrolments are rare.

use std::path::Path;

use aya::Pod;
use aya::maps::{Array, HashMap, LpmTrie, Map, MapData, MapError, PerCpuHashMap, SockHash};
use mesh_ebpf_common::layout::{
    AddressKey, FlowKey, GuardStats, ListenerKey, OriginalDst, PodConfig, PodStats, PortKey,
    PortSkipKey, PortTracking, ProxyState, SubnetSkipKey,
};
use mesh_ebpf_common::unit::{
    AdoptedPort, CgroupName, HostPort, Member, ProxyPort, UnitConfig, UnitPort,
};

use super::error::Error;
use super::pins::Pins;

/// Every map of the object that programs of pods use: all are pinned and shared by every program.
pub(super) const NAMES: [&str; 18] = [
    "PODS",
    "PROXIES",
    "ADDRESSES",
    "PORT_SKIPS",
    "SUBNET_SKIPS",
    "LISTENERS",
    "IN_FLIGHT",
    "IN_FLIGHT_COUNTS",
    "STATS",
    "ORIGINAL_DST",
    "BINDERS",
    "GUARD",
    "GUARD_STATS",
    "TRACES",
    "OPEN_PORTS",
    "PORT_TRACKING",
    "OPENED",
    LOG,
];

/// The maps that only programs of a machine's units use, whose object has them.
pub(super) const NAMES_OF_UNITS: [&str; 8] = [
    "CGROUPS",
    "CGROUP_NAMES",
    "LEVELS",
    "UNITS",
    "PROXY_PORTS",
    "UNIT_PORTS",
    "ADOPTED_PORTS",
    "UNIT_SOCKETS",
];

/// The log of the programs, a ring buffer. aya-log defines it.
pub(super) const LOG: &str = "AYA_LOGS";

pub(super) struct Maps {
    pub(super) pods: HashMap<MapData, u64, PodConfig>,
    pub(super) proxies: HashMap<MapData, u64, ProxyState>,
    pub(super) addresses: HashMap<MapData, AddressKey, u8>,
    pub(super) port_skips: LpmTrie<MapData, PortSkipKey, u8>,
    pub(super) subnet_skips: LpmTrie<MapData, SubnetSkipKey, u8>,
    pub(super) listeners: SockHash<MapData, ListenerKey>,
    pub(super) in_flight: HashMap<MapData, FlowKey, OriginalDst>,
    /// Absent from a set that an older agent pinned.
    pub(super) in_flight_counts: Option<HashMap<MapData, u64, i64>>,
    pub(super) stats: PerCpuHashMap<MapData, u64, PodStats>,
    /// Absent from a set that an older agent pinned.
    pub(super) traces: Option<HashMap<MapData, u64, i64>>,
    /// Absent from a set that an older agent pinned.
    pub(super) open_ports: Option<HashMap<MapData, PortKey, i64>>,
    /// Absent from a set that an older agent pinned.
    pub(super) port_tracking: Option<HashMap<MapData, u64, PortTracking>>,
}

/// The guard's maps, which are absent from a set that an older agent pinned.
pub(super) struct GuardMaps {
    pub(super) mode: Array<MapData, u32>,
    pub(super) stats: PerCpuHashMap<MapData, u64, GuardStats>,
}

impl GuardMaps {
    pub(super) fn open(pins: &Pins) -> Result<Option<GuardMaps>, Error> {
        let directory = pins.maps();
        if !directory.join("GUARD").exists() {
            return Ok(None);
        }
        Ok(Some(GuardMaps {
            mode: open(&directory, "GUARD")?,
            stats: open(&directory, "GUARD_STATS")?,
        }))
    }
}

impl Maps {
    pub(super) fn open(pins: &Pins) -> Result<Maps, Error> {
        let directory = pins.maps();
        Ok(Maps {
            pods: open(&directory, "PODS")?,
            proxies: open(&directory, "PROXIES")?,
            addresses: open(&directory, "ADDRESSES")?,
            port_skips: open(&directory, "PORT_SKIPS")?,
            subnet_skips: open(&directory, "SUBNET_SKIPS")?,
            listeners: open(&directory, "LISTENERS")?,
            in_flight: open(&directory, "IN_FLIGHT")?,
            in_flight_counts: open_newer(&directory, "IN_FLIGHT_COUNTS")?,
            stats: open(&directory, "STATS")?,
            traces: open_traces(pins)?,
            open_ports: open_newer(&directory, "OPEN_PORTS")?,
            port_tracking: open_newer(&directory, "PORT_TRACKING")?,
        })
    }

    pub(super) fn listeners_of(&self, cookie: u64) -> Result<Vec<ListenerKey>, Error> {
        keys_where("LISTENERS", self.listeners.keys(), |key| {
            key.cookie == cookie
        })
    }
}

/// Opens the counts of reported decisions; `None` in a set that an older agent pinned.
pub(super) fn open_traces(pins: &Pins) -> Result<Option<HashMap<MapData, u64, i64>>, Error> {
    let directory = pins.maps();
    if !directory.join("TRACES").exists() || !directory.join(LOG).exists() {
        return Ok(None);
    }
    open(&directory, "TRACES").map(Some)
}

/// The maps of a machine's units.
pub(super) struct UnitMaps {
    pub(super) cgroups: HashMap<MapData, u64, Member>,
    pub(super) names: HashMap<MapData, CgroupName, Member>,
    pub(super) levels: Array<MapData, u64>,
    pub(super) units: HashMap<MapData, u64, UnitConfig>,
    pub(super) proxy_ports: HashMap<MapData, u32, ProxyPort>,
    pub(super) ports: HashMap<MapData, HostPort, UnitPort>,
    pub(super) adopted: HashMap<MapData, HostPort, AdoptedPort>,
}

impl UnitMaps {
    pub(super) fn open(pins: &Pins) -> Result<UnitMaps, Error> {
        let directory = pins.maps();
        Ok(UnitMaps {
            cgroups: open(&directory, "CGROUPS")?,
            names: open(&directory, "CGROUP_NAMES")?,
            levels: open(&directory, "LEVELS")?,
            units: open(&directory, "UNITS")?,
            proxy_ports: open(&directory, "PROXY_PORTS")?,
            ports: open(&directory, "UNIT_PORTS")?,
            adopted: open(&directory, "ADOPTED_PORTS")?,
        })
    }
}

/// Opens a map that a set of an older agent lacks.
fn open_newer<M>(directory: &Path, name: &'static str) -> Result<Option<M>, Error>
where
    M: TryFrom<Map, Error = MapError>,
{
    if !directory.join(name).exists() {
        return Ok(None);
    }
    open(directory, name).map(Some)
}

fn open<M>(directory: &Path, name: &'static str) -> Result<M, Error>
where
    M: TryFrom<Map, Error = MapError>,
{
    MapData::from_pin(directory.join(name))
        .and_then(Map::from_map_data)
        .and_then(M::try_from)
        .map_err(map_error("open", name))
}

/// Collects matching keys first: iterating a map while it changes repeats or skips keys.
pub(super) fn keys_where<K: Pod>(
    map: &'static str,
    keys: impl Iterator<Item = Result<K, MapError>>,
    matches: impl Fn(&K) -> bool,
) -> Result<Vec<K>, Error> {
    keys.filter(|key| key.as_ref().map_or(true, &matches))
        .collect::<Result<_, _>>()
        .map_err(map_error("list", map))
}

/// Adds the map's name and the attempted action, and recognises a full map.
pub(super) fn map_error(
    action: &'static str,
    map: &'static str,
) -> impl Fn(MapError) -> Error + Copy {
    move |source| match &source {
        MapError::SyscallError(error)
            if matches!(
                error.io_error.raw_os_error(),
                Some(libc::E2BIG | libc::ENOSPC)
            ) =>
        {
            Error::Full(map)
        }
        _ => Error::Map {
            action,
            map,
            source,
        },
    }
}

/// Treats a missing entry as success; returns whether it existed.
pub(super) fn remove_result(
    result: Result<(), MapError>,
    map: &'static str,
) -> Result<bool, Error> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(map_error("remove from", map)(error)),
    }
}

/// Returns `None` for a missing entry.
pub(super) fn optional<V>(
    result: Result<V, MapError>,
    map: &'static str,
) -> Result<Option<V>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(map_error("read", map)(error)),
    }
}

fn is_missing(error: &MapError) -> bool {
    match error {
        MapError::KeyNotFound | MapError::ElementNotFound => true,
        MapError::SyscallError(error) => error.io_error.raw_os_error() == Some(libc::ENOENT),
        _ => false,
    }
}
