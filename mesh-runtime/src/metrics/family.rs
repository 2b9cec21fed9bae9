//! A family: one metric name and all its series, with the rule of when a series ends.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::cell::{Counter, Gauge, Histogram, HistogramCell};
use super::exemplar::Exemplars;
use super::labels::{Labels, Origin};
use super::snapshot::{Buckets, FamilySnapshot, Samples};
use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicI64, AtomicU64};

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
    exemplars: Exemplars,
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
    /// A series remains for this time without a handle.
    retain: Duration,
    // Locked to resolve a handle and to scrape; never while a value changes.
    map: Mutex<Map<C>>,
}

#[derive(Debug)]
struct Map<C> {
    series: BTreeMap<Labels, Series<C>>,
    /// The map is swept at this size, so that a process that is never scraped does not accumulate
    /// unused series.
    sweep_at: usize,
    /// Sets of values that series have, by [`Origin`]: at most [`MAX_OUTSIDE`] and
    /// [`MAX_IDENTITIES`].
    admitted: [BTreeSet<Vec<Arc<str>>>; Origin::ALL.len()],
    swept_at: Instant,
}

#[derive(Debug)]
struct Series<C> {
    cell: Arc<C>,
    /// The time when a sweep first found that no handle is left.
    orphaned_at: Option<Instant>,
}

/// Maximum number of different outside values (names, ports, authorities) that the series of one
/// family have; further ones are counted under [`super::labels::OTHER`]. Honest clients of one pod
/// use a handful. A family that is full of them takes about 100 KiB, and as much of a scrape.
pub const MAX_OUTSIDE: usize = 256;

/// Maximum number of different identities of peers that the series of one family have; further ones
/// are counted under [`super::labels::OTHER`]. A family of counters that is full of them takes
/// 300 KiB. A service that more workloads call is not known, and a user who may create
/// ServiceAccounts has any number of identities.
pub const MAX_IDENTITIES: usize = 1024;

/// A full family checks at this interval whether series can be removed.
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
                .resolve(labels, || HistogramCell::new(self.buckets, self.exemplars)),
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
        exemplars: Exemplars,
        retain: Duration,
    ) -> Self {
        Self::Histogram(HistogramFamily {
            series: Arc::new(SeriesMap::new(name, help, retain)),
            buckets,
            exemplars,
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
    pub(super) fn collect(&self, now: Instant, buckets: Buckets) -> FamilySnapshot {
        let histogram = match buckets {
            Buckets::Fixed => HistogramCell::snapshot,
            Buckets::FixedAndExponential => HistogramCell::snapshot_with_native,
        };
        match self {
            Self::Counter(family) => family.series.snapshot(|series| {
                Samples::Counters(series.collect(now, |cell| cell.load(Relaxed) as f64))
            }),
            Self::Gauge(family) => family.series.snapshot(|series| {
                Samples::Gauges(series.collect(now, |cell| cell.load(Relaxed) as f64))
            }),
            Self::Histogram(family) => family
                .series
                .snapshot(|series| Samples::Histograms(series.collect(now, histogram))),
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
                admitted: Default::default(),
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

    fn snapshot(&self, samples: impl FnOnce(&Self) -> Samples) -> FamilySnapshot {
        FamilySnapshot {
            name: self.name,
            help: self.help,
            samples: samples(self),
        }
    }

    fn collect<V>(&self, now: Instant, value: impl Fn(&C) -> V) -> Vec<(Labels, V)> {
        let mut map = self.map.lock();
        map.sweep(now, self.retain);
        let series = map.series.iter();
        series
            .map(|(labels, series)| (labels.clone(), value(&series.cell)))
            .collect()
    }
}

impl<C> Map<C> {
    fn find(&mut self, labels: &Labels) -> Option<Arc<C>> {
        let series = self.series.get_mut(labels)?;
        series.orphaned_at = None;
        Some(series.cell.clone())
    }

    /// Returns the labels of a new series: without its values of an origin when the family has too
    /// many of it.
    fn admit<'a>(&mut self, labels: &'a Labels, retain: Duration) -> Cow<'a, Labels> {
        let mut labels = Cow::Borrowed(labels);
        for origin in Origin::ALL {
            if !self.admits(&labels, origin, retain) {
                labels = Cow::Owned(labels.without_values_of(origin));
            }
        }
        labels
    }

    fn admits(&mut self, labels: &Labels, origin: Origin, retain: Duration) -> bool {
        let values = labels.values_of(origin);
        if values.is_empty() || self.admitted[origin as usize].contains(&values) {
            return true;
        }
        let limit = match origin {
            Origin::Outside => MAX_OUTSIDE,
            Origin::Identity => MAX_IDENTITIES,
        };
        let is_full = |map: &Self| map.admitted[origin as usize].len() >= limit;
        let now = Instant::now();
        if is_full(self) && now.duration_since(self.swept_at) >= SWEEP_FULL {
            self.sweep(now, retain);
        }
        if is_full(self) {
            return false;
        }
        self.admitted[origin as usize].insert(values);
        true
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
        for origin in Origin::ALL {
            let admitted = &mut self.admitted[origin as usize];
            if !admitted.is_empty() {
                let series = self.series.keys();
                *admitted = series.map(|labels| labels.values_of(origin)).collect();
                admitted.remove(&Vec::new());
            }
        }
    }
}
