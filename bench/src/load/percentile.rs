//! Percentiles of measured values.

/// Returns the smallest value that this share of the sorted values does not exceed.
pub(super) fn percentile<T: Copy>(sorted: &[T], share: f64) -> Option<T> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_an_observed_value() {
        let hundred: Vec<u32> = (1..=100).collect();
        for (share, expected) in [(0.5, 50), (0.99, 99), (0.999, 100), (0.001, 1)] {
            assert_eq!(percentile(&hundred, share), Some(expected), "{share}");
        }
        assert_eq!(percentile(&[7], 0.5), Some(7));
        assert_eq!(percentile::<u32>(&[], 0.5), None);
    }
}
