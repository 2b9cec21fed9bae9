//! The samples of the last minutes, and the results of queries for them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};

use mesh_cluster::prometheus::Sample;
use mesh_core::exposition::{self, Line};
use mesh_objects::model::Name;

use super::super::query::{Family, Function, Grouping, Query};
use super::functions::{self, Bucket, Point};
use super::select::Selector;
use super::target::Target;
use super::{INTERVAL, MAX_PROXY_SERIES, MAX_SERIES, MAX_SERIES_TEXT, RETENTION};

/// The series of all proxies.
#[derive(Debug, Default)]
pub(super) struct Store {
    proxies: BTreeMap<Name, ProxySeries>,
    /// The number of series.
    len: usize,
}

#[derive(Debug, Default)]
struct ProxySeries {
    /// The labels of the target.
    labels: BTreeMap<String, String>,
    /// By the text of name and labels, which a proxy does not change.
    series: HashMap<Box<str>, Series>,
    /// The time of the last scrape, unless it failed: then the proxy has no current values.
    current: Option<f64>,
}

#[derive(Debug)]
struct Series {
    family: Family,
    labels: BTreeMap<String, String>,
    /// Sorted by time.
    points: VecDeque<Point>,
}

/// A series that a query is about.
#[derive(Clone, Copy)]
struct Selected<'a> {
    proxy: &'a ProxySeries,
    series: &'a Series,
}

/// The values of the labels of a grouping.
type Key<'a> = Vec<&'a str>;

/// The samples of a series, one for each scrape.
const MAX_POINTS: usize = (RETENTION.as_secs() / INTERVAL.as_secs()) as usize + 1;

impl Store {
    /// Adds the samples of a scrape at `time`, in seconds. Returns how many series had no room.
    pub(super) fn record(&mut self, target: &Target, time: f64, text: &str) -> usize {
        let proxy = self.proxies.entry(target.pod.clone()).or_default();
        proxy.labels.clone_from(&target.labels);
        proxy.current = Some(time);
        let mut dropped = 0;
        for line in exposition::lines(text) {
            let Some(family) = family(line) else {
                continue;
            };
            let point = Point {
                time,
                value: line.value,
            };
            if let Some(series) = proxy.series.get_mut(line.series) {
                series.push(point);
                continue;
            }
            let has_room = proxy.series.len() < MAX_PROXY_SERIES
                && self.len < MAX_SERIES
                && line.series.len() <= MAX_SERIES_TEXT;
            match line.labels() {
                Some(labels) if has_room => {
                    let series = Series {
                        family,
                        labels,
                        points: [point].into(),
                    };
                    proxy.series.insert(line.series.into(), series);
                    self.len += 1;
                }
                _ => dropped += 1,
            }
        }
        dropped
    }

    /// Records that a proxy could not be scraped.
    pub(super) fn record_failure(&mut self, pod: &Name) {
        if let Some(proxy) = self.proxies.get_mut(pod) {
            proxy.current = None;
        }
    }

    /// Removes samples that are too old at `now`, and the current values of pods that are not
    /// listed.
    pub(super) fn expire(&mut self, now: f64, is_listed: impl Fn(&Name) -> bool) {
        let oldest = now - RETENTION.as_secs_f64();
        self.proxies.retain(|pod, proxy| {
            if !is_listed(pod) {
                proxy.current = None;
            }
            proxy.series.retain(|_, series| {
                let is_recent = series.points.back().is_some_and(|last| last.time > oldest);
                while series
                    .points
                    .front()
                    .is_some_and(|first| first.time <= oldest)
                {
                    series.points.pop_front();
                }
                is_recent
            });
            !proxy.series.is_empty()
        });
        self.len = self.proxies.values().map(|it| it.series.len()).sum();
    }

    /// Returns the number of series.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Evaluates a query at `now`.
    pub(super) fn query(&self, query: &Query, now: f64) -> Result<Vec<Sample>, regex::Error> {
        let selector = Selector::new(&query.matchers)?;
        let selected = self.select(query.family, &selector);
        let values: Vec<(Key<'_>, f64)> = match &query.function {
            Function::Sum => group(query, selected.filter_map(Selected::current), add),
            Function::Max => group(
                query,
                selected.filter_map(Selected::current),
                |highest, value| *highest = highest.max(value),
            ),
            Function::Increase(window) => {
                let start = now - window.duration().as_secs_f64();
                let increases = selected.filter_map(|it| {
                    let increase = functions::increase(it.points(start, now), start, now);
                    Some((it, increase?))
                });
                group(query, increases, add)
            }
            Function::Quantile(quantile, window) => {
                let start = now - window.duration().as_secs_f64();
                let rates = selected.filter_map(|it| {
                    let rate = functions::instant_rate(it.points(start, now))?;
                    let bound = it.label("le").parse().ok()?;
                    Some((it, vec![(bound, rate)]))
                });
                let buckets = group(query, rates, |all: &mut Vec<Bucket>, more| all.extend(more));
                let quantiles = buckets
                    .into_iter()
                    .map(|(key, buckets)| (key, functions::quantile(quantile.value(), buckets)));
                quantiles.collect()
            }
        };
        let samples = values.into_iter().map(|(key, value)| Sample {
            labels: labels(query, &key),
            time: now,
            value,
        });
        Ok(samples.collect())
    }

    fn select<'a>(
        &'a self,
        family: Family,
        selector: &'a Selector<'a>,
    ) -> impl Iterator<Item = Selected<'a>> {
        self.proxies.values().flat_map(move |proxy| {
            let series = proxy.series.values();
            let series = series.filter(move |series| series.family == family);
            series
                .map(move |series| Selected { proxy, series })
                .filter(move |selected| selector.matches(|name| selected.label(name)))
        })
    }
}

impl Series {
    fn push(&mut self, point: Point) {
        if self.points.len() == MAX_POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }
}

impl<'a> Selected<'a> {
    /// Returns the value of a label; empty if it is absent. The target's labels take precedence.
    fn label(self, name: &str) -> &'a str {
        let label = self.proxy.labels.get(name);
        let label = label.or_else(|| self.series.labels.get(name));
        label.map_or("", String::as_str)
    }

    /// Returns the value of the last scrape, if it had one.
    fn current(self) -> Option<(Self, f64)> {
        let last = self.series.points.back()?;
        (self.proxy.current == Some(last.time)).then_some((self, last.value))
    }

    /// Returns the samples after `start`.
    fn points(self, start: f64, end: f64) -> impl DoubleEndedIterator<Item = Point> {
        let points = self.series.points.iter().copied();
        points.filter(move |point| point.time > start && point.time <= end)
    }
}

/// Returns the family of a sample, if queries are about it.
fn family(line: Line<'_>) -> Option<Family> {
    let name = line.name();
    let mut all = Family::ALL.into_iter();
    all.find(|family| family.as_str() == name)
}

/// Combines the values of each group.
fn group<'a, T>(
    query: &Query,
    values: impl Iterator<Item = (Selected<'a>, T)>,
    combine: impl Fn(&mut T, T),
) -> Vec<(Key<'a>, T)> {
    let mut groups: BTreeMap<Key<'a>, T> = BTreeMap::new();
    for (selected, value) in values {
        let Grouping(by) = &query.by;
        let key: Key<'a> = by.iter().map(|label| selected.label(label)).collect();
        match groups.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(value);
            }
            Entry::Occupied(mut entry) => combine(entry.get_mut(), value),
        }
    }
    groups.into_iter().collect()
}

fn add(sum: &mut f64, value: f64) {
    *sum += value;
}

/// Returns the labels of a group. An empty label is a missing one.
fn labels(query: &Query, key: &Key<'_>) -> BTreeMap<String, String> {
    let Grouping(by) = &query.by;
    by.iter()
        .zip(key)
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (name.clone(), (*value).to_owned()))
        .collect()
}

#[cfg(test)]
mod tests;
