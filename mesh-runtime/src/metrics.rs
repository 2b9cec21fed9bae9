//! Metrics: the only module that uses the metrics library.
//!
//! Four properties are implemented here and not in the library, because Linkerd's families require
//! them:
//!
//! * **Label sets differ within a family.** `request_total` has inbound samples (`srv_name`,
//!   `route_name`, …) and outbound samples (`dst_*` as the control plane sends them). A family here
//!   maps an ordered [`Labels`] to a cell, and prints each label set in order of insertion.
//! * **Handles.** Looking up a series takes a lock and string comparisons, so it happens once for
//!   each target. The handles that the request path keeps ([`Counter`], [`Gauge`], [`Histogram`])
//!   are pointers to atomics: a few nanoseconds, from any thread.
//! * **Series end.** A counter or histogram whose last handle was dropped remains for
//!   [`RETAIN_IDLE`], so that scrapers see its last value, and is then removed. A gauge describes
//!   something that exists and is removed with its last handle.
//! * **Clients do not determine the number of series.** A label whose value comes from outside is
//!   marked ([`Labels::push_outside`]), and a family has series for at most [`MAX_OUTSIDE`] such
//!   values at a time, and [`MAX_IDENTITIES`] identities ([`Labels::push_identity`]). The others
//!   are counted together, under [`OTHER`].
//!
//! There are three formats ([`Format`]): Prometheus' text format, by the library, OpenMetrics,
//! which adds exemplars, and Prometheus' protobuf format, which adds native histograms too.
//! Encoding takes milliseconds with thousands of series: do it on an admin or control thread, never
//! on one that serves traffic.

mod cell;
mod exemplar;
mod family;
mod labels;
mod native;
mod openmetrics;
mod process;
mod protobuf;
mod snapshot;
mod text;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

pub use self::cell::{Counter, Gauge, Histogram};
pub use self::exemplar::{Exemplar, Exemplars};
use self::family::Family;
pub use self::family::{CounterFamily, GaugeFamily, HistogramFamily, MAX_IDENTITIES, MAX_OUTSIDE};
pub use self::labels::{Labels, OTHER};
use self::snapshot::{Buckets, FamilySnapshot, Samples};

/// A series outlives its last handle by this time: Linkerd's `METRICS_RETAIN_IDLE` default.
pub const RETAIN_IDLE: Duration = Duration::from_secs(600);

/// Buckets of `response_latency_ms` and related histograms, as in Linkerd, because dashboards
/// depend on them.
pub const LATENCY_MS: &[f64] = &[
    1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 100.0, 200.0, 300.0, 400.0, 500.0,
    1_000.0, 2_000.0, 3_000.0, 4_000.0, 5_000.0, 10_000.0, 20_000.0, 30_000.0, 40_000.0, 50_000.0,
];

/// All metrics of one process. Clones share the same families.
#[derive(Clone, Debug)]
pub struct Registry {
    inner: Arc<Inner>,
}

/// A format of the exposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format, version 0.0.4.
    Text,
    /// OpenMetrics, version 1.0.0, with exemplars.
    OpenMetrics,
    /// Prometheus' protobuf format, with exemplars and native histograms.
    Protobuf,
}

/// Receives values that are computed while encoding; see [`Registry::on_scrape`].
#[derive(Debug, Default)]
pub struct Scrape {
    families: Vec<FamilySnapshot>,
}

struct Inner {
    retain: Duration,
    // Written when a family is first used (mostly at start-up), read by each scrape.
    families: Mutex<BTreeMap<&'static str, Family>>,
    scrapers: Mutex<Vec<Scraper>>,
}

type Scraper = Box<dyn Fn(&mut Scrape) + Send>;

impl Registry {
    pub fn new() -> Self {
        Self::with_retention(RETAIN_IDLE)
    }

    /// Returns a registry that retains series without handles for `retain`.
    pub fn with_retention(retain: Duration) -> Self {
        Self {
            inner: Arc::new(Inner {
                retain,
                families: Mutex::default(),
                scrapers: Mutex::default(),
            }),
        }
    }

    /// Returns the family of counters called `name`; later calls return the same family.
    pub fn counter_family(&self, name: &'static str, help: &'static str) -> CounterFamily {
        self.family(name, || Family::counter(name, help, self.inner.retain))
            .as_counter()
    }

    /// Returns the family of gauges called `name`; as [`Registry::counter_family`].
    pub fn gauge_family(&self, name: &'static str, help: &'static str) -> GaugeFamily {
        self.family(name, || Family::gauge(name, help)).as_gauge()
    }

    /// Returns the family of histograms called `name`; as [`Registry::counter_family`]. `buckets`
    /// are upper bounds in ascending order; `+Inf` is implied.
    pub fn histogram_family(
        &self,
        name: &'static str,
        help: &'static str,
        buckets: &'static [f64],
    ) -> HistogramFamily {
        self.histogram_family_with(name, help, buckets, Exemplars::Off)
    }

    /// As [`Registry::histogram_family`], for observations with exemplars
    /// ([`Histogram::observe_with`]).
    pub fn histogram_family_with(
        &self,
        name: &'static str,
        help: &'static str,
        buckets: &'static [f64],
        exemplars: Exemplars,
    ) -> HistogramFamily {
        self.family(name, || {
            Family::histogram(name, help, buckets, exemplars, self.inner.retain)
        })
        .as_histogram()
    }

    /// Exports a gauge that never changes, such as build information.
    pub fn constant_gauge(
        &self,
        name: &'static str,
        help: &'static str,
        labels: Labels,
        value: i64,
    ) {
        self.on_scrape(move |scrape| scrape.gauge(name, help, &labels, value as f64));
    }

    /// Adds values that are computed by each scrape, such as the values of the process.
    pub fn on_scrape(&self, scraper: impl Fn(&mut Scrape) + Send + 'static) {
        self.inner.scrapers.lock().push(Box::new(scraper));
    }

    /// Exports `process_*`, which Linkerd's dashboards use.
    pub fn export_process(&self) {
        let process = process::Process::new();
        self.on_scrape(move |scrape| process.collect(scrape));
    }

    /// Returns the exposition in Prometheus' text format.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_as(Format::Text)
    }

    /// Returns the exposition with the families in alphabetical order, those that are computed by
    /// the scrape after the others.
    pub fn encode_as(&self, format: Format) -> Vec<u8> {
        match format {
            Format::Text => text::encode(self.scrape(Buckets::Fixed)),
            Format::OpenMetrics => openmetrics::encode(self.scrape(Buckets::Fixed)),
            Format::Protobuf => protobuf::encode(self.scrape(Buckets::FixedAndExponential)),
        }
    }

    /// Collects one family after the other, so that the text format needs memory for one.
    fn scrape(&self, buckets: Buckets) -> impl Iterator<Item = FamilySnapshot> + use<> {
        let now = Instant::now();
        let families: Vec<Family> = self.inner.families.lock().values().cloned().collect();
        let mut computed = Scrape::default();
        for scraper in self.inner.scrapers.lock().iter() {
            scraper(&mut computed);
        }
        let known = families
            .into_iter()
            .map(move |family| family.collect(now, buckets));
        known.chain(computed.families)
    }

    fn family(&self, name: &'static str, make: impl FnOnce() -> Family) -> Family {
        self.inner
            .families
            .lock()
            .entry(name)
            .or_insert_with(make)
            .clone()
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Scrape {
    pub fn counter(&mut self, name: &'static str, help: &'static str, labels: &Labels, value: f64) {
        let samples = Samples::Counters(vec![(labels.clone(), value)]);
        self.push(name, help, samples);
    }

    pub fn gauge(&mut self, name: &'static str, help: &'static str, labels: &Labels, value: f64) {
        let samples = Samples::Gauges(vec![(labels.clone(), value)]);
        self.push(name, help, samples);
    }

    /// Adds samples to the family that has this name already: an exposition has each family once.
    fn push(&mut self, name: &'static str, help: &'static str, samples: Samples) {
        let mut families = self.families.iter_mut();
        let known = families.find(|family| family.name == name);
        match (known.map(|family| &mut family.samples), samples) {
            (Some(Samples::Counters(known)), Samples::Counters(mut more))
            | (Some(Samples::Gauges(known)), Samples::Gauges(mut more)) => known.append(&mut more),
            (None, samples) => self.families.push(FamilySnapshot {
                name,
                help,
                samples,
            }),
            (Some(_), _) => panic!("{name} is already a metric of another kind"),
        }
    }
}

impl Format {
    /// The value of `content-type`. The text format has no version, as in Linkerd's proxy.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("retain", &self.retain)
            .field("families", &self.families.lock().len())
            .finish()
    }
}

#[cfg(test)]
mod tests;
