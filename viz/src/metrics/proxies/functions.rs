//! The functions of Prometheus: `increase`, `irate` and `histogram_quantile`.

/// A value of a series, and when it was scraped, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) time: f64,
    pub(super) value: f64,
}

/// The upper bound of a bucket, and the number of observations up to it.
pub(super) type Bucket = (f64, f64);

/// Samples are extrapolated to an end of a window that is at most this number of sample intervals
/// away.
const EXTRAPOLATION: f64 = 1.1;

/// Returns the increase of a counter from `start` to `end`. `points` are the samples; with fewer
/// than two the result is `None`. A decrease is a restart from zero. The increase between the first
/// and the last sample is extrapolated to the whole window, or by half a sample interval if the
/// series begins or ends within it, but not below zero.
pub(super) fn increase(
    mut points: impl Iterator<Item = Point>,
    start: f64,
    end: f64,
) -> Option<f64> {
    let first = points.next()?;
    let (mut last, mut intervals, mut resets) = (first, 0.0, 0.0);
    for point in points {
        if point.value < last.value {
            resets += last.value;
        }
        last = point;
        intervals += 1.0;
    }
    let sampled = last.time - first.time;
    if intervals < 1.0 || sampled <= 0.0 {
        return None;
    }
    let increase = last.value - first.value + resets;
    let interval = sampled / intervals;
    let extrapolated = |gap: f64| {
        if gap < interval * EXTRAPOLATION {
            gap
        } else {
            interval / 2.0
        }
    };
    let mut before = extrapolated(first.time - start);
    if increase > 0.0 && first.value >= 0.0 {
        let from_zero = sampled * (first.value / increase);
        before = before.min(from_zero);
    }
    let after = extrapolated(end - last.time);
    Some(increase * (sampled + before + after) / sampled)
}

/// Returns the increase per second between the last two samples; `None` with fewer.
pub(super) fn instant_rate(points: impl DoubleEndedIterator<Item = Point>) -> Option<f64> {
    let mut latest = points.rev();
    let (last, previous) = (latest.next()?, latest.next()?);
    let elapsed = last.time - previous.time;
    let increase = if last.value < previous.value {
        last.value
    } else {
        last.value - previous.value
    };
    (elapsed > 0.0).then(|| increase / elapsed)
}

/// Returns a quantile of the observations, interpolated within its bucket; not a number without
/// observations, or without a bucket for all of them. Several numbers of one bound are added.
pub(super) fn quantile(quantile: f64, mut buckets: Vec<Bucket>) -> f64 {
    buckets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    buckets.dedup_by(|(bound, count), (kept, sum)| {
        let is_same = bound == kept;
        if is_same {
            *sum += *count;
        }
        is_same
    });
    // Scrapes of several proxies are not of the same moment.
    let mut highest = 0.0_f64;
    for (_, count) in &mut buckets {
        highest = highest.max(*count);
        *count = highest;
    }
    let Some(((last_bound, total), finite)) = buckets.split_last() else {
        return f64::NAN;
    };
    let Some((highest_finite, _)) = finite.last() else {
        return f64::NAN;
    };
    if *last_bound != f64::INFINITY || *total == 0.0 {
        return f64::NAN;
    }
    let rank = quantile * total;
    let Some(at) = finite.iter().position(|(_, count)| *count >= rank) else {
        return *highest_finite;
    };
    let (bound, count) = finite[at];
    if at == 0 && bound <= 0.0 {
        return bound;
    }
    let (low, below) = match at {
        0 => (0.0, 0.0),
        at => finite[at - 1],
    };
    low + (bound - low) * (rank - below) / (count - below)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(values: &[(f64, f64)]) -> Vec<Point> {
        let point = |(time, value): &(f64, f64)| Point {
            time: *time,
            value: *value,
        };
        values.iter().map(point).collect()
    }

    fn is_close(a: Option<f64>, b: Option<f64>) -> bool {
        match (a, b) {
            (Some(a), Some(b)) => (a - b).abs() < 1e-9,
            (a, b) => a == b,
        }
    }

    /// The expected values are promtool's for the same series.
    #[test]
    fn increase_is_that_of_prometheus() {
        type Case<'a> = (&'a str, &'a [(f64, f64)], Option<f64>);
        let table: [Case<'_>; 7] = [
            ("no samples", &[], None),
            ("one sample", &[(10.0, 5.0)], None),
            (
                "ends within a sample interval are extrapolated",
                &[(5.0, 100.0), (25.0, 120.0), (45.0, 140.0)],
                Some(60.0),
            ),
            (
                "a series that begins within the window, by half an interval",
                &[(40.0, 100.0), (50.0, 110.0), (60.0, 120.0)],
                Some(25.0),
            ),
            (
                "but not below zero",
                &[(40.0, 2.0), (50.0, 12.0), (60.0, 22.0)],
                Some(22.0),
            ),
            (
                "a restart counts from zero",
                &[(5.0, 100.0), (25.0, 120.0), (45.0, 10.0), (60.0, 30.0)],
                Some(50.0 * 60.0 / 55.0),
            ),
            (
                "a series that ended, by half an interval",
                &[(5.0, 100.0), (15.0, 110.0), (25.0, 120.0)],
                Some(30.0),
            ),
        ];
        for (case, values, expected) in table {
            let found = increase(points(values).into_iter(), 0.0, 60.0);
            assert!(is_close(found, expected), "{case}: {found:?}");
        }
    }

    #[test]
    fn instant_rate_is_between_the_last_two_samples() {
        type Case<'a> = (&'a [(f64, f64)], Option<f64>);
        let table: [Case<'_>; 4] = [
            (&[(0.0, 1.0)], None),
            (&[(0.0, 0.0), (10.0, 90.0), (15.0, 100.0)], Some(2.0)),
            (&[(0.0, 100.0), (10.0, 30.0)], Some(3.0)),
            (&[(10.0, 1.0), (10.0, 2.0)], None),
        ];
        for (values, expected) in table {
            let found = instant_rate(points(values).into_iter());
            assert!(is_close(found, expected), "{values:?}: {found:?}");
        }
    }

    #[test]
    fn quantile_is_that_of_prometheus() {
        let all = [
            (1.0, 0.0),
            (10.0, 90.0),
            (50.0, 100.0),
            (f64::INFINITY, 100.0),
        ];
        let slow = [(1.0, 10.0), (f64::INFINITY, 100.0)];
        let negative = [(-1.0, 10.0), (1.0, 10.0), (f64::INFINITY, 10.0)];
        let unordered = [(f64::INFINITY, 4.0), (2.0, 4.0), (1.0, 1.0), (1.0, 1.0)];
        let uneven = [(1.0, 10.0), (2.0, 9.0), (f64::INFINITY, 9.0)];
        for (wanted, buckets, expected) in [
            (0.5, &all[..], 6.0),
            (0.95, &all, 30.0),
            (0.99, &slow, 1.0),
            (0.5, &negative, -1.0),
            (0.75, &unordered, 1.5),
            (0.5, &uneven, 0.5),
        ] {
            let found = quantile(wanted, buckets.to_vec());
            assert!((found - expected).abs() < 1e-9, "{buckets:?}: {found}");
        }
        for without in [
            &[][..],
            &[(f64::INFINITY, 1.0)],
            &[(1.0, 1.0), (2.0, 2.0)],
            &[(1.0, 0.0), (f64::INFINITY, 0.0)],
        ] {
            assert!(quantile(0.5, without.to_vec()).is_nan(), "{without:?}");
        }
    }
}
