//! The random numbers of the proxy: for the choice of endpoints, backends and ports, jitter, the
//! requests that a filter affects, identifiers, and the order of maps. No other module draws any,
//! except the TLS library for its keys and nonces.
//!
//! With the feature `simulation`, a thread draws them from the seed of its world, if it has one.

use std::collections::HashMap;

use rand::RngExt as _;
use rand::distr::uniform::SampleUniform;
use rand::distr::{Distribution, StandardUniform};

pub(crate) use self::source::MapHasher;
#[cfg(not(feature = "simulation"))]
use self::unseeded as source;

/// A map whose order can be observed: its values are dropped in this order, with the connections
/// and tasks that they own, and it decides between values that are equally old.
pub(crate) type Map<K, V> = HashMap<K, V, MapHasher>;

#[cfg(feature = "simulation")]
mod seeded;
#[cfg(feature = "simulation")]
use self::seeded as source;

/// Draws a number, uniformly from all integers of its type, or from 0 to 1 (exclusive).
pub(crate) fn random<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    source::rng().random()
}

/// Draws a number below `end`, which is not zero.
pub(crate) fn below<T: SampleUniform + PartialOrd + Default>(end: T) -> T {
    source::rng().random_range(T::default()..end)
}

#[cfg(not(feature = "simulation"))]
mod unseeded {
    pub(super) use rand::rng;

    pub(crate) type MapHasher = ahash::RandomState;
}
