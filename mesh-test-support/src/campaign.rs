//! The interface between a test that plants a fault and the campaign of faults (`cargo xtask
//! chaos`): the seed of its random choices, and the numbers that the campaign reports.

use std::fmt::Display;

/// Gives the seed; the campaign sets it.
const SEED: &str = "MESH_TEST_SEED";
/// Set by `--long`.
const LONG: &str = "MESH_TEST_LONG";

/// Begins a line of output. The rest of the line is the counts of load generators.
const MEASURED: &str = "measured: ";

/// Random choices that are the same for the same seed (xorshift64*).
#[derive(Debug)]
pub struct Choices(u64);

impl Choices {
    /// Takes the seed of `MESH_TEST_SEED`, or else 1, and prints it.
    ///
    /// # Panics
    ///
    /// The variable is set and not a number.
    pub fn new() -> Self {
        let seed = std::env::var(SEED).map_or(1, |seed| {
            seed.parse()
                .unwrap_or_else(|_| panic!("{SEED} is not a number: {seed:?}"))
        });
        println!("seed: {seed}");
        Self::of(seed)
    }

    fn of(seed: u64) -> Self {
        // Zero is the one state that xorshift does not leave.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1))
    }

    /// Returns a number below the limit.
    ///
    /// # Panics
    ///
    /// The limit is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(high).expect("31 bits are a usize") % limit
    }

    /// Returns one of the items.
    ///
    /// # Panics
    ///
    /// There are none.
    pub fn of_these<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

impl Default for Choices {
    fn default() -> Self {
        Self::new()
    }
}

/// Reports the counts of load generators, in a line that the campaign puts into its table.
pub fn measured(numbers: impl Display) {
    println!("{MEASURED}{numbers}");
}

/// Returns whether tests that take minutes run; otherwise prints that the test is skipped.
pub fn is_long(test: &str) -> bool {
    let is_long = std::env::var_os(LONG).is_some();
    if !is_long {
        println!("skipped: {test}: takes minutes; `cargo xtask test --long` runs it");
    }
    is_long
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_repeated_by_their_seed_only() {
        let draw = |seed| {
            let mut choices = Choices::of(seed);
            [(); 20].map(|()| choices.below(1000))
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let mut choices = Choices::of(0);
        let seen: std::collections::BTreeSet<_> = (0..200).map(|_| choices.below(5)).collect();
        assert_eq!(seen.len(), 5);
    }
}
