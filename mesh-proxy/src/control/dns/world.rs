//! The names of a simulated world.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// The address records of a world. Clones are the same records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    // Changed and read by tasks of one thread.
    addresses: Arc<Mutex<BTreeMap<String, BTreeSet<IpAddr>>>>,
}

/// A server in the cluster answers within a millisecond.
const ROUND_TRIP: Duration = Duration::from_millis(1);

impl Names {
    /// Adds an address of a name, which ends in a dot.
    pub(crate) fn add(&self, name: &str, address: IpAddr) {
        let mut addresses = self.addresses.lock();
        addresses
            .entry(name.to_owned())
            .or_default()
            .insert(address);
    }

    /// Returns the addresses of a name; none if it does not exist.
    pub(super) async fn addresses(&self, name: &str) -> BTreeSet<IpAddr> {
        tokio::time::sleep(ROUND_TRIP).await;
        self.addresses.lock().get(name).cloned().unwrap_or_default()
    }
}
