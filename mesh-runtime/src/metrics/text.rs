//! Prometheus' text format, version 0.0.4, by the encoder of the prometheus crate.

use prometheus::proto::{self, MetricType};
use prometheus::{Encoder as _, TextEncoder};

use super::cell::HistogramSnapshot;
use super::labels::Labels;
use super::snapshot::{FamilySnapshot, Samples};

/// Encodes the families in their order, followed by `# EOF` as in Linkerd's proxy. Families without
/// samples are omitted including help and type, as there.
pub(super) fn encode(families: impl Iterator<Item = FamilySnapshot>) -> Vec<u8> {
    let encoder = TextEncoder::new();
    let mut text = Vec::new();
    for family in families.filter(|family| !family.samples.is_empty()) {
        if let Err(error) = encoder.encode(&[to_proto(&family)], &mut text) {
            tracing::error!(family = family.name, %error, "Failed to encode metrics");
        }
    }
    text.extend_from_slice(b"# EOF\n");
    text
}

fn to_proto(family: &FamilySnapshot) -> proto::MetricFamily {
    let (kind, metrics) = match &family.samples {
        Samples::Counters(samples) => (MetricType::COUNTER, metrics(samples, set_counter)),
        Samples::Gauges(samples) => (MetricType::GAUGE, metrics(samples, set_gauge)),
        Samples::Histograms(samples) => (MetricType::HISTOGRAM, metrics(samples, set_histogram)),
    };
    let mut encoded = proto::MetricFamily::default();
    encoded.set_name(family.name.to_owned());
    encoded.set_help(family.help.to_owned());
    encoded.set_field_type(kind);
    encoded.set_metric(metrics);
    encoded
}

fn metrics<V>(samples: &[(Labels, V)], set: fn(&mut proto::Metric, &V)) -> Vec<proto::Metric> {
    let metric = |(labels, value): &(Labels, V)| {
        let mut metric = proto::Metric::from_label(label_pairs(labels));
        set(&mut metric, value);
        metric
    };
    samples.iter().map(metric).collect()
}

fn label_pairs(labels: &Labels) -> Vec<proto::LabelPair> {
    labels
        .iter()
        .map(|(name, value)| {
            let mut pair = proto::LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value.to_owned());
            pair
        })
        .collect()
}

fn set_counter(metric: &mut proto::Metric, value: &f64) {
    let mut counter = proto::Counter::default();
    counter.set_value(*value);
    metric.set_counter(counter);
}

fn set_gauge(metric: &mut proto::Metric, value: &f64) {
    let mut gauge = proto::Gauge::default();
    gauge.set_value(*value);
    metric.set_gauge(gauge);
}

fn set_histogram(metric: &mut proto::Metric, snapshot: &HistogramSnapshot) {
    let mut histogram = proto::Histogram::default();
    histogram.set_sample_count(snapshot.count);
    histogram.set_sample_sum(snapshot.sum);
    let bucket = |(bound, count): &(f64, u64)| {
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(*bound);
        bucket.set_cumulative_count(*count);
        bucket
    };
    histogram.set_bucket(snapshot.buckets.iter().map(bucket).collect());
    metric.set_histogram(histogram);
}
