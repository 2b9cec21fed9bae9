//! A family: one metric name and all its series, with the rule of when a series ends.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::proto;
use tokio::time::Instant;

use super::cell::{Counter, Gauge, Histogram, HistogramCell};
use super::labels::Labels;

/// Counters of one name.
#[derive(Clone, Debug)]
pub struct CounterFamily {
    series: Arc<SeriesMap<AtomicU64>>,
}

/// Gauges of one name.
#[derive(Clone, Debug)]
pub struct GaugeFamily {
    series: Arc<SeriesMap<AtomicI64>>,
}

/// Histograms of one name and one set of buckets.
#[derive(Clone, Debug)]
pub struct HistogramFamily {
    series: Arc<SeriesMap<HistogramCell>>,
    buckets: &'static [f64],
}

/// A family of any kind.
#[derive(Clone, Debug)]
pub(super) enum Family {
    Counter(CounterFamily),
    Gauge(GaugeFamily),
    Histogram(HistogramFamily),
}

#[derive(Debug)]
struct SeriesMap<C> {
    name: &'static str,
    help: &'static str,
    /// Time for which a series remains without a handle.
    retain: Duration,
    // Locked to resolve a handle and to scrape; never while a value changes.
    map: Mutex<Map<C>>,
}

#[derive(Debug)]
struct Map<C> {
    series: BTreeMap<Labels, Series<C>>,
    /// The size at which the map is swept, so that a process that is never scraped does not
    /// accumulate unused series.
    sweep_at: usize,
    /// Sets of outside values that series have, at most [`MAX_OUTSIDE`].
    outside: BTreeSet<Vec<Arc<str>>>,
    swept_at: Instant,
}

#[derive(Debug)]
struct Series<C> {
    cell: Arc<C>,
    /// The time at which a sweep first found that no handle is left.
    orphaned_at: Option<Instant>,
}

/// Maximum number of different outside values (names, ports, authorities) that the series of one
/// family have; further ones are counted under [`super::labels::OTHER`]. Honest clients of one pod
/// use a handful. A family that is full of them takes about 100 KiB, and as much of a scrape.
pub const MAX_OUTSIDE: usize = 256;

/// Interval at which a full family checks whether series can be removed.
const SWEEP_FULL: Duration = Duration::from_secs(10);

/// Families below this size are only swept by scrapes.
const MIN_SWEEP: usize = 256;

impl CounterFamily {
    /// Returns the counter with these labels, whose handle should be kept.
    pub fn with(&self, labels: &Labels) -> Counter {
        Counter {
            cell: self.series.resolve(labels, AtomicU64::default),
        }
    }
}

impl GaugeFamily {
    /// Returns the gauge with these labels. The series ends with the last handle.
    pub fn with(&self, labels: &Labels) -> Gauge {
        Gauge {
            cell: self.series.resolve(labels, AtomicI64::default),
        }
    }
}

impl HistogramFamily {
    /// Returns the histogram with these labels, whose handle should be kept.
    pub fn with(&self, labels: &Labels) -> Histogram {
        Histogram {
            cell: self
                .series
                .resolve(labels, || HistogramCell::new(self.buckets)),
        }
    }
}

impl Family {
    pub(super) fn counter(name: &'static str, help: &'static str, retain: Duration) -> Self {
        Self::Counter(CounterFamily {
            series: Arc::new(SeriesMap::new(name, help, retain)),
        })
    }

    pub(super) fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::Gauge(GaugeFamily {
            series: Arc::new(SeriesMap::new(name, help, Duration::ZERO)),
        })
    }

    pub(super) fn histogram(
        name: &'static str,
        help: &'static str,
        buckets: &'static [f64],
        retain: Duration,
    ) -> Self {
        Self::Histogram(HistogramFamily {
            series: Arc::new(SeriesMap::new(name, help, retain)),
            buckets,
        })
    }

    pub(super) fn as_counter(&self) -> CounterFamily {
        match self {
            Self::Counter(family) => family.clone(),
            other => other.refuse(),
        }
    }

    pub(super) fn as_gauge(&self) -> GaugeFamily {
        match self {
            Self::Gauge(family) => family.clone(),
            other => other.refuse(),
        }
    }

    pub(super) fn as_histogram(&self) -> HistogramFamily {
        match self {
            Self::Histogram(family) => family.clone(),
            other => other.refuse(),
        }
    }

    fn refuse(&self) -> ! {
        let (name, kind) = match self {
            Self::Counter(family) => (family.series.name, "counter"),
            Self::Gauge(family) => (family.series.name, "gauge"),
            Self::Histogram(family) => (family.series.name, "histogram"),
        };
        panic!("{name} is already a {kind}")
    }

    /// Removes the expired series and returns the others.
    pub(super) fn collect(&self, now: Instant) -> proto::MetricFamily {
        use proto::MetricType::{COUNTER, GAUGE, HISTOGRAM};
        match self {
            Self::Counter(family) => family.series.collect(now, COUNTER, |cell, metric| {
                metric.set_counter(counter_value(cell.load(Relaxed) as f64));
            }),
            Self::Gauge(family) => family.series.collect(now, GAUGE, |cell, metric| {
                metric.set_gauge(gauge_value(cell.load(Relaxed) as f64));
            }),
            Self::Histogram(family) => family.series.collect(now, HISTOGRAM, |cell, metric| {
                metric.set_histogram(histogram_value(cell));
            }),
        }
    }
}

impl<C> SeriesMap<C> {
    fn new(name: &'static str, help: &'static str, retain: Duration) -> Self {
        Self {
            name,
            help,
            retain,
            map: Mutex::new(Map {
                series: BTreeMap::new(),
                sweep_at: MIN_SWEEP,
                outside: BTreeSet::new(),
                swept_at: Instant::now(),
            }),
        }
    }

    fn resolve(&self, labels: &Labels, make: impl FnOnce() -> C) -> Arc<C> {
        let mut map = self.map.lock();
        if let Some(cell) = map.find(labels) {
            return cell;
        }
        if map.series.len() >= map.sweep_at {
            map.sweep(Instant::now(), self.retain);
            map.sweep_at = (map.series.len() * 2).max(MIN_SWEEP);
        }
        let labels = map.admit(labels, self.retain);
        if let Some(cell) = map.find(&labels) {
            return cell;
        }
        let cell = Arc::new(make());
        let series = Series {
            cell: cell.clone(),
            orphaned_at: None,
        };
        map.series.insert(labels.into_owned(), series);
        cell
    }

    fn collect(
        &self,
        now: Instant,
        kind: proto::MetricType,
        fill: impl Fn(&C, &mut proto::Metric),
    ) -> proto::MetricFamily {
        let mut map = self.map.lock();
        map.sweep(now, self.retain);
        let metrics = map
            .series
            .iter()
            .map(|(labels, series)| {
                let mut metric = proto::Metric::from_label(labels.to_pairs());
                fill(&series.cell, &mut metric);
                metric
            })
            .collect();
        family_of(self.name, self.help, kind, metrics)
    }
}

impl<C> Map<C> {
    fn find(&mut self, labels: &Labels) -> Option<Arc<C>> {
        let series = self.series.get_mut(labels)?;
        series.orphaned_at = None;
        Some(series.cell.clone())
    }

    /// Returns the labels of a new series: without its outside values when the family has too many.
    fn admit<'a>(&mut self, labels: &'a Labels, retain: Duration) -> Cow<'a, Labels> {
        let values = labels.outside();
        if values.is_empty() || self.outside.contains(&values) {
            return Cow::Borrowed(labels);
        }
        let now = Instant::now();
        if self.outside.len() >= MAX_OUTSIDE && now.duration_since(self.swept_at) >= SWEEP_FULL {
            self.sweep(now, retain);
        }
        if self.outside.len() >= MAX_OUTSIDE {
            return Cow::Owned(labels.without_outside());
        }
        self.outside.insert(values);
        Cow::Borrowed(labels)
    }

    /// Only the map owns the cell of an orphaned series, and resolving it again takes the map's
    /// lock, which the caller holds: the reference count cannot rise concurrently.
    fn sweep(&mut self, now: Instant, retain: Duration) {
        self.series.retain(|_, series| {
            if Arc::strong_count(&series.cell) > 1 {
                series.orphaned_at = None;
                return true;
            }
            let since = *series.orphaned_at.get_or_insert(now);
            now.duration_since(since) < retain
        });
        self.swept_at = now;
        if !self.outside.is_empty() {
            self.outside = self.series.keys().map(Labels::outside).collect();
            self.outside.remove(&Vec::new());
        }
    }
}

/// Returns a counter that exists only in this scrape.
pub(super) fn computed_counter(
    name: &str,
    help: &str,
    labels: &Labels,
    value: f64,
) -> proto::MetricFamily {
    let mut metric = proto::Metric::from_label(labels.to_pairs());
    metric.set_counter(counter_value(value));
    family_of(name, help, proto::MetricType::COUNTER, vec![metric])
}

/// Returns a gauge that exists only in this scrape.
pub(super) fn computed_gauge(
    name: &str,
    help: &str,
    labels: &Labels,
    value: f64,
) -> proto::MetricFamily {
    let mut metric = proto::Metric::from_label(labels.to_pairs());
    metric.set_gauge(gauge_value(value));
    family_of(name, help, proto::MetricType::GAUGE, vec![metric])
}

fn family_of(
    name: &str,
    help: &str,
    kind: proto::MetricType,
    metrics: Vec<proto::Metric>,
) -> proto::MetricFamily {
    let mut family = proto::MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

fn counter_value(value: f64) -> proto::Counter {
    let mut counter = proto::Counter::default();
    counter.set_value(value);
    counter
}

fn gauge_value(value: f64) -> proto::Gauge {
    let mut gauge = proto::Gauge::default();
    gauge.set_value(value);
    gauge
}

fn histogram_value(cell: &HistogramCell) -> proto::Histogram {
    let snapshot = cell.snapshot();
    let mut histogram = proto::Histogram::default();
    histogram.set_sample_count(snapshot.count);
    histogram.set_sample_sum(snapshot.sum);
    let bucket = |(bound, count)| {
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(bound);
        bucket.set_cumulative_count(count);
        bucket
    };
    histogram.set_bucket(snapshot.buckets.into_iter().map(bucket).collect());
    histogram
}
