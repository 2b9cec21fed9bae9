//! Labels or annotations in one piece of memory. Thousands of Services have a dozen of each, whose
//! maps would take twice the memory of the process.

use mesh_objects::model::Labels;

/// Pairs of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Packed {
    texts: Box<str>,
    /// Where each key and each value ends.
    ends: Box<[u32]>,
}

impl Packed {
    pub(super) fn new(pairs: &Labels) -> Self {
        let all = || pairs.iter().flat_map(|(key, value)| [key, value]);
        let texts: String = all().map(String::as_str).collect();
        let ends = all().scan(0, |end: &mut u32, text| {
            // Objects of Kubernetes have a few MiB at most.
            *end = end.saturating_add(u32::try_from(text.len()).unwrap_or(u32::MAX));
            Some(*end)
        });
        Self {
            ends: ends.collect(),
            texts: texts.into(),
        }
    }

    /// Returns the pairs in the order of their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut start = 0;
        let mut next = move |end: u32| {
            let text = start..end as usize;
            start = text.end;
            self.texts.get(text).unwrap_or_default()
        };
        let (pairs, _) = self.ends.as_chunks();
        pairs
            .iter()
            .map(move |[key, value]| (next(*key), next(*value)))
    }

    pub(super) fn to_map(&self) -> Labels {
        let pairs = self.iter();
        pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    /// Returns the length of the texts.
    pub(super) fn size(&self) -> usize {
        self.texts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_what_they_were() {
        let pairs = [("a/b", "1"), ("c", ""), ("d", "ä\0ö"), ("é", "2")];
        let map: Labels = pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let packed = Packed::new(&map);
        assert_eq!(packed.iter().collect::<Vec<_>>(), pairs);
        assert_eq!(packed.to_map(), map);
        assert_eq!(packed.size(), 14);
        let empty = Packed::new(&Labels::new());
        assert_eq!(empty, Packed::default());
        assert_eq!(empty.iter().count(), 0);
    }
}
