//! Sets of ports in annotations and environment variables.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::list_items;

/// A set of ports, written and serialised as `25,587,3306-3310`. Sorted, without overlap and
/// without port 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortSet(Vec<RangeInclusive<u16>>);

/// Maximum number of ranges in an annotation, after overlapping and adjacent ranges are joined. The
/// node agent stores up to thirty kernel map entries for each, which slow down the start and end of
/// every other pod of the node; lists in use have fewer than twenty.
pub const MAX_RANGES: usize = 128;

/// Characters of an invalid item that an error shows: an annotation can hold 256 KiB of them.
const MAX_ITEM_SHOWN: usize = 64;

/// An invalid list of ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortSetError {
    /// An invalid port or range.
    #[error(
        "invalid port or range of ports {item:?}: expected 1-65535, as in \"25,587,3306-3310\""
    )]
    Item {
        /// The beginning of the item.
        item: String,
    },
    /// More than [`MAX_RANGES`] ranges.
    #[error(
        "too many separate ports and ranges of ports: {ranges}, at most {MAX_RANGES} are allowed; join them into ranges, as in 8000-8999"
    )]
    TooManyRanges {
        /// The number of ranges.
        ranges: usize,
    },
}

impl PortSet {
    /// Whether the port is in the set.
    pub fn contains(&self, port: u16) -> bool {
        let after = self.0.partition_point(|range| *range.start() <= port);
        after > 0 && self.0[after - 1].contains(&port)
    }

    /// Whether the set has no ports.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the ranges, sorted.
    pub fn ranges(&self) -> &[RangeInclusive<u16>] {
        &self.0
    }

    /// Adds a range. To build a set of many ranges, collect them, which sorts them once.
    pub fn insert(&mut self, range: RangeInclusive<u16>) {
        let (low, high) = (*range.start(), *range.end());
        if range.is_empty() {
            return;
        }
        let first = self
            .0
            .partition_point(|existing| existing.end().saturating_add(1) < low);
        let after = self
            .0
            .partition_point(|existing| *existing.start() <= high.saturating_add(1));
        let overlapping = self.0[first..after].iter();
        let joined = overlapping.fold(range, |joined, existing| {
            *joined.start().min(existing.start())..=*joined.end().max(existing.end())
        });
        self.0.splice(first..after, [joined]);
    }

    /// Checks the limit of annotations.
    ///
    /// # Errors
    ///
    /// The set has more than [`MAX_RANGES`] ranges.
    pub fn check_limit(&self) -> Result<(), PortSetError> {
        match self.0.len() {
            ranges if ranges > MAX_RANGES => Err(PortSetError::TooManyRanges { ranges }),
            _ => Ok(()),
        }
    }

    /// Parses a port or a range.
    ///
    /// # Errors
    ///
    /// The item is neither.
    pub fn parse_item(item: &str) -> Result<RangeInclusive<u16>, PortSetError> {
        let error = || PortSetError::Item {
            item: item.chars().take(MAX_ITEM_SHOWN).collect(),
        };
        let port = |text: &str| match text.trim().parse::<u16>() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(error()),
        };
        match item.split_once('-') {
            None => port(item).map(|port| port..=port),
            Some((low, high)) => {
                let range = port(low)?..=port(high)?;
                if range.is_empty() {
                    Err(error())
                } else {
                    Ok(range)
                }
            }
        }
    }
}

impl FromStr for PortSet {
    type Err = PortSetError;

    /// Parses a comma-separated list. Blanks and empty items are ignored; one invalid item makes
    /// the list invalid. The length is not limited: [`PortSet::check_limit`] limits the lists of
    /// annotations.
    fn from_str(text: &str) -> Result<Self, PortSetError> {
        list_items(text).map(Self::parse_item).collect()
    }
}

impl TryFrom<String> for PortSet {
    type Error = PortSetError;

    fn try_from(text: String) -> Result<Self, PortSetError> {
        text.parse()
    }
}

impl From<PortSet> for String {
    fn from(set: PortSet) -> Self {
        set.to_string()
    }
}

impl FromIterator<u16> for PortSet {
    fn from_iter<I: IntoIterator<Item = u16>>(ports: I) -> Self {
        let ports = ports.into_iter().filter(|port| *port > 0);
        ports.map(|port| port..=port).collect()
    }
}

/// Takes the time of one sort in any order: a set that grows by insertion alone would move its
/// ranges for every item of a list in descending order.
impl FromIterator<RangeInclusive<u16>> for PortSet {
    fn from_iter<I: IntoIterator<Item = RangeInclusive<u16>>>(ranges: I) -> Self {
        let mut ranges: Vec<RangeInclusive<u16>> = ranges
            .into_iter()
            .filter(|range| !range.is_empty())
            .collect();
        ranges.sort_unstable_by_key(|range| *range.start());
        let mut set = Self::default();
        // Each range is joined with the last one or appended.
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

impl fmt::Display for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match (range.start(), range.end()) {
                (low, high) if low == high => write!(f, "{comma}{low}")?,
                (low, high) => write!(f, "{comma}{low}-{high}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_parsed_joined_and_printed() {
        let check = |text: &str, expect: &str| {
            assert_eq!(text.parse::<PortSet>().unwrap().to_string(), expect);
        };
        check("", "");
        check(" 80 , ,443,", "80,443");
        check("443,80-90,85-100,101", "80-101,443");
        check("65535,1", "1,65535");
    }

    #[test]
    fn invalid_ports_are_rejected() {
        for bad in ["0", "65536", "90-80", "a", "80-", "-80", "1-2-3"] {
            assert!(bad.parse::<PortSet>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn insertion_joins_adjacent_ranges() {
        let check = |start: &str, range: RangeInclusive<u16>, expect: &str| {
            let mut set: PortSet = start.parse().unwrap();
            set.insert(range);
            assert_eq!(set.to_string(), expect);
        };
        check("", 5..=9, "5-9");
        check("10-20", 5..=8, "5-8,10-20");
        check("10-20", 5..=9, "5-20");
        check("10-20", 21..=21, "10-21");
        check("10-20", 22..=22, "10-20,22");
        check("10-20,30-40,50-60", 15..=55, "10-60");
        check("10-20,30-40,50-60", 22..=28, "10-20,22-28,30-40,50-60");
        check("10-20,30-40,50-60", 1..=65535, "1-65535");
        check("65535", 65534..=65535, "65534-65535");
        check("10-20", 12..=13, "10-20");
        check("10-20", RangeInclusive::new(40, 30), "10-20");
    }

    #[test]
    fn long_list_is_rejected_by_check_limit_only() {
        let list = |ranges: usize| -> PortSet {
            let items = (1..=ranges).map(|number| (2 * number).to_string());
            items.collect::<Vec<_>>().join(",").parse().unwrap()
        };
        assert_eq!(list(MAX_RANGES).check_limit(), Ok(()));
        let error = list(MAX_RANGES + 1).check_limit().unwrap_err();
        assert_eq!(error, PortSetError::TooManyRanges { ranges: 129 });
        assert_eq!(
            error.to_string(),
            "too many separate ports and ranges of ports: 129, at most 128 are allowed; join them into ranges, as in 8000-8999"
        );
        // Adjacent ranges are one range, whatever the number of items.
        let joined: PortSet = (1..=30_000).map(|port: u16| port..=port).collect();
        assert_eq!(
            (joined.to_string().as_str(), joined.check_limit()),
            ("1-30000", Ok(()))
        );
    }

    /// 256 KiB, the maximum of an annotation, in the order that moves the most: a list that is
    /// sorted for each item takes seconds here.
    #[test]
    fn longest_list_of_an_annotation_is_parsed() {
        let items = (1..=u16::MAX).rev().step_by(2);
        let text = items
            .map(|port| port.to_string())
            .collect::<Vec<_>>()
            .join(",");
        let set: PortSet = text.parse().unwrap();
        assert_eq!(set.ranges().len(), 32_768);
    }

    #[test]
    fn invalid_item_is_truncated_in_error() {
        let error = "x".repeat(10_000).parse::<PortSet>().unwrap_err();
        assert!(error.to_string().len() < 200, "{error}");
    }

    #[test]
    fn contains_includes_bounds_of_ranges() {
        let set: PortSet = "80-90,443".parse().unwrap();
        let inside: Vec<u16> = (0..=u16::MAX).filter(|port| set.contains(*port)).collect();
        assert_eq!(inside, (80..=90).chain([443]).collect::<Vec<_>>());
    }
}
