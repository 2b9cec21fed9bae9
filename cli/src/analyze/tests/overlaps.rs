//! Objects that have the same traffic or clients as others.

use super::*;

fn named(kind: &str, name: &str, spec: &str) -> String {
    policy(kind, spec).replace("name: policy,", &format!("name: {name},"))
}

fn egress(name: &str, networks: &str) -> String {
    let spec = format!("{{trafficPolicy: Allow, networks: {networks}}}");
    named("EgressNetwork", name, &spec)
}

#[test]
fn egress_networks_with_one_block_are_found_with_the_winner() {
    for (one, other, code, object, field, text) in [
        (
            "[{cidr: 203.0.113.0/24}]",
            "[{cidr: 203.0.113.0/24}]",
            "conflict",
            "EgressNetwork shop/b",
            "spec.networks[0].cidr",
            "EgressNetwork a also has 203.0.113.0/24 and wins",
        ),
        (
            "[{cidr: 203.0.0.0/16}]",
            "[{cidr: 203.0.113.0/24}]",
            "overlap",
            "EgressNetwork shop/a",
            "spec.networks[0].cidr",
            "does not apply to 203.0.113.0/24, which EgressNetwork b has with a longer prefix; if this is intended, add 203.0.113.0/24 to except",
        ),
        (
            "null",
            "null",
            "conflict",
            "EgressNetwork shop/b",
            "spec.networks",
            "EgressNetwork a also has all addresses",
        ),
    ] {
        let both = format!("{}---{}", egress("a", one), egress("b", other));
        check(&both, [code, object, field, text]);
    }
    for (one, other) in [
        (
            "[{cidr: 203.0.0.0/16, except: [203.0.113.0/24]}]",
            "[{cidr: 203.0.113.0/24}]",
        ),
        (
            "[{cidr: 203.0.113.0/24}]",
            "[{cidr: 203.0.114.0/24}, {cidr: '2001:db8::/32'}]",
        ),
        ("null", "[{cidr: 203.0.113.0/24}]"),
    ] {
        let both = format!("{}---{}", egress("a", one), egress("b", other));
        assert_eq!(findings(&both), [], "{one} {other}");
    }
    // The longest prefix of each address decides, and the age only between equal ones.
    let older = egress("a", "[{cidr: 203.0.0.0/16}, {cidr: 203.0.113.0/24}]");
    let newer = egress("b", "[{cidr: 203.0.113.0/24}]");
    let found = findings(&format!("{older}---{newer}"));
    let others: Vec<_> = found.iter().filter(|it| it.code != "no-effect").collect();
    let [conflict] = &others[..] else {
        panic!("{found:#?}");
    };
    assert_eq!((conflict.code, &*conflict.name), ("conflict", "b"));
    assert!(
        conflict
            .problem
            .contains("EgressNetwork a also has 203.0.113.0/24")
    );
    // All addresses of b's block are c's, in halves.
    let halves = egress("c", "[{cidr: 203.0.113.0/25}, {cidr: 203.0.113.128/25}]");
    let found = findings(&format!(
        "{}---{newer}---{halves}",
        egress("a", "[{cidr: 203.0.0.0/16}]")
    ));
    let of_a = found.iter().filter(|it| it.name == "a");
    let of_a: Vec<_> = of_a.map(|it| &*it.problem).collect();
    let is_c = |problem: &&str| problem.contains("EgressNetwork c");
    assert_eq!((of_a.len(), of_a.iter().all(is_c)), (2, true), "{found:#?}");
    let elsewhere = egress("b", "null").replace("namespace: shop", "namespace: bank");
    let both = format!("{}---{elsewhere}", egress("a", "null"));
    assert_eq!(findings(&both), []);
}

#[test]
fn block_that_another_one_contains_is_found() {
    let authorization = |networks: &str| {
        let spec = format!(
            "{{server: {{name: web-http}}, client: {{networks: {networks}, unauthenticated: true}}}}"
        );
        policy("ServerAuthorization", &spec)
    };
    for (networks, at, text) in [
        (
            "[{cidr: 10.0.0.0/8}, {cidr: 10.1.0.0/16}]",
            1,
            "networks[0], 10.0.0.0/8, has all",
        ),
        (
            "[{cidr: 10.1.0.1}, {cidr: 10.0.0.0/8}]",
            0,
            "10.1.0.1/32 has no effect",
        ),
        (
            "[{cidr: 10.0.0.0/8}, {cidr: 10.0.0.0/8}]",
            1,
            "10.0.0.0/8 has no effect",
        ),
        (
            "[{cidr: 10.0.0.0/8}, {cidr: 10.1.0.0/16, except: [10.1.2.0/24]}]",
            1,
            "also 10.1.2.0/24, which it excepts",
        ),
    ] {
        let field = format!("spec.client.networks[{at}]");
        check(
            &authorization(networks),
            ["no-effect", "ServerAuthorization shop/policy", &field, text],
        );
    }
    for networks in [
        "[{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}, {cidr: 10.1.2.0/24}]",
        "[{cidr: 10.0.0.0/8, except: [10.1.2.0/24]}, {cidr: 10.1.0.0/16}]",
        "[{cidr: 10.0.0.0/8}, {cidr: 'fd00::/8'}, {cidr: text}]",
    ] {
        assert_eq!(findings(&authorization(networks)), [], "{networks}");
    }
    for (kind, networks) in [
        (
            "EgressNetwork",
            "[{cidr: 203.0.0.0/16}, {cidr: 203.0.113.0/24}]",
        ),
        (
            "NetworkAuthentication",
            "[{cidr: 10.0.0.0/8}, {cidr: 10.1.0.0/16}]",
        ),
    ] {
        let found = findings(&policy(kind, &format!("{{networks: {networks}}}")));
        let fields: Vec<_> = found.iter().map(|it| &*it.field).collect();
        assert!(fields.contains(&"spec.networks[1]"), "{kind}: {found:#?}");
    }
}

#[test]
fn exception_outside_of_its_block_is_found() {
    let outside = policy(
        "NetworkAuthentication",
        "{networks: [{cidr: 10.0.0.0/8, except: [192.168.0.0/16]}]}",
    );
    let found = analyze(&objects(&outside));
    let invalid = found.iter().find(|it| it.code == "invalid").unwrap();
    assert_eq!(invalid.field, "spec.networks[0].except[0]");
    assert!(
        invalid.problem.contains("is not in 10.0.0.0/8"),
        "{invalid:?}"
    );
}

#[test]
fn policies_and_authorizations_with_the_same_clients_are_found() {
    let all = "{group: policy.linkerd.io, kind: NetworkAuthentication, name: all}";
    let account = "{kind: ServiceAccount, name: client}";
    let policy_of = |name: &str, references: &str| {
        let target = "{group: policy.linkerd.io, kind: Server, name: web-http}";
        let spec = format!("{{targetRef: {target}, requiredAuthenticationRefs: [{references}]}}");
        named("AuthorizationPolicy", name, &spec)
    };
    let authorizations = |other: &str| {
        let of = |client: &str| format!("{{server: {{name: web-http}}, client: {client}}}");
        format!(
            "{}---{}",
            named("ServerAuthorization", "a", &of("{unauthenticated: true}")),
            named("ServerAuthorization", "b", &of(other))
        )
    };
    let references = "spec.requiredAuthenticationRefs";
    // The policy `web` of the namespace requires `all`.
    for (objects, finding) in [
        (
            policy_of(
                "web-2",
                &all.replace("name: all", "name: all, namespace: shop"),
            ),
            [
                "duplicate",
                "AuthorizationPolicy shop/web-2",
                references,
                "AuthorizationPolicy web authorizes the same clients",
            ],
        ),
        (
            policy_of("a", all),
            [
                "duplicate",
                "AuthorizationPolicy shop/web",
                references,
                "AuthorizationPolicy a authorizes the same clients",
            ],
        ),
        (
            policy_of("a", &format!("{account}, {all}")),
            [
                "no-effect",
                "AuthorizationPolicy shop/a",
                references,
                "AuthorizationPolicy web already authorizes these clients",
            ],
        ),
        (
            authorizations("{unauthenticated: true}"),
            [
                "duplicate",
                "ServerAuthorization shop/b",
                "spec",
                "ServerAuthorization a authorizes the same clients",
            ],
        ),
    ] {
        check(&objects, finding);
    }
    let of_namespace = "{targetRef: {kind: Namespace, name: shop}, requiredAuthenticationRefs: [{kind: ServiceAccount, name: client}]}";
    let of_namespace = named("AuthorizationPolicy", "b", of_namespace);
    for objects in [
        policy_of("a", account),
        format!("{}---{of_namespace}", policy_of("a", account)),
        authorizations("{meshTLS: {identities: ['*']}}"),
    ] {
        assert_eq!(findings(&objects), [], "{objects}");
    }
}

const MACHINE: &str = "\napiVersion: workload.linkerd.io/v1beta1\nkind: ExternalWorkload\nmetadata: {name: vm, namespace: shop, labels: {app: vm}}\nspec: {meshTLS: {identity: vm, serverName: vm}, ports: [{name: http, port: 80}]}\n";

#[test]
fn services_of_external_workloads_are_analyzed() {
    let service = |app: &str, port: &str| {
        format!(
            "{MACHINE}---\napiVersion: v1\nkind: Service\nmetadata: {{name: vms, namespace: shop}}\nspec: {{clusterIP: 10.0.0.9, selector: {{app: {app}}}, ports: [{{port: 80, targetPort: {port}}}]}}\n"
        )
    };
    for port in ["http", "8080"] {
        assert_eq!(findings(&service("vm", port)), [], "{port}");
    }
    check(
        &service("vm", "admin"),
        [
            "no-such-port",
            "Service shop/vms",
            "spec.ports[0].targetPort",
            "no port of ExternalWorkload vm is a TCP port with the name \"admin\"",
        ],
    );
    check(
        &service("wm", "http"),
        [
            "selects-nothing",
            "Service shop/vms",
            "spec.selector",
            "selects no pods of namespace shop",
        ],
    );
}

#[test]
fn servers_of_external_workloads_are_analyzed() {
    let external = MACHINE;
    let of_vms = |name: &str, app: &str, port: &str| {
        server(
            name,
            &format!("{{externalWorkloadSelector: {{matchLabels: {{app: {app}}}}}, port: {port}}}"),
        )
    };
    check(
        &format!("{external}---{}", of_vms("a", "other", "80")),
        [
            "selects-nothing",
            "Server shop/a",
            "spec.externalWorkloadSelector",
            "selects no ExternalWorkloads of namespace shop",
        ],
    );
    let all = server("b", "{externalWorkloadSelector: {}, port: 80}");
    check(
        &format!("{external}---{}---{all}", of_vms("a", "vm", "http")),
        [
            "duplicate-port",
            "Server shop/b",
            "spec.port",
            "Server a is older",
        ],
    );
    let dated = |text: &str, day: u8| {
        let created = format!("metadata: {{creationTimestamp: '2026-01-0{day}T00:00:00Z', ");
        text.replacen("metadata: {", &created, 1)
    };
    let (newer, older) = (dated(&of_vms("a", "vm", "http"), 2), dated(&all, 1));
    check(
        &format!("{external}---{newer}---{older}"),
        [
            "duplicate-port",
            "Server shop/a",
            "spec.port",
            "Server b is older",
        ],
    );
    let other = server("b", "{externalWorkloadSelector: {}, port: 81}");
    let both = format!("{external}---{}---{other}", of_vms("a", "vm", "http"));
    assert_eq!(findings(&both), []);
    // Without ExternalWorkloads nothing is known about the selector.
    assert_eq!(findings(&of_vms("a", "other", "80")), []);
}
