//! Fail-over between localities: which endpoints of a Service a client uses, by how near they are
//! and how many of them are ready. The destination controller decides with it.

use std::fmt;
use std::str::FromStr;

use crate::units::list_items;

/// Where a client or an endpoint is. `None` is unknown, and is not shared with any other place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Locality<'a> {
    /// The name of the node.
    pub node: Option<&'a str>,
    /// The zone of the node.
    pub zone: Option<&'a str>,
    /// The region of the zone.
    pub region: Option<&'a str>,
    /// Whether it is in another cluster than the client.
    pub in_other_cluster: bool,
}

/// What an endpoint has in common with its client, the nearest level first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The node.
    Node,
    /// The zone.
    Zone,
    /// The region.
    Region,
    /// The cluster.
    Cluster,
}

/// How many endpoints of a level have to be ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// This number, at least one.
    Count(u16),
    /// This share of the level's endpoints, from 1 to 100, and at least one endpoint.
    Percent(u8),
}

/// A level that clients prefer, as long as enough of its endpoints are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The level.
    pub level: Level,
    /// When enough are ready.
    pub threshold: Threshold,
}

/// The levels that clients of a Service prefer, in order, such as `zone=50%, region, cluster`.
///
/// The conditions are dropped from left to right: an endpoint belongs to a step if it shares the
/// level of the step and of all later steps with the client. So each step has the endpoints of the
/// one before and more, and behind the last one are all endpoints. `cluster` is always a level, the
/// last one if it is not named: other clusters come after the own one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failover(Vec<Step>);

/// An endpoint, as far as it matters for the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed<'a> {
    /// Where it is.
    pub locality: Locality<'a>,
    /// Whether clients may use it.
    pub ready: bool,
}

/// The endpoints that a client uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The level whose endpoints are used; `None` for all endpoints.
    pub level: Option<Level>,
    /// Whether the client uses the endpoint, for each in order. None is used if none is ready.
    pub used: Vec<bool>,
}

/// Why a text is not a [`Failover`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FailoverError {
    /// The list is empty.
    #[error("has no level: expected node, zone, region or cluster, as in \"zone=50%, region\"")]
    Empty,
    /// An unknown level.
    #[error("{0:?} is not a level: expected node, zone, region or cluster")]
    Level(String),
    /// A threshold that is neither a number nor a percentage.
    #[error(
        "{0:?} is not a threshold: expected a number of ready endpoints from 1 to 65535, or a percentage from 1% to 100%"
    )]
    Threshold(String),
    /// A level that adds no endpoints to the levels before it.
    #[error(
        "{0} adds no endpoints where it is: expected node, zone and region in this order, each once, and cluster after node"
    )]
    Order(Level),
}

/// Characters of an invalid item that an error shows: an annotation can hold 256 KiB of them.
const MAX_SHOWN: usize = 64;

impl Failover {
    /// The levels of `trafficDistribution: PreferSameZone` and `PreferClose`.
    #[must_use]
    pub fn same_zone() -> Self {
        Self(vec![Step::new(Level::Zone), Step::new(Level::Cluster)])
    }

    /// The levels of `trafficDistribution: PreferSameNode`.
    #[must_use]
    pub fn same_node() -> Self {
        let Self(mut steps) = Self::same_zone();
        steps.insert(0, Step::new(Level::Node));
        Self(steps)
    }

    /// Whether one of the steps has this level.
    #[must_use]
    pub fn has(&self, level: Level) -> bool {
        self.0.iter().any(|step| step.level == level)
    }

    /// Returns the endpoints that a client uses: the ready ones of the first step that has enough.
    #[must_use]
    pub fn choose(&self, client: Locality<'_>, endpoints: &[Placed<'_>]) -> Choice {
        let distances: Vec<usize> = endpoints
            .iter()
            .map(|endpoint| self.distance(client, endpoint.locality))
            .collect();
        let is_enough = |at: usize, step: &Step| {
            let of_step = || distances.iter().zip(endpoints).filter(|(to, _)| **to <= at);
            let ready = of_step().filter(|(_, endpoint)| endpoint.ready).count();
            step.threshold.is_reached(ready, of_step().count())
        };
        let mut steps = self.0.iter().enumerate();
        let found = steps.find(|(at, step)| is_enough(*at, step));
        let reach = found.map_or(self.0.len(), |(at, _)| at);
        Choice {
            level: found.map(|(_, step)| step.level),
            used: distances
                .iter()
                .zip(endpoints)
                .map(|(distance, endpoint)| endpoint.ready && *distance <= reach)
                .collect(),
        }
    }

    /// Returns the first step that an endpoint belongs to, or the number of steps.
    fn distance(&self, client: Locality<'_>, endpoint: Locality<'_>) -> usize {
        let is_unshared = |step: &Step| !step.level.is_shared(client, endpoint);
        self.0.iter().rposition(is_unshared).map_or(0, |at| at + 1)
    }
}

impl Step {
    fn new(level: Level) -> Self {
        Self {
            level,
            threshold: Threshold::Count(1),
        }
    }

    /// Whether the step has endpoints that the steps before it lack.
    fn may_follow(self, before: &[Self]) -> bool {
        before.iter().all(|step| match (step.level, self.level) {
            // A node is in one cluster only, unlike a zone.
            (Level::Cluster, level) => matches!(level, Level::Zone | Level::Region),
            (before, level) => before < level,
        })
    }
}

impl Level {
    const ALL: [Self; 4] = [Self::Node, Self::Zone, Self::Region, Self::Cluster];

    /// Returns the name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Zone => "zone",
            Self::Region => "region",
            Self::Cluster => "cluster",
        }
    }

    /// Whether an endpoint has this in common with a client. Clusters have nodes of the same name,
    /// but zones and regions are those of one provider.
    fn is_shared(self, client: Locality<'_>, endpoint: Locality<'_>) -> bool {
        let is_same = |one: Option<&str>, other: Option<&str>| one.is_some() && one == other;
        match self {
            Self::Node => !endpoint.in_other_cluster && is_same(client.node, endpoint.node),
            // A node is in one zone and a zone in one region, also if their labels are missing.
            Self::Zone => {
                Self::Node.is_shared(client, endpoint) || is_same(client.zone, endpoint.zone)
            }
            Self::Region => {
                Self::Zone.is_shared(client, endpoint) || is_same(client.region, endpoint.region)
            }
            Self::Cluster => !endpoint.in_other_cluster,
        }
    }
}

impl Threshold {
    fn is_reached(self, ready: usize, all: usize) -> bool {
        match self {
            Self::Count(count) => ready >= usize::from(count).max(1),
            Self::Percent(percent) => ready > 0 && ready * 100 >= all * usize::from(percent),
        }
    }
}

impl FromStr for Failover {
    type Err = FailoverError;

    fn from_str(text: &str) -> Result<Self, FailoverError> {
        let mut steps = Vec::new();
        for item in list_items(text) {
            let step: Step = item.parse()?;
            if !step.may_follow(&steps) {
                return Err(FailoverError::Order(step.level));
            }
            steps.push(step);
        }
        if steps.is_empty() {
            return Err(FailoverError::Empty);
        }
        if !steps.iter().any(|step| step.level == Level::Cluster) {
            steps.push(Step::new(Level::Cluster));
        }
        Ok(Self(steps))
    }
}

impl FromStr for Step {
    type Err = FailoverError;

    fn from_str(text: &str) -> Result<Self, FailoverError> {
        let (name, threshold) = match text.split_once('=') {
            Some((name, threshold)) => (name.trim_end(), Some(threshold.trim_start())),
            None => (text, None),
        };
        let mut levels = Level::ALL.into_iter();
        let level = levels.find(|level| level.as_str() == name);
        let level = level.ok_or_else(|| FailoverError::Level(shown(name)))?;
        Ok(match threshold {
            None => Self::new(level),
            Some(threshold) => Self {
                level,
                threshold: threshold.parse()?,
            },
        })
    }
}

impl FromStr for Threshold {
    type Err = FailoverError;

    fn from_str(text: &str) -> Result<Self, FailoverError> {
        let digits = text.strip_suffix('%').unwrap_or(text);
        // A sign is not part of a threshold.
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse::<u16>().ok().filter(|it| is_number && *it > 0);
        let threshold = match number {
            Some(count) if digits.len() == text.len() => Some(Self::Count(count)),
            Some(percent @ 1..=100) => u8::try_from(percent).ok().map(Self::Percent),
            _ => None,
        };
        threshold.ok_or_else(|| FailoverError::Threshold(shown(text)))
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests;
