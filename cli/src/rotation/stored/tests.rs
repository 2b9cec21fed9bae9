//! The Secret of a rotation.

use std::time::SystemTime;

use mesh_cluster::certificate::authority::Authority;

use super::*;

fn stored() -> Stored {
    let now = SystemTime::now();
    let authority = Authority {
        control_namespace: "linkerd".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        anchor_lifetime: Authority::ANCHOR_LIFETIME,
        issuer_lifetime: Authority::ISSUER_LIFETIME,
    };
    let (old, new) = (
        authority.anchor(now).unwrap(),
        authority.anchor(now).unwrap(),
    );
    Stored {
        meta: ObjectMeta::default(),
        direction: Direction::Forward,
        is_compromised: true,
        old_anchors: old.certificate.clone(),
        issuer: authority.issuer(&new, now).unwrap(),
        anchor: new,
        cross_certificate: None,
        replaced: Some(Replaced {
            issuer: authority.issuer(&old, now).unwrap(),
            created_by: Some("me".to_owned()),
            anchor: Some(old),
        }),
    }
}

fn text(secret: &Secret) -> BTreeMap<String, String> {
    let data = secret.data.clone().unwrap().into_iter();
    data.map(|(key, bytes)| (key, String::from_utf8(bytes.0).unwrap()))
        .collect()
}

#[test]
fn secret_is_read_as_it_was_written() {
    let mut before = stored();
    for change in [
        |_: &mut Stored| {},
        |stored: &mut Stored| stored.direction = Direction::Back,
        |stored: &mut Stored| stored.cross_certificate = Some(stored.old_anchors.clone()),
        |stored: &mut Stored| stored.anchor.key.clear(),
        Stored::delete_old_keys,
        |stored: &mut Stored| stored.replaced.as_mut().unwrap().anchor = None,
        |stored: &mut Stored| stored.replaced = None,
    ] {
        change(&mut before);
        let secret = before.to_secret("linkerd");
        let after = Stored::read(&secret).unwrap();
        assert_eq!(after.has_old_keys(), before.has_old_keys());
        assert_eq!(after.direction, before.direction);
        assert!(after.is_compromised);
        assert_eq!(text(&after.to_secret("linkerd")), text(&secret));
    }
}

#[test]
fn old_keys_are_gone_from_the_secret_once_they_are_deleted() {
    let mut stored = stored();
    assert!(stored.has_old_keys());
    stored.delete_old_keys();
    assert!(!stored.has_old_keys());
    let entries = text(&stored.to_secret("linkerd"));
    let keys: Vec<&str> = entries
        .keys()
        .map(String::as_str)
        .filter(|key| key.ends_with(".key"))
        .collect();
    assert_eq!(keys, ["anchor.key", "issuer.key"]);
}

#[test]
fn invalid_entries_are_named() {
    let secret = stored().to_secret("linkerd");
    for (key, value, expected) in [
        (
            "state.json",
            None,
            "entry state.json of Secret linkerd-identity-rotation is invalid: it is missing",
        ),
        ("state.json", Some("{"), "EOF"),
        (
            "state.json",
            Some(r#"{"direction":"up","compromised":false}"#),
            "unknown variant",
        ),
        ("anchor.crt", Some("x"), "contains no certificate"),
        ("issuer.crt", None, "it is missing"),
        ("replaced-anchor.crt", None, "it is missing"),
    ] {
        let mut secret = secret.clone();
        let data = secret.data.as_mut().unwrap();
        match value {
            Some(value) => data.insert(key.to_owned(), ByteString(value.into())),
            None => data.remove(key),
        };
        let error = Stored::read(&secret).unwrap_err();
        assert!(error.contains(expected) && error.contains(key), "{error}");
    }
}

#[test]
fn keys_are_not_shown() {
    let stored = stored();
    let shown = format!("{stored:?}");
    assert!(!shown.contains("PRIVATE"), "{shown}");
}
