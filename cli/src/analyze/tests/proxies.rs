//! Ports that bypass a proxy or deny every client, and proxies that the kubelet kills.

use super::*;

/// A namespace whose pods get a proxy, and a Service of [`SHOP`]'s pods.
const INJECTED: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {linkerd.io/inject: enabled}}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop}
spec: {clusterIP: 10.96.0.2, selector: {app: web}, ports: [{port: 8000, targetPort: http}, {port: 9090}, {port: 53, protocol: UDP}]}
";
const SKIP_INBOUND: &str = "config.linkerd.io/skip-inbound-ports";
const SKIP_OUTBOUND: &str = "config.linkerd.io/skip-outbound-ports";
const DEFAULTS: &str = "{}";

/// Returns the Deployment of a client with annotations and the rest of its pods' specification.
fn client(annotations: &str, spec: &str) -> String {
    format!(
        "\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: client, namespace: shop}}\nspec: {{template: {{metadata: {{labels: {{app: client}}, annotations: {{{annotations}}}}}, spec: {{containers: [{{name: main}}]{spec}}}}}}}\n"
    )
}

/// The same with one annotation.
fn client_with(key: &str, value: &str) -> String {
    client(&format!("{key}: '{value}'"), "")
}

/// Returns the shop whose policy admits only this ServiceAccount instead of all networks.
fn admits_account(shop: &str, account: &str) -> String {
    let removed = "apiVersion: policy.linkerd.io/v1alpha1\nkind: NetworkAuthentication\nmetadata: {name: all, namespace: shop}\nspec: {networks: [{cidr: 0.0.0.0/0}]}\n---\n";
    let network = "{group: policy.linkerd.io, kind: NetworkAuthentication, name: all}";
    let shop = shop.replace(removed, "");
    shop.replace(network, &format!("{{kind: ServiceAccount, {account}}}"))
}

/// Checks the code, object and field of each finding about the shop and manifests, where the mesh
/// has these values.
fn check(settings: &str, manifests: &[&str], expect: &[&str], text: &str) {
    let mut objects = objects(&manifests.join("\n---\n"));
    objects.set_values(values(settings));
    let mut findings = analyze(&objects);
    // The containers do not declare port 9090.
    findings.retain(|finding| !["no-such-port", "invalid"].contains(&finding.code));
    let lines = findings.iter();
    let lines: Vec<_> = lines
        .map(|it| format!("{} {} {}", it.code, it.object(), it.field))
        .collect();
    let texts = findings.iter();
    let texts: Vec<_> = texts
        .map(|it| format!("{}; {}", it.problem, it.fix))
        .collect();
    assert_eq!(lines, expect, "{manifests:?}\n{texts:?}");
    let is_found = expect.is_empty() || texts.iter().any(|found| found.contains(text));
    assert!(is_found, "{texts:?}\n  expected {text}");
}

#[test]
fn server_of_a_skipped_port_is_found() {
    let server = |port: &str| {
        let spec = format!("{{podSelector: {{matchLabels: {{app: client}}}}, port: {port}}}");
        server("other", &spec)
    };
    let check = |settings, client: &str, port, is_found, text| {
        let expect = ["skipped-port Server shop/other spec.port"];
        let expect = if is_found { &expect[..] } else { &[] };
        check(
            settings,
            &[SHOP, INJECTED, client, &server(port)],
            expect,
            text,
        );
    };
    let skips = client(&format!("{SKIP_INBOUND}: '9000-9010'"), "");
    let fix = "kubectl -n shop edit deployment client: set config.linkerd.io/skip-inbound-ports to a list without 9003 in its template, or delete the Server";
    check(DEFAULTS, &skips, "9003", true, fix);
    check(DEFAULTS, &skips, "9011", false, "");
    // The annotation replaces the chart's list.
    let (plain, of_chart) = (client("", ""), "proxyInit: {ignoreInboundPorts: '25'}");
    let problem = "port 25 of Deployment shop/client bypasses the proxy";
    check(of_chart, &plain, "25", true, problem);
    check(of_chart, &skips, "25", false, "");
    check(DEFAULTS, &plain, "4567", true, "");
    // Pods without a proxy have no policies.
    let off = client(
        &format!("linkerd.io/inject: disabled, {SKIP_INBOUND}: '9003'"),
        "",
    );
    check(DEFAULTS, &off, "9003", false, "");
}

/// The list of a template replaces it.
#[test]
fn list_of_the_namespace_applies_to_its_pods() {
    let namespace = INJECTED.replace("enabled}", &format!("enabled, {SKIP_INBOUND}: '9003'}}"));
    for (client, port, is_found) in [
        (client("", ""), 9003, true),
        (client("", ""), 9004, false),
        (client_with(SKIP_INBOUND, "9004"), 9003, false),
        (client_with(SKIP_INBOUND, "9004"), 9004, true),
    ] {
        let spec = format!("{{podSelector: {{matchLabels: {{app: client}}}}, port: {port}}}");
        let expect = ["skipped-port Server shop/other spec.port"];
        let expect = if is_found { &expect[..] } else { &[] };
        let manifests = [SHOP, &namespace, &client, &server("other", &spec)];
        let text = format!("port {port} of Deployment shop/client bypasses the proxy");
        check(DEFAULTS, &manifests, expect, &text);
    }
}

/// Its policies and routes have no effect for the same reason, and get no finding of their own.
#[test]
fn server_of_a_skipped_port_is_found_once_whatever_is_attached_to_it() {
    let skips = |ports: &str| {
        SHOP.replace(
            "config.linkerd.io/proxy-log-level: debug",
            &format!("{SKIP_INBOUND}: '{ports}'"),
        )
    };
    let found = ["skipped-port Server shop/web-http spec.port"];
    let text = "port 8080 of Deployment shop/web bypasses the proxy";
    // The Server selects the port by its name, and has a policy and a route.
    check(DEFAULTS, &[&skips("8080"), INJECTED], &found, text);
    check(DEFAULTS, &[&skips("8000-8079,8081"), INJECTED], &[], "");
    // Clients without an identity are denied neither there nor on a port without a Server.
    let strict = admits_account(&skips("8080,9090"), "name: other");
    let bypasses = client_with(SKIP_OUTBOUND, "8000,9090");
    let denied = "proxy: {defaultInboundPolicy: deny}";
    check(denied, &[&strict, INJECTED, &bypasses], &found, text);
}

#[test]
fn pods_are_advised_where_their_settings_come_from() {
    let server = server(
        "other",
        "{podSelector: {matchLabels: {app: job}}, port: 9003}",
    );
    let check = |container: &str, owner: &str, phase: &str, text: Option<&str>| {
        let pod = format!(
            "\napiVersion: v1\nkind: Pod\nmetadata: {{name: job, namespace: shop, labels: {{app: job}}, annotations: {{{SKIP_INBOUND}: '9003'}}{owner}}}\nspec: {{containers: [{{name: {container}}}]}}\nstatus: {{phase: {phase}}}\n"
        );
        let expect = ["skipped-port Server shop/other spec.port"];
        let expect = if text.is_some() { &expect[..] } else { &[] };
        let manifests = [SHOP, INJECTED, &pod, &server];
        check_defaults(&manifests, expect, text.unwrap_or_default());
    };
    let rollout = ", ownerReferences: [{kind: Rollout, name: job}]";
    let recreate = "in the manifest of the pod, then kubectl -n shop delete pod job";
    check("linkerd-proxy", "", "Running", Some(recreate));
    let describe = "which kubectl -n shop describe pod job names";
    check("linkerd-proxy", rollout, "Running", Some(describe));
    // It runs without a proxy, which another check reports, or no more.
    check("main", "", "Running", None);
    check("linkerd-proxy", "", "Succeeded", None);
}

fn check_defaults(manifests: &[&str], expect: &[&str], text: &str) {
    check(DEFAULTS, manifests, expect, text);
}

#[test]
fn client_that_bypasses_its_proxy_towards_a_port_that_requires_an_identity_is_found() {
    let check = |shop: &str, client: &str, is_found: bool, text: &str| {
        let namespace = if client.contains("namespace: bank") {
            "bank"
        } else {
            "shop"
        };
        let line = format!(
            "skipped-port Deployment {namespace}/client spec.template.metadata.annotations[{SKIP_OUTBOUND}]"
        );
        let expect = if is_found { vec![&*line] } else { Vec::new() };
        let bank = "apiVersion: v1\nkind: Namespace\nmetadata: {name: bank, annotations: {linkerd.io/inject: enabled}}\n";
        check(DEFAULTS, &[shop, INJECTED, bank, client], &expect, text);
    };
    let skips = |ports: &str| client(&format!("{SKIP_OUTBOUND}: '{ports}'"), "");
    // The policy of the shop admits all networks.
    check(SHOP, &skips("8000"), false, "");
    let strict = admits_account(SHOP, "name: other");
    let problem = "connections to port 8000 of Service shop/api bypass the proxy and have no identity, but Server shop/web-http requires one";
    check(&strict, &skips("8000-8100"), true, problem);
    let fix = "kubectl -n shop edit deployment client: set config.linkerd.io/skip-outbound-ports to a list without 8000 in its template";
    check(&strict, &skips("8000"), true, fix);
    // Clients do not connect to the port of the pods, except of a headless Service.
    check(&strict, &skips("8080"), false, "");
    let headless = format!(
        "{strict}---{}",
        INJECTED
            .replace("name: api", "name: pods")
            .replace("10.96.0.2", "None")
    );
    let problem_of_pods = "connections to port 8080 of Service shop/pods bypass the proxy";
    check(&headless, &skips("8080"), true, problem_of_pods);
    // A route that users attached may admit plain text.
    let probe = "
apiVersion: policy.linkerd.io/v1alpha1
kind: AuthorizationPolicy
metadata: {name: all, namespace: shop}
spec: {targetRef: {group: policy.linkerd.io, kind: HTTPRoute, name: web-get}, requiredAuthenticationRefs: [{group: policy.linkerd.io, kind: NetworkAuthentication, name: all}]}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: NetworkAuthentication
metadata: {name: all, namespace: shop}
spec: {networks: [{cidr: 0.0.0.0/0}]}
";
    check(&format!("{strict}---{probe}"), &skips("8000"), false, "");
    // The pods of the Service itself.
    let own = strict.replace(
        "config.linkerd.io/proxy-log-level: debug",
        &format!("{SKIP_OUTBOUND}: '8000'"),
    );
    check(&own, "", false, "");
    // Whether a client of another namespace uses the Service is only known if the policy names it.
    let other = skips("8000").replace("namespace: shop", "namespace: bank");
    check(&strict, &other, false, "");
    check(
        &admits_account(SHOP, "name: default, namespace: bank"),
        &other,
        true,
        problem,
    );
}

/// The list of the chart applies to all clients, so that the finding is about the Service.
#[test]
fn port_of_the_charts_list_that_requires_an_identity_is_found() {
    let strict = admits_account(SHOP, "name: other");
    let of_service = "skipped-port Service shop/api spec.ports[0]";
    let of_client = format!(
        "skipped-port Deployment shop/client spec.template.metadata.annotations[{SKIP_OUTBOUND}]"
    );
    let skips = "proxyInit: {ignoreOutboundPorts: '25,7999-8001'}";
    let plain = client("", "");
    let problem = "connections to port 8000 bypass the proxy of Deployment shop/client and of other clients (proxyInit.ignoreOutboundPorts) and have no identity, but Server shop/web-http requires one";
    let fix = "remove 8000 from proxyInit.ignoreOutboundPorts of the installation, or kubectl -n shop edit deployment client: set config.linkerd.io/skip-outbound-ports to a list without 8000 in its template";
    let second = plain.replace("client", "second");
    let check = |settings, shop: &str, client: &str, expect: &[&str], text| {
        check(settings, &[shop, INJECTED, client], expect, text);
    };
    check(skips, &strict, &plain, &[of_service], problem);
    check(skips, &strict, &plain, &[of_service], fix);
    // Once, however many clients there are.
    let both = format!("{plain}---{second}");
    check(skips, &strict, &both, &[of_service], problem);
    // The default list has other ports, and clients do not connect to the port of the pods.
    check(DEFAULTS, &strict, &plain, &[], "");
    let of_pods = "proxyInit: {ignoreOutboundPorts: '8080'}";
    check(of_pods, &strict, &plain, &[], "");
    // The policy admits clients without an identity.
    check(skips, SHOP, &plain, &[], "");
    // The Service has no client with that list: the annotation replaces it.
    let own = client_with(SKIP_OUTBOUND, "25");
    check(skips, &strict, &own, &[], "");
    check(skips, &strict, "", &[], "");
    // A client with the same list has no other fault, one with more ports has its own.
    let same = client_with(SKIP_OUTBOUND, "25,7999-8001");
    check(skips, &strict, &same, &[of_service], problem);
    let more = client_with(SKIP_OUTBOUND, "25,7999-8002");
    check(skips, &strict, &more, &[&of_client], "list without 8000");
    // Through the default policy.
    let default = "proxyInit: {ignoreOutboundPorts: '9090'}\nproxy: {defaultInboundPolicy: all-authenticated}";
    let by_default = "skipped-port Service shop/api spec.ports[1]";
    let problem = "but the default policy all-authenticated requires one";
    check(default, SHOP, &plain, &[by_default], problem);
}

#[test]
fn port_that_the_default_policy_denies_is_found() {
    let denied = "proxy: {defaultInboundPolicy: deny}";
    let check = |settings, namespace: &str, server: &str, is_found, text| {
        // Port 8000 leads to one with a Server.
        let expect = ["default-deny Service shop/api spec.ports[1]"];
        let expect = if is_found { &expect[..] } else { &[] };
        check(settings, &[SHOP, namespace, server], expect, text);
    };
    let other = "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n";
    let server_text = "create a Server for port 9090 and an AuthorizationPolicy for its clients";
    check(denied, INJECTED, other, true, server_text);
    let annotation =
        "kubectl -n shop edit deployment web: set config.linkerd.io/default-inbound-policy";
    check(denied, INJECTED, other, true, annotation);
    check(
        "proxy: {defaultInboundPolicy: all-authenticated}",
        INJECTED,
        other,
        false,
        "",
    );
    let policy = |name: &str| {
        let both = format!("enabled, config.linkerd.io/default-inbound-policy: {name}}}");
        INJECTED.replace("enabled}", &both)
    };
    check(DEFAULTS, &policy("deny"), other, true, server_text);
    check(denied, &policy("audit"), other, false, "");
    // Without a proxy there is no policy.
    check(
        denied,
        &INJECTED.replace("enabled", "disabled"),
        other,
        false,
        "",
    );
    let own = server("own", "{podSelector: {}, port: 9090}");
    check(denied, INJECTED, &own, false, "");
}

#[test]
fn wait_of_the_proxy_beyond_the_grace_period_is_found() {
    let key = "config.alpha.linkerd.io/proxy-wait-before-exit-seconds";
    let native = "config.linkerd.io/proxy-enable-native-sidecar";
    let field =
        "grace-period Deployment shop/client spec.template.spec.terminationGracePeriodSeconds";
    for (wait, is_native, spec, is_found) in [
        (29, false, "", false),
        (30, false, "", true),
        (30, false, ", terminationGracePeriodSeconds: 60", false),
        (5, false, ", terminationGracePeriodSeconds: 5", true),
        (0, false, ", terminationGracePeriodSeconds: 0", false),
        // It does not sleep.
        (30, true, "", false),
    ] {
        let annotations = format!("{key}: '{wait}', {native}: '{is_native}'");
        let client = client(&annotations, spec);
        let expect = if is_found { vec![field] } else { vec![] };
        let text = format!(
            "kubectl -n shop edit deployment client: set terminationGracePeriodSeconds to more than {wait}"
        );
        check(DEFAULTS, &[SHOP, INJECTED, &client], &expect, &text);
    }
    // A namespace or the chart sets it for its pods.
    let field = "grace-period Deployment shop/web spec.template.spec.terminationGracePeriodSeconds";
    let namespace = INJECTED.replace("enabled}", &format!("enabled, {key}: '40'}}"));
    let ordinary = "proxy: {nativeSidecar: false}";
    check(ordinary, &[SHOP, &namespace], &[field], "");
    let chart = "proxy: {nativeSidecar: false, waitBeforeExitSeconds: 40}";
    check(chart, &[SHOP, INJECTED], &[field], "");
}
