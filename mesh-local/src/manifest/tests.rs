//! Tests of reading valid and invalid manifests.

use super::*;

fn read(text: &str) -> Manifests {
    let mut manifests = Manifests::default();
    manifests.add_text(Path::new("a.yaml"), text);
    manifests
}

#[test]
fn objects_are_sorted_by_kind_and_namespace() {
    let manifests = read(
        "# first\n\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\nkind: Pod\nmetadata: {name: web, namespace: shop}\n\
         spec: {containers: []}\n---\n# only a comment\n---\nkind: Service\nmetadata: {name: web}\n---\nkind: Server\nmetadata: {name: x}\n",
    );
    assert_eq!(manifests.problems, []);
    assert!(manifests.namespaces.contains_key("shop"));
    assert!(manifests.pods.contains_key(&ObjectKey::new("shop", "web")));
    let service = ObjectKey::new("default", "web");
    assert!(manifests.services.contains_key(&service));
    let location = manifests
        .location("Pod", &ObjectKey::new("shop", "web"))
        .unwrap();
    assert_eq!(location.to_string(), "a.yaml:7");
    let location = manifests
        .location("Namespace", &ObjectKey::new("", "shop"))
        .unwrap();
    assert_eq!(location.line, 3);
}

#[test]
fn invalid_documents_are_reported_and_others_used() {
    let manifests = read(
        "kind: Pod\nmetadata: {name: good}\nspec: {containers: []}\n---\nkind: Pod\nmetadata: {name: bad, namespace: shop}\nspec:\n  \
         containers: 5\n---\nkind: [\n---\nkind: Job\nmetadata: {name: once}\n---\nkind: Pod\nmetadata: {name: last}\nspec: {containers: []}\n",
    );
    assert_eq!(manifests.pods.len(), 2);
    let texts: Vec<String> = manifests.problems.iter().map(Problem::to_string).collect();
    assert_eq!(texts.len(), 3, "{texts:#?}");
    let expected = [
        "a.yaml:8: Pod shop/bad: spec.containers",
        "a.yaml:1",
        "a.yaml:12: Job default/once: ",
    ];
    for (text, start) in texts.iter().zip(expected) {
        assert!(text.starts_with(start), "{texts:#?}");
    }
}

#[test]
fn duplicate_and_invalid_names_are_reported() {
    let manifests = read(
        "kind: Pod\nmetadata: {name: web}\nspec: {containers: []}\n---\nkind: Pod\nmetadata: {name: web, namespace: default}\n\
         spec: {containers: []}\n---\nkind: Pod\nmetadata: {name: ../etc}\nspec: {containers: []}\n---\nkind: Service\n",
    );
    assert_eq!(manifests.pods.len(), 1);
    let texts: Vec<String> = manifests.problems.iter().map(Problem::to_string).collect();
    assert_eq!(texts.len(), 3, "{texts:#?}");
    for part in ["a.yaml:5: Pod default/web", "at a.yaml:1"] {
        assert!(texts[0].contains(part), "{texts:#?}");
    }
    assert!(texts[1].contains("metadata.name"), "{texts:#?}");
    assert!(texts[2].contains("metadata.name"), "{texts:#?}");
}

#[test]
fn last_valid_version_is_retained() {
    let pod =
        |name: &str| format!("kind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: []}}\n");
    let last = read(&format!("{}---\n{}", pod("a"), pod("b")));
    let check = |text: &str, expect: &[&str]| {
        let mut now = read(text);
        now.retain_last_valid(&last);
        let names: Vec<&str> = now.pods.keys().map(|key| key.name.as_str()).collect();
        assert_eq!(names, expect, "{text}");
    };
    // Removed objects are not retained.
    check(&pod("a"), &["a"]);
    // An invalid document with a name affects only that object.
    check(
        &format!(
            "{}---\nkind: Pod\nmetadata: {{name: b}}\nspec: 5\n",
            pod("a")
        ),
        &["a", "b"],
    );
    check("kind: Pod\nmetadata: {name: b}\nspec: 5\n", &["b"]);
    // An invalid document without a name may be any object of the file.
    check(&format!("{}---\nkind: [\n", pod("a")), &["a", "b"]);
}
