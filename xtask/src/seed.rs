//! Seeds of random choices, and numbers drawn from them.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;

/// Returns a seed that differs from run to run.
///
/// # Errors
///
/// The clock is before 1970.
pub fn of_the_clock() -> anyhow::Result<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(since.context("the clock is before 1970")?.as_secs())
}

/// Returns the seeds of a campaign: `count` of them from `first` on, or, with a number of minutes,
/// the ones that follow until these have passed.
pub fn campaign(first: u64, count: u64, minutes: Option<u64>) -> impl Iterator<Item = u64> {
    let begin = Instant::now();
    let limit = minutes.map(|minutes| Duration::from_secs(minutes.saturating_mul(60)));
    let continues = move |number: &u64| match limit {
        Some(limit) => begin.elapsed() < limit,
        None => *number < count,
    };
    let numbers = (0..).take_while(continues);
    numbers.map(move |number| first.wrapping_add(number))
}

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): 64
/// bits of state, and the same numbers everywhere.
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn campaign_has_its_seeds_or_lasts_its_minutes() {
        let seeds: Vec<u64> = campaign(u64::MAX, 3, None).collect();
        assert_eq!(seeds, [u64::MAX, 0, 1]);
        assert_eq!(campaign(7, 3, Some(0)).count(), 0);
        assert_eq!(campaign(7, 0, Some(1)).next(), Some(7));
    }

    #[test]
    fn generator_returns_published_numbers() {
        let mut generator = SplitMix::new(1_234_567);
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!([(); 3].map(|()| generator.draw()), published);
    }
}
