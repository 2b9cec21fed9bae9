//! Random numbers from the seed of the thread's world.

use std::convert::Infallible;
use std::hash::BuildHasher;

use ahash::{AHasher, RandomState};
use mesh_simnet::world;
use rand::rngs::{SmallRng, ThreadRng};
use rand::{Rng as _, TryRng};

/// The generator of this thread.
pub(super) struct ThreadGenerator;

pub(super) fn rng() -> ThreadGenerator {
    ThreadGenerator
}

impl ThreadGenerator {
    fn with<T>(
        seeded: impl FnOnce(&mut SmallRng) -> T,
        unseeded: impl FnOnce(&mut ThreadRng) -> T,
    ) -> T {
        world::draw(seeded).unwrap_or_else(|| unseeded(&mut rand::rng()))
    }
}

impl TryRng for ThreadGenerator {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(Self::with(|it| it.next_u32(), |it| it.next_u32()))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(Self::with(|it| it.next_u64(), |it| it.next_u64()))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        if world::draw(|it| it.fill_bytes(bytes)).is_none() {
            rand::rng().fill_bytes(bytes);
        }
        Ok(())
    }
}

/// The hasher of a map, whose state is drawn.
#[derive(Clone, Debug)]
pub(crate) struct MapHasher(RandomState);

impl Default for MapHasher {
    fn default() -> Self {
        let [a, b, c, d] = super::random();
        Self(RandomState::with_seeds(a, b, c, d))
    }
}

impl BuildHasher for MapHasher {
    type Hasher = AHasher;

    fn build_hasher(&self) -> AHasher {
        self.0.build_hasher()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Map, below, random};
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_order() {
        let draw = |number| {
            let _seeded = world::seed(number);
            let mut map: Map<u32, ()> = Map::default();
            map.extend((0..100).map(|key| (key, ())));
            let order: Vec<_> = map.into_keys().collect();
            (random::<u64>(), below(1000_u32), order)
        };
        assert_eq!(draw(1), draw(1));
        let (first, second) = (draw(1), draw(2));
        assert!(first.0 != second.0 && first.2 != second.2);
    }

    #[test]
    fn a_thread_without_a_seed_draws_other_numbers_each_time() {
        let numbers: std::collections::BTreeSet<u64> = (0..100).map(|_| random()).collect();
        assert_eq!(numbers.len(), 100);
    }
}
