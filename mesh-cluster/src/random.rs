//! The random numbers that decide when a controller does something: jitter. With the feature
//! `simulation`, a thread draws them from the seed of its world, if it has one.

use rand::RngExt as _;

/// Draws a number from `low` to `high`, both included.
pub(crate) fn from_to(low: f64, high: f64) -> f64 {
    #[cfg(feature = "simulation")]
    if let Some(number) = mesh_simnet::world::draw(|it| it.random_range(low..=high)) {
        return number;
    }
    rand::rng().random_range(low..=high)
}
