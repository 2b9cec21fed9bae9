//! Responses of the Workload API, and what exceeds their bounds.

use super::*;

const ID: &str = "spiffe://example.org/vm";

fn id() -> Identity {
    Identity::parse(ID).unwrap()
}

fn entry(spiffe_id: &str, chain: &[u8]) -> X509svid {
    X509svid {
        spiffe_id: spiffe_id.to_owned(),
        x509_svid: chain.to_vec(),
        x509_svid_key: vec![2],
        bundle: vec![3],
        hint: String::new(),
    }
}

fn response(svids: impl Into<Vec<X509svid>>) -> X509svidResponse {
    X509svidResponse {
        svids: svids.into(),
        ..X509svidResponse::default()
    }
}

fn error_of(svids: impl Into<Vec<X509svid>>) -> String {
    let error = svid(response(svids), &id()).unwrap_err();
    match &error {
        SvidError::Field(field) => field.to_string(),
        _ => error.to_string(),
    }
}

/// Returns the names of the bundles that are used of a response with these, and the unused parts.
fn bundles(all: &[(&str, usize)]) -> (Vec<String>, Vec<String>) {
    let named = all
        .iter()
        .map(|(name, length)| ((*name).to_owned(), vec![1; *length]));
    let response = X509svidResponse {
        federated_bundles: named.collect(),
        ..response([entry(ID, &[1])])
    };
    let svid = svid(response, &id()).unwrap();
    let names = svid.federated.into_iter().map(|(name, _)| name);
    (names.collect(), svid.unused)
}

#[test]
fn first_entry_of_the_identity_is_used() {
    let svids = [
        entry("spiffe://example.org/other", &[9]),
        entry(ID, &[1]),
        entry(ID, &[8]),
    ];
    let svid = svid(response(svids), &id()).unwrap();
    assert_eq!(svid.chain, [1]);
    assert_eq!(*svid.key, [2]);
    assert_eq!(svid.bundle, [3]);
    assert_eq!((svid.federated, svid.unused), (Vec::new(), Vec::new()));
}

#[test]
fn entry_whose_hint_an_earlier_one_has_is_not_used() {
    let hinted = |hint: &str, entry: X509svid| X509svid {
        hint: hint.to_owned(),
        ..entry
    };
    let other = entry("spiffe://example.org/other", &[9]);
    let svids = [
        hinted("internal", other),
        hinted("internal", entry(ID, &[8])),
        hinted("external", entry(ID, &[1])),
    ];
    assert_eq!(svid(response(svids), &id()).unwrap().chain, [1]);
}

#[test]
fn response_without_the_identity_names_the_ones_it_has() {
    assert_eq!(error_of([]), "the Workload API sent no identity");
    let others = |count: usize| -> Vec<_> {
        let name = |at| format!("spiffe://example.org/{at}");
        (0..count).map(|at| entry(&name(at), &[1])).collect()
    };
    let error = error_of(others(7));
    for part in [
        "spiffe://example.org/4 and 2 more,",
        "but not spiffe://example.org/vm",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let long = entry(
        &format!("spiffe://example.org/{}", "a".repeat(1 << 20)),
        &[1],
    );
    assert!(error_of([long]).len() < 500);
}

#[test]
fn missing_parts_and_parts_beyond_their_bounds_are_named() {
    type Part = fn(&mut X509svid) -> &mut Vec<u8>;
    let parts: [(&str, Part, usize); 3] = [
        ("x509_svid", |svid| &mut svid.x509_svid, MAX_CHAIN),
        ("x509_svid_key", |svid| &mut svid.x509_svid_key, MAX_KEY),
        ("bundle", |svid| &mut svid.bundle, MAX_TRUST_BUNDLE),
    ];
    for (name, part, most) in parts {
        let with = |length: usize| {
            let mut changed = entry(ID, &[1]);
            *part(&mut changed) = vec![1; length];
            [entry("spiffe://example.org/other", &[1]), changed]
        };
        svid(response(with(most)), &id()).unwrap();
        assert_eq!(error_of(with(0)), format!("svids[1].{name}: is missing"));
        let too_long = error_of(with(most + 1));
        assert!(
            too_long.starts_with(&format!("svids[1].{name}: ")),
            "{too_long}"
        );
    }
    // A fault of another entry does not matter.
    let incomplete = X509svid {
        bundle: Vec::new(),
        ..entry("spiffe://example.org/other", &[])
    };
    svid(response([incomplete, entry(ID, &[1])]), &id()).unwrap();
}

#[test]
fn identities_beyond_the_bound_are_refused() {
    let many = |count: usize| vec![entry(ID, &[1]); count];
    svid(response(many(MAX_SVIDS)), &id()).unwrap();
    let expected = SvidError::TooMany(MAX_SVIDS + 1);
    assert_eq!(svid(response(many(MAX_SVIDS + 1)), &id()), Err(expected));
}

#[test]
fn bundles_of_foreign_domains_are_used_by_name() {
    let (used, unused) = bundles(&[("spiffe://b.example", 1), ("spiffe://a", MAX_TRUST_BUNDLE)]);
    assert_eq!(used, ["a", "b.example"]);
    assert_eq!(unused, Vec::<String>::new());
}

#[test]
fn unusable_bundles_of_foreign_domains_leave_the_identity() {
    for (name, length, reason) in [
        ("spiffe://example.org", 1, "own trust domain"),
        ("a", 1, "is not spiffe://"),
        ("spiffe://A", 1, "is not spiffe://"),
        ("spiffe://a/b", 1, "is not spiffe://"),
        ("spiffe://a", 0, "is empty"),
        ("spiffe://a", MAX_TRUST_BUNDLE + 1, "more than 1048576"),
    ] {
        let (used, unused) = bundles(&[(name, length), ("spiffe://b", 1)]);
        assert_eq!(used, ["b"]);
        assert_eq!(unused.len(), 1);
        assert!(unused[0].contains(reason), "{unused:?}");
    }
    let names: Vec<_> = (0..MAX_FEDERATED + 2)
        .map(|at| format!("spiffe://{at}"))
        .collect();
    let all: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let (used, unused) = bundles(&all);
    assert_eq!(used.len(), MAX_FEDERATED);
    assert_eq!(unused, ["2 bundles of trust domains beyond the first 128"]);
}

#[test]
fn revocation_lists_are_reported_as_not_applied() {
    let with_list = X509svidResponse {
        crl: vec![vec![1]],
        ..response([entry(ID, &[1])])
    };
    let unused = svid(with_list, &id()).unwrap().unused;
    assert_eq!(unused, ["revocation lists are not applied"]);
}

#[test]
fn key_is_not_printed() {
    let secret = X509svid {
        x509_svid_key: vec![171, 172, 173],
        ..entry(ID, &[1])
    };
    let printed = format!("{:?}", svid(response([secret]), &id()).unwrap());
    assert!(!printed.contains("171"), "{printed}");
}
