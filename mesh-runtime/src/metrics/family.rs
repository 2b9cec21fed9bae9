//! A family: one metric name and all its series. Owns the rule of when a series ends.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
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

/// Any family, as the registry keeps it.
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
    /// How long a series lives on without a handle.
    retain: Duration,
    // Taken to resolve a handle and to scrape; never while a value changes.
    map: Mutex<Map<C>>,
}

#[derive(Debug)]
struct Map<C> {
    series: BTreeMap<Labels, Series<C>>,
    /// Sweep when the map grows to this size, so that a process nobody scrapes does not collect
    /// dead series.
    sweep_at: usize,
    /// Values from outside that series have, at most [`MAX_OUTSIDE`] sets of them.
    outside: BTreeSet<Vec<Arc<str>>>,
    swept: Instant,
}

#[derive(Debug)]
struct Series<C> {
    cell: Arc<C>,
    /// When a sweep first found that no handle is left.
    orphaned: Option<Instant>,
}

/// How many different values from outside (names, ports, authorities) the series of one family
/// have; further ones are counted under [`super::labels::OTHER`]. Honest clients of one pod use a
/// handful. A family that is full of them takes about 100 KiB, and as much of a scrape.
pub const MAX_OUTSIDE: usize = 256;

/// A family that is full looks no more often than this whether there is room again.
const SWEEP_FULL: Duration = Duration::from_secs(10);

/// Families below this size are only swept by scrapes.
const MIN_SWEEP: usize = 256;

impl CounterFamily {
    /// The counter with these labels. Keep the handle.
    pub fn with(&self, labels: &Labels) -> Counter {
        Counter {
            cell: self.series.resolve(labels, AtomicU64::default),
        }
    }
}

impl GaugeFamily {
    /// The gauge with these labels. Keep the handle: the series ends with the last one.
    pub fn with(&self, labels: &Labels) -> Gauge {
        Gauge {
            cell: self.series.resolve(labels, AtomicI64::default),
        }
    }
}

impl HistogramFamily {
    /// The histogram with these labels. Keep the handle.
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
            other => panic!("{} is already a {}", other.name(), other.kind()),
        }
    }

    pub(super) fn as_gauge(&self) -> GaugeFamily {
        match self {
            Self::Gauge(family) => family.clone(),
            other => panic!("{} is already a {}", other.name(), other.kind()),
        }
    }

    pub(super) fn as_histogram(&self) -> HistogramFamily {
        match self {
            Self::Histogram(family) => family.clone(),
            other => panic!("{} is already a {}", other.name(), other.kind()),
        }
    }

    /// Ends the series whose time has come and returns the rest.
    pub(super) fn collect(&self, now: Instant) -> proto::MetricFamily {
        match self {
            Self::Counter(family) => {
                family
                    .series
                    .collect(now, proto::MetricType::COUNTER, |cell, metric| {
                        metric.set_counter(counter_value(cell.load(Relaxed) as f64));
                    })
            }
            Self::Gauge(family) => {
                family
                    .series
                    .collect(now, proto::MetricType::GAUGE, |cell, metric| {
                        metric.set_gauge(gauge_value(cell.load(Relaxed) as f64));
                    })
            }
            Self::Histogram(family) => {
                family
                    .series
                    .collect(now, proto::MetricType::HISTOGRAM, |cell, metric| {
                        metric.set_histogram(histogram_value(cell));
                    })
            }
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Counter(family) => family.series.name,
            Self::Gauge(family) => family.series.name,
            Self::Histogram(family) => family.series.name,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Counter(_) => "counter",
            Self::Gauge(_) => "gauge",
            Self::Histogram(_) => "histogram",
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
                swept: Instant::now(),
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
            orphaned: None,
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
        series.orphaned = None;
        Some(series.cell.clone())
    }

    /// The labels of a series that is about to be made: without its values from outside when the
    /// family has too many.
    fn admit<'a>(&mut self, labels: &'a Labels, retain: Duration) -> Cow<'a, Labels> {
        let values = labels.outside();
        if values.is_empty() || self.outside.contains(&values) {
            return Cow::Borrowed(labels);
        }
        let now = Instant::now();
        if self.outside.len() >= MAX_OUTSIDE && now.duration_since(self.swept) >= SWEEP_FULL {
            self.sweep(now, retain);
        }
        if self.outside.len() >= MAX_OUTSIDE {
            return Cow::Owned(labels.without_outside());
        }
        self.outside.insert(values);
        Cow::Borrowed(labels)
    }

    /// Only the map holds an orphan's cell, and handing it out again needs the map's lock, which
    /// the caller has: the count cannot rise behind our back.
    fn sweep(&mut self, now: Instant, retain: Duration) {
        self.series.retain(|_, series| {
            if Arc::strong_count(&series.cell) > 1 {
                series.orphaned = None;
                return true;
            }
            let since = *series.orphaned.get_or_insert(now);
            now.duration_since(since) < retain
        });
        self.swept = now;
        if !self.outside.is_empty() {
            self.outside = self.series.keys().map(Labels::outside).collect();
            self.outside.remove(&Vec::new());
        }
    }
}

/// A counter that exists only in this scrape.
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

/// A gauge that exists only in this scrape.
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
    histogram.set_bucket(
        snapshot
            .buckets
            .into_iter()
            .map(|(bound, count)| {
                let mut bucket = proto::Bucket::default();
                bucket.set_upper_bound(bound);
                bucket.set_cumulative_count(count);
                bucket
            })
            .collect(),
    );
    histogram
}
