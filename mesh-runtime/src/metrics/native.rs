//! The exponential buckets of Prometheus' native histograms, beside the fixed ones of Linkerd's
//! dashboards.
//!
//! A histogram has them from the first scrape that asks for them, since they take 2.4 KB and few
//! scrapers do. Earlier observations are known by fixed bucket only, and start in the exponential
//! bucket of the fixed one's upper bound: rates and quantiles of a range begin with that scrape,
//! and are exact.

use crate::sync::AtomicU64;
use crate::sync::Ordering::Relaxed;

/// The schema: a power of two has this many buckets as its binary logarithm says, so that bounds
/// are 9 % apart.
pub(super) const SCHEMA: i32 = 3;

/// Observations up to this value, 2⁻¹⁴, are in the bucket of zero: 61 µs of a histogram in seconds.
pub(super) const ZERO_THRESHOLD: f64 = 1.0 / 16_384.0;

/// Buckets of a power of two.
const PER_OCTAVE: usize = FRACTIONS.len();

/// The exponent of [`ZERO_THRESHOLD`].
const MIN_EXPONENT: i32 = -14;

/// The exponent of the largest bound, 2²⁴: 4.6 hours of a histogram in milliseconds.
const MAX_EXPONENT: i32 = 24;

/// The key of a bucket is the exponent of its upper bound in eighths. This is the lowest one.
const MIN_KEY: i32 = MIN_EXPONENT * 8 + 1;

/// The buckets with a key, and one more for larger observations.
const KEYED: usize = (MAX_EXPONENT - MIN_EXPONENT) as usize * PER_OCTAVE + 1;

/// The powers of two with the exponents -1, -7/8, …, -1/8: the bounds of a fraction as `frexp`
/// returns it.
const FRACTIONS: [f64; 8] = [
    0.5,
    0.545_253_866_332_628_8,
    0.594_603_557_501_360_5,
    0.648_419_777_325_504_8,
    std::f64::consts::FRAC_1_SQRT_2,
    0.771_105_412_703_970_4,
    0.840_896_415_253_714_5,
    0.917_004_043_204_671_2,
];

/// The counts of a histogram.
#[derive(Debug)]
pub(super) struct NativeCell {
    zero: AtomicU64,
    /// By key, from [`MIN_KEY`] on.
    keyed: Box<[AtomicU64]>,
}

/// The counts at the time of a scrape.
#[derive(Debug, PartialEq)]
pub(super) struct NativeSnapshot {
    pub(super) zero: u64,
    /// Key and count of the buckets that are not empty, in ascending order of the keys.
    pub(super) buckets: Vec<(i32, u64)>,
}

impl NativeCell {
    /// Returns a cell with observations that are known by the upper bounds of their buckets.
    pub(super) fn with(observed: impl Iterator<Item = (f64, u64)>) -> Self {
        let cell = Self {
            zero: AtomicU64::new(0),
            keyed: (0..KEYED).map(|_| AtomicU64::new(0)).collect(),
        };
        for (bound, count) in observed {
            cell.add(bound, count);
        }
        cell
    }

    pub(super) fn observe(&self, value: f64) {
        self.add(value, 1);
    }

    fn add(&self, value: f64, count: u64) {
        let bucket = match index(value) {
            Some(index) => &self.keyed[index],
            None => &self.zero,
        };
        bucket.fetch_add(count, Relaxed);
    }

    pub(super) fn snapshot(&self) -> NativeSnapshot {
        let counts = self.keyed.iter().map(|count| count.load(Relaxed));
        NativeSnapshot {
            zero: self.zero.load(Relaxed),
            buckets: (MIN_KEY..)
                .zip(counts)
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }
}

impl NativeSnapshot {
    pub(super) fn count(&self) -> u64 {
        self.zero + self.buckets.iter().map(|(_, count)| count).sum::<u64>()
    }
}

/// Returns the place of the bucket whose bounds enclose the value, including the upper one. `None`
/// means the bucket of zero. A NaN is in the last bucket, as it is in the fixed bucket of `+Inf`.
fn index(value: f64) -> Option<usize> {
    if value <= ZERO_THRESHOLD {
        return None;
    }
    // `frexp` of a normal number; any number above the threshold is normal. The fraction is within
    // 0.5 and 1, the exponent belongs to the next power of two.
    let bits = value.to_bits();
    let exponent = ((bits >> 52) & 0x7ff) as i32 - 1022;
    let fraction = f64::from_bits(bits & ((1 << 52) - 1) | 1022 << 52);
    let eighths = FRACTIONS.partition_point(|bound| *bound < fraction);
    let octaves = usize::try_from(exponent - 1 - MIN_EXPONENT).unwrap_or_default();
    // The key of the threshold itself is one below the first.
    Some((octaves * PER_OCTAVE + eighths - 1).min(KEYED - 1))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Returns the bounds of the bucket that has the value.
    fn bounds(value: f64) -> (f64, f64) {
        let cell = NativeCell::with(std::iter::empty());
        cell.observe(value);
        match cell.snapshot().buckets[..] {
            [] => (0.0, ZERO_THRESHOLD),
            [(key, 1)] => {
                let bound = |key: i32| 2_f64.powf(f64::from(key) / 8.0);
                (bound(key - 1), bound(key))
            }
            ref other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_value_is_within_the_bounds_of_its_bucket() {
        let mut value = ZERO_THRESHOLD * 1.000_1;
        while value < 2_f64.powi(MAX_EXPONENT) {
            let (lower, upper) = bounds(value);
            assert!(lower < value && value <= upper, "{lower} {value} {upper}");
            assert!((upper / lower - 1.0) < 0.091, "{lower} {upper}");
            value *= 1.003;
        }
    }

    #[test]
    fn upper_bound_belongs_to_its_bucket() {
        for exponent in MIN_EXPONENT + 1..=MAX_EXPONENT {
            let power = 2_f64.powi(exponent);
            assert_eq!(bounds(power).1, power);
            assert!(bounds(power * 1.000_001).0 >= power);
        }
        for (eighths, fraction) in (-8..0).zip(FRACTIONS) {
            let power = 2_f64.powf(f64::from(eighths) / 8.0);
            assert!((fraction - power).abs() < f64::EPSILON, "{eighths}");
            assert!((bounds(fraction).1 - power).abs() < f64::EPSILON);
        }
    }

    #[test]
    fn values_outside_of_the_range_are_in_the_first_and_last_bucket() {
        for zero in [0.0, -0.0, -1.0, f64::MIN_POSITIVE, 1e-310, ZERO_THRESHOLD] {
            assert_eq!(bounds(zero).0, 0.0, "{zero}");
        }
        let largest = 2_f64.powi(MAX_EXPONENT);
        for above in [largest * 1.01, f64::MAX, f64::INFINITY, f64::NAN, -f64::NAN] {
            assert_eq!(bounds(above).0, largest, "{above}");
        }
    }
}
