//! The values of a scrape, between the families that have them and the encoders that write them.

use super::cell::HistogramSnapshot;
use super::labels::Labels;

/// The buckets that a scrape collects of histograms.
#[derive(Clone, Copy, Debug)]
pub(super) enum Buckets {
    Fixed,
    FixedAndExponential,
}

/// A family and its series at the time of a scrape.
#[derive(Debug)]
pub(super) struct FamilySnapshot {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) samples: Samples,
}

/// The series of a family, by its kind.
#[derive(Debug)]
pub(super) enum Samples {
    Counters(Vec<(Labels, f64)>),
    Gauges(Vec<(Labels, f64)>),
    Histograms(Vec<(Labels, HistogramSnapshot)>),
}

impl Samples {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Counters(samples) | Self::Gauges(samples) => samples.is_empty(),
            Self::Histograms(samples) => samples.is_empty(),
        }
    }
}
