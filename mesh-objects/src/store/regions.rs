//! The regions of zones, from the labels of nodes, for the lookups of the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::Node;

/// The regions of the zones that nodes are in. EndpointSlices name zones only.
#[derive(Debug, Default)]
pub(super) struct Regions {
    /// The number of nodes for each region of a zone. A zone is in one region; with several, labels
    /// of nodes are wrong.
    by_zone: BTreeMap<Arc<str>, BTreeMap<Arc<str>, usize>>,
}

impl Regions {
    pub(super) fn add(&mut self, node: &Node) {
        if let (Some(zone), Some(region)) = (&node.zone, &node.region) {
            let regions = self.by_zone.entry(zone.clone()).or_default();
            *regions.entry(region.clone()).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, node: &Node) {
        let (Some(zone), Some(region)) = (&node.zone, &node.region) else {
            return;
        };
        let Some(regions) = self.by_zone.get_mut(zone) else {
            return;
        };
        if let Some(nodes) = regions.get_mut(region) {
            *nodes -= 1;
            if *nodes == 0 {
                regions.remove(region);
            }
        }
        if regions.is_empty() {
            self.by_zone.remove(zone);
        }
    }

    /// Returns the region of a zone; of several the first by name, so that all replicas choose the
    /// same.
    pub(super) fn of(&self, zone: &str) -> Option<&Arc<str>> {
        self.by_zone.get(zone)?.keys().next()
    }

    /// Returns the zones with their regions.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.by_zone
            .iter()
            .filter_map(|(zone, regions)| Some((zone, regions.keys().next()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Name;

    fn node(zone: &str, region: &str) -> Node {
        let label = |text: &str| (!text.is_empty()).then(|| text.into());
        Node {
            name: Name::new("", "n"),
            zone: label(zone),
            region: label(region),
            pod_gateways: Vec::new(),
        }
    }

    #[test]
    fn zone_has_the_region_of_its_nodes_as_long_as_it_has_any() {
        let mut regions = Regions::default();
        for (zone, region) in [("a", "r"), ("a", "r"), ("b", "s"), ("", "t"), ("c", "")] {
            regions.add(&node(zone, region));
        }
        let all = |regions: &Regions| -> Vec<String> {
            let text = |(zone, region): (&Arc<str>, &Arc<str>)| format!("{zone}={region}");
            regions.iter().map(text).collect()
        };
        assert_eq!(all(&regions), ["a=r", "b=s"]);
        regions.remove(&node("a", "r"));
        assert_eq!(regions.of("a").map(|it| &**it), Some("r"));
        // A wrong label does not make the region depend on the order.
        regions.add(&node("a", "q"));
        assert_eq!(regions.of("a").map(|it| &**it), Some("q"));
        regions.remove(&node("a", "q"));
        assert_eq!(all(&regions), ["a=r", "b=s"]);
        regions.remove(&node("a", "r"));
        regions.remove(&node("c", ""));
        assert_eq!(all(&regions), ["b=s"]);
        assert_eq!(regions.of("a"), None);
        assert_eq!(regions.by_zone.len(), 1, "zones without a node stay");
    }
}
