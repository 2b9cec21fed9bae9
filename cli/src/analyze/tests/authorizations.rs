//! Policies without effect: their targets, requirements and ServiceAccounts.

use super::*;

/// Templates in a manifest have no proxy yet, so only running pods are taken into account.
#[test]
fn account_whose_pods_have_no_proxy_is_found() {
    let pod = |name: &str, phase: &str, container: &str| {
        format!(
            "\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, ownerReferences: [{{kind: ReplicaSet, name: r}}]}}\nspec: {{serviceAccountName: job, containers: [{{name: {container}}}]}}\nstatus: {{phase: {phase}}}\n---"
        )
    };
    let spec = "{identityRefs: [{kind: ServiceAccount, name: job}]}";
    let policy = policy("MeshTLSAuthentication", spec);
    for (pods, is_found) in [
        (pod("a", "Running", "app"), true),
        (pod("a", "Succeeded", "app"), false),
        (String::new(), false),
        (
            pod("a", "Running", "app") + &pod("b", "Running", "linkerd-proxy"),
            false,
        ),
    ] {
        let found = findings(&(pods + &policy));
        let is_reported = found
            .iter()
            .any(|finding| finding.code == "unmeshed-account");
        assert_eq!(is_reported, is_found, "{found:#?}");
    }
}

#[test]
fn policies_without_effect_are_found() {
    let all = "[{kind: NetworkAuthentication, name: all}]";
    for (kind, spec, code, field, text) in [
        (
            "AuthorizationPolicy",
            format!("{{targetRef: {{kind: Server, name: gone}}, requiredAuthenticationRefs: {all}}}"),
            "missing-reference",
            "spec.targetRef.name",
            "there is no Server shop/gone, so the policy has no effect",
        ),
        (
            "AuthorizationPolicy",
            "{targetRef: {kind: Namespace, name: other}, requiredAuthenticationRefs: []}".to_owned(),
            "missing-reference",
            "spec.targetRef.name",
            "use shop",
        ),
        (
            "AuthorizationPolicy",
            "{targetRef: {kind: Server, name: web-http}, requiredAuthenticationRefs: [{kind: MeshTLSAuthentication, name: gone}]}".to_owned(),
            "missing-reference",
            "spec.requiredAuthenticationRefs[0].name",
            "there is no MeshTLSAuthentication shop/gone, so the policy authorizes no client",
        ),
        (
            "MeshTLSAuthentication",
            "{identities: ['*']}".to_owned(),
            "no-effect",
            "",
            "no AuthorizationPolicy requires it",
        ),
        (
            "ServerAuthorization",
            "{server: {name: gone}, client: {unauthenticated: true}}".to_owned(),
            "missing-reference",
            "spec.server.name",
            "there is no Server shop/gone",
        ),
        (
            "ServerAuthorization",
            "{server: {selector: {matchLabels: {app: gone}}}, client: {unauthenticated: true}}".to_owned(),
            "selects-nothing",
            "spec.server.selector",
            "those of Servers and not of pods",
        ),
        (
            "HTTPLocalRateLimitPolicy",
            "{targetRef: {kind: Server, name: gone}, total: {requestsPerSecond: 1}}".to_owned(),
            "missing-reference",
            "spec.targetRef.name",
            "there is no Server shop/gone",
        ),
    ] {
        let object = format!("{kind} shop/policy");
        check(&policy(kind, &spec), [code, &object, field, text]);
    }
    let selects =
        "{server: {selector: {matchLabels: {app: web}}}, client: {unauthenticated: true}}";
    assert_eq!(findings(&policy("ServerAuthorization", selects)), []);
}

#[test]
fn server_of_another_namespace_is_named_with_it() {
    let server = server("admin", "{podSelector: {}, port: 1}").replace("shop", "ops");
    let spec = "{targetRef: {kind: Server, name: admin}, requiredAuthenticationRefs: [{kind: NetworkAuthentication, name: all}]}";
    check(
        &format!("{server}---{}", policy("AuthorizationPolicy", spec)),
        [
            "missing-reference",
            "AuthorizationPolicy shop/policy",
            "spec.targetRef.name",
            "Server admin is in namespace ops: create the policy there",
        ],
    );
}

/// Both kinds of authentication list ServiceAccounts, and both forms name one.
#[test]
fn account_that_does_not_exist_is_found_in_each_form() {
    let account =
        "\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: shop}\n";
    let reference = "{kind: ServiceAccount, name: gone}";
    let identity = "gone.shop.serviceaccount.identity.linkerd.cluster.local";
    for (kind, spec, field) in [
        (
            "MeshTLSAuthentication",
            format!("{{identityRefs: [{reference}]}}"),
            "spec.identityRefs[0].name",
        ),
        (
            "MeshTLSAuthentication",
            format!("{{identities: ['*.shop.serviceaccount.identity', {identity}]}}"),
            "spec.identities[1]",
        ),
        (
            "ServerAuthorization",
            "{server: {name: web-http}, client: {meshTLS: {serviceAccounts: [{name: web}, {name: gone}]}}}".to_owned(),
            "spec.client.meshTLS.serviceAccounts[1].name",
        ),
    ] {
        let found = findings(&format!("{account}---{}", policy(kind, &spec)));
        let missing: Vec<_> = found
            .iter()
            .filter(|finding| finding.code == "missing-account")
            .collect();
        let [finding] = missing[..] else {
            panic!("{found:#?}");
        };
        assert_eq!(finding.field, field);
        let expect = "there is no ServiceAccount shop/gone";
        assert!(finding.problem.contains(expect), "{finding:?}");
    }
}

#[test]
fn identity_that_no_client_has_is_found() {
    let foreign = |identity: &str| {
        let list = format!("identities: ['{identity}']");
        let mesh_tls = policy("MeshTLSAuthentication", &format!("{{{list}}}"));
        let spec = format!("{{server: {{name: web-http}}, client: {{meshTLS: {{{list}}}}}}}");
        let server = policy("ServerAuthorization", &spec);
        let machine = "\napiVersion: workload.linkerd.io/v1beta1\nkind: ExternalWorkload\nmetadata: {name: vm, namespace: shop}\nspec: {meshTLS: {identity: vm.example.com, serverName: vm}}\n";
        let accounts =
            "\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: shop}\n";
        let all = [SHOP, &mesh_tls, &server, machine, accounts];
        let mut objects = objects(&all.join("---\n"));
        let unknown = analyze(&objects);
        assert!(!unknown.iter().any(|it| it.code == "foreign-identity"));
        objects.set_values(values("identityTrustDomain: example.org"));
        let mut found = analyze(&objects);
        found.retain(|it| ["foreign-identity", "missing-account"].contains(&it.code));
        found
    };
    for identity in [
        "web.shop.serviceaccount.identity.linkerd.cluster.local",
        "gone.shop.serviceaccount.identity.other.example.org",
        "web.shop.identity.linkerd.example.org",
        "*.shop.serviceaccount.identity.linkerd.example.com",
        "*.ample.org",
    ] {
        let found = foreign(identity);
        let lines = found.iter().map(|it| (it.code, &*it.kind, &*it.field));
        let expect = [
            (
                "foreign-identity",
                "MeshTLSAuthentication",
                "spec.identities[0]",
            ),
            (
                "foreign-identity",
                "ServerAuthorization",
                "spec.client.meshTLS.identities[0]",
            ),
        ];
        assert_eq!(lines.collect::<Vec<_>>(), expect, "{identity}");
        let fix = "write it as ACCOUNT.NAMESPACE.serviceaccount.identity.linkerd.example.org";
        assert!(found.iter().all(|it| it.fix == fix), "{found:?}");
    }
    for identity in [
        "*",
        "Web.shop.serviceaccount.identity.linkerd.example.org",
        "*.shop.serviceaccount.identity.linkerd.example.org",
        "*.example.org",
        "spiffe://example.com/vm",
        // An ExternalWorkload has it.
        "vm.example.com",
        "*.example.com",
    ] {
        assert_eq!(foreign(identity), [], "{identity}");
    }
}

#[test]
fn identities_of_trusted_domains_are_not_foreign() {
    let trust = |namespace: &str, domain: &str| {
        format!(
            "\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: linkerd-trust-bundle-east\n  namespace: {namespace}\n  labels: {{multicluster.linkerd.io/trust-bundle-of: east}}\ndata: {{trust-domain: {domain}, endpoint-url: 'https://192.0.2.1:8443/', endpoint-profile: https_web}}\n"
        )
    };
    let found = |identity: &str, trust: &str, knows_trust: bool| {
        let mesh_tls = policy(
            "MeshTLSAuthentication",
            &format!("{{identities: ['{identity}']}}"),
        );
        let account =
            "\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: shop}\n";
        let mut objects = objects(&[SHOP, &mesh_tls, account, trust].join("---\n"));
        objects.set_values(values("identityTrustDomain: example.org"));
        if !knows_trust {
            objects.set_trust_unknown();
        }
        let codes = analyze(&objects).into_iter().map(|it| it.code);
        let codes = codes.filter(|it| ["foreign-identity", "missing-account"].contains(it));
        codes.collect::<Vec<_>>()
    };
    let trusted = trust("linkerd", "east.example");
    // Only the cluster itself knows its ServiceAccounts.
    for identity in [
        "gone.shop.serviceaccount.identity.linkerd.east.example",
        "*.shop.serviceaccount.identity.linkerd.East.example",
        "*.example",
        "vm.east.example",
    ] {
        assert_eq!(found(identity, &trusted, true), [""; 0], "{identity}");
        let elsewhere = trust("shop", "east.example");
        let refused = trust("linkerd", "East.example");
        for other in [elsewhere, refused] {
            let found = found(identity, &other, true);
            assert_eq!(found, ["foreign-identity"], "{identity}");
        }
        assert_eq!(found(identity, "\n", false), [""; 0], "{identity}");
    }
    for identity in [
        "web.shop.serviceaccount.identity.linkerd.west.example",
        "web.shop.serviceaccount.identity.linkerd.northeast.example",
    ] {
        let found = found(identity, &trusted, true);
        assert_eq!(found, ["foreign-identity"], "{identity}");
    }
    let own = "gone.shop.serviceaccount.identity.linkerd.example.org";
    for knows_trust in [true, false] {
        assert_eq!(found(own, &trusted, knows_trust), ["missing-account"]);
    }
}

/// A reference without group is to a kind of the Gateway API, which has no Server.
#[test]
fn policy_for_a_route_without_server_is_found() {
    let policy = policy(
        "AuthorizationPolicy",
        "{targetRef: {group: gateway.networking.k8s.io, kind: HTTPRoute, name: route}, requiredAuthenticationRefs: []}",
    );
    for parent in [
        "{group: core, kind: Service, name: web}",
        "{kind: Server, name: web-http}",
    ] {
        let other = route(GATEWAY, "HTTPRoute", &format!("{{parentRefs: [{parent}]}}"));
        check(
            &format!("{other}---{policy}"),
            [
                "no-effect",
                "AuthorizationPolicy shop/policy",
                "spec.targetRef",
                "has no Server as parent",
            ],
        );
    }
}

#[test]
fn rate_limits_that_do_not_apply_are_found() {
    let limit = |name: &str, server: &str| {
        policy(
            "HTTPLocalRateLimitPolicy",
            &format!(
                "{{targetRef: {{group: policy.linkerd.io, kind: Server, name: {server}}}, total: {{requestsPerSecond: 1}}}}"
            ),
        )
        .replace("name: policy", &format!("name: {name}"))
    };
    check(
        &format!("{}---{}", limit("a", "web-http"), limit("b", "web-http")),
        [
            "conflict",
            "HTTPLocalRateLimitPolicy shop/b",
            "spec.targetRef",
            "a is older",
        ],
    );
    let opaque = server(
        "db",
        "{podSelector: {matchLabels: {app: web}}, port: 5432, proxyProtocol: opaque}",
    );
    check(
        &format!("{opaque}---{}", limit("a", "db")),
        [
            "no-effect",
            "HTTPLocalRateLimitPolicy shop/a",
            "spec.targetRef",
            "proxyProtocol opaque",
        ],
    );
}
