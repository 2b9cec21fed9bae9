//! The choice of endpoints as tables, and its properties for any endpoints.

use proptest::prelude::*;

use super::*;

/// The client of most tables.
const CLIENT: Locality<'static> = Locality {
    node: Some("a1"),
    zone: Some("a"),
    region: Some("r"),
    in_other_cluster: false,
};

/// Returns endpoints from words such as `a1`, a node in the zone `a`, `!` before one that is not
/// ready, `east:b2` in another cluster. The zones `a` and `b` are in the region `r`, `c` in `s`,
/// and the region of `d` is unknown. `-` is an endpoint without a known place.
fn endpoints(words: &str) -> Vec<Placed<'_>> {
    let of_word = |word| {
        let (ready, word) = match str::strip_prefix(word, '!') {
            Some(word) => (false, word),
            None => (true, word),
        };
        let (cluster, node) = match word.split_once(':') {
            Some((cluster, node)) => (Some(cluster), node),
            None => (None, word),
        };
        let mut locality = Locality {
            in_other_cluster: cluster.is_some(),
            ..Locality::default()
        };
        if node != "-" {
            locality.node = Some(node);
            locality.zone = Some(&node[..1]);
            locality.region = match &node[..1] {
                "a" | "b" => Some("r"),
                "c" => Some("s"),
                _ => None,
            };
        }
        Placed { locality, ready }
    };
    words.split_whitespace().map(of_word).collect()
}

/// Returns the level in use and the endpoints that are used.
fn chosen(failover: &str, client: Locality<'_>, words: &str) -> (String, String) {
    let failover: Failover = failover.parse().unwrap();
    let choice = failover.choose(client, &endpoints(words));
    let used = words.split_whitespace().zip(&choice.used);
    let used: Vec<&str> = used.filter(|(_, used)| **used).map(|(it, _)| it).collect();
    let level = choice.level.map_or("all", Level::as_str);
    (level.to_owned(), used.join(" "))
}

#[test]
fn nearest_level_with_enough_ready_endpoints_is_used() {
    let all = "a1 a2 b1 c1 east:a1 east:c1";
    for (failover, words, level, used) in [
        ("node", all, "node", "a1"),
        ("zone", all, "zone", "a1 a2"),
        ("region", all, "region", "a1 a2 b1"),
        ("cluster", all, "cluster", "a1 a2 b1 c1"),
        ("node, zone, region, cluster", all, "node", "a1"),
        // The next level has the endpoints of the one before, too.
        ("node=2, zone", all, "zone", "a1 a2"),
        ("node=2, zone=3, region", all, "region", "a1 a2 b1"),
        ("zone=3", all, "cluster", "a1 a2 b1 c1"),
        ("cluster=5", all, "all", all),
        // Without one that is ready, a level is not used.
        ("node, zone", "!a1 a2 b1", "zone", "a2"),
        ("node, zone", "!a1 !a2 b1", "cluster", "b1"),
        (
            "zone, region",
            "!a1 !b1 c1 east:c1 east:a1",
            "cluster",
            "c1",
        ),
        ("zone", "!a1 !b1 east:a1 east:c1", "all", "east:a1 east:c1"),
        ("zone", "!a1 !east:a1", "all", ""),
        ("zone", "", "all", ""),
        // A share counts the endpoints of the level that are not ready.
        ("zone=50%", "a1 !a2 b1", "zone", "a1"),
        ("zone=51%", "a1 !a2 b1", "cluster", "a1 b1"),
        ("zone=100%", "a1 a2 b1", "zone", "a1 a2"),
        ("zone=1%", "!a1 !a2 b1", "cluster", "b1"),
        ("zone=50%", "b1", "cluster", "b1"),
        (
            "zone=50%, region=75%",
            "a1 !a2 !a3 b1 !b2 c1",
            "cluster",
            "a1 b1 c1",
        ),
        (
            "zone=50%, region=40%",
            "a1 !a2 !a3 b1 !b2 c1",
            "region",
            "a1 b1",
        ),
    ] {
        let expected = (level.to_owned(), used.to_owned());
        assert_eq!(
            chosen(failover, CLIENT, words),
            expected,
            "{failover}: {words}"
        );
    }
}

#[test]
fn conditions_are_dropped_from_left_to_right() {
    let all = "a1 b1 c1 east:a1 east:b1 east:c1";
    for (failover, used) in [
        // The own cluster first, by default.
        ("zone, region", "a1"),
        ("zone=9, region", "a1 b1"),
        ("zone=9, region=9", "a1 b1 c1"),
        ("zone=9, region=9, cluster=9", all),
        // Other clusters of the region before other regions.
        ("zone, cluster, region", "a1"),
        ("zone=9, cluster, region", "a1 b1"),
        ("zone=9, cluster=9, region", "a1 b1 east:a1 east:b1"),
        ("zone=9, cluster=9, region=9", all),
        // Other clusters of the zone first.
        ("cluster, zone", "a1"),
        ("cluster=9, zone", "a1 east:a1"),
        ("cluster=9, zone=9", all),
        ("node=9, cluster, zone", "a1"),
    ] {
        assert_eq!(chosen(failover, CLIENT, all).1, used, "{failover}");
    }
}

#[test]
fn unknown_locality_is_near_to_no_client() {
    let all = "a1 d1 - east:d1 east:-";
    let of_d = Locality {
        node: Some("d9"),
        zone: Some("d"),
        region: None,
        in_other_cluster: false,
    };
    for (failover, client, used) in [
        ("node, zone, region", Locality::default(), "a1 d1 -"),
        ("cluster, zone", Locality::default(), all),
        // Of a zone whose region is unknown, the endpoints of the zone are in the same region.
        ("region", of_d, "d1"),
        ("cluster=9, region", of_d, "d1 east:d1"),
        ("region", CLIENT, "a1"),
    ] {
        assert_eq!(chosen(failover, client, all).1, used, "{failover}");
    }
    // A node without labels shares zone and region with itself.
    let unlabelled = Locality {
        node: Some("n"),
        ..Locality::default()
    };
    let placed = |locality| Placed {
        locality,
        ready: true,
    };
    let namesake = Locality {
        in_other_cluster: true,
        ..unlabelled
    };
    let endpoints = [unlabelled, Locality::default(), namesake].map(placed);
    for failover in [
        "node",
        "zone",
        "region",
        "cluster=9, zone",
        "cluster=9, region",
    ] {
        let failover: Failover = failover.parse().unwrap();
        let choice = failover.choose(unlabelled, &endpoints);
        assert_eq!(choice.used, [true, false, false], "{failover:?}");
    }
}

#[test]
fn traffic_distributions_prefer_zone_or_node_of_the_own_cluster() {
    assert_eq!(Failover::same_zone(), "zone".parse().unwrap());
    assert_eq!(Failover::same_node(), "node, zone".parse().unwrap());
}

#[test]
fn blanks_and_empty_items_are_skipped() {
    let expected: Failover = "node=2,zone=50%,cluster".parse().unwrap();
    for text in ["node=2, zone=50%", " node = 2 ,, zone = 50% , "] {
        assert_eq!(text.parse(), Ok(expected.clone()), "{text}");
    }
    assert!(expected.has(Level::Cluster) && expected.has(Level::Node));
    assert!(!expected.has(Level::Region));
}

#[test]
fn invalid_lists_are_refused_with_what_is_wrong() {
    let long = "x".repeat(1_000);
    for (text, problem) in [
        ("", "has no level"),
        (" , ", "has no level"),
        ("rack", "\"rack\" is not a level"),
        ("Zone", "\"Zone\" is not a level"),
        ("=1", "\"\" is not a level"),
        ("zone=", "\"\" is not a threshold"),
        ("zone=0", "\"0\" is not a threshold"),
        ("zone=+1", "\"+1\" is not a threshold"),
        ("zone=65536", "\"65536\" is not a threshold"),
        ("zone=0%", "\"0%\" is not a threshold"),
        ("zone=101%", "\"101%\" is not a threshold"),
        ("zone=1%%", "\"1%%\" is not a threshold"),
        ("zone=%", "\"%\" is not a threshold"),
        ("zone=1=2", "\"1=2\" is not a threshold"),
        ("zone, node", "node adds no endpoints"),
        ("region, zone", "zone adds no endpoints"),
        ("zone, zone", "zone adds no endpoints"),
        ("cluster, node", "node adds no endpoints"),
        ("cluster, cluster", "cluster adds no endpoints"),
        (&long, "is not a level"),
    ] {
        let error = text.parse::<Failover>().unwrap_err().to_string();
        assert!(error.contains(problem), "{text}: {error}");
        assert!(error.len() < 200, "{error}");
    }
    for valid in ["zone=65535", "zone=100%", "zone=1%", "zone=007"] {
        assert!(valid.parse::<Failover>().is_ok(), "{valid}");
    }
}

fn failovers() -> impl Strategy<Value = Failover> {
    let orders = prop::sample::select(vec![
        vec![Level::Node],
        vec![Level::Zone],
        vec![Level::Cluster],
        vec![Level::Node, Level::Zone, Level::Region],
        vec![Level::Zone, Level::Cluster, Level::Region],
        vec![Level::Cluster, Level::Zone],
    ]);
    let threshold = prop_oneof![
        (1..5_u16).prop_map(|count| count.to_string()),
        (1..=100_u8).prop_map(|percent| format!("{percent}%")),
    ];
    (orders, prop::collection::vec(threshold, 3)).prop_map(|(order, thresholds)| {
        let steps = order.iter().zip(thresholds);
        let steps: Vec<String> = steps.map(|(level, it)| format!("{level}={it}")).collect();
        steps.join(",").parse().unwrap()
    })
}

fn words() -> impl Strategy<Value = Vec<String>> {
    let word = ("!?", "(east:)?", "[a-d][12]|-")
        .prop_map(|(ready, cluster, node)| format!("{ready}{cluster}{node}"));
    prop::collection::vec(word, 0..12)
}

fn choice(failover: &Failover, words: &[String]) -> (Option<Level>, Vec<bool>) {
    let text = words.join(" ");
    let choice = failover.choose(CLIENT, &endpoints(&text));
    (choice.level, choice.used)
}

/// The position of the level in use.
fn reach(failover: &Failover, level: Option<Level>) -> usize {
    let at = |level| failover.0.iter().position(|step| step.level == level);
    level.and_then(at).unwrap_or(failover.0.len())
}

proptest! {
    #[test]
    fn some_endpoint_is_used_while_any_is_ready_and_never_another(
        failover in failovers(), words in words(),
    ) {
        let (_, used) = choice(&failover, &words);
        let ready: Vec<bool> = words.iter().map(|word| !word.starts_with('!')).collect();
        prop_assert_eq!(used.iter().any(|it| *it), ready.iter().any(|it| *it));
        prop_assert!(used.iter().zip(&ready).all(|(used, ready)| !used || *ready));
    }

    /// Nothing nearer than a used endpoint is left out, however the others are.
    #[test]
    fn all_ready_endpoints_that_are_as_near_as_a_used_one_are_used(
        failover in failovers(), words in words(),
    ) {
        let text = words.join(" ");
        let endpoints = endpoints(&text);
        let used = failover.choose(CLIENT, &endpoints).used;
        let distance = |placed: &Placed<'_>| failover.distance(CLIENT, placed.locality);
        let far = endpoints.iter().zip(&used).filter(|(_, used)| **used);
        let far = far.map(|(placed, _)| distance(placed)).max().unwrap_or(0);
        for (placed, used) in endpoints.iter().zip(&used) {
            prop_assert!(!placed.ready || *used || distance(placed) > far);
        }
    }

    /// A deployment that grows or recovers moves no client further away.
    #[test]
    fn another_ready_endpoint_never_makes_clients_go_further(
        failover in failovers(), words in words(), added in "(east:)?([a-d][12]|-)",
    ) {
        let before = reach(&failover, choice(&failover, &words).0);
        let more: Vec<String> = words.iter().cloned().chain([added]).collect();
        prop_assert!(reach(&failover, choice(&failover, &more).0) <= before);
        for at in 0..words.len() {
            let mut recovered = words.clone();
            recovered[at] = words[at].trim_start_matches('!').to_owned();
            prop_assert!(reach(&failover, choice(&failover, &recovered).0) <= before);
        }
    }
}
