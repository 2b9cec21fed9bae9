//! ServiceProfiles without effect.

use super::*;

const WEB: &str = "web.shop.svc.cluster.local";

fn profile(namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "\napiVersion: linkerd.io/v1alpha2\nkind: ServiceProfile\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n"
    )
}

#[test]
fn profile_with_another_domain_than_the_cluster_is_found() {
    let profile = profile("shop", "web.shop.svc.cluster.lan", "{routes: []}");
    for (domain, is_found) in [("cluster.lan", false), ("cluster.local", true)] {
        let mut objects = objects(&format!("{SHOP}---{profile}"));
        objects.set_values(values(&format!("clusterDomain: {domain}")));
        let found = analyze(&objects);
        let fixes: Vec<_> = found.iter().map(|finding| &*finding.fix).collect();
        let expect = ["create it as web.shop.svc.cluster.local"];
        assert_eq!(fixes == expect, is_found, "{domain}: {found:#?}");
    }
}

#[test]
fn profile_with_effect_has_no_findings() {
    let spec = "{retryBudget: {retryRatio: 0.2, minRetriesPerSecond: 0, ttl: 10s}, dstOverrides: [{authority: 'web.shop.svc.cluster.local:8080', weight: 1}], routes: [{name: a, isRetryable: true, condition: {method: GET, pathRegex: /a}}, {name: b, condition: {method: GET}}, {name: c, condition: {method: PUT}}]}";
    for (namespace, name) in [("shop", WEB), ("shop", "www.example.com"), ("bank", WEB)] {
        assert_eq!(analyzed(&profile(namespace, name, spec)), [], "{name}");
    }
}

/// Returns all findings, including the validation's.
fn analyzed(manifest: &str) -> Vec<Finding> {
    analyze(&objects(&format!("{SHOP}---{manifest}")))
}

#[test]
fn invalid_profile_is_found_with_a_fix() {
    let spec = "{routes: [{name: '', condition: {method: GET}}]}";
    let found = analyzed(&profile("shop", WEB, spec));
    let [finding] = &found[..] else {
        panic!("{found:#?}");
    };
    assert_eq!(
        (finding.code, &*finding.field, &*finding.problem),
        ("invalid", "spec.routes[0].name", "is empty")
    );
    assert_eq!(finding.fix, "write the name that the route has in metrics");
}

#[test]
fn profile_whose_name_is_not_that_of_a_service_is_found() {
    let external = "\napiVersion: v1\nkind: Service\nmetadata: {name: out, namespace: shop}\nspec: {type: ExternalName, externalName: example.com}\n";
    for (name, code, text) in [
        (
            "gone.shop.svc.cluster.local",
            "missing-reference",
            "there is no Service shop/gone",
        ),
        ("out.shop.svc.cluster.local", "no-effect", "ExternalName"),
        ("web", "no-effect", "name it web.shop.svc.cluster.local"),
        (
            "web.shop",
            "no-effect",
            "name it web.shop.svc.cluster.local",
        ),
        (
            "web.shop.svc",
            "no-effect",
            "not the full name of Service shop/web",
        ),
    ] {
        let object = format!("ServiceProfile shop/{name}");
        let manifest = format!("{external}---{}", profile("shop", name, "{}"));
        check(&manifest, [code, &object, "metadata.name", text]);
    }
}

#[test]
fn profiles_of_one_service_with_two_domains_are_found() {
    let both = format!(
        "{}---{}",
        profile("shop", WEB, "{}"),
        profile("shop", "web.shop.svc.example.org", "{}")
    );
    let found = findings(&both);
    let names: Vec<_> = found.iter().map(|it| (it.code, &*it.name)).collect();
    assert_eq!(
        names,
        [("conflict", WEB), ("conflict", "web.shop.svc.example.org")]
    );
}

#[test]
fn profile_in_a_namespace_without_clients_is_found() {
    let namespace = "\napiVersion: v1\nkind: Namespace\nmetadata: {name: bank}\n";
    let manifest = format!("{namespace}---{}", profile("bank", WEB, "{}"));
    check(
        &manifest,
        [
            "no-effect",
            "ServiceProfile bank/web.shop.svc.cluster.local",
            "metadata.namespace",
            "applies to clients of namespace bank, which has none",
        ],
    );
    let client = "\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: client, namespace: bank}\nspec: {template: {metadata: {labels: {app: client}}}}\n";
    assert_eq!(findings(&format!("{manifest}---{client}")), []);
}

#[test]
fn route_that_an_earlier_one_covers_is_found() {
    for routes in [
        "[{name: all, condition: {pathRegex: '/.*'}}, {name: b, condition: {method: GET}}]",
        "[{name: all, condition: {method: GET}}, {name: b, condition: {method: GET, pathRegex: /b}}]",
        "[{name: all, condition: {pathRegex: '/books/[^/]*'}}, {name: b, condition: {pathRegex: /books/new}}]",
    ] {
        let manifest = profile("shop", WEB, &format!("{{routes: {routes}}}"));
        check(
            &manifest,
            [
                "never-matches",
                "ServiceProfile shop/web.shop.svc.cluster.local",
                "spec.routes[1]",
                "spec.routes[0], \"all\", has all of its requests",
            ],
        );
    }
}

#[test]
fn retries_without_budget_are_found() {
    let budget = "retryBudget: {retryRatio: 0, minRetriesPerSecond: 0, ttl: 10s}";
    let with = |retryable: bool| {
        let spec = format!(
            "{{{budget}, routes: [{{name: a, isRetryable: {retryable}, condition: {{method: GET}}}}]}}"
        );
        profile("shop", WEB, &spec)
    };
    check(
        &with(true),
        [
            "no-effect",
            "ServiceProfile shop/web.shop.svc.cluster.local",
            "spec.retryBudget",
            "isRetryable of route \"a\" has no effect",
        ],
    );
    assert_eq!(findings(&with(false)), []);
}

#[test]
fn destination_of_a_split_that_does_not_exist_is_found() {
    let spec = "{dstOverrides: [{authority: 'gone.shop.svc.cluster.local:80', weight: 1}]}";
    check(
        &profile("shop", WEB, spec),
        [
            "missing-reference",
            "ServiceProfile shop/web.shop.svc.cluster.local",
            "spec.dstOverrides[0].authority",
            "there is no Service shop/gone",
        ],
    );
}
