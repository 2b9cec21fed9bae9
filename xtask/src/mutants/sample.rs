//! Draws mutants by a seed.

use crate::seed::SplitMix;

/// Returns `count` of the items, or all if there are fewer: the start of a Fisher-Yates shuffle.
pub(super) fn draw<T>(mut items: Vec<T>, count: usize, seed: u64) -> Vec<T> {
    let mut generator = SplitMix::new(seed);
    let count = count.min(items.len());
    for place in 0..count {
        let other = place + below(&mut generator, items.len() - place);
        items.swap(place, other);
    }
    items.truncate(count);
    items
}

/// Draws a number below `bound`, which is not zero. The highest of 64 bits decide, so that no
/// number is noticeably more probable than another.
fn below(generator: &mut SplitMix, bound: usize) -> usize {
    let scaled = (u128::from(generator.draw()) * bound as u128) >> 64;
    usize::try_from(scaled).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_depends_on_seed_and_has_each_item_once() {
        let sample = |count, seed| draw((0..1000).collect::<Vec<u32>>(), count, seed);
        assert_eq!(sample(100, 1), sample(100, 1));
        assert_ne!(sample(100, 1), sample(100, 2));
        // A larger sample has the smaller one.
        assert_eq!(sample(100, 1)[..50], sample(50, 1));
        let mut all = sample(2000, 7);
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<u32>>());
    }

    #[test]
    fn each_item_is_drawn_by_some_seed() {
        let mut drawn: Vec<u32> = (0..200)
            .flat_map(|seed| draw((0..10).collect(), 1, seed))
            .collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn, (0..10).collect::<Vec<u32>>());
    }
}
