//! Sets of ports, as annotations and environment variables list them.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use serde::{Deserialize, Serialize};

/// Ports and ranges: `25,587,3306-3310`, and so it is serialised. Kept sorted and without overlap. Port 0 is in no set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortSet(Vec<RangeInclusive<u16>>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{item:?} is no port or range of ports (1-65535, as in \"25,587,3306-3310\")")]
pub struct PortSetError {
    pub item: String,
}

impl PortSet {
    pub fn contains(&self, port: u16) -> bool {
        let after = self.0.partition_point(|range| *range.start() <= port);
        after > 0 && self.0[after - 1].contains(&port)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn ranges(&self) -> &[RangeInclusive<u16>] {
        &self.0
    }

    pub fn insert(&mut self, range: RangeInclusive<u16>) {
        self.0.push(range);
        self.0.sort_by_key(|range| *range.start());
        let mut merged: Vec<RangeInclusive<u16>> = Vec::with_capacity(self.0.len());
        for range in self.0.drain(..) {
            match merged.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=*last.end().max(range.end());
                }
                _ => merged.push(range),
            }
        }
        self.0 = merged;
    }

    /// Reads one item, a port or a range.
    pub fn parse_item(item: &str) -> Result<RangeInclusive<u16>, PortSetError> {
        let error = || PortSetError {
            item: item.to_owned(),
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

    /// A comma list; blanks and empty items are tolerated, one bad item fails the whole list.
    fn from_str(text: &str) -> Result<Self, PortSetError> {
        let mut set = Self::default();
        for item in text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
        {
            set.insert(Self::parse_item(item)?);
        }
        Ok(set)
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
        let mut set = Self::default();
        for port in ports.into_iter().filter(|port| *port > 0) {
            set.insert(port..=port);
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
    fn parses_merges_and_prints() {
        let check = |text: &str, expect: &str| {
            assert_eq!(text.parse::<PortSet>().unwrap().to_string(), expect);
        };
        check("", "");
        check(" 80 , ,443,", "80,443");
        check("443,80-90,85-100,101", "80-101,443");
        check("65535,1", "1,65535");
    }

    #[test]
    fn refuses_what_is_no_port() {
        for bad in ["0", "65536", "90-80", "a", "80-", "-80", "1-2-3"] {
            assert!(bad.parse::<PortSet>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn contains_its_bounds_only() {
        let set: PortSet = "80-90,443".parse().unwrap();
        let inside: Vec<u16> = (0..=u16::MAX).filter(|port| set.contains(*port)).collect();
        assert_eq!(inside, (80..=90).chain([443]).collect::<Vec<_>>());
    }
}
