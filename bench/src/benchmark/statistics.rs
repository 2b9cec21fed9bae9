//! Medians and bootstrap confidence intervals. No I/O.

use xtask::seed::SplitMix;

/// Number of resamples: enough for stable bounds.
const RESAMPLES: usize = 10_000;
/// Fixed, so that the same rounds give the same interval on any machine.
const SEED: u64 = 0x6d65_7368;
/// Share of resampled medians cut off at each end: 95 % remain.
const TAIL: f64 = 0.025;

/// A median and its 95 % bootstrap interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Estimate {
    /// Estimates the median of the rounds' values; `None` without values.
    pub(crate) fn from_values(values: &[f64]) -> Option<Self> {
        let median = median(values)?;
        let mut random = SplitMix::new(SEED);
        let mut resampled: Vec<f64> = (0..RESAMPLES)
            .filter_map(|_| {
                let drawn: Vec<f64> = values
                    .iter()
                    .map(|_| values[below(&mut random, values.len())])
                    .collect();
                self::median(&drawn)
            })
            .collect();
        resampled.sort_by(f64::total_cmp);
        let at = |share: f64| resampled[(share * (RESAMPLES - 1) as f64).round() as usize];
        Some(Self {
            median,
            low: at(TAIL),
            high: at(1.0 - TAIL),
        })
    }
}

/// Returns the middle value, or the mean of the two middle values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Returns the smallest and the largest value.
pub(crate) fn range(values: &[f64]) -> Option<(f64, f64)> {
    let low = values.iter().copied().min_by(f64::total_cmp)?;
    let high = values.iter().copied().max_by(f64::total_cmp)?;
    Some((low, high))
}

/// Returns the exponent of the power of x that fits the values best: the slope of the line through
/// the logarithms of both, by least squares. `None` unless there are two different x, all positive.
pub(crate) fn slope(points: &[(f64, f64)]) -> Option<f64> {
    if points.iter().any(|(x, y)| *x <= 0.0 || *y <= 0.0) {
        return None;
    }
    let count = points.len() as f64;
    let logarithms: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let sums = logarithms
        .iter()
        .fold((0.0, 0.0), |(x, y), point| (x + point.0, y + point.1));
    let mean = (sums.0 / count, sums.1 / count);
    let (mut both, mut square) = (0.0, 0.0);
    for (x, y) in logarithms {
        both += (x - mean.0) * (y - mean.1);
        square += (x - mean.0) * (x - mean.0);
    }
    (square > 0.0).then(|| both / square)
}

/// Draws a number below `bound`, which is so far below the generator's range that the bias is
/// negligible.
fn below(random: &mut SplitMix, bound: usize) -> usize {
    (random.draw() % bound as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        for (values, expected) in [
            (&[][..], None),
            (&[3.0], Some(3.0)),
            (&[9.0, 1.0, 5.0], Some(5.0)),
            (&[4.0, 1.0, 2.0, 100.0], Some(3.0)),
        ] {
            assert_eq!(median(values), expected, "{values:?}");
        }
    }

    #[test]
    fn interval_contains_median_and_stays_within_values() {
        let values = [0.50, 0.52, 0.48, 0.55, 0.51, 0.49, 0.90];
        let estimate = Estimate::from_values(&values).expect("there are values");
        assert_eq!(estimate.median, 0.51);
        assert!(
            estimate.low <= 0.51 && 0.51 <= estimate.high,
            "{estimate:?}"
        );
        assert!(
            estimate.low >= 0.48 && estimate.high <= 0.90,
            "{estimate:?}"
        );
        // A single outlier in seven rounds is excluded.
        assert!(estimate.high < 0.90, "{estimate:?}");
        assert_eq!(Estimate::from_values(&values), Some(estimate), "repeatable");
    }

    #[test]
    fn identical_values_give_zero_width_interval() {
        let estimate = Estimate::from_values(&[2.0; 7]).expect("there are values");
        assert_eq!((estimate.low, estimate.high), (2.0, 2.0));
        assert_eq!(Estimate::from_values(&[]), None);
    }

    #[test]
    fn interval_widens_with_spread() {
        let width = |values: &[f64]| {
            let estimate = Estimate::from_values(values).expect("there are values");
            estimate.high - estimate.low
        };
        let narrow = width(&[1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0]);
        let wide = width(&[1.0, 1.3, 0.7, 1.1, 1.4, 0.6, 0.9]);
        assert!(narrow < wide, "{narrow} {wide}");
    }

    #[test]
    fn slope_is_the_exponent() {
        let power =
            |exponent: f64| [1.0, 3.0, 10.0, 50.0].map(|x: f64| (x, 7.0 * x.powf(exponent)));
        for exponent in [0.0, 0.5, 1.0, 2.0] {
            let slope = slope(&power(exponent)).expect("four points");
            assert!((slope - exponent).abs() < 1e-9, "{exponent}: {slope}");
        }
        assert_eq!(slope(&[]), None);
        assert_eq!(slope(&[(2.0, 1.0), (2.0, 3.0)]), None);
        assert_eq!(slope(&[(1.0, 1.0), (2.0, 0.0)]), None);
    }

    #[test]
    fn range_is_minimum_and_maximum() {
        assert_eq!(range(&[2.0, 1.0, 3.0]), Some((1.0, 3.0)));
        assert_eq!(range(&[]), None);
    }
}
