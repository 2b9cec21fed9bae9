//! This machine as a host of systemd units: what systemd, the file system and the processes tell
//! about the units' proxies, and the connections to the mesh that the machine has joined.
//! `meshctl machine` uses it beside the agent's reports.

pub(crate) mod control_plane;
pub(crate) mod environment;
pub(crate) mod process;
pub(crate) mod systemd;
pub(crate) mod token;
